"""The way from the service to a node in the same process: no socket and no JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from agent_tts.client.utterance import Audio, ContextEvent, Done, Word, Words
from agent_tts.config.settings import Limits
from agent_tts.errors import RETRY_MS, Draining, EngineLost, from_code
from agent_tts.events import SAMPLE_RATE, EngineInfo, RequestAudio, RequestFinished, RequestWords
from agent_tts.integrations.pipecat.node_client import NodeUtterance, Session
from agent_tts.protocol.v1 import SessionConfig
from agent_tts.serve.telemetry.metrics import ContextMeter, Metrics
from agent_tts.speech.audio.encoding import make_encoder
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from agent_tts.speech.words.paces import Paces
from agent_tts.speech.words.timeline import Word as TimedWord
from agent_tts.speech.words.timeline import timeline_of

CARRIER = "pipecat"


class InProcessNodeClient:
    """The speech of a node in this event loop, which its owner starts and closes.

    Args:
        metrics: of the same node, for what is spoken here.
    """

    def __init__(self, speech: SpeechService, metrics: Metrics, max_lead_ms: int = Limits().max_lead_ms) -> None:
        self._service = speech
        self._metrics = metrics
        self._max_lead_ms = max_lead_ms
        # How fast the voices of earlier utterances have spoken.
        self._paces = Paces()

    async def connect(self) -> bool:
        if self._service.draining:
            raise Draining
        if not self._service.alive:
            raise EngineLost("the engine is restarting: try again", retry_after_ms=RETRY_MS)
        return False

    async def check(self, session: Session) -> None:
        self._service.resolve(self._config(session).options())

    def begin(self, session: Session) -> NodeUtterance:
        config = self._config(session)
        speech = self._service.open(config.options())
        meter = self._metrics.context(CARRIER)
        return InProcessUtterance(speech, config, self._service.info, self._paces, meter)

    async def close(self) -> bool:
        """There is no connection; each utterance is stopped by who began it."""
        return False

    def _config(self, session: Session) -> SessionConfig:
        return SessionConfig().merged(dict(session), self._max_lead_ms)


class InProcessUtterance:
    """A `NodeUtterance` that tells what a context of the protocol tells."""

    def __init__(
        self, speech: Utterance, config: SessionConfig, info: EngineInfo | None, paces: Paces, meter: ContextMeter
    ) -> None:
        self.context_id = speech.name
        self._speech = speech
        speech.waker = self._on_event
        # Ended by the last event. None after that.
        self._meter: ContextMeter | None = meter
        # How fast voices speak, learned from one utterance to the next.
        self._paces, self._voice = paces, config.voice
        pace = paces.of(config.voice)
        self._timeline = timeline_of(info, config.speed, config.language, breaks=config.breaks, pace=pace)
        # From the engine's pcm to the output's.
        output = config.output
        self._encoder = make_encoder(output.encoding, output.sample_rate, output.bit_rate)
        # Words with a time that `events` has not told yet.
        self._untold: list[TimedWord] = []
        # Audio that `events` has told, in ms.
        self._told_ms = 0.0
        # Index of the next sample at the output rate.
        self._first_sample = 0

    def write(self, text: str) -> None:
        """See `NodeUtterance`."""
        self._untold += self._timeline.append(text)
        if text and self._meter is not None:
            self._meter.text()
        self._speech.write(text)

    def end(self) -> None:
        """See `NodeUtterance`."""
        self._untold += self._timeline.complete()
        self._speech.end()

    def stop(self) -> None:
        """See `NodeUtterance`."""
        if self._meter is not None:
            self._meter.cancelled()
        self._speech.stop()
        self._on_event()

    async def events(self) -> AsyncIterator[ContextEvent]:
        """See `NodeUtterance`. The words come before the audio that they are spoken in."""
        while (event := await self._speech.next()) is not None:
            if isinstance(event, RequestWords):
                self._untold += self._timeline.align(event.words)
            elif isinstance(event, RequestAudio):
                if self._meter is not None:
                    self._meter.audio(len(event.pcm) // 2 * 1_000 / SAMPLE_RATE)
                for told in self._tell(event.pcm):
                    yield told
            elif isinstance(event, RequestFinished):
                self._end_meter(event)
                if event.code is not None:
                    raise from_code(event.code, event.message, event.retry_after_ms)
                for told in self._tell_rest(cut=event.reason == "length"):
                    yield told
                yield self._done(event)

    # ------------------------------------------------------------ inside

    def _on_event(self) -> None:
        """The end of a stream that was stopped is read by nobody."""
        if self._speech.stopped and self._speech.finished is not None:
            self._end_meter(self._speech.finished)

    def _end_meter(self, event: RequestFinished) -> None:
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.finished(event)

    def _tell(self, pcm: bytes) -> list[ContextEvent]:
        untold, self._untold = self._untold, []
        self._told_ms += len(pcm) * 500 / SAMPLE_RATE
        self._timeline.hear(pcm)
        settled = self._timeline.settle(self._told_ms)
        words = [*_words(self._timeline.kind, untold), *_words("aligned", settled)]
        return [*words, *self._pieces(self._encoder.encode(pcm))]

    def _tell_rest(self, *, cut: bool) -> list[ContextEvent]:
        untold = self._untold + self._timeline.finish(self._audio_ms, cut=cut)
        words = [*_words(self._timeline.kind, untold), *_words("aligned", self._timeline.settle())]
        self._paces.learn(self._voice, self._timeline.pace)
        return [*words, *self._pieces(self._encoder.flush())]

    def _pieces(self, chunks: list[tuple[bytes, int]]) -> list[Audio]:
        pieces = []
        for payload, samples in chunks:
            pieces.append(Audio(payload, self._first_sample, flush=False, last=False))
            self._first_sample += samples
        return pieces

    def _done(self, finished: RequestFinished) -> Done:
        audio_ms = self._audio_ms
        return Done(finished.reason, audio_ms, None, finished.busy_ms / audio_ms if audio_ms else None)

    @property
    def _audio_ms(self) -> int:
        return round(self._speech.samples * 1_000 / SAMPLE_RATE)


def _words(kind: Literal["aligned", "estimated"], words: list[TimedWord]) -> list[Words]:
    return [Words(kind, tuple(map(_word, words)))] if words else []


def _word(word: TimedWord) -> Word:
    return Word(word.word, word.start_ms, word.end_ms, word.char_start, word.char_end)
