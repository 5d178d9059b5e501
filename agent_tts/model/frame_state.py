"""What the rows keep from frame to frame.

All that a request sets is in three tensors, so that any number of rows are admitted by three writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from agent_tts.model.layers import Cache
from agent_tts.model.sampling import SAMPLING_FLOATS, SAMPLING_INTS, SamplingRows
from agent_tts.model.talker import PredictorState

POSITION, TEXT_LENGTH, TEXT_READ, FRAME, SAMPLING = range(5)  # of the counts; those of the sampling are the last
TEXT_COMPLETE, ENDED = range(2)  # of the flags
COUNTS, SAMPLING_PARAMS, FLAGS = SAMPLING + SAMPLING_INTS, SAMPLING_FLOATS, 2


@dataclass(slots=True)
class FrameState:
    """Everything that the rows keep from frame to frame. B rows, S positions of the cache, V codes of the talker."""

    cache: Cache  # the talker's
    scratch: PredictorState
    counts: Tensor  # int64[COUNTS, B]
    sampling_params: Tensor  # float32[SAMPLING_PARAMS, B]
    flags: Tensor  # bool[FLAGS, B]
    feedback: Tensor  # [B, H]: codec side of the next frame step
    text: Tensor  # int64[B, S]: text side of the frame steps
    seen: Tensor  # bool[B, V]: first codes drawn since the row was admitted
    text_lengths: list[int]  # `text_length` on the host, so that adding text never waits for the device

    # Views of the counts, flags and sampling params.
    position: Tensor = field(init=False)  # int64[B]: where the next frame step writes the cache
    text_length: Tensor = field(init=False)  # int64[B]: how much of `text` is known
    text_read: Tensor = field(init=False)  # int64[B]: how much of `text` the talker has read
    frame: Tensor = field(init=False)  # int64[B]: frames drawn since the row was admitted; the counter of the noise
    text_complete: Tensor = field(init=False)  # bool[B]: no more text will be added
    ended: Tensor = field(init=False)  # bool[B]: the row has drawn the end of speech, or has no request
    sampling: SamplingRows = field(init=False)

    def __post_init__(self) -> None:
        self.position, self.text_length, self.text_read, self.frame = self.counts[:SAMPLING]
        self.text_complete, self.ended = self.flags
        self.sampling = SamplingRows.of(self.counts[SAMPLING:], self.sampling_params)

    def of(self, rows: Tensor) -> FrameState:
        """A copy of the state of the rows int64[B], in their order; cache and text stay those of all rows."""
        return replace(
            self,
            scratch=self.scratch.first(len(rows)),
            counts=self.counts.index_select(1, rows),
            sampling_params=self.sampling_params.index_select(1, rows),
            flags=self.flags.index_select(1, rows),
            feedback=self.feedback[rows],
            seen=self.seen[rows],
        )
