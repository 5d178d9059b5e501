"""What espeak-ng has and makes: its languages and variants, and clauses of speech with their words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

from agent_tts.engine.espeak.worker import CLAUSE_END, WORD

# Words a minute. Faster speech is stretched: espeak-ng does so by itself from 450 on, but what it keeps of a text
# outlasts the synthesis.
RATE_NORMAL, RATE_MIN, RATE_MAX = 175, 80, 350
PITCH_NORMAL, PITCH_MAX = 50, 99


class EspeakError(RuntimeError):
    """espeak-ng refused a call, or cannot be started."""


class TooLong(EspeakError):
    """The audio would be longer than was allowed."""


class NoPhonemes(EspeakError):
    """The text has a word in IPA that the language has no phonemes for."""


class Deadly(EspeakError):
    """The text ended the process that spoke it; it is not spoken."""


@dataclass(frozen=True, slots=True)
class EspeakLanguage:
    """A language file of espeak-ng."""

    code: str  # its first code, lower case
    codes: tuple[tuple[str, int], ...]  # all its codes, lower case, and how well each fits: lower is better
    name: str  # in English
    path: str  # below `lang/`


@dataclass(frozen=True, slots=True)
class Delivery:
    language: EspeakLanguage
    variant: str | None
    rate: int = RATE_NORMAL  # words a minute, RATE_MIN .. RATE_MAX
    # Where the lowest tones are, 0 .. PITCH_MAX; PITCH_NORMAL is the voice's own, PITCH_MAX an octave higher.
    pitch: int = PITCH_NORMAL
    # It goes from the lowest tones to the highest, 0 .. PITCH_MAX; it is linear, PITCH_NORMAL is the voice's own.
    pitch_range: int = PITCH_NORMAL
    stretch: float = 1.0  # speed beyond what the rate can do


@dataclass(frozen=True, slots=True)
class ClauseWord:
    """A word of the text, by characters, and by samples before the stretch."""

    char: int
    length: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Clause:
    samples: NDArray[np.int16]  # int16[n] at the library's sample rate
    words: tuple[ClauseWord, ...]
    scale: float = 1.0  # samples of `samples` for one of `words`


def library_path() -> str:
    return str(espeakng_loader.get_library_path())


@lru_cache(maxsize=1)
def data_path() -> Path:
    return Path(espeakng_loader.get_data_path())


@lru_cache(maxsize=1)
def languages() -> tuple[EspeakLanguage, ...]:
    """All languages whose dictionary is installed; of two with the same code, the plain one is first."""
    found = [_language(path) for path in (data_path() / "lang").rglob("*") if path.is_file()]
    return tuple(sorted((language for language in found if language is not None), key=lambda each: each.path))


@lru_cache(maxsize=1)
def variants() -> frozenset[str]:
    return frozenset(path.name for path in (data_path() / "voices" / "!v").iterdir() if path.is_file())


def _language(path: Path) -> EspeakLanguage | None:
    attributes = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines()]
    pairs = [(key, value.strip()) for key, value in (each for each in attributes if len(each) == 2)]
    codes = [value.lower().split() for key, value in pairs if key == "language"]
    names = [value for key, value in pairs if key == "name"]
    first = codes[0][0]
    dictionary = next((value for key, value in pairs if key == "dictionary"), first.partition("-")[0])
    if not (data_path() / f"{dictionary}_dict").is_file():
        return None
    ranked = tuple((code[0], int(code[1]) if len(code) > 1 else 5) for code in codes)
    return EspeakLanguage(
        first, ranked, names[0].partition("//")[0].strip(), path.relative_to(data_path() / "lang").as_posix()
    )


def clause_words(text: str, marks: Iterable[tuple[int, int, int, int]], samples: NDArray[np.int16]) -> list[ClauseWord]:
    """Words in order, without the silence after them. A word ends where the next starts or its clause ends.

    The library reports numbers and spelled words several times and in parts, which are merged here; it omits the length
    of a word before a closing quote, and may report a word's start after that of the next.

    Args:
        marks: (type of the event, character, length, sample) of each event.
    """
    words: list[ClauseWord] = []
    sounding = np.flatnonzero(samples)
    edges = [mark for mark in marks if mark[0] in (WORD, CLAUSE_END)]
    limits = [*(mark[3] for mark in edges), len(samples)][1:]
    for (kind, char, length, start), limit in zip(edges, limits, strict=True):
        if kind != WORD or not 0 <= char < len(text):
            continue
        token = text[char : char + length] if length > 0 else text[char:].partition(" ")[0]
        start = min(max(start, words[-1].end if words else 0), len(samples))
        before = int(np.searchsorted(sounding, limit))  # sounding samples before the limit
        end = max(start, int(sounding[before - 1]) + 1 if before else 0)
        if words and (char < words[-1].char + words[-1].length or not token.strip()):
            words[-1] = replace(words[-1], end=end)
        else:
            words.append(ClauseWord(char, max(1, len(token)), start, end))
    return words
