"""HibariEngine: a natural English voice on the CPU; what is not English is espeak-ng's, in the same utterance."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Barrier

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.engine.espeak.engine import EspeakEngine, EspeakRequest, Shared
from agent_tts.engine.espeak.scripts import parts, reader
from agent_tts.engine.hibari.phrase import MAX_BEFORE, NO_SAMPLES, Phrase, Spoken, Wanted, due
from agent_tts.engine.hibari.speech import HibariVoice, aliases, installed, listed, near, to_alphabet
from agent_tts.engine.slots import Opened
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SettingsError
from agent_tts.messages import StepEvent, Word, Words
from agent_tts.options import NamedVoice, within
from agent_tts.system.cores import cores
from agent_tts.text.chars import is_silent
from agent_tts.text.feed import Unit

MAX_SLOTS = 64
SHARE = 0.6  # of the cores that speech may take: the rest is the node's
REPEATED = 1.8  # times that a word of a text is spoken which is still being written
PROBE_S = 10.0  # for all threads to be there
PROBE = ("I ", "understand ", "how ", "frustrating ", "that ", "must ", "be, ", "and ", "I ", "will ", "help ", "you.")


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
        self._hibari = {name: HibariVoice(name) for name in facts}
        first = self._hibari.get(wanted) or self._hibari["heart"]
        first.load()
        self._threads = max(1, int(cores()))
        self._pool = ThreadPoolExecutor(self._threads, "hibari")
        self._speaking: set[Future[Spoken]] = set()
        try:
            super().__init__(settings, slots or _carried(first, self._pool, self._threads))
        except BaseException:
            self._pool.shutdown()
            raise
        espeak = self.info
        if wanted not in {*facts, *(voice.name for voice in espeak.voices)}:
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
        return HibariRequest(self, self._hibari[name], self._shared, opened, slot)

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
        self._pool.shutdown(cancel_futures=True)
        super().close()


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


class HibariRequest(EspeakRequest):
    """A request with a voice of hibari in its slot: words of English wait in `feed.pending` until they are spoken."""

    def __init__(self, engine: HibariEngine, voice: HibariVoice, shared: Shared, opened: Opened, slot: int) -> None:
        super().__init__(shared, opened, slot, NamedVoice(near(voice.facts)))
        self._engine = engine
        self._voice = voice
        self._hibari_leveler = shared.levels.leveler(opened.options, SAMPLE_RATE)
        # Words of the sentence that were heard, and how their sound would have gone on.
        self._before: list[Unit] = []
        self._over = NO_SAMPLES
        # The first of `pending`, and since when they have waited.
        self._phrase = Phrase()
        self._waiting_since: float | None = None
        # What a thread is asked to speak, and what comes of it.
        self._speech: tuple[Wanted, Future[Spoken]] | None = None
        # Text up to this offset is espeak-ng's, because hibari fails on it.
        self._fails_before = 0
        # When the audio so far began to play, as far as is known here.
        self._began: float | None = None

    def _by_word(self, code: str) -> bool:
        return code.partition("-")[0] == "en"

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
            if self._phrase.units:
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
        while not self._phrase.closed and (len(pending) > (place := len(self._phrase.units)) or self.feed.read_on(now)):
            item = pending[place] if place < len(pending) else None  # what is read may be no whole word yet
            if isinstance(item, Unit) and (cut := parts(item, self._language.code)) != [item]:
                del pending[place]
                for number, part in enumerate(cut, place):
                    pending.insert(number, part)
            elif item is not None:
                self._phrase = self._phrase.followed_by(item if isinstance(item, Unit) and self._speaks(item) else None)
        if self._phrase.units and self._waiting_since is None:
            self._waiting_since = now

    def _speaks(self, unit: Unit) -> bool:
        """Whether a unit is hibari's."""
        if unit.offsets[0] < self._fails_before or not self._by_word(reader(unit.text, self._language.code)):
            return False
        if all(map(is_silent, unit.text)) and not (self._phrase.units or self._before):
            return False  # a pause without a sentence before it
        sounds = [to_alphabet(ipa, self._voice.british) for ipa in self.feed.ipa(unit)]
        # The dictionary has no word for many symbols, which have names in espeak-ng.
        has_word = sounds or any(char.isascii() and char.isalnum() for char in unit.text)
        return None not in sounds and bool(has_word or self._voice.phonemes((unit.text,)).text.strip())

    def _begin(self, now: float) -> None:
        """Have those words spoken that are due."""
        together, heard = due(self._phrase, left_s=self._left_s(now), waited_s=now - (self._waiting_since or now))
        if not heard:
            return
        words = self._phrase.units[:together]
        options, prosody = self._options, self._prosody
        wanted = Wanted(
            voice=self._voice,
            before=tuple(unit.text for unit in self._before),
            over=self._over,
            words=tuple(unit.text for unit in words),
            ipa=tuple(ipa for unit in (*self._before, *words) for ipa in self.feed.ipa(unit)),
            heard=heard,
            speed=within("speed", options.speed * prosody.speed),
            pitch=within("pitch", options.pitch * prosody.pitch),
            volume=prosody.volume,
            seed=options.seed or 0,
            keep_ms=0 if options.leading_silence_ms is not None or self._audible else None,
            leveler=self._hibari_leveler,
        )
        if (speech := self._engine.begin(wanted)) is not None:
            self._speech = wanted, speech

    def _take_speech(self) -> list[StepEvent]:
        """Write what a thread has spoken."""
        if self._speech is None or not self._speech[1].done():
            return []
        (wanted, speech), self._speech = self._speech, None
        units, self._phrase = self._phrase.units[: wanted.heard], self._phrase.after(wanted.heard)
        for _ in units:
            self.feed.pending.popleft()
        now = time.monotonic()
        self._waiting_since = now if self._phrase.units else None
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
        if self._phrase.closed and not self._phrase.units:
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
        self._phrase = Phrase()

    def _left_s(self, now: float) -> float:
        """Audio that the listener has still to hear, if it plays without a gap."""
        return 0.0 if self._began is None else max(0.0, self._began + self.feed.samples / SAMPLE_RATE - now)
