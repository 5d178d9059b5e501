"""Pieces of text that distinguish tokenizers."""

from __future__ import annotations

# fmt: off
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</tool_call>", "<tts_pad>", "<|audio_pad|>", "<|",
    "|>",
]
PIECES = [
    "a", "Hello", " world", ". ", "don't", "'s", "'S", "'ll", "'r", "e", "'", "''", " '", "'ſ", "camelCase", "ﬁ", "ß",
    "_", " ", "  ", "\t", "\u00a0", "\u3000", "\u2000", "\n", "\r", "\r\n", "\x85", "\u2028", "\v", "\x1c", "\0",
    "\x01",
    "\u200b", "\ufeff", "!", "!!", "...", "?!\n", " $", "-", "/", "€", "5", "42", "3.14", "٣", "Ⅷ", "½", "你好", "世界",
    "，", "。", "こんにちは", "カ\u3099", "ー", "한국어",
    "\u1112", "\u1161", "\u11ab", "하\u11ab", "가", "\u0301", "e\u0301",
    "a\u0323\u0302", "\u0302\u0323", "=\u0338", "\u212b", "\u0344", "\u0958", "क\u093f", "\u093c", "\u094d",
    "ท\u0e35\u0e48", "שלום", "\u05b8", "مرحبا", "\u0651\u064e", "\u202e", "👋", "👍🏽", "🏽", "👩\u200d💻", "\u200d",
    "❤\ufe0f", "\ufe0f", "🇩🇪", "1\ufe0f\u20e3", "\uf900", "\ufffd",
]
# fmt: on
KINDS = "as0'! \t\n\r\u0301\u1161\u2000"  # a character or two of each kind, mixed at random
