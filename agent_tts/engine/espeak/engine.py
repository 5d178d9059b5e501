"""EspeakEngine: real speech in over a hundred languages on any CPU, clause by clause, with exact word times."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import soxr
from numpy.typing import NDArray

from agent_tts.config.settings import Settings
from agent_tts.directives import Language as SpokenLanguage
from agent_tts.directives import Prosody
from agent_tts.engine.base import Engine, Faults
from agent_tts.engine.espeak.scripts import parts, reader
from agent_tts.engine.espeak.voices import EspeakLanguage, EspeakVoices
from agent_tts.engine.espeak.workers import (
    PITCH_MAX,
    PITCH_NORMAL,
    RATE_MAX,
    RATE_MIN,
    RATE_NORMAL,
    Deadly,
    Delivery,
    EspeakWorkers,
    Job,
    NoPhonemes,
    TooLong,
)
from agent_tts.engine.gain import Levels, amplify
from agent_tts.engine.slots import Opened, SlotFeed, SlotTable
from agent_tts.engine_info import SAMPLE_RATE, EngineInfo
from agent_tts.errors import BadMessage
from agent_tts.messages import StepCommand, StepEvent, Word, Words
from agent_tts.options import EngineOptions, ResolvedVoice, within
from agent_tts.text.chars import is_silent
from agent_tts.text.directives import Ability, Directives
from agent_tts.text.feed import Reading, TextFeed, Unit

# Time for synthesis in one step, in seconds; slots that are left out are spoken in the next step.
STEP_BUDGET_S = 0.005

# Longest audio of a unit, in seconds: about 10 ms of work. A longer one is spoken in halves; few characters can be long
# in audio, as "999 999 999" or a script that the language spells out.
MAX_UNIT_S = 10.0

# A step waits so long for clauses, in seconds, and goes on without one that takes longer. A step without anything to
# hand out while clauses are awaited waits `IDLE_S`.
WAIT_S = 0.025
IDLE_S = 0.005

# Texts of one request that may end a worker; with one more the request fails.
MAX_DEADLY = 3

PERFORMS: tuple[Ability, ...] = ("pause", "speed", "volume", "pitch", "language", "ipa")

# Where text is cleaned, numbers and signs are in words unless a client leaves them: espeak-ng and hibari read "1/2" and
# "10 - 15" as "one slash two" and "ten fifteen", and leave out ">". Not in these languages, whose number words
# espeak-ng cannot read (kanji).
NOT_READ = frozenset(("ja",))

# A pause follows these; closers may stand before it.
CLAUSE_ENDS = tuple(".!?;:,…—–。！？，、；：।؟؛،")
CLOSERS = " \"'”’»)]}」』）"
# What espeak-ng rests behind a clause and a sentence at its normal rate, in seconds.
CLAUSE_S, SENTENCE_S = 0.14, 0.3

NO_SAMPLES = np.zeros(0, np.int16)


class Shared(NamedTuple):
    """What the requests of an engine have in common."""

    workers: EspeakWorkers
    voices: EspeakVoices
    levels: Levels
    first_words: int


class EspeakEngine(Engine):
    """Synthesises a clause when a slot is about to run out of audio; hands out one frame of it a step.

    Raises:
        SettingsError: there is no such default voice.
        EspeakError, OSError: the library cannot be loaded.
    """

    def __init__(self, settings: Settings, slots: int) -> None:
        voices = EspeakVoices(settings.espeak.voice)
        self._shared = Shared(EspeakWorkers(), voices, Levels(), settings.espeak.first_words)
        self.info = EngineInfo(
            engine="espeak",
            model="espeak-ng",
            slots=slots,
            voices=voices.listed,
            default_voice=settings.espeak.voice,
            languages=voices.languages,
            aliases=voices.aliases,
            aligns_words=True,
        )
        self._slots = SlotTable(slots, self._request)

    def _request(self, opened: Opened, slot: int) -> EspeakRequest:
        return EspeakRequest(self._shared, opened, slot)

    def step(self, commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
        """See `Engine.step`. A slot whose clause does not fit into the step's budget yields nothing.

        A step takes at most about `STEP_BUDGET_S` and the time of one more clause. Paced requests come first: real time
        bounds what they take, while an unpaced one would take all.
        """
        new = self._slots.apply(commands)
        start = time.monotonic()
        for request in sorted(self._slots.requests(run), key=lambda request: request.urgency(start)):
            new += self._slots.guard(request, partial(request.prepare, start + STEP_BUDGET_S, start + WAIT_S))
        for request in self._slots.requests(run):
            new += self._slots.guard(request, request.feed.hand_out)
        if not new and any(request.waits for request in self._slots.requests(run)):
            self._wait(time.monotonic() + IDLE_S)
        return new

    def _wait(self, until: float) -> None:
        """Wait until something is done of what requests wait for, or until then (monotonic)."""
        self._shared.workers.poll(until)

    def take_faults(self) -> Faults:
        return self._shared.workers.take_faults()

    def close(self) -> None:
        self._slots.clear()
        self._shared.workers.close()


def delivery(language: EspeakLanguage, variant: str | None, options: EngineOptions, prosody: Prosody) -> Delivery:
    """How a part of a request is spoken."""
    speed, its_pitch = within("speed", options.speed * prosody.speed), within("pitch", options.pitch * prosody.pitch)
    wanted = RATE_NORMAL * speed
    rate = round(min(max(wanted, RATE_MIN), RATE_MAX))
    stretch = 1.0 if RATE_MIN <= wanted <= RATE_MAX else wanted / rate
    # A wider range also reaches lower, by a quarter of its growth, which a higher base makes up for.
    base = its_pitch + (its_pitch - 1) / 4
    factors = (1 + math.log2(base), its_pitch)
    pitch, pitch_range = (min(max(round(PITCH_NORMAL * factor), 0), PITCH_MAX) for factor in factors)
    return Delivery(language, variant, rate, pitch, pitch_range, stretch)


class EspeakRequest:
    """A request in its slot: the clause that is spoken, and how. `voice` is in place of that of the options."""

    def __init__(self, shared: Shared, opened: Opened, slot: int, voice: ResolvedVoice | None = None) -> None:
        self._workers, self._voices, levels, first_words = shared
        self._options = options = opened.options
        voice = voice or options.voice
        self._own, self._variant = self._voices.resolve(voice, options.language)
        self._language = self._own
        self._prosody = Prosody()
        code = self._own.code
        directives = Directives(PERFORMS, self._voices.languages, code)
        as_a_person = options if options.normalize is not None else replace(options, normalize=options.clean)
        text = TextFeed(
            replace(Reading.of(as_a_person, code), left=NOT_READ),
            first_words=first_words,
            directives=directives,
            each_word=lambda other: self._by_word(other or code),
        )
        self.feed = SlotFeed(opened, slot, text)
        self._leveler = levels.leveler(replace(options, voice=voice), self._workers.sample_rate)
        # The first pending unit, while it is with a worker for longer than a step.
        self._job: Job | None = None
        self._deadly = 0
        self._unpaced = options.lead_ms is None
        # One resampler for all clauses, so that they join without a seam; a flush or a pause starts another.
        self._resampler = ClauseResampler(self._workers.sample_rate)
        # Where the resampler's sound starts, in output samples, and what it was fed, in samples of espeak-ng.
        self._origin = self._fed = 0
        # Whether anything but silence has been spoken.
        self._audible = False

    def _by_word(self, code: str) -> bool:
        """Whether each word of a language is a unit."""
        return False

    def urgency(self, now: float) -> tuple[bool, float, bool]:
        """A sort key: paced requests first, then those with the fewest frames ready, then new ones."""
        return self._unpaced, self.feed.ready, self.feed.frames > 0

    @property
    def waits(self) -> bool:
        return self._job is not None

    def prepare(self, deadline: float, until: float) -> list[StepEvent]:
        """Speak what the next frame needs, and the one after it while there is time.

        Nothing is begun after `deadline`, and nothing that was begun in this step is awaited after `until`.
        """
        told: list[StepEvent] = []
        while self.feed.ready < 2 and not self.feed.dry and (now := time.monotonic()) < deadline:
            if not self.feed.read(now):
                continue
            spoken = self._perform(until)
            if spoken is None:
                break
            told += spoken
        return told

    def _perform(self, until: float) -> list[StepEvent] | None:
        """Do what comes next in `pending`; None if it is not done until then, and comes next again."""
        item = self.feed.pending.popleft()
        if isinstance(item, Unit):
            spoken = self._speak(item, until)
            if spoken is None:
                self.feed.pending.appendleft(item)
            return spoken
        if isinstance(item, Prosody):
            self._prosody = item
        elif isinstance(item, SpokenLanguage):
            self._language = self._voices.language(item.code) if item.code else self._own
        else:
            self._join()
            self.feed.mark(item)
        return []

    def _join(self) -> None:
        """Write what the resampler holds back; what is written next is no part of the same sound."""
        self.feed.write(self._resampler.push(NO_SAMPLES, last=True))
        self._resampler = ClauseResampler(self._workers.sample_rate)
        self._fed = 0

    def _speak(self, unit: Unit, until: float) -> list[StepEvent] | None:
        """Speak a unit, or put its parts or halves in its place; None if it is not done until then."""
        own = self._language
        if all(map(is_silent, unit.text)):
            pause_s = SENTENCE_S if set(unit.text) & set(".!?。！？") else CLAUSE_S
            rest = round(pause_s / (self._options.speed * self._prosody.speed) * self._workers.sample_rate)
            self._fed += rest
            self.feed.write(self._resampler.push(np.zeros(rest, np.int16)))
            return []
        if self._job is None and (cut := parts(unit, own.code)) != [unit]:
            self.feed.pending.extendleft(reversed(cut))
            return []
        text = unit.text.rstrip(CLOSERS)  # after punctuation they would be a clause and a pause of their own
        length = len(text)
        ends = text.endswith(CLAUSE_ENDS)
        if not ends:
            text += ","  # cut in mid-sentence: spoken as if it went on, and without a pause
        halves = unit.halves()
        if self._job is None:
            language = self._voices.language(reader(unit.text, own.code))
            how = delivery(language, self._variant, self._options, self._prosody)
            # Samples before the unit is stretched; without halves there is no limit.
            most = round(MAX_UNIT_S * self._workers.sample_rate * min(1.0, how.stretch)) if halves else None
            self._job = Job(text, how, pause=ends, most=most, ipa=self.feed.ipa(unit))
        else:
            until = 0.0  # the step that began it has waited
        try:
            clause = self._workers.speak(self._job, until)
        except (TooLong, NoPhonemes, Deadly) as error:
            self._job = None
            if isinstance(error, TooLong):
                self.feed.pending.extendleft(reversed(halves or ()))
            elif isinstance(error, NoPhonemes):
                self.feed.pending.appendleft(self.feed.spelled(unit))
            else:
                self._deadly += 1
                if self._deadly > MAX_DEADLY:
                    raise BadMessage("espeak-ng cannot speak this text") from None
            return []
        if clause is None:
            return None
        self._job = None
        lead = 0
        if not self._audible:
            heard = np.flatnonzero(clause.samples)
            if not len(heard):
                return []
            # espeak-ng pads with zeros; what is not zero is speech.
            self._audible, lead = True, 0 if self._options.leading_silence_ms is None else int(heard[0])

        if not self._fed:
            self._origin = self.feed.samples

        def ms(sample: int) -> int:
            fed = self._fed + max(0.0, sample * clause.scale - lead)
            return round(self._origin * 1_000 / SAMPLE_RATE + fed * 1_000 / self._workers.sample_rate)

        words = tuple(
            Word("", ms(word.start), ms(word.end), unit.offsets[word.char], self.feed.offset_after(unit, last))
            for word in clause.words
            if word.char <= (last := min(word.char + word.length, length) - 1)
        )
        self._fed += len(clause.samples) - lead
        samples = clause.samples[lead:]
        levelled = self._leveler.apply(samples) if self._leveler else samples
        self.feed.write(self._resampler.push(amplify(levelled, self._prosody.volume)))
        return [Words(self.feed.id, words)] if words else []


class ClauseResampler:
    """Resamples clauses from `rate` to 24 000 Hz as one sound, however it is cut. It holds back 42 ms at most."""

    def __init__(self, rate: int) -> None:
        # It is float32, because soxr dithers int16: equal texts would not have equal samples.
        self._stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, "float32", "HQ")

    def push(self, samples: NDArray[np.int16] | NDArray[np.float32], *, last: bool = False) -> bytes:
        """Samples [n] in the range of int16 in, pcm_s16le out. Nothing may be pushed after the `last` ones."""
        made: NDArray[np.float32] = self._stream.resample_chunk(samples.astype(np.float32), last=last)
        return np.clip(np.rint(made), -32_768, 32_767).astype("<i2").tobytes()
