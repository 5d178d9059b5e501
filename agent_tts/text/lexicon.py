"""Says words and phrases as a lexicon has them. Reads one character at a time.

* The longest entry that begins at a character wins; entries do not overlap, and what an entry says is not looked up.
* An entry in small letters is found in any capitals; one with capitals as it is written, with a capital first letter,
  or all in capitals: "us" is not "US", "polish" is not "Polish".
* An entry is a whole word or phrase: not "cat" in "catalogue", not "don" in "don't", but "Ada" in "Ada's" and
  "(Ada)". Scripts without spaces have no words; katakana next to katakana, and letters before Hangul, are one word, and
  particles may follow Hangul.
* Composed and decomposed letters, straight and curved apostrophes, kinds of hyphens, any white space but a line break
  are the same.

The result depends on the text, not on its split. What may still become a longer entry is held back, at most
`MAX_HELD` characters. Time is linear in the text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter

from agent_tts.directives import Say
from agent_tts.text.chars import LINE_BREAKS, is_cjk
from agent_tts.text.entries import APOSTROPHES, MAX_WRITTEN, Entry, Lexicon, fold_char, plain_char, strictness
from agent_tts.text.words import CLUSTERED

MAX_HELD = 4 * MAX_WRITTEN  # characters: with white space and decomposed letters

# They are no words after an apostrophe: "it's", "I'm", "don't".
_CLITICS = frozenset(("s", "t", "d", "m", "ll", "re", "ve"))


class LexiconReader:
    """Takes text in any pieces; returns it as it is but for what `lexicons` have, which is a `Say`.

    The longest entry of all lexicons wins, of equally long ones that of the first. The texts and those of each `Say`,
    joined, are the text.
    """

    def __init__(self, lexicons: Sequence[Lexicon]) -> None:
        self._lexicons = tuple(lexicon for lexicon in lexicons if len(lexicon))
        self._first = frozenset(ch for lexicon in self._lexicons for ch in lexicon.first)
        self._whole_words = all(lexicon.whole_words for lexicon in self._lexicons)
        # What may begin an entry: its characters; each as entries have it, with its capitals and without ("" for white
        # space after white space); and the latter joined.
        self._held: list[str] = []
        self._spelled: list[str] = []
        self._folded: list[str] = []
        self._text = ""
        self._before = ("", "")  # the two characters before them
        # Certain, and not yet returned: characters that follow one another, and what came before them.
        self._plain: list[str] = []
        self._done: list[str | Say] = []

    def append(self, text: str) -> list[str | Say]:
        """More text; returns what is certain."""
        for ch in text:
            if self._held or self._may_begin(ch):
                self._hold(ch)
                self._settle(final=False)
            else:
                self._pass(ch)
        return self._take()

    def flush(self) -> list[str | Say]:
        """All text so far is complete words; returns everything that was held back."""
        self._settle(final=True)
        self._before = ("", "")
        return self._take()

    # ------------------------------------------------------------ inside

    def _may_begin(self, ch: str) -> bool:
        """Whether an entry may begin with this character after `_before`."""
        return fold_char(ch)[:1] in self._first and not (self._whole_words and _joined(self._before[1], ch))

    def _hold(self, ch: str) -> None:
        # No entry has a line break.
        spelled, folded = ("\n", "\n") if ch in LINE_BREAKS else (plain_char(ch), fold_char(ch))
        if folded == " " and self._text.endswith(" "):
            spelled = folded = ""
        self._held.append(ch)
        self._spelled.append(spelled)
        self._folded.append(folded)
        self._text += folded

    def _pass(self, ch: str) -> None:
        self._before = (self._before[1], ch)
        self._plain.append(ch)

    def _settle(self, *, final: bool) -> None:
        """Decide on what is held, as far as no later character can change it; on all of it if it is `final`."""
        while self._held:
            wait = not final and len(self._held) < MAX_HELD
            if wait and any(lexicon.goes_on(self._text) for lexicon in self._lexicons):
                return
            found = self._longest(final=not wait)
            if found is None:
                return
            held, count, entry = self._held, *found
            if entry is not None:
                self._cut()
                self._done.append(Say("".join(held[:count]), entry.alias, entry.ipa))
                before = (self._before[1], *held[:count])
                self._before = (before[-2], before[-1])
            else:
                self._pass(held[0])
            while count < len(held) and not self._may_begin(held[count]):
                self._pass(held[count])
                count += 1
            self._text = self._text[sum(map(len, self._folded[:count])) :]
            del self._held[:count], self._spelled[:count], self._folded[:count]

    def _longest(self, *, final: bool) -> tuple[int, Entry | None] | None:
        """The longest entry that begins what is held, with its number of characters; without one (1, None).

        None if the next character decides.
        """
        plain, in_word = "".join(self._spelled), _joined(self._before[1], self._held[0])
        found = [
            (number, each)
            for number, lexicon in enumerate(self._lexicons)
            for each in lexicon.begin(plain, self._text, in_word=in_word)
        ]
        if not found:
            return 1, None
        ends = _ends(self._spelled), _ends(self._folded)
        at = [
            (end, -number, strictness(fields), fields)
            for number, (is_folded, length, fields) in found
            if (end := ends[is_folded].get(length)) is not None  # else it ends within a character
        ]
        for end, _, _, fields in sorted(at, key=itemgetter(0, 1, 2), reverse=True):
            fits = self._fits(end, whole_word=fields[-1], final=final)
            if fits is not False:
                return None if fits is None else (end, Entry(*fields))
        return 1, None

    def _fits(self, end: int, *, whole_word: bool, final: bool) -> bool | None:
        """Whether the first `end` characters are an entry that is there; None if the next character decides."""
        after = "".join(self._held[end : end + 2])
        if _is_mark(after[:1]):  # it belongs to the last letter
            return False
        if not whole_word:
            return True
        before, last = self._before, self._held[end - 1]
        if before[1] in APOSTROPHES and _kind(before[0]) and "".join(self._held[:end]).lower() in _CLITICS:
            return False
        if after[:1] in APOSTROPHES and last in "nN":  # "don't"
            return None if len(after) == 1 and not final else after[1:] not in ("t", "T")
        return not _joined(last, after[:1]) or _kind(last) == "hangul"

    def _cut(self) -> None:
        if self._plain:
            self._done.append("".join(self._plain))
            self._plain.clear()

    def _take(self) -> list[str | Say]:
        self._cut()
        done, self._done = self._done, []
        return done


def _ends(parts: list[str]) -> dict[int, int]:
    """How many parts have so many characters together; of several numbers the least."""
    return {length: end for end, length in reversed([*enumerate(accumulate(map(len, parts)), 1)])}


@lru_cache(4_096)
def _is_mark(ch: str) -> bool:
    return ch != "" and unicodedata.category(ch).startswith("M")


@lru_cache(4_096)
def _kind(ch: str) -> str:
    """What words the character is part of; "" if it is in none, or in a script without spaces."""
    if "\u30a1" <= ch <= "\u30ff" or "\uff66" <= ch <= "\uff9f":
        return "" if ch == "・" else "katakana"
    if not (ch.isalnum() or _is_mark(ch)) or is_cjk(ch) or ch in CLUSTERED:
        return ""
    return "hangul" if "\uac00" <= ch <= "\ud7a3" else "word"


def _joined(before: str, after: str) -> bool:
    """Whether two neighbours are in the same word."""
    return _kind(before) != "" and _kind(before) == _kind(after)
