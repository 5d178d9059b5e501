"""The text tokenizer of a synthetic checkpoint: byte-level BPE with few merges and the released ids where they matter.

The prompt's slices count tokens, so `assistant`, `user` and a newline have to be one token each, at their released ids.
Ids that no merge makes are fillers, up to the special tokens, which are the released ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_tts.bench.checkpoint_config import ENTRIES

FIRST_SPECIAL = 151_643
_FIXED_IDS: dict[str, int] = ENTRIES["tokens"]["fixed"]
_WORDS = (*_FIXED_IDS, *ENTRIES["tokens"]["words"])  # fixed ones first, so that no other merge can cut into them


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
        for index, token in enumerate(ENTRIES["tokens"]["special"])
    }
    settings: dict[str, Any] = ENTRIES["tokenizer"]
    return settings | {"added_tokens_decoder": added}
