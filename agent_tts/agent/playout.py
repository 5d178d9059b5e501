"""The last step before the transport: an answer leaves it as fast as it is heard, and can be held and taken up again.

Pipecat's transports take all audio at once and release words by the clock, once their sentence is complete. Here every
word stands in line before the audio that speaks it, so that what has left is what was heard, and a pause moves both.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
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

from agent_tts.integrations.pipecat import AgentTTSService
from agent_tts.integrations.pipecat.words import SPOKEN, SpokenWord

PIECE_MS = 20  # of audio that leaves at once
LEAD_MS = 40  # audio that has left and is not played yet: what is still heard after a hold
MOST_LEFT_MS = LEAD_MS + PIECE_MS  # audio that has left and that the transport has not sent yet
STUCK_S = 0.5  # a transport that sends nothing for so long is not waited for
AHEAD_MS = 2_000  # audio that waits here; more stays in the engine, where it is not even made


class PlayoutListener(Protocol):
    """Who is told what becomes of an answer. No method may raise or await."""

    def sounded(self) -> None:
        """The first sound of an answer leaves."""
        ...

    def heard(self, text: str) -> None:
        """A word, or a piece of one with the space before it, is being spoken."""
        ...

    def held(self, rest_s: float) -> None:
        """The user's voice was noticed; silence follows after `rest_s` seconds."""
        ...

    def resumed(self) -> None:
        """It was no interruption: the answer goes on."""
        ...

    def finished(self) -> None:
        """All of the answer has been heard."""
        ...


class Playout(FrameProcessor):
    """Paces audio and words; the user's voice holds them, an interruption drops them.

    Whoever begins to speak holds the answer at once. It goes on when the user's turn ends and no interruption came:
    see `barge_in.BargeIn`, which interrupts as soon as there are words.

    Args:
        listener: told what becomes of the answers.
        tts: speaks in the same pipeline. Of an `AgentTTSService` the words are those that come with its audio; of
            another service, its word frames.
        output: the transport's, which is not run ahead of when it falls behind the clock: what waits there can neither
            be held nor told from what was heard. It is followed where it needs no resampling.
    """

    def __init__(
        self,
        listener: PlayoutListener,
        tts: FrameProcessor,
        output: FrameProcessor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._listener = listener
        # Milliseconds of audio that have left and that `output` has not sent; of no use until it tells what it sends.
        self._left_ms = 0.0
        # Of the audio that left last, Hz.
        self._rate = 0
        # Whether `output` tells what it sends, and set when it does.
        self._follows = False
        self._sent = asyncio.Event()
        if output is not None:
            output.add_event_handler("on_after_push_frame", self._on_sent)
        # Whether the words come with the audio.
        self._own_words = isinstance(tts, AgentTTSService)
        self._clock = clock
        # What has not left yet, in its order. Bounded by AHEAD_MS of audio.
        self._line: deque[Frame] = deque()
        # Milliseconds of audio in it.
        self._ahead_ms = 0.0
        # When all that has left is played.
        self._played_at = 0.0
        # Whether the user may be speaking.
        self._held = False
        # Whether there was an answer when the hold began, and it was not interrupted since.
        self._holds_answer = False
        # Whether what is spoken now enters the context.
        self._for_context = True
        # Whether sound of the answer has left.
        self._sounds = False
        # Whether an answer of the language model is not complete yet.
        self._open = False
        # Set when there may be something to send, and when there may be room.
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        # Sends the line. None before the pipeline starts and after its end.
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is something to interrupt."""
        return self._open or bool(self._line) or self._clock() < self._played_at

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Put in line what is to be heard; pass on all else."""
        await super().process_frame(frame, direction)
        if direction is FrameDirection.UPSTREAM:
            await self.push_frame(frame, direction)
        elif isinstance(frame, SystemFrame):
            await self._pass(frame)
        else:
            await self._queue(frame)

    async def cleanup(self) -> None:
        """Stop."""
        await super().cleanup()
        await self._stop()

    # ------------------------------------------------------------ in

    async def _pass(self, frame: Frame) -> None:
        if isinstance(frame, InterruptionFrame):
            self._drop()
        elif isinstance(frame, VADUserStartedSpeakingFrame):
            self._hold()
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._resume()
        elif isinstance(frame, CancelFrame):
            await self._stop()
        await self.push_frame(frame)
        if isinstance(frame, InterruptionFrame):
            # A piece that left just before may come to the transport just after, which then takes the bot for speaking.
            await self.push_frame(TTSStoppedFrame())
        elif isinstance(frame, StartFrame):
            self._task = self.create_task(self._send(), name="playout")

    async def _queue(self, frame: Frame) -> None:
        if isinstance(frame, LLMFullResponseStartFrame):
            self._open = True
        elif isinstance(frame, TTSStartedFrame):
            self._for_context = frame.append_to_context
        elif isinstance(frame, TTSTextFrame) and self._own_words:
            return
        if isinstance(frame, TTSAudioRawFrame | TTSStoppedFrame):
            self._line += self._words(frame.metadata.get(SPOKEN, ()), frame.context_id)
        if isinstance(frame, TTSAudioRawFrame):
            while self._ahead_ms >= AHEAD_MS:
                self._room.clear()
                await self._room.wait()
            pieces = _pieces(frame)
            self._ahead_ms += sum(_ms(piece) for piece in pieces)
            self._line += pieces
        else:
            frame.pts = None  # its place in line is its time
            self._line.append(frame)
        self._changed.set()

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
            elif self._follows and self._left_ms >= MOST_LEFT_MS:
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
        """How long a frame has to wait for the audio before it; the end of an answer until all of it is played."""
        lead_s = 0.0 if isinstance(frame, LLMFullResponseEndFrame | EndFrame) else LEAD_MS / 1_000
        return self._played_at - lead_s - self._clock()

    def _leave(self, frame: Frame) -> None:
        if isinstance(frame, TTSAudioRawFrame):
            length_ms = _ms(frame)
            self._ahead_ms -= length_ms
            self._played_at = max(self._played_at, self._clock()) + length_ms / 1_000
            self._room.set()
            self._rate = frame.sample_rate
            self._left_ms += length_ms
            if not self._sounds:
                self._sounds = True
                self._listener.sounded()
        elif isinstance(frame, TTSTextFrame):
            self._listener.heard(frame.text if frame.includes_inter_frame_spaces else f" {frame.text}")
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._open = self._sounds = False
            self._listener.finished()

    # ------------------------------------------------------------ held, dropped

    def _hold(self) -> None:
        if self._held:
            return
        self._held, self._holds_answer = True, self.busy
        if self._holds_answer:
            self._listener.held(max(0.0, self._played_at - self._clock()))

    def _resume(self) -> None:
        if self._held and self._holds_answer:
            self._listener.resumed()
        self._held = self._holds_answer = False
        self._changed.set()

    def _drop(self) -> None:
        self._line = deque(frame for frame in self._line if not frame.interruptible)
        self._ahead_ms = sum(_ms(frame) for frame in self._line if isinstance(frame, TTSAudioRawFrame))
        self._open = self._sounds = self._holds_answer = False
        self._played_at = self._clock()
        self._left_ms = 0.0
        self._room.set()
        self._sent.set()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await self.cancel_task(task)


def _ms(frame: TTSAudioRawFrame) -> float:
    return frame.num_frames * 1_000 / frame.sample_rate


def _pieces(frame: TTSAudioRawFrame) -> list[TTSAudioRawFrame]:
    """The same audio, PIECE_MS in each."""
    size = frame.sample_rate * PIECE_MS // 1_000 * frame.num_channels * 2
    pieces = []
    for start in range(0, len(frame.audio), size):
        piece = TTSAudioRawFrame(
            frame.audio[start : start + size], frame.sample_rate, frame.num_channels, context_id=frame.context_id
        )
        piece.interruptible = frame.interruptible
        piece.transport_destination = frame.transport_destination
        pieces.append(piece)
    return pieces
