"""The last processor before the transport's output: paces an answer in real time, and can hold and resume it.

Pipecat's transports take all audio at once and release words by the clock, once their sentence is complete. Here every
word is queued before the audio that speaks it: what has left is what was heard, and a pause delays both.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    StartFrame,
    SystemFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.utils.text.base_text_aggregator import TextType

from agent_tts.agent.turns import Turns
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.integrations.pipecat.words import SPOKEN, SpokenWord

PIECE_MS = 20  # audio of one output frame
LEAD_MS = 40  # audio sent ahead of real time: still heard after a hold
MAX_UNSENT_MS = LEAD_MS + PIECE_MS  # audio that left here and that the transport has not sent
STUCK_S = 0.5  # how long to wait for a transport that sends nothing
CHUNK_MS = 40  # audio that Pipecat's transports write at once
FADE_MS = 5  # of a fade, which a listener hears as an end and not as a click
MAX_QUEUED_MS = 2_000  # audio queued here; more is not requested from the engine


class Playout(FrameProcessor):
    """Paces audio and words; the user's voice holds them, an interruption drops them.

    A held answer goes on when the user turn ends without an interruption; `barge_in.BargeIn` interrupts when there are
    words.

    Args:
        turns: is told of the progress of each answer.
        tts: the pipeline's TTS service. The words of an `AgentTTSService` come with its audio; of another service, its
            word frames are used.
        output: the transport's output. At most `MAX_UNSENT_MS` wait there when it falls behind the clock, because what
            waits there cannot be held and counts as heard. Followed only where it needs no resampling.
    """

    def __init__(
        self,
        turns: Turns,
        tts: FrameProcessor,
        output: FrameProcessor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._turns = turns
        # Audio that left and that `output` has not sent, ms. Valid while `_follows`.
        self._left_ms = 0.0
        # Sample rate of the audio that left last, Hz.
        self._rate = 0
        # Whether `output` reports what it sends, and set when it does.
        self._follows = False
        self._sent = asyncio.Event()
        if output is not None:
            output.add_event_handler("on_after_push_frame", self._on_sent)
        # Whether the words come with the audio.
        self._own_words = isinstance(tts, AgentTTSService)
        self._clock = clock
        # Frames that have not left yet, in order. Bounded by MAX_QUEUED_MS of audio.
        self._line: deque[Frame] = deque()
        # Whether the answer's end is not in `_line` yet, and what follows it: its function calls, which come at once,
        # while the text before them is being spoken.
        self._is_spoken = False
        self._calls: list[Frame] = []
        # Audio in `_line`, ms.
        self._ahead_ms = 0.0
        # When all audio that left is played.
        self._played_at = 0.0
        # Whether the user may be speaking.
        self._held = False
        # Whether the hold stopped an answer that was not interrupted since.
        self._holds_answer = False
        # Whether the words spoken now enter the LLM's context.
        self._for_context = True
        # Whether the words heard now do; speech that does not is no part of the answer.
        self._answers = True
        # What the user has heard.
        self.said = ""
        # Whether audio of the answer has left.
        self._sounds = False
        # Whether the language model has begun an answer that has not finished playing.
        self._open = False
        # Set when `_line` may have something to send, and when it may have room.
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        # Sends `_line`. None before the pipeline starts and after its end.
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is an answer to interrupt."""
        return self._open or bool(self._line) or self._clock() < self._played_at

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Queue what is heard; pass on the rest."""
        await super().process_frame(frame, direction)
        if direction is FrameDirection.UPSTREAM:
            await self.push_frame(frame, direction)
        elif isinstance(frame, SystemFrame):
            await self._pass(frame)
        else:
            await self._queue(frame)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._stop()

    # ------------------------------------------------------------ in

    async def _pass(self, frame: Frame) -> None:
        fade: TTSAudioRawFrame | None = None
        if isinstance(frame, InterruptionFrame):
            fade = self._drop()
        elif isinstance(frame, VADUserStartedSpeakingFrame):
            fade = self._hold()
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._resume()
        elif isinstance(frame, CancelFrame):
            await self._stop()
        await self.push_frame(frame)
        if fade is not None:
            await self.push_frame(fade)
        if isinstance(frame, InterruptionFrame):
            # Audio that left just before may reach the transport after this, which then reports that the bot speaks.
            await self.push_frame(TTSStoppedFrame())
            for call in self._take_calls():
                await self.push_frame(call)
        elif isinstance(frame, StartFrame):
            self._task = self.create_task(self._send(), name="playout")

    async def _queue(self, frame: Frame) -> None:
        if isinstance(frame, LLMFullResponseStartFrame):
            self._open = self._is_spoken = True
        elif self._is_spoken and isinstance(frame, FunctionCallInProgressFrame | FunctionCallResultFrame):
            self._calls.append(frame)
            return
        elif isinstance(frame, TTSStartedFrame):
            self._for_context = frame.append_to_context
        elif isinstance(frame, TTSTextFrame) and self._own_words:
            return
        if isinstance(frame, TTSAudioRawFrame | TTSStoppedFrame):
            self._line += self._words(frame.metadata.get(SPOKEN, ()), frame.context_id)
        if isinstance(frame, TTSAudioRawFrame):
            while self._ahead_ms >= MAX_QUEUED_MS:
                self._room.clear()
                await self._room.wait()
            pieces = _pieces(frame)
            self._ahead_ms += sum(_ms(piece) for piece in pieces)
            self._line += pieces
        else:
            frame.pts = None  # its position in `_line` is its time
            self._line.append(frame)
            if isinstance(frame, LLMFullResponseEndFrame):
                self._line += self._take_calls()
        self._changed.set()

    def _take_calls(self) -> list[Frame]:
        self._is_spoken, calls, self._calls = False, self._calls, []
        return calls

    def _words(self, spoken: Sequence[SpokenWord], context_id: str | None) -> list[Frame]:
        frames: list[Frame] = []
        for word in spoken:
            frame = TTSTextFrame(word.text, TextType.WORD)
            frame.includes_inter_frame_spaces = word.joined
            frame.append_to_context = self._for_context
            frame.context_id = context_id
            frames.append(frame)
        return frames

    # ------------------------------------------------------------ out

    async def _send(self) -> None:
        while True:
            if self._held or not self._line:
                self._changed.clear()
                await self._changed.wait()
            elif (early_s := self._early_s(self._line[0])) > 0:
                await asyncio.sleep(early_s)
            elif self._follows and self._left_ms >= MAX_UNSENT_MS:
                await self._wait_for_output()
            else:
                frame = self._line.popleft()
                self._leave(frame)
                await self.push_frame(frame)
                if isinstance(frame, EndFrame):
                    return

    async def _wait_for_output(self) -> None:
        self._sent.clear()
        try:
            async with asyncio.timeout(STUCK_S):
                await self._sent.wait()
        except TimeoutError:
            self._follows, self._left_ms = False, 0.0

    async def _on_sent(self, _: FrameProcessor, frame: Frame) -> None:
        if isinstance(frame, TTSAudioRawFrame) and frame.sample_rate == self._rate:
            self._left_ms = max(0.0, self._left_ms - _ms(frame))
            self._follows = True
            self._sent.set()

    def _early_s(self, frame: Frame) -> float:
        """How long a frame waits for the audio before it, seconds; the end of an answer waits until all is played."""
        lead_s = 0.0 if isinstance(frame, LLMFullResponseEndFrame | EndFrame) else LEAD_MS / 1_000
        return self._played_at - lead_s - self._clock()

    def _leave(self, frame: Frame) -> None:
        if isinstance(frame, TTSAudioRawFrame):
            # It counts as heard: an interruption must not drop it in the transport.
            frame.interruptible = False
            length_ms = _ms(frame)
            self._ahead_ms -= length_ms
            self._played_at = max(self._played_at, self._clock()) + length_ms / 1_000
            self._room.set()
            self._rate = frame.sample_rate
            self._left_ms += length_ms
            if self._answers and not self._sounds:
                self._sounds = True
                self._turns.sounded()
        elif isinstance(frame, TTSStartedFrame):
            self._answers = frame.append_to_context
        elif isinstance(frame, TTSTextFrame):
            word = frame.text if frame.includes_inter_frame_spaces else f" {frame.text}"
            self.said += word
            if self._answers:
                self._turns.heard(word)
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._open = self._sounds = False
            self.said = ""
            self._turns.finished()

    # ------------------------------------------------------------ held, dropped

    def _hold(self) -> TTSAudioRawFrame | None:
        """Hold the answer; returns the end of what has left."""
        if self._held:
            return None
        self._held, self._holds_answer = True, self.busy
        if not self._holds_answer:
            return None
        self._turns.held(max(0.0, self._played_at - self._clock()))
        return self._fade()

    def _resume(self) -> None:
        if self._held and self._holds_answer:
            self._turns.resumed()
        self._held = self._holds_answer = False
        self._changed.set()

    def _drop(self) -> TTSAudioRawFrame | None:
        """Drop what may be dropped; returns the end of what has left."""
        fade = None if self._held else self._fade(dropped=True)
        self._line = deque(frame for frame in self._line if not frame.interruptible)
        self._ahead_ms = sum(_ms(frame) for frame in self._line if isinstance(frame, TTSAudioRawFrame))
        self._open = self._sounds = self._holds_answer = False
        self.said = ""
        self._room.set()
        return fade

    def _fade(self, *, dropped: bool = False) -> TTSAudioRawFrame | None:
        """End what has left without a click; audio that is not to be `dropped` fades in when it leaves.

        Returns a chunk with the first FADE_MS of the audio that would leave next, fading out, or None where no sound is
        cut.
        """
        place = next((place for place, frame in enumerate(self._line) if isinstance(frame, TTSAudioRawFrame)), None)
        # A slow output plays on when, by the clock, all should have been played.
        is_heard = self._clock() < self._played_at or (self._follows and self._left_ms >= 1)
        if place is None or not is_heard:
            return None
        cut = self._line[place]
        assert isinstance(cut, TTSAudioRawFrame)
        if dropped and not cut.interruptible:
            return None
        samples = np.frombuffer(cut.audio, "<i2").reshape(-1, cut.num_channels).copy()
        start = samples[: cut.sample_rate * FADE_MS // 1_000]
        ramp = np.linspace(0, 1, len(start))[:, None]
        end = np.zeros((cut.sample_rate * CHUNK_MS // 1_000, cut.num_channels), "<i2")
        end[: len(start)] = start * (1 - ramp)
        start[:] = start * ramp
        self._line[place] = _like(cut, samples.tobytes())
        fade = _like(cut, end.tobytes())
        fade.interruptible = False
        self._left_ms += CHUNK_MS
        return fade

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await self.cancel_task(task)


def _ms(frame: TTSAudioRawFrame) -> float:
    return frame.num_frames * 1_000 / frame.sample_rate


def _pieces(frame: TTSAudioRawFrame) -> list[TTSAudioRawFrame]:
    """The same audio in frames of PIECE_MS."""
    size = frame.sample_rate * PIECE_MS // 1_000 * frame.num_channels * 2
    end = frame.num_frames * frame.num_channels * 2  # another service's frame may end within a sample
    return [_like(frame, frame.audio[start : min(start + size, end)]) for start in range(0, end, size)]


def _like(frame: TTSAudioRawFrame, audio: bytes) -> TTSAudioRawFrame:
    """A frame with other audio."""
    other = TTSAudioRawFrame(audio, frame.sample_rate, frame.num_channels, context_id=frame.context_id)
    other.interruptible = frame.interruptible
    other.transport_destination = frame.transport_destination
    return other
