"""The text tokenizer of a synthetic checkpoint: byte-level BPE with few merges and the released ids where they matter.

The prompt's slices count tokens, so `assistant`, `user` and a newline have to be one token each, at their released ids.
Ids that no merge makes are fillers, up to the special tokens, which are the released ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIRST_SPECIAL = 151_643
_FIXED_IDS = {"user": 872, "assistant": 77_091}
_WORDS = (
    *_FIXED_IDS,  # first, so that no other merge can cut into them
    *(" the", " a", " and", " of", " to", " you", " is", " in", " it", " for", " how", " are", " world", " wh", " th"),
    *("the", "and", "you", "that", "hello", "world", "ing", "er", "ould", "tion"),
    *("你好", "世界", "，", "。", "こん", "안녕", "ß", "é", "👋", "'s", "'ll", "...", "!\n", "  "),
)
_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>"),
    *("<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"),
    *("<tts_text_bos_single>", "<|audio_pad|>"),
)


def write_tokenizer(folder: Path) -> None:
    """Writes vocab.json, merges.txt and tokenizer_config.json."""
    merges = _merges()
    made = dict.fromkeys("".join(pair) for pair in merges)
    names = {token: index for index, token in enumerate(_byte_symbols().values())} | _FIXED_IDS
    free = iter(sorted(set(range(FIRST_SPECIAL)) - set(names.values())))
    names |= {token: next(free) for token in made if token not in names}
    names |= {f"filler{index}": index for index in free}
    vocabulary = dict(sorted(names.items(), key=lambda item: item[1]))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(_settings(), indent=2), "utf-8")


def _byte_symbols() -> dict[int, str]:
    """The character that stands for each byte, in the order of their ids: printable bytes first, then the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _merges() -> list[tuple[str, str]]:
    """The pairs that build each word from the left, each once, in order of rank."""
    symbol = _byte_symbols()
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        symbols = [symbol[byte] for byte in word.encode()]
        left = symbols[0]
        for right in symbols[1:]:
            merges[left, right] = None
            left += right
    return list(merges)


def _settings() -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    spoken = ("tool_call", "tool_response", "think", "fim_", "repo_name", "file_sep")  # tokens, but not control tokens
    added = {
        str(FIRST_SPECIAL + index): {"content": token, **plain, "special": not any(word in token for word in spoken)}
        for index, token in enumerate(_SPECIAL)
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131_072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
