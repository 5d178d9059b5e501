"""HibariEngine: a natural English voice on the CPU; what is not English is espeak-ng's, in the same utterance."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Barrier
from typing import NamedTuple

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from agent_tts.config.settings import Settings
from agent_tts.engine.base import to_pcm16
from agent_tts.engine.espeak.engine import EspeakEngine, EspeakRequest
from agent_tts.engine.espeak.scripts import parts, reader
from agent_tts.engine.espeak.voices import EspeakVoices
from agent_tts.engine.espeak.workers import EspeakWorkers
from agent_tts.engine.gain import FULL_SCALE, Leveler, Levels, amplify
from agent_tts.engine.hibari.phrase import (
    FADE,
    MAX_BEFORE,
    MAX_CHARS,
    SEARCH,
    due,
    ends_clause,
    ends_sentence,
    joined,
    pause_behind,
)
from agent_tts.engine.hibari.speech import HibariVoice, installed, to_alphabet
from agent_tts.engine.hibari.voices import aliases, listed, near
from agent_tts.engine.slots import Opened
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SettingsError
from agent_tts.messages import StepEvent, Word, Words
from agent_tts.options import NamedVoice, within
from agent_tts.sound.silence import skipped
from agent_tts.system.cores import cores
from agent_tts.text.chars import is_silent
from agent_tts.text.feed import Unit

MAX_SLOTS = 64
SHARE = 0.6  # of the cores that speech may take: the rest is the node's
REPEATED = 1.8  # times that a word of a text is spoken which is still being written
PROBE_S = 10.0  # for all threads to be there
PROBE = ("I ", "understand ", "how ", "frustrating ", "that ", "must ", "be, ", "and ", "I ", "will ", "help ", "you.")

NO_SAMPLES = np.zeros(0, np.float32)


class HibariEngine(EspeakEngine):
    """Speaks sentences in threads, each when its slot is about to run out of audio.

    Args:
        slots: None: as many as this machine's cores carry, which is tried.

    Raises:
        SettingsError: there is no such default voice.
        EspeakError, OSError, RuntimeError: a library or a voice cannot be loaded.
    """

    def __init__(self, settings: Settings, slots: int | None) -> None:
        facts = installed()
        wanted = settings.hibari.voice or ("heart" if settings.espeak.voice.startswith("en") else settings.espeak.voice)
        self._near = {name: NamedVoice(near(fact)) for name, fact in facts.items()}
        self._hibari = {name: HibariVoice(name) for name in facts}
        first = self._hibari.get(wanted) or self._hibari["heart"]
        first.load()
        self._threads = max(1, int(cores()))
        self._pool = ThreadPoolExecutor(self._threads, "hibari")
        self._speaking: set[Future[Spoken]] = set()
        try:
            carried = _carried(first, self._pool, self._threads)
            super().__init__(settings, slots or carried)
        except BaseException:
            self._pool.shutdown()
            raise
        espeak = self.info
        names = {voice.name for voice in espeak.voices}
        if wanted not in facts and wanted not in names:
            self.close()
            here = f"{', '.join(facts)}, or one of espeak-ng; `agent-tts voices fetch` gets more"
            raise SettingsError(f"hibari.voice: no voice {wanted!r} is here: {here}")
        self.info = replace(
            espeak,
            engine="hibari",
            model="hibari",
            voices=(*listed(facts), *espeak.voices),
            default_voice=wanted,
            aliases=aliases(facts),
        )

    def _request(self, opened: Opened, slot: int) -> EspeakRequest:
        voice = opened.options.voice
        name = voice.name if isinstance(voice, NamedVoice) else self.info.default_voice
        if name not in self._hibari:
            return super()._request(opened, slot)
        common = self._workers, self._voices, self._levels, self._first_words
        return HibariRequest(self, self._hibari[name], *common, opened, slot, self._near[name])

    def begin(self, sentence: Wanted) -> Future[Spoken] | None:
        """Speak it in a thread; None if none is free: the most urgent is then the next one's, at the next step."""
        self._speaking = {future for future in self._speaking if not future.done()}
        if len(self._speaking) >= self._threads:
            return None
        future = self._pool.submit(sentence.speak)
        self._speaking.add(future)
        return future

    def _wait(self, until: float) -> None:
        if self._speaking:
            _, self._speaking = wait(self._speaking, until - time.monotonic(), FIRST_COMPLETED)
            until = 0.0
        super()._wait(until)

    def close(self) -> None:
        """Free everything. Idempotent."""
        self._pool.shutdown(cancel_futures=True)
        super().close()


def _is_english(code: str) -> bool:
    return code.partition("-")[0] == "en"


def _carried(voice: HibariVoice, pool: ThreadPoolExecutor, threads: int) -> int:
    """How many callers the cores carry, by the time that a sentence takes in all threads at once."""
    together = Barrier(threads)

    def took_s() -> float:
        voice.speak(PROBE, ())
        together.wait(PROBE_S)
        began = time.perf_counter()
        for _ in range(3):
            voice.speak(PROBE, ())
        return (time.perf_counter() - began) / 3

    took = max(future.result() for future in [pool.submit(took_s) for _ in range(threads)])
    load = REPEATED * took / (len(voice.speak(PROBE, ()).samples) / SAMPLE_RATE)
    slots = min(max(1, int(threads * SHARE / max(load, 1e-6))), MAX_SLOTS)
    logger.info("hibari: {} slots, by {:.1%} of a core for a caller", slots, load)
    return slots


class Spoken(NamedTuple):
    pcm: bytes  # what is heard, pcm_s16le
    words: tuple[tuple[int, int], ...]  # where each of the words that are heard sounds, in samples of `pcm`
    over: NDArray[np.float32]  # how the sound would have gone on, to join the next one to


class Wanted(NamedTuple):
    """A part of a sentence to speak: everything that a thread needs."""

    voice: HibariVoice
    before: tuple[str, ...]  # words of the sentence that were heard
    over: NDArray[np.float32]  # how their sound would have gone on
    words: tuple[str, ...]  # those after them
    ipa: tuple[str, ...]  # of each `SOUND` of all these words
    heard: int  # of `words`, the first ones that are heard
    speed: float
    pitch: float
    volume: float
    seed: int
    keep_ms: int | None  # of the silence at its start; None: all
    leveler: Leveler | None

    def speak(self) -> Spoken:
        """Raises whatever hibari raises on the text."""
        all_words = self.before + self.words
        samples, words, cuts = self.voice.speak(all_words, self.ipa, speed=self.speed, pitch=self.pitch, seed=self.seed)
        count = len(self.before)
        start = cuts[count - 1] if count else 0
        last = count + self.heard
        end = cuts[last - 1] + (pause_behind(self.words[-1]) if last == len(cuts) else 0)
        made = joined(self.over, samples, start, min(end, len(samples)))
        skips = skipped(_int16(made), SAMPLE_RATE, None if count else self.keep_ms)
        made = made[skips:]
        levelled = self.leveler.apply(_int16(made)) if self.leveler else made
        first = start + skips
        spans = tuple((max(0, word[0] - first), max(0, word[1] - first)) for word in words[count:last])
        pcm = to_pcm16(amplify(levelled, self.volume) / np.float32(FULL_SCALE))
        return Spoken(pcm, spans, samples[end : end + FADE + SEARCH])


def _int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.rint(np.clip(samples, -FULL_SCALE - 1, FULL_SCALE)).astype(np.int16)


class HibariRequest(EspeakRequest):
    """A request with a voice of hibari in its slot: words of English wait in `feed.pending` until they are spoken."""

    def __init__(
        self,
        engine: HibariEngine,
        voice: HibariVoice,
        workers: EspeakWorkers,
        voices: EspeakVoices,
        levels: Levels,
        first_words: int,
        opened: Opened,
        slot: int,
        near: NamedVoice,
    ) -> None:
        super().__init__(workers, voices, levels, first_words, opened, slot, near, _is_english)
        self._engine = engine
        self._voice = voice
        self._hibari_leveler = levels.leveler(opened.options, SAMPLE_RATE)
        # Words of the sentence that were heard, and how their sound would have gone on.
        self._before: list[Unit] = []
        self._over = NO_SAMPLES
        # The first words of `pending` that are hibari's and belong together, their characters, and whether no more
        # will belong to them.
        self._words = self._chars = 0
        self._closed = False
        self._waiting_since: float | None = None
        # The next part of the sentence, while a thread speaks it, and how many of its words are heard.
        self._speech: Future[Spoken] | None = None
        self._wanted: Wanted | None = None
        # Text up to this offset is espeak-ng's, because hibari fails on it.
        self._fails_before = 0
        # When the audio so far began to play, as far as is known here.
        self._began: float | None = None

    def urgency(self, now: float) -> tuple[bool, float, bool]:
        """A sort key: paced requests first, then those whose listeners have the least to hear."""
        return self._unpaced, self._left_s(now), self.feed.frames > 0

    @property
    def waits(self) -> bool:
        return bool(self.feed.pending)

    def prepare(self, deadline: float, until: float) -> list[StepEvent]:
        """See `EspeakRequest.prepare`; sentences are spoken in threads, and nothing waits for them."""
        told = self._take_speech()
        while self._speech is None and (now := time.monotonic()) < deadline:
            self._look(now)
            if self._words:
                self._begin(now)
                break
            if self.feed.ready >= 2 or not self.feed.pending:
                break
            self._forget_sentence()
            performed = self._perform(until)
            if performed is None:
                break
            told += performed
        return told

    def _look(self, now: float) -> None:
        """Find the words at the start of `pending` that hibari speaks together."""
        pending = self.feed.pending
        while not self._closed:
            if self._words == len(pending) and not self.feed.read_on(now):
                return
            if self._words == len(pending):
                continue
            item = pending[self._words]
            if not isinstance(item, Unit) or item.offsets[0] < self._fails_before:
                self._closed = True
                return
            code = self._language.code
            if not item.text.isascii() and (cut := parts(item, code)) != [item]:
                del pending[self._words]
                for place, part in enumerate(cut, self._words):
                    pending.insert(place, part)
                continue
            if not self._is_hibaris(item) or (self._words and self._chars + len(item.text) > MAX_CHARS):
                self._closed = True
                return
            self._words += 1
            self._chars += len(item.text)
            self._closed = ends_sentence(item.text)
            if self._waiting_since is None:
                self._waiting_since = now

    def _is_hibaris(self, unit: Unit) -> bool:
        if all(map(is_silent, unit.text)) and not (self._words or self._before):
            return False  # a pause without a sentence before it
        sounds = [to_alphabet(ipa, self._voice.british) for ipa in self.feed.ipa(unit)]
        if not _is_english(reader(unit.text, self._language.code)) or None in sounds:
            return False
        # The dictionary has no word for many symbols, which have names in espeak-ng.
        has_word = sounds or any(char.isascii() and char.isalnum() for char in unit.text)
        return bool(has_word or self._voice.phonemes((unit.text,)).text.strip())

    def _begin(self, now: float) -> None:
        """Have those words spoken that are due."""
        words = [unit for unit in list(self.feed.pending)[: self._words] if isinstance(unit, Unit)]
        together, heard = due(
            len(words),
            closed=self._closed,
            at_clause_end=ends_clause(words[-1].text),
            left_s=self._left_s(now),
            waited_s=now - (self._waiting_since or now),
        )
        if not heard:
            return
        units = [*self._before, *words[:together]]
        options, prosody = self._options, self._prosody
        wanted = Wanted(
            voice=self._voice,
            before=tuple(unit.text for unit in self._before),
            over=self._over,
            words=tuple(unit.text for unit in words[:together]),
            ipa=tuple(ipa for unit in units for ipa in self.feed.ipa(unit)),
            heard=heard,
            speed=within("speed", options.speed * prosody.speed),
            pitch=within("pitch", options.pitch * prosody.pitch),
            volume=prosody.volume,
            seed=options.seed or 0,
            keep_ms=0 if self._options.leading_silence_ms is not None or self._audible else None,
            leveler=self._hibari_leveler,
        )
        self._speech = self._engine.begin(wanted)
        self._wanted = wanted

    def _take_speech(self) -> list[StepEvent]:
        """Write what a thread has spoken."""
        if self._speech is None or self._wanted is None or not self._speech.done():
            return []
        wanted, speech, self._speech = self._wanted, self._speech, None
        units = [unit for unit in (self.feed.pending.popleft() for _ in range(wanted.heard)) if isinstance(unit, Unit)]
        self._words -= len(units)
        self._chars -= sum(len(unit.text) for unit in units)
        now = time.monotonic()
        self._waiting_since = now if self._words else None
        if (error := speech.exception()) is not None:
            logger.debug("hibari fails on a text ({}): espeak-ng speaks it", type(error).__name__)
            text, offsets = "".join(unit.text for unit in units), sum((unit.offsets for unit in units), ())
            self.feed.pending.appendleft(Unit(text, offsets))
            self._fails_before = offsets[-1] + 1
            self._forget_sentence()
            return []
        pcm, spans, self._over = speech.result()
        self._before = [*self._before, *units][-MAX_BEFORE:]
        if self._fed:
            self._join()
        first = self.feed.samples
        if self._left_s(now) <= 0:
            self._began = now - first / SAMPLE_RATE
        self.feed.write(pcm)
        self._audible = True
        if self._closed and not self._words:
            self._forget_sentence()

        def ms(sample: int) -> int:
            return round((first + sample) * 1_000 / SAMPLE_RATE)

        words = tuple(
            Word("", ms(start), ms(end), unit.offsets[0], self.feed.offset_after(unit, len(unit.text.rstrip()) - 1))
            for unit, (start, end) in zip(units, spans, strict=True)
            if end > start
        )
        return [Words(self.feed.id, words)] if words else []

    def _forget_sentence(self) -> None:
        """What comes next is said without what was said before."""
        self._before.clear()
        self._over = NO_SAMPLES
        self._words = self._chars = 0
        self._closed = False

    def _left_s(self, now: float) -> float:
        """Audio that the listener has still to hear, if it plays without a gap."""
        return 0.0 if self._began is None else max(0.0, self._began + self.feed.samples / SAMPLE_RATE - now)
