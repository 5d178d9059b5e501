"""A Whisper model of random weights, in the layout that faster-whisper loads.

`python -m tests.agent.tiny_whisper SOURCE FOLDER` makes one, in a process of its own: torch stays out of the caller's.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import ctranslate2
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")


def write(source: Path, folder: Path) -> None:
    """Make one in `folder`, by way of a checkpoint in `source`."""
    tokenizer = _tokenizer()
    ids = tokenizer.get_vocab()
    end = ids[END]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = WhisperConfig(
            vocab_size=len(ids),
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            decoder_start_token_id=ids[START],
            eos_token_id=end,
            bos_token_id=end,
            pad_token_id=end,
        )
        model = WhisperForConditionalGeneration(config)
        # Without them CTranslate2 reads where nothing is.
        languages = {language: ids[language] for language in TASKS[:2]}
        model.generation_config.alignment_heads = [[0, 0]]  # type: ignore[attr-defined]
        model.generation_config.lang_to_id = languages  # type: ignore[attr-defined]
        model.save_pretrained(source)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, unk_token=END).save_pretrained(source)
        WhisperFeatureExtractor().save_pretrained(source)
        files = ["tokenizer.json", "preprocessor_config.json"]
        ctranslate2.converters.TransformersConverter(str(source), copy_files=files).convert(str(folder))


def _tokenizer() -> Tokenizer:
    """Bytes, and the tokens that Whisper steers by."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    times = [f"<|{index * 0.02:.2f}|>" for index in range(1_501)]
    names = [END, START, *TASKS, "<|notimestamps|>", *times]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
