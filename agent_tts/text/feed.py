"""The text of one request, as it comes from an LLM: markdown cleaned, numbers said in words, cut into units.

Tags are no part of it: the front has made directives of them (`agent_tts/text/markup/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agent_tts.directives import Directive, Language, Say
from agent_tts.options import EngineOptions
from agent_tts.text.chars import SOUND, Char, Sink, is_unspeakable
from agent_tts.text.clean import Cleaner
from agent_tts.text.directives import Directives
from agent_tts.text.normalize import normalizer
from agent_tts.text.units import Cutter, Unit

__all__ = ["Reader", "Reading", "TextFeed", "Unit"]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a text is read. Control characters and lone surrogates are always dropped: no engine takes them."""

    clean: bool = True  # make markdown, links and emoji speakable
    normalize: str | None = None  # say numbers and signs in words of this language; None leaves them
    language: str = "en"  # of formulas
    left: frozenset[str] = frozenset()  # codes of languages whose numbers are left to the engine

    @classmethod
    def of(cls, options: EngineOptions, language: str) -> Reading:
        """The reading that a request asks for; `language` is a code."""
        written = (options.region or "").replace("_", "-")
        numbers = written if written.lower().startswith(f"{language}-") else language
        return cls(options.clean, numbers if options.normalize else None, language)

    def in_language(self, code: str | None) -> Reading:
        """The same in another language; None is this one."""
        return replace(self, normalize=self.normalize and code, language=code) if code else self


class Reader:
    """Takes raw characters with their offsets and passes what is to be said to `sink`.

    The output depends on the characters and the flushes alone. With `joined`, letters of a word may come at once, with
    the offset of the first.
    """

    _cleaner: Cleaner | None = None

    def __init__(self, reading: Reading, sink: Sink, *, joined: bool = False) -> None:
        language = reading.normalize or ""
        self._normalizer = normalizer(sink, language) if language.partition("-")[0] not in ("", *reading.left) else None
        self._said = self._normalizer.push if self._normalizer else sink
        letters = sink if joined and not self._normalizer else None
        self._cleaner = Cleaner(self._said, reading.language, letters) if reading.clean else None
        self.push: Sink = self._cleaner.push if self._cleaner else self._plain

    def read(self, text: str, offset: int) -> None:
        """Raw text, whose first character has this offset."""
        if self._cleaner:
            self._cleaner.read(text, offset)
            return
        for place, ch in enumerate(text, offset):
            self._plain(ch, place)

    def say(self, say: Say, offset: int) -> int:
        """Text that is said in another way, at `offset`; returns the offset after it.

        Its alias is read like text; the offsets of its characters are spread over the text.
        """
        for ch, place in spelled(say, offset):
            self.push(ch, place)
        return offset + len(say.text)

    def flush(self, offset: int) -> None:
        """All text so far is complete: pass on everything that is held back."""
        if self._cleaner:
            self._cleaner.flush(offset)
        if self._normalizer:
            self._normalizer.flush()

    def __del__(self) -> None:
        if self._cleaner:
            self._cleaner.close()

    def _plain(self, ch: str, offset: int) -> None:
        if not is_unspeakable(ch):
            self._said(ch, offset)


def spelled(say: Say, offset: int) -> Iterator[Char]:
    """The letters of what is said, with offsets in its text, which starts at `offset`."""
    letters, last = say.text if say.alias is None else say.alias, max(0, len(say.text) - 1)
    for index, ch in enumerate(letters):
        yield ch, offset + index * last // max(1, len(letters) - 1)


class TextFeed:
    """Text and directives in, in any pieces; units and directives out, as soon as they are certain.

    The units depend on the text, the directives and the places of its flushes, not on its split into pieces. Time is
    linear and memory constant; `Reader` and `units.py` state how much is held back.

    Args:
        first_words: most words of the first unit, few so that speech starts early; each unit may have twice the words
            of the one before, up to `units.MAX_WORDS`.
        directives: those that have an effect end the unit before them; others leave no trace.
        each_word: whether each word of a language is a unit, given its code; None is the text's own language.
    """

    def __init__(
        self,
        reading: Reading | None = None,
        *,
        first_words: int = 2,
        directives: Directives | None = None,
        each_word: Callable[[str | None], bool] = lambda code: False,
    ) -> None:
        self._reading = reading or Reading()
        self._directives = directives or Directives(("pause",))
        # What each `SOUND` of the units stands for is kept by its offset. The front's limit of characters bounds it.
        self.sounds: dict[int, Say] = {}
        self._offset = 0  # of the next character in the raw text
        self._done: list[Unit | Directive] = []  # not yet taken
        self._cutter = Cutter(first_words, self._done.append)
        self._is_each_word = each_word
        self._cutter.each_word = each_word(None)
        self._reader = Reader(self._reading, self._cutter.push)

    def append(self, text: str) -> list[Unit | Directive]:
        """More text; returns what it completes."""
        self._reader.read(text, self._offset)
        self._offset += len(text)
        return self._take()

    def direct(self, directive: Directive) -> list[Unit | Directive]:
        """A directive after all text so far; returns what it completes."""
        taken = self._directives.take(directive)
        if isinstance(taken, Say):
            if taken.ipa and taken.text:
                self._reader.flush(self._offset)
                self._cutter.push(SOUND, self._offset)
                self.sounds[self._offset] = taken
                self._offset += len(taken.text)
            else:
                self._offset = self._reader.say(taken, self._offset)
        elif taken:
            self._cut()
            self._done.append(taken)
            if isinstance(taken, Language):
                self._reader = Reader(self._reading.in_language(taken.code), self._cutter.push)
                self._cutter.each_word = self._is_each_word(taken.code)
        return self._take()

    def flush(self) -> list[Unit | Directive]:
        """All text so far is complete words; returns everything that was held back."""
        self._cut()
        return self._take()

    def _cut(self) -> None:
        self._reader.flush(self._offset)
        self._cutter.cut()

    def _take(self) -> list[Unit | Directive]:
        done = self._done.copy()
        self._done.clear()
        return done
