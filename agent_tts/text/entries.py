"""How words are said: entries of a lexicon, and looking them up. Pure.

A lexicon is written as a mapping from words to their alias, or to the fields of an `Entry`:

    {"nginx": "engine x", "GIF": {"ipa": "dʒɪf", "alias": "jif"}}
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self, get_type_hints

MAX_WRITTEN = 64  # characters of an entry
MAX_SAID = 256  # characters of an alias or a transcription
MAX_ENTRIES = 10_000

# What XML does not have, and line breaks: control characters (Cc), surrogates (Cs), U+FFFE and U+FFFF.
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

APOSTROPHES = frozenset("'’ʼ＇")
HYPHENS = frozenset("\u2010\u2011")  # a hyphen, and one that does not break the line


@dataclass(frozen=True, slots=True)
class Entry:
    """How a word or phrase is said: by its transcription where the engine speaks IPA, otherwise by its alias.

    Without an alias, an engine that does not speak IPA says it as it is written.

    Raises:
        ValueError: there is nothing to say, or a text is empty, too long, or has control characters.
    """

    written: str
    alias: str | None = None
    ipa: str | None = None
    # True: exactly as written. False: in any capitals. None: an entry in small letters in any capitals; one with
    # capitals as written, with a capital first letter, or all in capitals ("us" is not "US").
    match_case: bool | None = None
    whole_word: bool = True  # otherwise also within a word

    def __post_init__(self) -> None:
        if self.alias is None and self.ipa is None:
            raise ValueError("an entry has an alias or a transcription in IPA")
        for what, text, most in (
            ("the word", self.written, MAX_WRITTEN),
            ("an alias", self.alias, MAX_SAID),
            ("a transcription", self.ipa, MAX_SAID),
        ):
            if text is None:
                continue
            if not text.strip() or len(text) > most:
                raise ValueError(f"{what} has 1 to {most} characters, not all white space")
            if _CONTROL.search(text):
                raise ValueError(f"{what} has no line breaks and control characters")


Fields = tuple[str, str | None, str | None, bool | None, bool]


# What the fields of an entry are unless they are given, in their order but for `written`.
_DEFAULTS = {field.name: field.default for field in fields(Entry)[1:]}


def _said(values: Fields) -> str | dict[str, Any]:
    """The alias alone if nothing else is set; otherwise what is set, without `written`."""
    given: dict[str, Any] = {
        name: value for name, value in zip(_DEFAULTS, values[1:], strict=True) if value != _DEFAULTS[name]
    }
    return given["alias"] if list(given) == ["alias"] else given


# The fields of an entry in a mapping.
_TYPES = {name: kind for name, kind in get_type_hints(Entry).items() if name in _DEFAULTS}


class Lexicon:
    """Entries to look up. A later entry for a word replaces an earlier one.

    Raises:
        ValueError: there are more than `MAX_ENTRIES`.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        # They are tuples of texts, not entries, which are made when they are found: the garbage collector, which stops
        # the whole process, does not look at such tuples.
        latest: dict[str, Fields] = {}
        for entry in entries:
            said = entry.written, entry.alias, entry.ipa, entry.match_case, entry.whole_word
            latest[_plain(entry.written)] = said
            if len(latest) > MAX_ENTRIES:
                raise ValueError(f"a lexicon has at most {MAX_ENTRIES} entries")
        self._entries = tuple(latest.values())
        # By each spelling, or by the text without capitals: parts of words, then whole words. Of those with one key the
        # strictest counts, "US" before "us", so a look-up costs the same for any number.
        spelled: tuple[dict[str, Fields], dict[str, Fields]] = {}, {}
        folded: tuple[dict[str, Fields], dict[str, Fields]] = {}, {}
        keys = set()
        for plain, each in latest.items():
            written, _, _, match_case, whole_word = each
            keys.add(fold := _fold(written))
            spellings = _spellings(plain, match_case)
            table = (spelled if spellings else folded)[whole_word]
            for key in spellings or (fold,):
                if key not in table or strictness(each) > strictness(table[key]):
                    table[key] = each
        self._spelled, self._folded = tuple(map(_Table, spelled)), tuple(map(_Table, folded))
        # Sorted, to find those that begin with a text.
        self._keys = sorted(keys)
        self.first = frozenset(key[0] for key in keys)
        self.whole_words = not (spelled[False] or folded[False])

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(Entry(*each) for each in self._entries)

    @classmethod
    def of(cls, mapping: Mapping[str, str | Mapping[str, Any]]) -> Self:
        """The lexicon of a mapping from words to their alias, or to the other fields of an `Entry`.

        Raises:
            ValueError: it is no such mapping, or has an entry that `Entry` refuses; the message quotes none of it.
        """
        return cls(_entry(word, said) for word, said in mapping.items())

    def mapping(self) -> dict[str, str | dict[str, Any]]:
        """The shortest mapping of which `of` makes this lexicon."""
        return {values[0]: _said(values) for values in self._entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lexicon) and self._entries == other._entries

    def __hash__(self) -> int:
        return hash(self._entries)

    def goes_on(self, folded: str) -> bool:
        """Whether an entry begins with, or is, this text without capitals."""
        place = bisect_left(self._keys, folded)
        return place < len(self._keys) and self._keys[place].startswith(folded)

    def begin(self, plain: str, folded: str, *, in_word: bool) -> Iterator[tuple[bool, int, Fields]]:
        """The fields of entries that a text, given with and without its capitals, begins with; in no order.

        Each comes with whether it was found without capitals, and its length in this form of the text. Those that are
        whole words are left out if the text begins `in_word`.
        """
        for tables, text, is_folded in ((self._spelled, plain, False), (self._folded, folded, True)):
            for table in tables[: 1 if in_word else 2]:
                for key in table.begin(text):
                    yield is_folded, len(key), table.entries[key]


class _Table:
    """Entries by key, where those whose key begins a text are found without a look at others."""

    def __init__(self, entries: dict[str, Fields]) -> None:
        self.entries = entries
        self._keys = sorted(entries)
        # The longest other key that a key begins with, if there is one.
        self._within: dict[str, str] = {}
        outer: list[str] = []
        for key in self._keys:
            while outer and not key.startswith(outer[-1]):
                outer.pop()
            if outer:
                self._within[key] = outer[-1]
            outer.append(key)

    def begin(self, text: str) -> Iterator[str]:
        """The keys that a text begins with, longest first: all are within the last that is not after it."""
        place = bisect_right(self._keys, text)
        key = self._keys[place - 1] if place else None
        while key is not None:
            if text.startswith(key):
                yield key
            key = self._within.get(key)


@lru_cache(4_096)
def plain_char(ch: str) -> str:
    """A character as entries and texts have it in common, with its capitals."""
    if ch.isspace():
        return " "
    if ch in HYPHENS:
        return "-"
    return "'" if ch in APOSTROPHES else unicodedata.normalize("NFD", ch)


@lru_cache(4_096)
def fold_char(ch: str) -> str:
    """The same without capitals."""
    return unicodedata.normalize("NFD", plain_char(ch).casefold())


def _plain(text: str) -> str:
    return " ".join((text if text.isascii() else "".join(map(plain_char, text))).split())


def _fold(text: str) -> str:
    return " ".join((text.lower() if text.isascii() else "".join(map(fold_char, text))).split())


def _spellings(plain: str, match_case: bool | None) -> tuple[str, ...]:
    """The texts that are an entry, each as `plain_char` has its characters; none: in any capitals."""
    if match_case:
        return (plain,)
    if match_case is False or plain == plain.lower():
        return ()
    return plain, plain.upper(), plain[0].upper() + plain[1:]


def _entry(word: object, said: object) -> Entry:
    if not isinstance(word, str):
        raise ValueError("a word is not a text: YAML has to have 5, no and on in quotes")
    given: Any = {"alias": said} if isinstance(said, str) else said
    if not isinstance(given, Mapping) or not given.keys() <= _TYPES.keys():
        raise ValueError(f"a word has an alias, or the fields {', '.join(_TYPES)}")
    for name, value in given.items():
        if not isinstance(value, _TYPES[name]):
            raise ValueError(f"{name} of a word has another type")
    return Entry(word, **given)


@lru_cache(4_096)
def strictness(fields: Fields) -> tuple[bool, bool, int]:
    """The order of entries that are found at one place: the largest counts."""
    written, _, _, match_case, _ = fields
    return match_case is True, match_case is None, sum(map(str.isupper, written))
