"""Generates a Whisper model in the layout that faster-whisper loads. Its transcript is always `SAYS`.

`python -m tests.agent.tiny_whisper SOURCE FOLDER` runs it in its own process, to keep torch out of the caller.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

SAYS = ("please", "stop")

# The English models' numbers. CTranslate2 derives the languages from the vocabulary size; with another size it reads
# out of range.
WORDS, LANGUAGES, TIMES = 50_256, 99, 1_501
END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
SURE = 100.0  # weight of a position relative to the token at it


def write(source: Path, folder: Path) -> None:
    """Write a model to `folder`, converted from a checkpoint in `source`."""
    import ctranslate2
    from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = _tokenizer()
        _model(tokenizer).save_pretrained(source)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, unk_token=END).save_pretrained(source)
        WhisperFeatureExtractor().save_pretrained(source)
        files = ["tokenizer.json", "preprocessor_config.json"]
        ctranslate2.converters.TransformersConverter(str(source), copy_files=files).convert(str(folder))


def _model(tokenizer: Any) -> Any:
    """One layer whose decoder uses only the position of the next token."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    ids = tokenizer.get_vocab()
    end = ids[END]
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(ids),
            d_model=64,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=1,
            decoder_attention_heads=1,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            decoder_start_token_id=ids[START],
            eos_token_id=end,
            bos_token_id=end,
            pad_token_id=end,
        )
    )
    model.generation_config.alignment_heads = [[0, 0]]
    decoder = model.model.decoder
    with torch.no_grad():
        for layer in decoder.layers:
            for part in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
                part.weight.zero_()
                part.bias.zero_()
        tokens = decoder.embed_tokens.weight  # f32[vocabulary, 64]; also the output weights
        tokens.normal_()
        # Output: a time token, the words, then end tokens.
        wanted = torch.tensor([ids["<|0.00|>"], *(ids[f"Ġ{word}"] for word in SAYS)])
        places = decoder.embed_positions.weight  # f32[448, 64]
        places[:] = SURE * tokens[end]
        places[: len(wanted)] = SURE * tokens[wanted]
    return model


def _tokenizer() -> Any:
    """Bytes, words, and Whisper's control tokens at the ids of its English models."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"Ġ{word}" for word in SAYS)]
    words += [f"Ġword{number}" for number in range(len(words), WORDS)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    languages = [f"<|language{number}|>" for number in range(LANGUAGES)]
    times = [f"<|{number * 0.02:.2f}|>" for number in range(TIMES)]
    names = [END, START, *languages, *TASKS, *times]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
