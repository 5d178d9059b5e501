"""espeak-ng through ctypes: a voice and a text in, samples and word positions out.

The library has one global state per process and is not thread-safe. Its pitch flutter and roughness continue from one
synthesis to the next, so that the same text would sound different each time. `EspeakLibrary` therefore composes each
voice without both (two hertz of wobble) and sets every parameter before every synthesis: the output depends on the
arguments alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

RATE_NORMAL, RATE_MIN, RATE_MAX = 175, 80, 450  # words a minute
PITCH_NORMAL, PITCH_MAX = 50, 99
VOLUME = 80  # of 100; louder audio clips and starts a gain control that outlasts the synthesis

_OUTPUT_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000  # return errors instead of ending the process
_CHARS_UTF8, _ENDPAUSE = 1, 0x1000
_PARAM_RATE, _PARAM_VOLUME, _PARAM_PITCH, _PARAM_RANGE = 1, 2, 3, 4
_EVENT_LIST_END, _EVENT_WORD, _EVENT_CLAUSE_END = 0, 1, 5
# NUL ends the text, U+0001 starts a command that outlasts the synthesis, and a lone surrogate has no UTF-8.
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_STEADY = "\nflutter 0\nroughness 9\n"  # roughness above 7 means none


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # in characters, from 1
        ("length", ctypes.c_int),  # in characters
        ("audio_position", ctypes.c_int),  # in ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_uint64),  # a union
    )


_SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class EspeakError(RuntimeError):
    """espeak-ng refused a call."""


class TooLong(EspeakError):
    """The audio would be longer than was allowed."""


@dataclass(frozen=True, slots=True)
class Language:
    """A language file of espeak-ng."""

    code: str  # its first code, lower case
    codes: tuple[tuple[str, int], ...]  # all its codes, lower case, and how well each fits: lower is better
    name: str  # in English
    path: str  # below `lang/`


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a text is spoken."""

    language: Language
    variant: str | None
    rate: int = RATE_NORMAL  # words a minute, RATE_MIN .. RATE_MAX
    # Of the lowest tones, 0 .. PITCH_MAX; PITCH_NORMAL is the voice's own, PITCH_MAX an octave higher.
    pitch: int = PITCH_NORMAL
    # From the lowest tones to the highest, 0 .. PITCH_MAX; linear, PITCH_NORMAL is the voice's own.
    pitch_range: int = PITCH_NORMAL
    stretch: float = 1.0  # speed beyond what the rate can do, for `EspeakLibrary.stretch`


@dataclass(frozen=True, slots=True)
class ClauseWord:
    """A word of the text, by characters and samples."""

    char: int
    length: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Clause:
    """What espeak-ng made of a text."""

    samples: NDArray[np.int16]  # int16[n] at the library's sample rate
    words: tuple[ClauseWord, ...]


class EspeakLibrary:
    """The library with a voice file of its own. One thread uses all instances."""

    def __init__(self) -> None:
        self._lib, self.sample_rate = _library()
        # The composed voice, a nameless file that vanishes with the process; the library reads it by its descriptor.
        self._voice_file = _nameless_file()

    def close(self) -> None:
        """Close the voice file. Idempotent."""
        self._voice_file.close()

    def synthesize(self, text: str, how: Delivery, *, pause: bool, max_samples: int | None = None) -> Clause:
        """Speak `text` literally: no SSML, no phonemes, no commands; control characters and lone surrogates are spaces.

        Args:
            how: all but its `stretch`.
            pause: whether the pause after the last clause is part of the audio.
            max_samples: longer audio is not computed to its end; None is no limit.

        Raises:
            TooLong: the audio is longer than `max_samples`.
            EspeakError: the library refused the voice or the text.
        """
        self._select(how.language, how.variant)
        settings = {
            _PARAM_RATE: how.rate,
            _PARAM_VOLUME: VOLUME,
            _PARAM_PITCH: how.pitch,
            _PARAM_RANGE: how.pitch_range,
        }
        for parameter, value in settings.items():
            _check(self._lib.espeak_SetParameter(parameter, value, 0))
        _check(self._lib.espeak_ng_SetRandSeed(ctypes.c_long(1)))

        pieces: list[bytes] = []
        marks: list[tuple[int, int, int, int]] = []  # type, character, length, sample
        total = 0

        def collect(samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_Event]) -> int:
            nonlocal total
            marks.extend((each.type, each.text_position - 1, each.length, each.sample) for each in _events(events))
            if samples and count > 0:
                pieces.append(ctypes.string_at(samples, 2 * count))
                total += count
            return int(too_long())

        def too_long() -> bool:
            return max_samples is not None and total > max_samples

        callback = _SynthCallback(collect)
        self._lib.espeak_SetSynthCallback(callback)
        raw = _UNSPEAKABLE.sub(" ", text).encode() + b"\0"
        flags = _CHARS_UTF8 | (_ENDPAUSE if pause else 0)
        _check(self._lib.espeak_Synth(raw, ctypes.c_size_t(len(raw)), 0, 0, 0, flags, None, None))
        if too_long():
            raise TooLong(f"the audio is longer than {max_samples} samples")
        samples = np.frombuffer(b"".join(pieces), np.int16)
        return Clause(samples, tuple(_words(text, marks, samples)))

    def stretch(self, samples: NDArray[np.int16], speed: float) -> NDArray[np.int16]:
        """int16[n] as int16[n / speed] of the same pitch, for speeds beyond the rates of `synthesize`."""
        buffer = np.zeros(int(len(samples) * max(1.0, 1 / speed)) + self.sample_rate, np.int16)
        buffer[: len(samples)] = samples
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_short))
        one = ctypes.c_float(1.0)
        count = self._lib.sonicChangeShortSpeed(
            pointer, len(samples), ctypes.c_float(speed), one, one, one, 0, self.sample_rate, 1
        )
        return buffer[:count]

    def _select(self, language: Language, variant: str | None) -> None:
        if not os.path.exists("/dev/fd"):
            # Without /dev/fd a voice is selected by name, with its flutter.
            _check(self._lib.espeak_ng_SetVoiceByName(f"{language.code}{f'+{variant}' if variant else ''}".encode()))
            return
        self._voice_file.seek(0)
        self._voice_file.truncate()
        self._voice_file.write(_voice_text(language, variant))
        self._voice_file.flush()
        self._voice_file.seek(0)
        _check(self._lib.espeak_ng_SetVoiceByFile(f"/dev/fd/{self._voice_file.fileno()}".encode()))


def _nameless_file() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("voice"), "w+b")
    return tempfile.TemporaryFile()


@lru_cache(maxsize=1)
def languages() -> tuple[Language, ...]:
    """All languages whose dictionary is installed; of two with the same code, the plain one is first."""
    data = _data()
    found = [_language(path) for path in (data / "lang").rglob("*") if path.is_file()]
    return tuple(sorted((language for language in found if language is not None), key=lambda each: each.path))


@lru_cache(maxsize=1)
def variants() -> frozenset[str]:
    """The names of all variants of a voice."""
    return frozenset(path.name for path in (_data() / "voices" / "!v").iterdir() if path.is_file())


def _language(path: Path) -> Language | None:
    attributes = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines()]
    pairs = [(key, value.strip()) for key, value in (each for each in attributes if len(each) == 2)]
    codes = [value.lower().split() for key, value in pairs if key == "language"]
    names = [value for key, value in pairs if key == "name"]
    first = codes[0][0]
    dictionary = next((value for key, value in pairs if key == "dictionary"), first.partition("-")[0])
    if not (_data() / f"{dictionary}_dict").is_file():
        return None
    ranked = tuple((code[0], int(code[1]) if len(code) > 1 else 5) for code in codes)
    return Language(first, ranked, names[0].partition("//")[0].strip(), path.relative_to(_data() / "lang").as_posix())


@lru_cache(maxsize=256)
def _voice_text(language: Language, variant: str | None) -> bytes:
    """A voice file: the language, then the variant's sound."""
    text = (_data() / "lang" / language.path).read_text("utf-8")
    if variant is not None:
        lines = (_data() / "voices" / "!v" / variant).read_text("utf-8").splitlines()
        text += "\n" + "\n".join(line for line in lines if not line.startswith(("language", "name", "gender")))
    return (text + _STEADY).encode()


def _words(text: str, marks: list[tuple[int, int, int, int]], samples: NDArray[np.int16]) -> list[ClauseWord]:
    """Words in order, without the silence after them. A word ends where the next starts or its clause ends.

    The library reports numbers and spelled words several times and in parts, which are merged here; it omits the length
    of a word before a closing quote, and may report a word's start after that of the next.
    """
    words: list[ClauseWord] = []
    sounding = np.flatnonzero(samples)
    edges = [mark for mark in marks if mark[0] in (_EVENT_WORD, _EVENT_CLAUSE_END)]
    limits = [mark[3] for mark in edges[1:]] + [len(samples)]
    for (kind, char, length, start), limit in zip(edges, limits, strict=True):
        if kind != _EVENT_WORD or not 0 <= char < len(text):
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


def _events(events: ctypes._Pointer[_Event]) -> Iterator[_Event]:
    i = 0
    while (event := events[i]).type != _EVENT_LIST_END:
        yield event
        i += 1


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL, int]:
    """The library, initialised once per process, and its sample rate."""
    lib = ctypes.CDLL(espeakng_loader.get_library_path())
    sample_rate = lib.espeak_Initialize(_OUTPUT_SYNCHRONOUS, 0, os.fsencode(_data()), _DONT_EXIT)
    if sample_rate <= 0:
        raise EspeakError("espeak-ng cannot be initialised")
    return lib, sample_rate


@lru_cache(maxsize=1)
def _data() -> Path:
    return Path(espeakng_loader.get_data_path())


def _check(status: int) -> None:
    if status != 0:
        raise EspeakError(f"espeak-ng status {status:#x}")
