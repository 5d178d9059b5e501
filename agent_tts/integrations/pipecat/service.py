"""Pipecat's text-to-speech service on a node, over a WebSocket or in the same process."""

from __future__ import annotations

import asyncio
import copy
import html
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pipecat.frames.frames import (
    AggregatedTextFrame,
    CancelFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.types import NOT_GIVEN, NotGiven

from agent_tts.client.connection import DEFAULT_URL
from agent_tts.client.moving import Target
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import RETRY_MS, SpeechError, Starved
from agent_tts.integrations.pipecat.node_client import InProcessNodeClient, NodeClient, WebSocketNodeClient
from agent_tts.integrations.pipecat.words import REQUEST_ID, SPOKEN, PlainText, SpokenWord, SpokenWords
from agent_tts.messages import Audio, Finished, Words
from agent_tts.protocol.utterance import AnyUtterance
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from agent_tts.system.private_names import require

# Silence after which Pipecat ends a turn. A node ends each context earlier, with `starved` at the latest, so a pause of
# the LLM (a tool call within its answer) loses no words; this bound is for a faulty node.
SILENCE_S = 30.0
PREPARED_CHARS = 32  # of a turn that may not come: about two seconds, after which its slot is given to who waits
MAX_RETRY_S = 5.0  # between two attempts to reach a lost node

# The node cannot speak now, whatever the text: another service should take over until it can.
_PASSING = frozenset({"at_capacity", "rate_limited", "engine_lost", "draining", "connection_lost"})

# Codes whose HTTP status gives another category. A refused text says nothing about the next one.
_CATEGORIES = {
    "at_capacity": ErrorCategory.RATE_LIMIT,
    "rate_limited": ErrorCategory.RATE_LIMIT,
    "connection_lost": ErrorCategory.CONNECTIVITY,
    "context_limit": ErrorCategory.RATE_LIMIT,
    "text_too_long": ErrorCategory.APPLICATION,
    "unknown_context": ErrorCategory.UNKNOWN,
    "context_exists": ErrorCategory.UNKNOWN,
}


@dataclass
class AgentTTSSettings(TTSSettings):
    """Settings of `AgentTTSService`; they apply from the next turn on, and a setting that is not given stays.

    `model`, `voice` and `language` are Pipecat's; None is the node's choice. `extra` takes the other fields of the
    protocol's session, such as `{"lead_ms": 500, "sampling": {"temperature": 0.7}}`.
    """

    instructions: str | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)  # style, or the voice's description
    seed: int | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)  # None draws one for each turn
    speed: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)  # 0.25 .. 4, 2 speaks twice as fast
    pitch: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)  # 0.5 .. 2, 1 is the voice's own

    def session(self) -> dict[str, Any]:
        """These as the protocol's session; every setting must be given."""
        names = [each.name for each in fields(self) if each.name != "extra"]
        return {name: getattr(self, name) for name in names} | self.extra


@dataclass(slots=True, eq=False)
class _Prepared:
    """Speech that the next turn may begin with; nobody polls it, so its engine waits."""

    utterance: Utterance
    text: str = ""  # what it was given
    come: str = ""  # of the turn that took it, so far


@dataclass(slots=True, eq=False)
class _Turn:
    """One of Pipecat's audio contexts."""

    context_id: str
    words: SpokenWords = field(default_factory=SpokenWords)
    # The language model's text, and that after filters and transforms, which are split otherwise.
    written: PlainText = field(default_factory=PlainText)
    sent: PlainText = field(default_factory=PlainText)
    spoken: list[SpokenWord] = field(default_factory=list)  # metadata of the next frame
    utterance: AnyUtterance | None = None  # None before it begins and when it starved
    hearing: asyncio.Task[None] | None = None  # reads `utterance`
    prepared: _Prepared | None = None  # has `utterance`, as long as not all of its text has come
    ended: bool = False  # no more text comes
    lost: bool = False  # failed: the rest of its text is not spoken


_NAMES: dict[type, str] = {
    TTSService: "_aggregated_frame_sequencer _apply_force_complete _call_event_handler _is_streaming_tokens "
    "_push_sequencer_frames _push_word_frames _add_word_timestamps _register_spoken_text _speak_text _update_settings "
    "_classify_error _settings _turn_context_id",
}


class AgentTTSService(TTSService):
    """Speaks an LLM's text token by token, and reports which words were spoken.

    When the node cannot speak (`at_capacity`, `engine_lost`, `draining`, `connection_lost`), the turn is lost with an
    `ErrorFrame` and `is_usable` is false until the node can speak again, so that a `ServiceSwitcher` with
    `ServiceSwitcherStrategyFailover` uses another service. Without one, the next turn tries again. Settings that the
    node refuses leave the service unusable until they change.
    """

    Settings = AgentTTSSettings
    _settings: AgentTTSSettings

    def __init__(
        self,
        *,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        moves: bool = False,
        speech: SpeechService | None = None,
        metrics: Metrics | None = None,
        owner: int = 0,
        settings: AgentTTSSettings | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        **options: Any,
    ) -> None:
        """The service connects when the pipeline starts.

        Args:
            url: of a node, as for `agent_tts.connect`.
            api_key: sent as `Authorization: Bearer`.
            moves: as for `agent_tts.connect`; a turn then goes on at another node when its own is lost.
            speech: a node in this process, used instead of `url`; its owner starts and closes it.
            metrics: of that node; None does not count this service in them.
            owner: whose speech it is in that node; see `SpeechService.open`.
            settings: voice and style; see `AgentTTSSettings`.
            text_aggregation_mode: SENTENCE waits for whole sentences.
            options: of Pipecat's `TTSService`; `sample_rate` is 8, 16, 22.05, 24, 32, 44.1 or 48 kHz.

        Raises:
            SettingsError: the url is invalid.
        """
        start = AgentTTSSettings(
            model=None, voice=None, language=None, instructions=None, seed=None, speed=1.0, pitch=1.0
        )
        if settings is not None:
            start.apply_update(settings)
        require("pipecat-ai", _NAMES)
        super().__init__(
            settings=start,
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=False,
            push_start_frame=True,
            append_trailing_space=True,
            stop_frame_timeout_s=SILENCE_S,
            # A text without words (an emoji) gives no audio, which is no error; the node reports its own errors.
            max_consecutive_zero_audio_contexts=0,
            **options,
        )
        # The word that Pipecat makes frames of.
        self._word = ("", False)
        self._client: NodeClient = (
            WebSocketNodeClient(Target(url, api_key, moves))
            if speech is None
            else InProcessNodeClient(speech, metrics or Metrics(), owner)
        )
        # Turns that are being written or spoken, by `context_id`.
        self._turns: dict[str, _Turn] = {}
        # Of the next turn.
        self._prepared: _Prepared | None = None
        # Told what became of prepared speech ("spoken", "dropped"), and of how many seconds.
        self.on_prepared: Callable[[str, float], None] = lambda outcome, seconds: None
        # Makes the service usable again when the node can speak. None while it is usable.
        self._recovery: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """No: `run_tts` only sends text; the audio comes independently."""
        return False

    def language_to_service_language(self, language: Language) -> str:
        """A node takes the same codes, with or without a region."""
        return "zh" if language.value.startswith("cmn") else language.value

    # ------------------------------------------------------------ life

    async def start(self, frame: StartFrame) -> None:
        """Connect, and let the node check the settings; a refusal is an `ErrorFrame`."""
        await super().start(frame)
        await self._check()

    async def stop(self, frame: EndFrame) -> None:
        """Speak the text so far to its end, then disconnect."""
        for context_id in list(self._turns):
            last = await self._aggregated_frame_sequencer.finalize(context_id)
            await self._push_sequencer_frames(last, context_id)
            await self.flush_audio(context_id)
        await super().stop(frame)
        await self._leave()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._leave()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._leave()

    async def _leave(self) -> None:
        await self._end_recovery()
        self.drop_prepared()
        for context_id in list(self._turns):
            await self._drop(context_id)
        if await self._client.close():
            await self._call_event_handler("on_disconnected")

    async def _update_settings(self, delta: Any) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        if changed:
            self.drop_prepared()
            await self._check()
        return changed

    async def _check(self) -> None:
        try:
            await self._connect()
            await self._client.check(self.session)
        except SpeechError as error:
            await self._report(error)

    async def _connect(self) -> None:
        if await self._client.connect():
            await self._call_event_handler("on_connected")

    @property
    def session(self) -> dict[str, Any]:
        """How the next turn is spoken: the protocol's session."""
        session = self._settings.session()
        output = {"encoding": "pcm_s16le", "sample_rate": self.sample_rate}
        return session | {"timestamps": "word", "output": output}

    # ------------------------------------------------------------ text

    def create_context_id(self) -> str:
        """One id for all text of a turn, also when its beginning went to another service."""
        self._turn_context_id = context_id = super().create_context_id()
        return context_id

    async def on_turn_context_created(self, context_id: str) -> None:
        """Begin before the first word, so that the node prepares the voice."""
        if (prepared := self._prepared) is not None and prepared.utterance.finished is None:
            turn, self._prepared = self._turn(context_id), None
            turn.utterance, turn.prepared = prepared.utterance, prepared
            prepared.utterance.meter.awaited()
        else:
            await self._begin(context_id)

    @classmethod
    def format_pronunciation(cls, word: str, ipa: str) -> str:
        """A word with its pronunciation in IPA, for `pronunciation_transform_ipa`."""
        return f'<phoneme alphabet="ipa" ph="{html.escape(ipa)}">{html.escape(word)}</phoneme>'

    async def _speak_text(self, src_frame: AggregatedTextFrame, text: str, context_id: str) -> None:
        """Pipecat looks for the spoken words in its frame, and keeps its text for the LLM: both without markup."""
        frame = copy.copy(src_frame)  # with its id
        if self._obeys_markup:
            frame.text = self._turn(context_id).written.read(src_frame.text)
            # Different for a pattern of the application, which is complete and whose own delimiters stay.
            raw = src_frame.raw_text
            frame.raw_text = frame.text if raw in (None, src_frame.text) else PlainText().read(raw or "")
        await super()._speak_text(frame, text, context_id)

    async def _register_spoken_text(self, src_frame: AggregatedTextFrame, text: str, context_id: str) -> None:
        if self._obeys_markup:
            text = self._turn(context_id).sent.read(text)
        if text.strip() or self._is_streaming_tokens:
            await super()._register_spoken_text(src_frame, text, context_id)

    @property
    def _obeys_markup(self) -> bool:
        return self._settings.extra.get("markup") != "none"

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        turn, rest = self._turns.get(context_id), text
        if turn is not None and turn.prepared is not None:
            rest = self._join(turn, turn.prepared, text)
        if turn is None or (turn.utterance is None and not turn.lost):
            turn = await self._begin(context_id)
        if turn.utterance is not None:
            turn.words.text.write(text)
            turn.utterance.write(rest)
            await self.start_tts_usage_metrics(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        context_id = context_id or self.get_active_audio_context_id()
        if context_id is None:
            return
        turn = self._turns.get(context_id)
        if turn is not None and turn.prepared is not None:
            await self.tts_process_generator(context_id, self.run_tts("", context_id))
        if turn is not None and turn.utterance is not None:
            turn.ended = True
            turn.utterance.end()
        else:  # no audio of it will come
            await self._finish(context_id)

    async def on_turn_context_completed(self) -> None:
        """The LLM has finished; a turn without text is dropped."""
        context_id = self._turn_context_id
        await super().on_turn_context_completed()
        if context_id is not None and not self.audio_context_available(context_id):
            await self._drop(context_id)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Also stop interrupted turns that have no audio context yet."""
        if isinstance(frame, LLMFullResponseStartFrame):
            await self.on_turn_context_completed()  # the last turn's end may have gone to another service
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            for context_id in set(self._turns).difference(self.get_audio_contexts()):
                await self._drop(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        await self._drop(context_id)
        await super().on_audio_context_completed(context_id)

    # ------------------------------------------------------------ turns

    def _turn(self, context_id: str) -> _Turn:
        if context_id not in self._turns:
            self._turns[context_id] = _Turn(context_id)
        return self._turns[context_id]

    async def _begin(self, context_id: str) -> _Turn:
        """Start a context on the node for a new turn, or for the rest of one."""
        turn = self._turn(context_id)
        if not self.is_usable and self._recovery is None:  # the node refuses the settings
            turn.lost = True
            return turn
        self.drop_prepared()
        try:
            await self._connect()
            turn.utterance = utterance = self._client.begin(self.session)
        except SpeechError as error:
            turn.lost = True
            await self._report(error)
            return turn
        turn.hearing = self.create_task(self._hear(turn, utterance), name="speech")
        if self._recovery is not None:
            await self._end_recovery()
            await self.set_usable(True)
        return turn

    async def _drop(self, context_id: str) -> None:
        """Stop a turn, if there is one; nothing of it is pushed after this."""
        turn = self._turns.pop(context_id, None)
        if turn is not None and turn.utterance is not None:
            turn.utterance.stop()
            if turn.hearing is not None:
                await self.cancel_task(turn.hearing)

    def prepare(self, text: str, *, is_whole: bool = False) -> None:
        """Have the next turn, `text` so far, begin if a node in this process has a free slot; nothing is pushed."""
        if self._prepared is None and text and self.is_usable and isinstance(self._client, InProcessNodeClient):
            utterance = self._client.prepare(self.session)
            self._prepared = None if utterance is None else _Prepared(utterance)
        if (prepared := self._prepared) is not None:
            done, prepared.text = len(prepared.text), text[:PREPARED_CHARS]
            prepared.utterance.write(prepared.text[done:])
            if is_whole and prepared.text == text:
                prepared.utterance.flush("")

    def drop_prepared(self) -> None:
        """That turn does not come."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.utterance.stop()
            self.on_prepared("dropped", prepared.utterance.received / SAMPLE_RATE)

    def _join(self, turn: _Turn, prepared: _Prepared, text: str) -> str:
        """What is to be written when more text comes; prepared speech is given up if that is another, or none."""
        prepared.come += text
        if text and prepared.come != prepared.text and prepared.text.startswith(prepared.come):
            return ""
        turn.prepared = None
        if not prepared.come.startswith(prepared.text):
            self._prepared, turn.utterance = prepared, None
            self.drop_prepared()
            return prepared.come
        self.on_prepared("spoken", prepared.utterance.received / SAMPLE_RATE)
        turn.hearing = self.create_task(self._hear(turn, prepared.utterance), name="speech")
        return prepared.come[len(prepared.text) :]

    async def _hear(self, turn: _Turn, utterance: AnyUtterance) -> None:
        sample_rate, samples = self.sample_rate, 0
        try:
            async for event in utterance.events():
                match event:
                    case Words(kind=kind, words=words):
                        turn.words.known.learn(words, final=kind == "aligned")
                    case Audio(payload=pcm) if pcm:
                        samples += len(pcm) // 2
                        await self._tell(turn, turn.words.due(samples * 1_000 / sample_rate))
                        frame = TTSAudioRawFrame(pcm, sample_rate, 1, context_id=turn.context_id)
                        frame.metadata[SPOKEN], turn.spoken = turn.spoken, []
                        frame.metadata[REQUEST_ID] = utterance.context_id
                        await self.append_to_audio_context(turn.context_id, frame)
                    case Finished(reason=reason, audio_ms=audio_ms):
                        await self._done(turn, reason, audio_ms)
        except Starved:
            await self._tell(turn, turn.words.finish(samples * 1_000 / sample_rate))
            turn.utterance = None
            await self._finish_if_ended(turn)
        except SpeechError as error:
            turn.lost, turn.utterance = True, None
            await self._report(error)
            await self._finish_if_ended(turn)

    async def _done(self, turn: _Turn, reason: str, audio_ms: int) -> None:
        if reason == "end":
            await self._tell(turn, turn.words.finish(audio_ms))
            await self._finish(turn.context_id)
        elif reason == "length":
            turn.lost, turn.utterance = True, None
            await self.push_error(
                f"agent_tts: the node cut the speech off after {audio_ms / 1_000:.1f} s, its limit for one answer "
                "(limits.max_frames, limits.context_s)",
                category=ErrorCategory.APPLICATION,
            )
            await self._finish_if_ended(turn)

    async def _tell(self, turn: _Turn, words: Sequence[SpokenWord]) -> None:
        turn.spoken += words
        for word in words:
            await self.add_word_timestamps([(word.text, word.at_s)], turn.context_id, word.joined)

    async def _add_word_timestamps(
        self,
        word_times: list[tuple[str, float]],
        context_id: str | None = None,
        includes_inter_frame_spaces: bool = False,
    ) -> None:
        for timed in word_times:
            self._word = timed[0], includes_inter_frame_spaces
            await super()._add_word_timestamps([timed], context_id, includes_inter_frame_spaces)

    async def _push_word_frames(self, frames: list[Frame]) -> None:
        """Pipecat strips words, and takes all of a sentence for joined behind one that is."""
        word, joined = self._word
        for frame in frames:
            if isinstance(frame, TTSTextFrame):
                frame.includes_inter_frame_spaces = joined
                if joined and word.startswith(" "):
                    frame.raw_text = f" {frame.raw_text or frame.text}"
        await super()._push_word_frames(frames)

    async def _finish_if_ended(self, turn: _Turn) -> None:
        """End the audio context of a turn without an utterance, if it gets no more text."""
        if turn.ended:
            await self._finish(turn.context_id)

    async def _finish(self, context_id: str) -> None:
        """End an audio context after the frames that it holds."""
        if self.audio_context_available(context_id):
            frame = TTSStoppedFrame(context_id=context_id)
            if (turn := self._turns.get(context_id)) is not None:
                frame.metadata[SPOKEN], turn.spoken = turn.spoken, []
            await self.append_to_audio_context(context_id, frame)
            await self.remove_audio_context(context_id)

    async def _apply_force_complete(self, context_id: str) -> None:
        """Pipecat counts the rest of a turn's text as spoken; for a lost turn it was not."""
        turn = self._turns.get(context_id)
        if turn is not None and turn.lost:
            others = set(self.get_audio_contexts()) | set(self._turns)
            self._aggregated_frame_sequencer.clear(keep_contexts=others - {context_id})
        else:
            await super()._apply_force_complete(context_id)

    # ------------------------------------------------------------ errors

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        return _CATEGORIES.get(exception.code) if isinstance(exception, SpeechError) else None

    async def _report(self, error: SpeechError) -> None:
        """Push an `ErrorFrame`; the service is unusable for now if the node cannot speak."""
        passing = error.code in _PASSING
        if passing and self._recovery is None:
            self._recovery = self.create_task(self._recover(_retry_s(error)), name="recovery")
        message = f"agent_tts {error.code}: {error.message}"
        if error.code == "connection_lost":
            await self._call_event_handler("on_connection_error", message)
        await self.push_error(message, exception=error, force_treat_as_permanent=passing)

    async def _recover(self, wait_s: float) -> None:
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._connect()
                break
            except SpeechError:
                wait_s = min(max(2 * wait_s, RETRY_MS / 1_000), MAX_RETRY_S)
        self._recovery = None
        await self.set_usable(True)

    async def _end_recovery(self) -> None:
        task, self._recovery = self._recovery, None
        if task is not None:
            await self.cancel_task(task)


def _retry_s(error: SpeechError) -> float:
    """When to try the node again, seconds. A lost connection at once: another node may have its address."""
    if error.code == "connection_lost":
        return 0.0
    return (error.retry_after_ms or RETRY_MS) / 1_000
