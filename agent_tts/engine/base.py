"""The interface of an engine: requests in slots that speak, one 80 ms frame a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine_info import EngineInfo
from agent_tts.messages import StepCommand, StepEvent


class Faults(NamedTuple):
    worker_deaths: int = 0  # processes of its own that ended
    texts_dropped: int = 0  # pieces of a text that were left out because they end such a process


class StepTimes(NamedTuple):
    """When a step did what, in seconds of `perf_counter`, on Linux and macOS the monotonic clock."""

    began: float
    launching: float  # its inputs are on the device; its frame is launched
    launched: float
    computed: float
    read_back: float


class Engine(Protocol):
    """One and the same thread makes all calls. An exception from `step` means that the engine is lost."""

    info: EngineInfo
    # Numbers of slots that a step is built for: a step costs as much as the next of these, the last is the most. Empty:
    # a step takes any number of slots, and each adds its own cost.
    batch_sizes: tuple[int, ...] = ()
    # Whether `times` is wanted, and those of the step whose frames came last; None where a step is one stage.
    is_timed: bool = False
    times: StepTimes | None = None

    def step(self, commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
        """Apply `commands` in their order, then speak one frame of every request of `run`, which are ids.

        An `Open` gets the lowest free slot, and there is one; `Cancel` takes it back: no event of the request may
        follow. It is also the answer to `Finished`, which is a request's last event.

        A request of `run` yields `Audio` of one frame, `OutOfText` or `Finished`: in this call, or in the next one
        where steps overlap. Exact times of words come before the audio in which they start, `Flushed` right after the
        audio before its flush. A step must be shorter than a frame (80 ms).
        """

    def next_step_in_s(self) -> float | None:
        """None if all events have been given; otherwise the seconds after which to call `step` again.

        Events of the last step, or work, are pending then. The time is short enough for the next step to begin when
        this one ends, and long enough to take in commands that arrive until then.
        """
        return None

    def tidy(self) -> None:
        """Forget what is not to be kept any more, such as deleted voices. Called at each heartbeat; must not wait."""
        return

    def take_faults(self) -> Faults:
        """The faults that it has survived since the last call."""
        return Faults()

    def close(self) -> None:
        """Free everything. Idempotent."""


class NotFinite(ArithmeticError):
    """Audio that contains NaN or infinity."""


def to_pcm16(samples: NDArray[np.float32]) -> bytes:
    """Float samples in -1 .. 1 of any length as pcm_s16le; louder ones are clipped.

    Raises:
        NotFinite: a sample is NaN or infinite.
    """
    if not np.isfinite(samples).all():
        raise NotFinite("the engine computed a frame that is not finite")
    pcm: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return pcm
