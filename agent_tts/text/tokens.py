"""The tokens of Qwen3-TTS: byte-level BPE of a whole text, or of a live text.

A live text is cut where later text does not change the tokens before the cut. Byte-level BPE never merges across
pre-tokens, so a boundary lies between two pre-tokens that neither the normaliser (NFC) nor `PRE_TOKEN` can join. Both
depend on close neighbours only: the rules read the kinds of at most two characters before a boundary and two after it.
White space that would be split differently at the end of the text is followed by no boundary.

The rules miss some boundaries, as inside "'sup" or after a combining mark, whose tokens then come with the next
boundary. They report none that later text could remove.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Model

from agent_tts.errors import SettingsError

# How the tokenizer of Qwen2, and so of Qwen3-TTS, splits a normalised text.
PRE_TOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_NFC = normalizers.NFC()
# Letter, number, line break, white space other than the space, anything else. The regular expressions are those of the
# tokenizers library, whose Unicode version may differ from Python's.
_CLASS = normalizers.Sequence(
    [
        normalizers.Replace(Regex(r"\p{L}"), "a"),
        normalizers.Replace(Regex(r"\p{N}"), "0"),
        normalizers.Replace(Regex(r"[\r\n]"), "\n"),
        normalizers.Replace(Regex(r"[^\S\n ]"), "\t"),
        normalizers.Replace(Regex(r"[^\sa0]"), "!"),
    ]
)
_LAST_BOUNDARY = re.compile(
    r"""(?s:.*)(?:
        (?<=a)(?=[^a?])       # letters end,
      | (?<=0)                # a number is a pre-token of its own, and no mark composes with it,
      | (?<=[!?])(?=[ \t])    # what is neither ends at white space, but takes line breaks along,
      | (?<=[!\ ]!)(?=a)      # and only a single one without a space before it leads a word;
      | (?<=\n)(?=\S)         # line breaks lead nothing,
      | (?<=\s)(?=[ \t]\S)    # of other white space the last may lead what follows: they stay together
    )""",
    re.VERBOSE,
)

_BYTES = pre_tokenizers.ByteLevel.alphabet()  # the characters that stand for the 256 bytes
_CONTEXT = 2  # characters before a boundary that the rules read
MOST_KNOWN, MOST_KNOWN_CHARS = 20_000, 24  # words whose ids are kept, 5 MB at most; of longer ones few come again
_SURROGATE = re.compile("[\ud800-\udfff]")  # in Python's str they are always lone ones


class Tokenizer:
    """The tokenizer of a checkpoint without its added tokens, so that no text becomes a control token.

    "<|im_start|>" in a text is twelve ordinary characters. A lone surrogate, which has no UTF-8, is read as U+FFFD.
    """

    def __init__(self, model: BPE) -> None:
        self._pipeline = tokenizers.Tokenizer(model)
        self._pipeline.normalizer = _NFC
        self._pipeline.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PRE_TOKEN), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        # Words come again and again, and one by one: a lookup takes a tenth of the time.
        self._known = lru_cache(MOST_KNOWN)(self._ids)
        self._assistant = self.encode("assistant\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The tokenizer of a checkpoint: vocab.json with merges.txt, or tokenizer.json; else `SettingsError`."""
        try:
            model = _read(folder)
        except OSError as error:
            wanted = "vocab.json with merges.txt, or tokenizer.json"
            raise SettingsError(f"{Path(error.filename).name}: {error.strerror}; a checkpoint has {wanted}") from error
        except Exception as error:  # the library raises nothing narrower
            raise SettingsError(f"the checkpoint's text tokenizer is broken: {error}") from error
        if not isinstance(model, BPE) or any(model.token_to_id(byte) is None for byte in _BYTES):
            raise SettingsError("the checkpoint's text tokenizer is not byte-level BPE: some bytes have no token")
        return cls(model)

    @cached_property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(map(int, self._pipeline.get_vocab().values()))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; U+FFFD stands for a part of a character."""
        text: str = decoders.ByteLevel().decode([self._pipeline.id_to_token(token) for token in tokens])
        return text

    def encode(self, text: str) -> list[int]:
        return list(self._known(text) if len(text) <= MOST_KNOWN_CHARS else self._ids(text))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._pipeline.encode(_scalars(text)).ids)

    def role(self, im_start: int) -> tuple[int, ...]:
        """The ids before the ids of every text: `<|im_start|>assistant` and a line break.

        The reference implementation tokenises role and text as one string: a line break at the start of the text merges
        with the role's, and its slices then cut into the text.
        """
        return (im_start, *self._assistant)

    def instruction(self, text: str, im_start: int, im_end: int) -> tuple[int, ...]:
        """The ids of an instruction: `<|im_start|>user`, a line break, the text, `<|im_end|>`, a line break."""
        return (im_start, *self.encode("user\n"), *self.encode(text), im_end, *self.encode("\n"))


class TokenFeed:
    """Text in, in any pieces; tokens out as soon as no later text can change them.

    The tokens are those of the whole text, however it is split. Text after a `flush` is tokenised as a new text. Time
    is linear; only the text after the last boundary is held back: a word, or a clause of a script without spaces.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: list[str] = []  # pieces of the text without tokens yet, joined only at a boundary
        self._context = ""  # kinds of the last characters held

    @property
    def held(self) -> int:
        """Characters whose tokens later text may change."""
        return sum(map(len, self._held))

    def append(self, text: str) -> list[int]:
        """More text; returns the ids that are now certain."""
        text = _scalars(text)
        recent = self._context + kinds(text)
        boundary = last_boundary(recent)
        self._held.append(text)
        self._context = recent[boundary:][-_CONTEXT:]
        if not boundary:
            return []
        held = "".join(self._held)
        end = len(held) - (len(recent) - boundary)
        self._held = [held[end:]]
        return self._tokenizer.encode(held[:end])

    def flush(self, *, strip: bool = False) -> list[int]:
        """All text so far is complete; returns the ids of everything that was held back. `strip`: but for white space
        at its end, of which nothing else has been returned.
        """
        held = "".join(self._held)
        self._held.clear()
        self._context = ""
        return self._tokenizer.encode(held.rstrip() if strip else held)


def _scalars(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _read(folder: Path) -> Model:
    vocab, merges, whole = (folder / name for name in ("vocab.json", "merges.txt", "tokenizer.json"))
    if whole.exists() and not vocab.exists():
        return tokenizers.Tokenizer.from_str(whole.read_text("utf-8")).model
    ids = json.loads(vocab.read_text("utf-8"))
    lines = merges.read_text("utf-8").split("\n")
    pairs = [tuple(line.split()) for line in lines[lines[0].startswith("#version:") :] if line.strip()]
    return BPE(ids, pairs)


@lru_cache(maxsize=8_192)
def _kind(ch: str) -> str:
    joins = unicodedata.category(ch).startswith("M") or "\u1160" <= ch <= "\u11ff"  # combining marks, Hangul jamo
    normal = _NFC.normalize_str(ch)
    return "?" if joins or len(normal) > 1 else str(_CLASS.normalize_str(normal))


def kinds(text: str) -> str:
    """The kind of each character: `a` letter, `0` number, `\\n` line break, space, `\\t` other white space, `!` other.

    `?` is a character that the normaliser may join to the one before it, reorder or decompose; it is never white space.
    Normalising the others keeps their kinds, whatever marks follow them. The text has no lone surrogates.
    """
    return "".join(map(_kind, text))


def last_boundary(kinds: str) -> int:
    """Index after the last certain boundary, in the kinds of a text that starts with a pre-token; 0: none."""
    found = _LAST_BOUNDARY.match(kinds)
    return found.end() if found else 0
