"""What a word is, in every script: the one rule for what is told of a text, heard and gone on from. Pure.

In scripts with spaces it is what stands between white space. In scripts without it is one character (Han, kana) or one
cluster, a letter with its marks (Thai and its kin); other letters and digits between these are words of their own.
Punctuation belongs to the word before it, an opening bracket or quote and a sign of money to the one behind it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from agent_tts.text.chars import CJK

# Blocks of scripts without spaces between words beside Han and kana (Unicode's line breaking classes SA, AK, AS, and
# Tibetan and Yi): Thai, Lao, Tibetan, Myanmar, Khmer, Tai Le, New Tai Lue, Tai Tham, Balinese, Yi, Javanese, Tai Viet.
_BLOCKS = (
    *(range(0x0E00, 0x10A0), range(0x1780, 0x1800), range(0x1950, 0x19E0), range(0x1A20, 0x1AB0)),
    *(range(0x1B00, 0x1B80), range(0xA000, 0xA490), range(0xA980, 0xAA00), range(0xAA60, 0xAAE0)),
)
CLUSTERED = frozenset(chr(code) for block in _BLOCKS for code in block)  # of these, letters and marks alike
_AM = "\u0e33\u0eb3"  # vowels that count as letters, but follow theirs


def _ranges(category: str) -> str:
    """Those of `CLUSTERED` in a category of Unicode, for a set of a regular expression: ranges compile sooner."""
    codes = {ord(ch) for ch in CLUSTERED if unicodedata.category(ch)[0] == category and ch not in _AM}
    first, last = ({code for code in codes if code + step not in codes} for step in (-1, 1))
    return "".join(f"{chr(begin)}-{chr(end)}" for begin, end in zip(sorted(first), sorted(last), strict=True))


_LETTERS = _ranges("L")
MARKS = _ranges("M") + _AM
MARKS += "\u0300-\u036f\u200c\u200d\u3099\u309a\uff9e\uff9f\ufe00-\ufe0f\U000e0100-\U000e01ef"
# Vowels that are written before the consonant behind which they are spoken (Unicode's Logical_Order_Exception).
_BEFORE = "\u0e40-\u0e44\u0ec0-\u0ec4\u19b5-\u19b7\u19ba\uaab5\uaab6\uaab9\uaabb\uaabc"
_STACKS = "\u1039\u17d2\u1a60\u1b44\ua9c0\uaaf6"  # the letter behind them is written below
# For regular expressions: a letter of a script without spaces, and a word of one. A katakana hyphen and a middle dot
# are no letters.
UNSPACED = f"(?![\u30a0\u30fb])[{CJK}{_LETTERS}]"
CLUSTER = f"[{_BEFORE}]?{UNSPACED}[{MARKS}]*(?:(?<=[{_STACKS}])[{_LETTERS}][{MARKS}]*)*"
_OPENERS = "[\\[({«‹“‘「『（《〈【〔¿¡$¥€£₩₹฿￥＄#＃@]{0,4}"
_BEHIND = "[^\\w\\s\\[({«‹“‘「『（《〈【〔¿¡$¥€£₩₹฿￥＄#＃@]*"

_BEHIND_LETTERS = "ะาำๅๆฯະາຳໆຯ"  # letters and signs that a letter of Thai or Lao has behind it
_INSEPARABLE = re.compile(f"[{_BEFORE}{_STACKS}].|.[{_BEHIND_LETTERS}]", re.DOTALL)
_SIGNED = "[ก-ฮກ-ຮ][ัิ-ู็-๋ັິ-ູົ່-໋]"  # a consonant of Thai or Lao with a vowel or a tone
# Where in such a script a syllable ends before a letter that begins the next one, most likely:
_SYLLABLE_END = re.compile(
    # before a vowel that is written first, behind a sign that ends a syllable, in Yi behind any character;
    rf"(?<=.)(?=[{_BEFORE}])|[ะำๆฯະຳໆຯ\u1038\u17c7\u17c8\u0f0b](?=[{_LETTERS}])(?![{_BEHIND_LETTERS}])|[\ua000-\ua48f](?=.)"
    # in Thai and Lao behind the consonant that a short vowel has, unless a silent one follows, and behind a vowel, or
    # one with a common last consonant, before a consonant with a sign that cannot be the second of two;
    r"|[ัັົ][่-๋່-໋]?[ก-ฮກ-ຮ](?=[ก-ฮ]..|[ກ-ຮ])(?![ก-ฮ]{1,2}์|ร[ก-ฮ])"
    rf"|(?:[าิ-ูາິ-ູ][่-๋່-໋]?|[่-๋່-໋][อອ])(?:(?={_SIGNED})|[กงดนบมยรวກງດນບມຍວ](?=(?![รลวຣລວ]){_SIGNED}))"
    # before a letter of Burmese that is not killed or stacked, and one of Khmer with a vowel or a letter below it.
    rf"|(?<=[^{_STACKS}])(?=[\u1000-\u102a\u103f](?:(?![\u1039\u103a])[{MARKS}])*(?![{MARKS}]).)"
    rf"|(?<=[^{_STACKS}])(?=[\u1780-\u17a2][\u17c6-\u17d1]*[\u17b6-\u17c5\u17d2])"
)
_UNSPACED = re.compile(UNSPACED)

_WORD = re.compile(rf"{_OPENERS}{CLUSTER}{_BEHIND}|(?:(?!{_OPENERS}{UNSPACED})\S)+")
# Two words with a NUL between them of which one has no space beside it.
_JOINED = re.compile(f"{UNSPACED}[{MARKS}]*{_BEHIND}\\0|\\0{_OPENERS}{UNSPACED}")
END_CHARS = 64  # of a word, in which its end is looked for


def words(text: str) -> Iterator[tuple[int, str]]:
    """Where each word begins, and the word. The last one may go on in later text, no other changes with it."""
    for match in _WORD.finditer(text):
        yield match.start(), match.group()


def is_unspaced(ch: str) -> bool:
    """A letter of a script without spaces: Han, kana, or one that begins a cluster of Thai and its kin."""
    return ch >= "\u0e00" and _UNSPACED.match(ch) is not None


def last_syllable(text: str) -> int:
    """Where the last syllable of a text begins that goes on, as far as it is known; 0: nowhere."""
    return max((found.end() for found in _SYLLABLE_END.finditer(text)), default=0)


def may_part(before: str, after: str) -> bool:
    """Whether a text of such a script may be cut between two characters, at worst within a syllable."""
    return _INSEPARABLE.match(before + after) is None


def are_joined(before: str, after: str) -> bool:
    """Whether two texts need no white space between them to be two words."""
    return _JOINED.search(f"{before[-END_CHARS:]}\0{after[:END_CHARS]}") is not None


def space(gap: str, before: str, after: str) -> str:
    """The white space between two words, from what stands between them in the text as it was sent.

    Of a gap with tags it is what stands at its edges; without any, tags separate words of scripts with spaces alone.
    """
    if not (tags := gap.strip()):
        return gap
    left, _, right = gap.partition(tags)
    return left or right or ("" if are_joined(before, after) else " ")
