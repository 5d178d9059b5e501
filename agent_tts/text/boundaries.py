"""Where a live text may be cut so that no text after it changes the tokens before it.

Byte-level BPE never merges across pre-tokens, so that is between two pre-tokens which neither the normaliser (NFC) nor
`PRE_TOKEN` can still make one of. Both look at close neighbours only, and so do the rules here: they read the kinds of
the characters and need at most two of them before a boundary and two after it. No boundary is after white space that
would be split in another way if the text ended there.

The rules may keep silent about a boundary, as inside "'sup" or after a combining mark: its tokens come with the next
boundary. They never name one that later text could take back.
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
# Letter, number, line break, other white space except the space itself, anything else. The regular expressions are the
# tokenizers library's own, because its Unicode tables decide and Python's may be of another version.
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
    """One kind a character: `a` letter, `0` number, `\\n` line break, space, `\\t` other white space, `!` any other.

    `?` is what the normaliser may join to the character before it, reorder, or take apart; it is never white space.
    What the normaliser makes of the others is of the kind told, whatever marks follow them.

    Args:
        text: without lone surrogates.
    """
    return "".join(map(_kind, text))


def last_boundary(kinds: str) -> int:
    """Index of the character after the last boundary that is certain; 0 if there is none.

    Args:
        kinds: of a text that begins a pre-token, or of the end of such a text.
    """
    found = _LAST_BOUNDARY.match(kinds)
    return found.end() if found else 0
