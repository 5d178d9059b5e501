"""Says numbers, money, dates and addresses in words. Reads one character at a time.

The result depends on the text, not on its split: a word is held back until white space ends it, and longer if the next
word may belong to it ("3" and "pm", "$5" and "million"). Other words pass unchanged.
"""

from __future__ import annotations

import re
from functools import cache

from agent_tts.text.chars import PICTOGRAPH, WIDE_CLAUSE_MARKS, Char, Sink, spread
from agent_tts.text.spoken.de import German
from agent_tts.text.spoken.east import Chinese, Japanese, Korean
from agent_tts.text.spoken.en import English
from agent_tts.text.spoken.romance import French, Italian, Portuguese, Spanish
from agent_tts.text.spoken.ru import Russian
from agent_tts.text.spoken.runs import ITEM, MAX_RUN, Runs, starts_run
from agent_tts.text.spoken.table import Table, is_code
from agent_tts.text.words import MARKS, UNSPACED

MAX_WORD = 80  # characters; a longer word passes unchanged
MAX_WORDS = 8  # that are looked at together
BEFORE = 6  # characters before a number that may tell how it is said

# Before what is said, with the article of an elision: "l'1".
_LEAD = re.compile(r"[\"'“‘«(\[{¿¡]*(?:[^\W\d_]{1,5}['’](?=\d))?")
_TRAILING = ".,;:!?…\"'”’»)]}"

# After a number with its unit: the point is that of an abbreviation, not of a sentence ("5 in., 5 in. long").
_ABBREVIATED = re.compile(r"\.(?:[,;:!?)]| [^\W\d_A-ZÀ-ÖØ-ÞА-Я])")

# Of scripts without spaces: the text around it up to white space is spoken as it comes, and as it is written.
_UNSPACED = re.compile(f"{UNSPACED}|[{MARKS}{''.join(WIDE_CLAUSE_MARKS)}]")

# To add a language, give it a column of `words.tsv` and a part of `languages.toml`, and write a class like that of
# `de.py`, or, for a script without spaces between a number and what follows, like those of `east.py`. Text in others is
# left to the engine.
TABLES: dict[str, type[Table]] = {
    "de": German,
    "en": English,
    "es": Spanish,
    "fr": French,
    "it": Italian,
    "pt": Portuguese,
    "ru": Russian,
}
RUNS: dict[str, type[Runs]] = {"ja": Japanese, "ko": Korean, "zh": Chinese, "cmn": Chinese}
_MONTH_FIRST = frozenset(("", "us", "ca", "ph"))  # regions of English that write 12/31/2024


def rules_of(language: str) -> Table | Runs | None:
    """The rules of a language code, those of Britain for English elsewhere than in America; None if there are none."""
    code, _, region = language.lower().partition("-")
    return _rules(code.replace("cmn", "zh"), day_first=code == "en" and region.partition("-")[0] not in _MONTH_FIRST)


@cache
def _rules(code: str, *, day_first: bool) -> Table | Runs | None:
    if code in RUNS:
        return RUNS[code].of(code)
    return TABLES[code].of(code, **{"day_first": True} if day_first else {}) if code in TABLES else None


def prepare() -> None:
    """Build the rules of all languages, which the first text of one would wait for, up to 25 ms."""
    for language in (*TABLES, "en-gb", *RUNS):
        reader = normalizer(lambda ch, offset: None, language)
        assert reader is not None
        for place, ch in enumerate("1 mit 1 до 1 через 1 "):  # German and Russian have tables of their own behind these
            reader.push(ch, place)
        reader.flush()


def normalizer(sink: Sink, language: str) -> _InRuns | _InWords | None:
    """Takes characters with their offsets in the raw text; passes what is to be said to `sink`.

    A replacement has the offsets of the characters that it replaces, in order. None without numbers for the language.
    """
    rules = rules_of(language)
    if isinstance(rules, Runs):
        return _InRuns(sink, rules)
    return _InWords(sink, rules) if rules else None


class _InRuns:
    """A run of numbers and what belongs to them is held back until it ends."""

    def __init__(self, sink: Sink, runs: Runs) -> None:
        self._sink = sink
        self._runs = runs
        self._run: list[Char] = []
        self._before = ""  # the last characters passed, for the rules

    def push(self, ch: str, offset: int) -> None:
        if self._run:
            if len(self._run) < MAX_RUN and self._runs.goes_on(ch, self._run[-1][0]):
                self._run.append((ch, offset))
                return
            self._say()
        if starts_run(ch):
            self._run.append((ch, offset))
        else:
            self._before = (self._before + ch)[-BEFORE:]
            self._sink(ch, offset)

    def flush(self) -> None:
        self._say()
        self._before = ""

    def _say(self) -> None:
        run, self._run = self._run, []
        passed = 0
        text = "".join(ch for ch, _ in run)
        for start, end, said in self._runs.say(text, self._before):
            chars = spread(said, [offset for _, offset in run[start:end]])
            for ch, offset in [*run[passed:start], *chars]:
                self._sink(ch, offset)
            passed = end
        for ch, offset in run[passed:]:
            self._sink(ch, offset)
        self._before = (self._before + text)[-BEFORE:]


class _InWords:
    """A word is held back until white space ends it, and longer if the next word may belong to it."""

    def __init__(self, sink: Sink, table: Table) -> None:
        self._sink = sink
        self._table = table
        # Words that wait for the next, each with the white space after it.
        self._words: list[tuple[list[Char], list[Char]]] = []
        self._word: list[Char] = []
        # Whether the word that is being read is longer than `MAX_WORD`, or of a script without spaces.
        self._passing = False
        self._before = ""  # the word before those that wait, in lower case
        self._recent = ""  # the words before those that wait
        self._at_start = True  # of a line

    def push(self, ch: str, offset: int) -> None:
        if ch in ("\n", PICTOGRAPH):
            self.flush()
            self._sink(ch, offset)
            self._at_start = self._at_start or ch == "\n"
        elif ch.isspace():
            self._end_word(ch, offset)
        elif ch >= "\u0e00" and _UNSPACED.match(ch):
            word, self._word = self._word, []
            self.flush()
            for each in (*word, (ch, offset)):
                self._sink(*each)
            self._before, self._at_start, self._passing = ch, False, True
        elif self._passing:
            self._sink(ch, offset)
        else:
            self._word.append((ch, offset))
            if len(self._word) > MAX_WORD:
                self.flush()
                self._passing = True

    def flush(self) -> None:
        if self._word:
            self._words.append((self._word, []))
            self._word = []
        while self._words:
            self._say()
        self._passing = False

    # ------------------------------------------------------------ inside

    def _end_word(self, ch: str, offset: int) -> None:
        self._passing = False
        if self._word:
            self._words.append((self._word, []))
            self._word = []
        elif not self._words:
            self._sink(ch, offset)
            return
        self._words[-1][1].append((ch, offset))
        if len(self._words[-1][1]) > 1:  # words do not belong together across several spaces
            while self._words:
                self._say()
        while self._words and (len(self._words) == MAX_WORDS or not self._table.goes_on(self._texts())):
            self._say()

    def _texts(self) -> list[str]:
        return ["".join(ch for ch, _ in word) for word, _ in self._words]

    def _say(self) -> None:
        """Pass on the first word that waits, with the words that belong to it."""
        texts, words = self._texts(), self._table.words
        at_start, self._at_start = self._at_start, False
        for count in range(len(texts), 0, -1):
            text = " ".join(texts[:count])
            said = words.get(text) or words.get(text[:1].lower() + text[1:]) if count == 1 else None
            if said is not None:
                self._replace(count, 0, len(text), said)
                return
            if at_start and ITEM.fullmatch(text) and self._words[0][1]:
                self._replace(count, 0, len(text), f"{self._table.say_number(text[:-1])},")
                return
            start = _LEAD.match(text).end()  # pyrefly: ignore[missing-attribute]  # it matches nothing, too
            core = text[start:].rstrip(_TRAILING)
            if start and text[start - 1] == "(" and ")" in core:  # "(555) 123-4567"
                start, core = start - 1, f"({core}"
            after = text[start + len(core) :] + " ".join(("", *texts[count : count + 1]))
            dotted = f"{core}." if after.startswith(".") else core
            goes_on = _ABBREVIATED.match(after) is not None or self._table.ends_with_a_short_day(core)
            for written in (dotted, core) if goes_on else (core, dotted):
                if (said := self._said(written)) is not None:
                    pointed = goes_on and (written == dotted or self._table.abbreviated(core))
                    self._replace(count, start, start + len(dotted if pointed else core), said)
                    return
        self._replace(1, 0, 0, "")

    def _said(self, core: str) -> str | None:
        if is_code(core) and self._table.labelled(self._recent):
            return self._table.grouped(core)
        return self._table.after(self._before).say(core, self._before)

    def _replace(self, count: int, start: int, end: int, said: str) -> None:
        """Pass `count` words on, with their characters from `start` to `end` replaced."""
        chars: list[Char] = []
        for word, spaces in self._words[:count]:
            chars += word + spaces
        self._before = self._texts()[count - 1].lower()
        recent = "" if self._recent.endswith((".", "!", "?")) else self._recent
        self._recent = f"{recent.rstrip(',;:')} {self._before}".rstrip(":")[-MAX_WORD:]
        del self._words[:count]
        said_chars = spread(said, [offset for _, offset in chars[start:end]])
        for ch, offset in [*chars[:start], *said_chars, *chars[end:]]:
            self._sink(ch, offset)
