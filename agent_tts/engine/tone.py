"""ToneEngine: a deterministic sine instead of speech, for tests and load runs, with scripted faults.

Each character but the space sounds for `tone.char_ms` divided by the speed. The phase of the sine follows the sample's
number over all words; the amplitude of a word follows from the seed, the word and its number. The audio thus shows
which text was spoken, and any lost, repeated or foreign frame.

Where the settings allow faults, `fault:KIND@K` in a request's instructions causes KIND at the request's frame K.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2s
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from agent_tts.config.settings import Settings, Tone
from agent_tts.directives import Prosody
from agent_tts.engine.base import Engine, to_pcm16
from agent_tts.engine.gain import Levels
from agent_tts.engine.slots import READ_S, Opened, SlotFeed, SlotTable
from agent_tts.engine_info import FRAME_SAMPLES, SAMPLE_RATE, EngineInfo, Voice
from agent_tts.messages import End, Finished, StepCommand, StepEvent, Word, Words
from agent_tts.options import EngineOptions, NamedVoice
from agent_tts.text.directives import Ability, Directives
from agent_tts.text.feed import Reading, TextFeed, Unit
from agent_tts.voices import LANGUAGES, OPENAI_VOICES, QWEN_VOICES

TONES_HZ = (220, 440, 660, 880, 1_320)
DEFAULT_VOICE = "tone-440"
PERFORMS: tuple[Ability, ...] = ("pause", "speed", "volume", "pitch")
ALIASES = {name: f"tone-{TONES_HZ[i % len(TONES_HZ)]}" for i, name in enumerate(OPENAI_VOICES + QWEN_VOICES)}

RAMP = 48  # samples (2 ms) of a word's rise, and of its fall
QUIET, LOUD = 0.2, 0.5  # range of the amplitudes of words


class ToneEngine(Engine):
    """Speaks one frame in each slot of every step; a frame takes some microseconds."""

    def __init__(self, settings: Settings, slots: int) -> None:
        self.info = EngineInfo(
            engine="tone",
            model="tone",
            slots=slots,
            voices=tuple(Voice(f"tone-{hz}", ("en",), f"a sine of {hz} Hz") for hz in TONES_HZ),
            default_voice=DEFAULT_VOICE,
            languages=LANGUAGES | {code: code for code in LANGUAGES.values()},
            aliases=ALIASES,
        )
        levels = Levels()
        self._slots = SlotTable(slots, lambda opened, slot: _ToneRequest(opened, slot, settings.tone, levels))

    def step(self, commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
        """See `Engine.step`. Raises only scripted faults of the whole engine."""
        new = self._slots.apply(commands)
        reading_s = 0.0
        for request in sorted(self._slots.requests(run), key=lambda request: request.feed.read_at):
            request.strike_engine()
            reads, began = request.feed.has_to_read, time.monotonic()
            if not reads or reading_s < READ_S:
                new += self._slots.guard(request, partial(request.speak, began))
            reading_s += reads * (time.monotonic() - began)
        return new

    def close(self) -> None:
        self._slots.clear()


class _ToneRequest:
    """A request in its slot: the words that are still to sound, and how."""

    def __init__(self, opened: Opened, slot: int, settings: Tone, levels: Levels) -> None:
        options = opened.options
        language = "en" if options.language == "auto" else options.language
        text = TextFeed(Reading.of(options, language), directives=Directives(PERFORMS))
        self.feed = SlotFeed(opened, slot, text)
        # The scripted fault; None if there is none or none is allowed.
        self._fault = Fault.parse(options.instructions) if settings.scripted_faults else None
        # Samples of a character at the request's own speed, and how the present part differs from it.
        self._char_samples = settings.char_ms * SAMPLE_RATE / 1_000 / options.speed
        self._hz = frequency(options)
        self._leveler = levels.leveler(options, SAMPLE_RATE)
        self._prosody = Prosody()
        self._seed = options.seed or 0
        self._words: deque[str] = deque()
        self._spoken = 0
        if self._fault is not None:
            self._fault.strike(AT_OPEN)

    def strike_engine(self) -> None:
        if (fault := self._fault) is None:
            return
        if fault.kind == SLOW:
            time.sleep(fault.at / 1_000)
        elif fault.at == self.feed.frames:
            fault.strike(OF_ENGINE)

    def speak(self, now: float) -> list[StepEvent]:
        """The next frame, or why there is none."""
        feed, fault = self.feed, self._fault
        endless = False
        told: list[StepEvent] = []
        if fault is not None and fault.at <= feed.frames:
            fault.strike(OF_SLOT)
            if fault.kind == DONE_AT:
                return [Finished(feed.id, "end")]
            endless = fault.kind == NEVER_END
        while not feed.ready and (self._words or feed.read(now) or endless):
            if self._words:
                feed.write(self._sound(self._words.popleft()))
            elif endless and (not feed.read(now) or isinstance(feed.pending[0], End)):
                self._words.append("on-and-on")
            elif isinstance(item := feed.pending.popleft(), Unit):
                self._words += item.text.split()
                told.append(self._place(item))
            elif isinstance(item, Prosody):
                self._prosody = item
            else:
                feed.mark(item)
        return [*told, *feed.hand_out()]

    def _place(self, unit: Unit) -> Words[int]:
        """Where a unit begins and ends, before it sounds."""
        start = self.feed.samples
        end = start + sum(map(self._samples, self._words))
        start_ms, end_ms = (round(at * 1_000 / SAMPLE_RATE) for at in (start, end))
        return Words(self.feed.id, (Word("", start_ms, end_ms, unit.offsets[0], self.feed.offset_after(unit, -1)),))

    def _samples(self, word: str) -> int:
        return max(2 * RAMP, round(len(word) * self._char_samples / self._prosody.speed))

    def _sound(self, word: str) -> bytes:
        """The next word's part of the sine, with its rise and fall."""
        how = self._prosody
        length = self._samples(word)
        first = self.feed.samples % SAMPLE_RATE
        wave = sine(round(self._hz * how.pitch))
        samples: NDArray[np.float32] = wave.take(np.arange(first, first + length), mode="wrap")
        samples *= amplitude(self._seed, self._spoken, word)
        samples[:RAMP] *= RISE
        samples[-RAMP:] *= RISE[::-1]
        if self._leveler:
            samples = self._leveler.apply(np.frombuffer(to_pcm16(samples), "<i2")) / np.float32(32_767)
        self._spoken += 1
        return to_pcm16(samples * np.float32(how.volume))


RISE: NDArray[np.float32] = np.linspace(0.0, 1.0, RAMP, endpoint=False, dtype=np.float32)


def frequency(options: EngineOptions) -> int:
    """The tone of a voice at a pitch, in whole Hz."""
    name = options.voice.name if isinstance(options.voice, NamedVoice) else DEFAULT_VOICE
    return round(int(name.removeprefix("tone-")) * options.pitch)


@lru_cache(maxsize=64)
def sine(hz: int) -> NDArray[np.float32]:
    """float32[SAMPLE_RATE]: one second of a sine of amplitude 1."""
    phase = np.arange(SAMPLE_RATE) * hz % SAMPLE_RATE
    samples: NDArray[np.float32] = np.sin(phase * (2 * np.pi / SAMPLE_RATE)).astype(np.float32)
    return samples


def amplitude(seed: int, number: int, word: str) -> float:
    """Amplitude of the word with this number, the same in every process."""
    digest = blake2s(f"{seed} {number} {word}".encode(), digest_size=4).digest()
    return QUIET + (LOUD - QUIET) * int.from_bytes(digest, "big") / 0xFFFFFFFF


# ---------------------------------------------------------------- faults

HANG_S = 60


def _raise(error: Exception) -> NoReturn:
    raise error


Table = Mapping[str, Callable[[], object]]

# The request alone fails, when it gets its slot.
AT_OPEN: Table = {"oom": lambda: _raise(MemoryError("scripted"))}
# The request alone fails, before its frame K.
OF_SLOT: Table = {
    "raise": lambda: _raise(ValueError("scripted")),
    "nan": lambda: to_pcm16(np.full(FRAME_SAMPLES, np.nan, np.float32)),
}
# The engine hangs or is lost, before the request's frame K.
OF_ENGINE: Table = {
    "hang": lambda: time.sleep(HANG_S),
    "hang_gil": lambda: ctypes.PyDLL(None).sleep(HANG_S),  # PyDLL keeps the GIL while it is in C
    "oom_step": lambda: _raise(MemoryError("scripted")),
    "crash": lambda: _raise(RuntimeError("scripted")),
    "exit": lambda: os._exit(7),
}
# The request: never ends nor runs dry after frame K; ends before frame K; makes each of its steps K ms longer.
NEVER_END, DONE_AT, SLOW = "never_end", "done_at", "slow"


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at: int  # number of a frame, from 0; milliseconds for `slow`

    @classmethod
    def parse(cls, instructions: str | None) -> Fault | None:
        """The fault that the instructions ask for, or None. Raises ValueError: there is no such fault."""
        if not instructions or not instructions.startswith("fault:"):
            return None
        kind, _, at = instructions.removeprefix("fault:").partition("@")
        if kind not in {*AT_OPEN, *OF_SLOT, *OF_ENGINE, NEVER_END, DONE_AT, SLOW}:
            raise ValueError("no such fault")
        return cls(kind, int(at or 0))

    def strike(self, table: Table) -> None:
        """Cause this fault if `table` has its kind."""
        if self.kind in table:
            table[self.kind]()
