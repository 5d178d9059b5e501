"""Audio of any length in, whole frames out."""

from __future__ import annotations

from collections import deque

from agent_tts.engine.base import FlushedOutput, FrameOutput, StepOutput
from agent_tts.events import FRAME_BYTES, SAMPLE_RATE
from agent_tts.text.breaks import Break


class Outlet:
    """One request's audio that is not handed out yet, and the flush points in it."""

    def __init__(self, slot: int, epoch: int) -> None:
        self.slot = slot
        self.epoch = epoch
        # Frames handed out.
        self.frames = 0
        # pcm_s16le to hand out.
        self._pcm = bytearray()
        # For each unanswered flush: the number of frames before it.
        self._flushes: deque[int] = deque()
        # Whether `_pcm` is all that is left.
        self._ended = False

    @property
    def samples(self) -> int:
        """Length of all audio so far, handed out or not."""
        return (self.frames * FRAME_BYTES + len(self._pcm)) // 2

    @property
    def ready(self) -> int:
        """Whole frames that wait to be handed out."""
        return len(self._pcm) // FRAME_BYTES

    @property
    def ended(self) -> bool:
        """Whether no more audio will come."""
        return self._ended

    @property
    def finished(self) -> bool:
        """Whether all audio has been handed out and no more will come."""
        return self._ended and not self._pcm

    def write(self, pcm: bytes) -> None:
        """Append pcm_s16le of any length."""
        self._pcm += pcm

    def rest(self, pause: Break) -> None:
        """Append a pause."""
        self._pcm += bytes(2 * (pause.ms * SAMPLE_RATE // 1_000))

    def flush(self) -> None:
        """A flush is answered after all audio so far, whose last frame is filled up with silence."""
        self._pcm += bytes(-len(self._pcm) % FRAME_BYTES)
        self._flushes.append(self.frames + self.ready)

    def end(self) -> None:
        """No more audio will come; the last frame may be shorter."""
        self._ended = True

    def hand_out(self) -> list[StepOutput]:
        """The next frame, if there is one, and the flushes that it answers."""
        outputs: list[StepOutput] = []
        if self.ready or (self._ended and self._pcm):
            outputs.append(FrameOutput(self.slot, self.epoch, bytes(self._pcm[:FRAME_BYTES])))
            del self._pcm[:FRAME_BYTES]
            self.frames += 1
        while self._flushes and self._flushes[0] <= self.frames:
            self._flushes.popleft()
            outputs.append(FlushedOutput(self.slot, self.epoch))
        return outputs
