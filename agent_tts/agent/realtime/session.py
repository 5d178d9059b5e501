"""A realtime session: a line to its client, a pipeline of the node's models, the rules of `Conversation` between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import Any, assert_never

from loguru import logger
from pipecat.adapters.llm.schemas.tools_schema import AdapterType, ToolsSchema
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMUpdateSettingsFrame,
    StartFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSUpdateSettingsFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.stt_service import STTService
from pipecat.transports.base_transport import BaseTransport
from pipecat.utils.time import time_now_iso8601

from agent_tts.agent.call import Call, run
from agent_tts.agent.completions import AnswerFailed, CutShort, FunctionCalls
from agent_tts.agent.realtime.conversation import (
    Answer,
    Conversation,
    Detect,
    Forget,
    Hear,
    Hush,
    Order,
    Recognise,
    Stop,
    read,
)
from agent_tts.agent.realtime.ear import DetectorTurns, Ear, Resampler
from agent_tts.agent.realtime.lines import RtcLine, WebSocketLine
from agent_tts.agent.realtime.shapes import SessionSettings, SharedSettings, Tool
from agent_tts.agent.turns import Turns
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SlowConsumer, SpeechError, UnknownVoice
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.integrations.pipecat.words import SPOKEN
from agent_tts.options import SpeechOptions
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.access.guard import Client
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import PARSED_AT_ONCE
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports.writer import WRITE_BYTES
from agent_tts.voices import OPENAI_VOICES

# Answers of one session that are begun, cancelled ones included: each asks the language model.
ANSWERS_PER_S = 4
ANSWERS_BURST = 20
# Work on the event loop, s, for which a session waits for its turn: for a piece of audio of `PIECE_S`, a frame that
# passes all processors, an interruption of them, and an item of an answer's context.
PIECE_S, PIECE_WORK_S, FRAME_WORK_S, STOP_WORK_S, ITEM_WORK_S = 0.2, 0.001, 0.001, 0.004, 0.000_02
ANSWER_FAILED = "the answer could not be made: see the node's log"
RECOGNITION_FAILED = "speech recognition failed: see the node's log"
MAX_EVENTS = 64  # messages that wait for the client; nothing is read or said meanwhile


class Asks(FrameProcessor):
    """The first processor: the session pushes its frames from here."""

    def __init__(self, session: RealtimeSession) -> None:
        super().__init__()
        self._session = session
        # Set when the pipeline has started.
        self.started = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            # Other texts may tell of the servers behind the node; Pipecat has written them into its log.
            cause = frame.exception
            is_for_client = isinstance(cause, SpeechError | AnswerFailed)
            retry_after_ms = cause.retry_after_ms if isinstance(cause, SpeechError) else None
            await self._session.failed(frame.error if is_for_client else ANSWER_FAILED, retry_after_ms)
        await self.push_frame(frame, direction)
        if isinstance(frame, StartFrame):
            self.started.set()


class _OfAnswer(FrameProcessor):
    """Sees the answer that is wanted now: frames after its start, all interruptions having passed.

    Args:
        kinds: of frames that `take` handles, when there is room for what comes of them.
        take: returns whether a frame goes no further.
    """

    def __init__(self, session: RealtimeSession, kinds: tuple[type[Frame], ...], take: Callable[[Frame], bool]) -> None:
        super().__init__()
        self._session, self._kinds, self._take = session, kinds, take
        self._interruptions = 0
        self._has_started = False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            self._interruptions += 1
            self._has_started = False
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._has_started = True
        if direction is FrameDirection.DOWNSTREAM and isinstance(frame, self._kinds) and self._is_wanted():
            await self._session.room()
            is_taken = not self._is_wanted() or self._take(frame)
            self._session.changed()
            if is_taken:
                return
        await self.push_frame(frame, direction)

    def _is_wanted(self) -> bool:
        return self._has_started and self._interruptions == self._session.conversation.stops


class RealtimeSession(BaseTransport):
    """One session, from its client's connection to its end; Pipecat's transport of its own pipeline."""

    def __init__(
        self,
        node: Node,
        line: WebSocketLine | RtcLine,
        client: Client,
        start: SessionSettings,
        deaf: str | None,
        detectors: DetectorTurns,
        *,
        beta: bool = False,
    ) -> None:
        super().__init__()
        agent = node.settings.agent
        self._node = node
        self._line = line
        # The line, if it has sound of its own.
        self._sound = sound = line if isinstance(line, RtcLine) else None
        if sound is not None:
            sound.on_played = self.changed
        # The response whose sound was given to `_sound` last.
        self._sounding = ""
        # One is for reading, and what that has the models do; one for writing.
        share = node.fair_queue.share(client.key_id)
        self._flow, self._encoder = Flow(share), Flow(share)
        # The ends of the pipeline: what the client asks for goes in, what it gets comes out.
        self._asks = Asks(self)
        self._speaks = _OfAnswer(self, (TTSAudioRawFrame, TTSStoppedFrame, LLMFullResponseEndFrame), self._take_spoken)
        self.conversation = Conversation(
            start, partial(check_voice, node), deaf, new_id, beta=beta, plays=sound is not None
        )
        self._detectors = detectors
        self._ear = Ear(agent, detectors)
        # Turns whose words are to be recognised: item and audio at 16 kHz; at most `MAX_PENDING`.
        self._heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        # Set when there is something to send, and when there may be room for more.
        self._has_events = asyncio.Event()
        self._has_room = asyncio.Event()
        # Held while orders are carried out: they come from the reader, the recogniser and the pipeline.
        self._obeying = asyncio.Lock()
        # When the client or the models last did something, on the loop's clock.
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self._answers = TokenBucket(ANSWERS_PER_S, ANSWERS_BURST, self._active_at)
        self._tasks: list[asyncio.Task[None]] = []
        # How the WebSocket ends: by an internal error until there is another reason.
        self._close_code = 1011
        self.turns: Turns

    def input(self) -> Asks:
        return self._asks

    def output(self) -> FrameProcessor:
        return self._speaks

    async def serve(self, call: Call) -> None:
        """Converse until either side ends it. Cancelling it ends the conversation."""
        self.turns = call.turns
        written = (CutShort, FunctionCalls, LLMTextFrame, LLMFullResponseStartFrame, LLMFullResponseEndFrame)
        writes = _OfAnswer(self, written, self._take_written)
        parts = [self._asks, call.stt, call.llm, writes, call.tts, self._speaks]
        pipeline = Pipeline([part for part in parts if part is not None])
        self.conversation.begin()
        work = {"reader": self._read(), "writer": self._write()}
        if call.stt is not None:
            work["recogniser"] = self._recognise(call.stt)
        if self._sound is not None:
            work["listener"] = self._listen(self._sound)
        self._tasks = [asyncio.create_task(task, name=f"{name} of call {call.id}") for name, task in work.items()]
        self.changed()
        try:
            await run(call, pipeline, SAMPLE_RATE, self._gone)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._ear.close()
            await self._line.close(1012 if self._node.service.draining else self._close_code)

    def _gone(self) -> str | None:
        for task in self._tasks:
            if task.done():
                error = None if task.cancelled() else task.exception()
                if error is None or isinstance(error, SlowConsumer):
                    self._close_code = 1000
                    return "the client has left" if error is None else "the client does not read"
                logger.opt(exception=error).error("agent: the {} failed", task.get_name())
                return "a fault of the node"
        if self._sound is not None and (why := self._sound.gone()) is not None:
            return why
        if self._loop.time() - self._active_at > self._node.settings.agent.idle_s:
            self._close_code = 1000
            return "nothing was said for too long"
        if self._node.service.draining and self.conversation.response is None:
            return "the node is shutting down"
        return None

    # ------------------------------------------------------------ to the client

    def changed(self) -> None:
        """The conversation may have something to send, or sound was played to its end."""
        for response_id in () if self._sound is None else self._sound.played():
            self.conversation.played(response_id)
        if self.conversation.events:
            self._active_at = self._loop.time()
            self._has_events.set()

    def _take_written(self, frame: Frame) -> bool:
        """Of the language model: function calls, and an answer that is not spoken."""
        conversation = self.conversation
        if conversation.response is None:
            return True
        match frame:
            case FunctionCalls(calls=calls, after_text=after_text):
                if after_text:
                    conversation.open_message()
                for call in calls:
                    conversation.called(call.name, call.id, call.arguments or "{}")
            case CutShort(reason=reason):
                conversation.cut(reason)
            case _ if conversation.response.settings.speaks:
                return False
            case LLMTextFrame(text=text):
                conversation.written(text)
            case LLMFullResponseEndFrame():
                self._answered()
        return True

    def _take_spoken(self, frame: Frame) -> bool:
        """Speech, which a line may play, and its end."""
        if isinstance(frame, LLMFullResponseEndFrame):
            self._answered()
            return False
        words = frame.metadata.get(SPOKEN, ())
        audio = frame.audio if isinstance(frame, TTSAudioRawFrame) else b""
        if audio:
            self.turns.sounded()
        for word in words:
            self.turns.heard(word.text if word.joined else f" {word.text}")
        self.conversation.spoken(words, audio)
        response = self.conversation.response
        if self._sound is not None and response is not None and audio:
            self._sounding = response.id
            self._sound.play(response.id, audio)
        return False

    def _answered(self) -> None:
        """The answer is complete."""
        self.conversation.measured(self.turns.marks)
        self.conversation.answered()
        self.turns.finished()
        self._end_sound()

    def _end_sound(self) -> None:
        """No more sound of an answer follows, if it is over."""
        response = self.conversation.response
        if self._sound is not None and (response is None or response.id != self._sounding):
            self._sound.end(self._sounding)

    async def room(self) -> None:
        """Wait until little waits for the client."""
        while len(self.conversation.events) >= MAX_EVENTS:
            self._has_room.clear()
            await self._has_room.wait()

    async def _write(self) -> None:
        """Send until the client has left, or does not read: `SlowConsumer`."""
        events = self.conversation.events
        try:
            while True:
                while events:
                    await self._line.room()
                    async with self._encoder:
                        self._send_some()
                    self._has_room.set()
                self._has_events.clear()
                await self._has_events.wait()
        except OSError:  # the client has left
            return
        except SlowConsumer:
            self._node.metrics.refused.labels("slow_consumer").inc()
            self._line.cut()
            raise

    def _send_some(self) -> None:
        """Send a slice of work and `WRITE_BYTES` at most, in one write."""
        texts: list[str] = []
        events, size = self.conversation.events, 0
        while not texts or (events and size < WRITE_BYTES and self._encoder.has_time()):
            texts.append(json.dumps(events.popleft(), separators=(",", ":")))  # ASCII: a client's text may be no UTF-8
            size += len(texts[-1])
        self._line.send(texts, size)

    # ------------------------------------------------------------ from the client

    async def _read(self) -> None:
        """Take the client's messages until it leaves."""
        while True:
            await self.room()
            message = await self._line.receive()
            if message is None:
                return
            if len(message) > PARSED_AT_ONCE:
                told = await self._detectors.parsing(read, message)
            else:
                async with self._flow:
                    told = read(message)
            async with self._obeying:  # audio of messages and of the line is heard one after another
                async with self._flow:
                    self.conversation.receive(told)
                await self._obey_all()

    async def _listen(self, sound: RtcLine) -> None:
        """Hear the client's voice until it leaves."""
        while (pcm := await sound.voice()) is not None:
            async with self._obeying:
                self.conversation.heard(pcm)
                await self._obey_all()

    async def failed(self, message: str, retry_after_ms: int | None = None) -> None:
        """A processor of the pipeline reports an error."""
        self.conversation.failed(message, retry_after_ms)
        await self._settle()

    async def _settle(self) -> None:
        """Send what the conversation has, and carry out what it orders."""
        self.changed()
        async with self._obeying:
            await self._obey_all()

    async def _obey_all(self) -> None:
        self.changed()
        while self.conversation.orders:
            await self._obey(self.conversation.orders.popleft())
            self.changed()

    async def _obey(self, order: Order) -> None:
        match order:
            case Hear(audio, form):
                size = round(len(audio) * PIECE_S * 1_000 / (form.ms(len(audio)) or 1))
                for start in range(0, len(audio), size or 1):
                    await self._flow.wait(PIECE_WORK_S)
                    async for starts, at_ms in self._ear.hear(audio[start : start + size], form):
                        await self._turned(starts, at_ms)
                    self.conversation.heard_until(self._ear.position_ms)
                    await self._obey_all()  # a turn ends here, if one does
            case Detect(detection):
                await self._ear.detect(detection)
            case Forget():
                self._ear.forget()
            case Recognise(item_id, heard):
                if heard is None:
                    pcm = self._ear.take()
                else:
                    pcm = await asyncio.to_thread(Resampler(heard.format).push, heard.audio, last=True)
                self._heard.put_nowait((item_id, pcm))
            case Hush():
                if self._sound is not None:
                    self.conversation.hushed(self._sound.hush())
            case Stop():
                self._end_sound()
                await self._asks.started.wait()
                await self._flow.wait(STOP_WORK_S)
                await self._asks.broadcast_interruption()
            case Answer(settings, instructions, messages):
                await self._asks.started.wait()
                if self._may_ask():
                    await self._set(settings, instructions)
                    await self._flow.wait(ITEM_WORK_S * len(messages))
                    await self._push(LLMContextFrame(_context(settings, messages)))
            case _:
                assert_never(order)

    async def _push(self, frame: Frame) -> None:
        """Have a frame pass the pipeline, when it is this client's turn."""
        await self._flow.wait(FRAME_WORK_S)
        await self._asks.push_frame(frame)

    def _may_ask(self) -> bool:
        """Whether the language model may be asked once more now; otherwise the answer is refused."""
        if self._answers.allows(self._loop.time()):
            return True
        why = f"at most {ANSWERS_PER_S} responses a second: try again"
        self.conversation.refused("rate_limit_exceeded", why, 1_000 // ANSWERS_PER_S)
        return False

    async def _turned(self, starts: bool, at_ms: float) -> None:
        """The ear hears that a turn starts or ends."""
        if starts:
            self.conversation.speech_started(at_ms)
        else:
            detection = self.conversation.session.audio.input.turn_detection
            silence_ms = getattr(detection, "silence_duration_ms", self._node.settings.agent.vad_stop_s * 1_000)
            await self._push(VADUserStoppedSpeakingFrame(stop_secs=silence_ms / 1_000))
            self.conversation.speech_stopped(at_ms)
        await self._obey_all()

    async def _set(self, settings: SharedSettings, instructions: str) -> None:
        """Tell the models how this answer is made."""
        agent, output = self._node.settings.agent, settings.audio.output
        voice = output.voice or agent.voice
        if voice in OPENAI_VOICES:
            try:
                check_voice(self._node, voice)
            except UnknownVoice:
                voice = agent.voice
        tts = AgentTTSService.Settings(voice=voice, speed=output.speed)
        await self._push(TTSUpdateSettingsFrame(delta=tts))
        most = settings.max_output_tokens
        tokens = agent.llm.max_tokens if most == "inf" else min(most, agent.llm.max_tokens)
        llm = OpenAILLMService.Settings(system_instruction=instructions or None, max_tokens=tokens)
        await self._push(LLMUpdateSettingsFrame(delta=llm))

    async def _recognise(self, stt: STTService) -> None:
        """Recognise the words of turns, one turn after another."""
        await self._asks.started.wait()
        while True:
            item_id, pcm = await self._heard.get()
            text, why = "", None
            try:
                async for frame in stt.run_stt(pcm):
                    if isinstance(frame, TranscriptionFrame):
                        text = f"{text} {frame.text}".strip()
                    elif isinstance(frame, ErrorFrame):
                        why = RECOGNITION_FAILED
                        logger.error("agent: {}: {}", why, frame.error)
            except Exception as error:  # noqa: BLE001 - whatever a recogniser raises, its turn alone has no words
                why = RECOGNITION_FAILED
                logger.opt(exception=error).error("agent: {}", why)
            if text:
                await self._push(TranscriptionFrame(text, "", time_now_iso8601()))
            self.conversation.recognised(item_id, text, why)
            await self._settle()


def _context(settings: SharedSettings, messages: list[dict[str, Any]]) -> LLMContext:
    """What the language model is asked."""
    context = LLMContext(list(messages))
    if settings.tools:
        # They are custom tools: Pipecat's own schemas have no room for `$defs`, `additionalProperties` and the like.
        context.set_tools(ToolsSchema([], {AdapterType.OPENAI: [_function(tool) for tool in settings.tools]}))
        choice = settings.tool_choice
        if isinstance(choice, dict):
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        context.set_tool_choice(choice)
    return context


def _function(tool: Tool) -> dict[str, Any]:
    """A tool in the form of chat completions."""
    parameters = {"type": "object", "properties": {}} | tool.parameters
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def check_voice(node: Node, voice: str) -> None:
    """Raises `SpeechError` for a voice that the node lacks."""
    node.service.resolve(SpeechOptions(voice))


def new_id(kind: str) -> str:
    """A new id that begins with its kind."""
    return f"{kind}_{token_hex(10)}"
