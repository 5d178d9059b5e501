"""Where a live text can be cut so that later text does not change the tokens before the cut.

Byte-level BPE never merges across pre-tokens, so a boundary lies between two pre-tokens that neither the normaliser
(NFC) nor `PRE_TOKEN` can join. Both depend on close neighbours only: the rules here read the kinds of at most two
characters before a boundary and two after it. White space that would be split differently at the end of the text is
followed by no boundary.

The rules miss some boundaries, as inside "'sup" or after a combining mark, whose tokens then come with the next
boundary. They report none that later text could remove.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from tokenizers import Regex, normalizers

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


@lru_cache(maxsize=8_192)
def _kind(ch: str) -> str:
    joins = unicodedata.category(ch).startswith("M") or "\u1160" <= ch <= "\u11ff"  # combining marks, Hangul jamo
    normal = _NFC.normalize_str(ch)
    return "?" if joins or len(normal) > 1 else str(_CLASS.normalize_str(normal))


def kinds(text: str) -> str:
    """The kind of each character: `a` letter, `0` number, `\\n` line break, space, `\\t` other white space, `!` other.

    `?` is a character that the normaliser may join to the one before it, reorder or decompose; it is never white space.
    Normalising the others keeps their kinds, whatever marks follow them.

    Args:
        text: without lone surrogates.
    """
    return "".join(map(_kind, text))


def last_boundary(kinds: str) -> int:
    """Index of the character after the last certain boundary; 0 if there is none.

    Args:
        kinds: of a text that begins with a pre-token, or of the end of such a text.
    """
    found = _LAST_BOUNDARY.match(kinds)
    return found.end() if found else 0
