"""EspeakEngine: real speech in over a hundred languages on any CPU, clause by clause, with exact word times."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from functools import partial

import numpy as np

from agent_tts.config.settings import Settings
from agent_tts.engine.base import AlignedOutput, Engine, StartRequest, StepInput, StepOutput
from agent_tts.engine.espeak.library import (
    PITCH_MAX,
    PITCH_NORMAL,
    RATE_MAX,
    RATE_MIN,
    RATE_NORMAL,
    Delivery,
    EspeakLibrary,
    Language,
    TooLong,
)
from agent_tts.engine.espeak.resample import Resampler
from agent_tts.engine.espeak.voices import EspeakVoices
from agent_tts.engine.slots import Mark, SlotFeed, SlotTable
from agent_tts.events import SAMPLE_RATE, EngineInfo, SpeechOptions, WordTime
from agent_tts.text.feed import Break, Unit

# Time for synthesis in one step, in seconds; slots that are left out are spoken in the next step.
STEP_BUDGET_S = 0.005

# Longest audio of a unit, in seconds: about 10 ms of work. A longer one is spoken in halves; few characters can be long
# in audio, as "999 999 999" or a script that the language spells out.
MAX_UNIT_S = 10.0

# A pause follows these; closers may stand before it.
CLAUSE_ENDS = tuple(".!?;:,…—–。！？，、；：।؟؛،")
CLOSERS = " \"'”’»)]}」』）"


class EspeakEngine(Engine):
    """Synthesises a clause when a slot is about to run out of audio; hands out one frame of it a step.

    Raises:
        SettingsError: there is no such default voice.
        EspeakError, OSError: the library cannot be loaded.
    """

    def __init__(self, settings: Settings, slots: int) -> None:
        self._voices = EspeakVoices(settings.espeak.voice)
        self._espeak = EspeakLibrary()
        self.info = EngineInfo(
            engine="espeak",
            model="espeak-ng",
            slots=slots,
            voices=self._voices.listed,
            default_voice=settings.espeak.voice,
            languages=self._voices.languages,
            aliases=self._voices.aliases,
            aligns_words=True,
        )
        self._first_words = settings.espeak.first_words
        self._slots = SlotTable(slots, self._make)

    def step(self, inputs: Sequence[StepInput], run: Collection[int]) -> list[StepOutput]:
        """See `Engine.step`. A slot whose clause does not fit into the step's budget yields nothing.

        A step takes at most about `STEP_BUDGET_S` and the time of one more clause. Paced requests come first: real time
        bounds what they take, while an unpaced one would take all.
        """
        outputs = self._slots.apply(inputs)
        deadline = time.perf_counter() + STEP_BUDGET_S
        for request in sorted(self._slots.requests(run), key=_EspeakRequest.urgency):
            outputs += self._slots.guard(request, partial(request.prepare, deadline))
        for request in self._slots.requests(run):
            outputs += self._slots.guard(request, request.feed.hand_out)
        return outputs

    def close(self) -> None:
        """Free everything. Idempotent."""
        self._slots.clear()
        self._espeak.close()

    def _make(self, opened: StartRequest) -> _EspeakRequest:
        language, variant = self._voices.resolve(opened.options.resolved, opened.options.language)
        feed = SlotFeed(opened, language.code, self._first_words)
        unpaced = opened.options.lead_ms is None
        return _EspeakRequest(self._espeak, feed, _delivery(language, variant, opened.options), unpaced=unpaced)


def _delivery(language: Language, variant: str | None, options: SpeechOptions) -> Delivery:
    wanted = RATE_NORMAL * options.speed
    rate = round(min(max(wanted, RATE_MIN), RATE_MAX))
    stretch = 1.0 if RATE_MIN <= wanted <= RATE_MAX else wanted / rate
    # A wider range also reaches lower, by a quarter of its growth, which a higher base makes up for.
    base = options.pitch + (options.pitch - 1) / 4
    pitch = round(PITCH_NORMAL * (1 + math.log2(base)))
    pitch_range = round(PITCH_NORMAL * options.pitch)
    return Delivery(language, variant, rate, _clamp(pitch), _clamp(pitch_range), stretch)


def _clamp(pitch: int) -> int:
    return min(max(pitch, 0), PITCH_MAX)


class _EspeakRequest:
    """A request in its slot: its text, its voice and its resampler."""

    def __init__(self, espeak: EspeakLibrary, feed: SlotFeed, delivery: Delivery, *, unpaced: bool) -> None:
        self.feed = feed
        self._espeak = espeak
        self._delivery = delivery
        # Whether it speaks as fast as it can.
        self._unpaced = unpaced
        # Most samples of espeak-ng in a unit, before and after it is stretched.
        self._max_samples = round(MAX_UNIT_S * espeak.sample_rate * min(1.0, delivery.stretch))
        # One resampler for all clauses, so that they join without a seam; a flush or a pause starts another.
        self._resampler = Resampler(espeak.sample_rate, SAMPLE_RATE)
        # Where the resampler started, in output samples, and what it has been fed, in samples of espeak-ng.
        self._origin = self._fed = 0
        # Whether anything but silence has been spoken.
        self._audible = False

    def urgency(self) -> tuple[bool, int, bool]:
        """A sort key: paced requests first, then those with the fewest frames ready, then new ones."""
        return self._unpaced, self.feed.ready, self.feed.frames > 0

    def prepare(self, deadline: float) -> list[StepOutput]:
        """Speak what the next frame needs, and the one after it while there is time."""
        outputs: list[StepOutput] = []
        while self.feed.ready < 2 and not self.feed.dry and time.perf_counter() < deadline:
            if self.feed.pending:
                item = self.feed.pending.popleft()
                outputs += self._speak(item) if isinstance(item, Unit) else self._pass(item)
        return outputs

    def _pass(self, item: Mark | Break) -> list[StepOutput]:
        self.feed.write(self._resampler.finish())
        if isinstance(item, Break):
            self.feed.rest(item)
        else:
            self.feed.mark(item)
        self._resampler = Resampler(self._espeak.sample_rate, SAMPLE_RATE)
        self._origin, self._fed = self.feed.samples, 0
        return []

    def _speak(self, unit: Unit) -> list[StepOutput]:
        stretch = self._delivery.stretch
        text = unit.text.rstrip(CLOSERS)  # after punctuation they would be a clause and a pause of their own
        ends = text.endswith(CLAUSE_ENDS)
        if not ends:
            text += ","  # cut in mid-sentence: spoken as if it went on, and without a pause
        halves = unit.halves()
        try:
            most = self._max_samples if halves else None
            clause = self._espeak.synthesize(text, self._delivery, pause=ends, max_samples=most)
        except TooLong:
            self.feed.pending.extendleft(reversed(halves or ()))  # without halves there is no limit
            return []
        samples = clause.samples if stretch == 1.0 else self._espeak.stretch(clause.samples, stretch)
        scale = len(samples) / max(1, len(clause.samples))
        lead = 0
        if not self._audible:
            heard = np.flatnonzero(samples)
            if not len(heard):
                return []
            self._audible, lead = True, int(heard[0])

        def ms(sample: int) -> int:
            fed = self._fed + max(0.0, sample * scale - lead)
            return round(self._origin * 1_000 / SAMPLE_RATE + fed * 1_000 / self._espeak.sample_rate)

        words = tuple(
            WordTime(unit.offsets[word.char], unit.offsets[last] + 1, ms(word.start), ms(word.end))
            for word in clause.words
            if word.char <= (last := min(word.char + word.length, len(unit.text)) - 1)
        )
        self._fed += len(samples) - lead
        self.feed.write(self._resampler.push(samples[lead:]))
        return [AlignedOutput(self.feed.slot, self.feed.epoch, words)] if words else []
