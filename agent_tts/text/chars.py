"""Classes of characters for reading aloud."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

Char = tuple[str, int]  # a character and its offset in the raw text
Sink = Callable[[str, int], None]  # takes one, or letters of a word with the offset of the first

NO_BREAK_SPACE = "\u00a0"
PICTOGRAPH = "\ufffc"  # stands for any emoji: spoken as white space, but not white space to the markdown around it
ARROW = "→"  # stands for any arrow
SOUND = "\x02"  # stands for a word that is given in IPA; no text has it: control characters are dropped
ZERO_WIDTH_JOINER = "\u200d"

LINE_BREAKS = frozenset("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
NO_BREAK_SPACES = frozenset("\u00a0\u2007\u202f")
JOINERS = frozenset("\u200c\u200d")

CLAUSE_MARKS = frozenset(".!?;:,—…؟،؛।॥")  # end a clause when white space follows
WIDE_CLAUSE_MARKS = frozenset("。！？，、；：｡､")  # end a clause by themselves
OPENERS = frozenset("「『（《〈【〔“")  # defer the end of a CJK clause until their closer
CLOSERS = frozenset("\"')]}*_”’»›」』）》〉】〕")  # belong to the clause they follow
_SMALL_KANA = frozenset("ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮーヽヾゝゞ々")
NOT_FIRST = CLAUSE_MARKS | WIDE_CLAUSE_MARKS | CLOSERS | _SMALL_KANA  # CJK text is not cut before them

_SILENT_CATEGORIES = frozenset(("Ps", "Pe", "Pi", "Pf", "Pd", "Mn", "Mc", "Me", "Cc", "Cf", "Zs", "Zl", "Zp"))
_SILENT = CLAUSE_MARKS | WIDE_CLAUSE_MARKS | frozenset("'\"·・¿¡")
_UNSPEAKABLE_CATEGORIES = frozenset(("Cc", "Cs"))
_DROPPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co"))
_PICTOGRAPH_CATEGORIES = frozenset(("So", "Sk", "Cn"))  # keeps circled digits, brackets and sharps of the same blocks
# The combining keycap and variation selectors.
_KEYCAP_OR_SELECTOR = re.compile("[\u20e3\ufe00-\ufe0f\U000e0100-\U000e01ef]")

# Han characters and kana, for a set of a regular expression.
CJK = (
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u3096\u309d-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00016fe3\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_CJK = re.compile(f"[{CJK}]")
_ARROWS = re.compile("[←-⇿➔➘-➯➱-➾⟰-⟿⤀-⥿⬀-⬑⬰-⭏⭠-⮿🠀-🣿]")
# Blocks of symbols that are not read aloud.
_PICTOGRAPHIC = re.compile("[\u231a\u231b\u23cf-\u23fa\u25a0-\u27bf\u2b00-\u2bff\ufffc\ufffd\U0001f000-\U0001fbff]")


def is_cjk(ch: str) -> bool:
    """A Han character or kana: scripts without spaces, where a character is about a syllable."""
    return ch >= "\u3005" and _CJK.match(ch) is not None


def is_word(ch: str) -> bool:
    """A letter or digit of a script that puts spaces between words."""
    return ch.isalnum() and not is_cjk(ch)


def is_silent(ch: str) -> bool:
    """White space, marks and punctuation: silent without a word beside them."""
    return ch in _SILENT or (unicodedata.category(ch) in _SILENT_CATEGORIES and ch != SOUND)


def is_unspeakable(ch: str) -> bool:
    """Control characters, which may be commands to an engine, and lone surrogates, which have no UTF-8."""
    return unicodedata.category(ch) in _UNSPEAKABLE_CATEGORIES and not ch.isspace()


def is_pictograph(ch: str) -> bool:
    """An emoji, an arrow or another sign of these blocks."""
    return unicodedata.category(ch) in _PICTOGRAPH_CATEGORIES and _PICTOGRAPHIC.match(ch) is not None


def extends(ch: str, before: str, length: int) -> bool:
    """Whether `ch` joins a cluster of `length` code points whose last is `before`."""
    if ch < "\u0300":
        return False
    if before == ZERO_WIDTH_JOINER or ch == ZERO_WIDTH_JOINER or "\U0001f3fb" <= ch <= "\U0001f3ff":
        return True
    if _is_regional_indicator(ch):  # two of them are a flag
        return length == 1 and _is_regional_indicator(before)
    return "\U000e0020" <= ch <= "\U000e007f" or unicodedata.category(ch).startswith("M")


def _is_regional_indicator(ch: str) -> bool:
    return "\U0001f1e6" <= ch <= "\U0001f1ff"


def normal(ch: str, before: str) -> str:
    """`ch` as the cleaner reads it.

    One character stands for all spaces, one for all newlines, no-break spaces, arrows and pictographs each; "" for what
    is neither visible nor audible. Joiners stay in the scripts that spell with them.
    """
    if " " <= ch <= "~":
        return ch
    if ch in LINE_BREAKS:
        return "\n"
    if ch in NO_BREAK_SPACES:
        return NO_BREAK_SPACE
    if ch.isspace():
        return " "
    if ch in JOINERS:
        return ch if "\u0600" <= before <= "\u0dff" or "\u1000" <= before <= "\u17ff" else ""
    if _ARROWS.match(ch):
        return ARROW
    category = unicodedata.category(ch)
    if category in _DROPPED_CATEGORIES or _KEYCAP_OR_SELECTOR.match(ch):
        return ""
    return PICTOGRAPH if is_pictograph(ch) else ch


def spread(said: str, offsets: Sequence[int]) -> list[Char]:
    """The characters of `said`, which replaces others, with the offsets of those, in order."""
    last = len(said) - 1
    return [(ch, offsets[place * len(offsets) // len(said) if place < last else -1]) for place, ch in enumerate(said)]
