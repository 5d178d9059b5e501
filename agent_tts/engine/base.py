"""The interface of an engine: slots that speak, one 80 ms frame a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from agent_tts.directives import Directive
from agent_tts.engine_info import EngineInfo
from agent_tts.events import CutReason, WordTime
from agent_tts.options import EngineOptions

# ---------------------------------------------------------------- inputs of a step


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Give a free slot to a request. `epoch` is the request's id, echoed in every output."""

    slot: int
    epoch: int
    options: EngineOptions


@dataclass(frozen=True, slots=True)
class AddText:
    """More text for a slot, and what comes right after it.

    `flush`: all of it so far is complete words. `last`: no more will come.
    """

    slot: int
    text: str
    flush: bool = False
    last: bool = False
    directive: Directive | None = None


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Take the slot back at once; no output of its request may follow."""

    slot: int


StepInput = StartRequest | AddText | ReleaseSlot

# ---------------------------------------------------------------- outputs of a step


@dataclass(frozen=True, slots=True)
class _SlotOutput:
    slot: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FrameOutput(_SlotOutput):
    """80 ms of pcm_s16le; the first after a pause or flush, or of a piece of the text, and the last may be shorter."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class AlignedOutput(_SlotOutput):
    """Exact times of words of the request's text, given out before the frame in which they start."""

    words: tuple[WordTime, ...]


@dataclass(frozen=True, slots=True)
class FlushedOutput(_SlotOutput):
    """All audio of the text up to an `AddText(flush=True)` has been given out; one for each of these, in order."""


@dataclass(frozen=True, slots=True)
class StarvedOutput(_SlotOutput):
    """The slot has nothing to speak until more text comes: leave it out of `run` until then."""


@dataclass(frozen=True, slots=True)
class DoneOutput(_SlotOutput):
    """All is spoken (`length`: but for some of the text). The scheduler answers with `ReleaseSlot`."""

    length: bool = False
    cut: tuple[CutReason, ...] = ()  # why pieces of the text were ended; each reason once


@dataclass(frozen=True, slots=True)
class FailedOutput(_SlotOutput):
    """The request of this slot failed, no other. The scheduler answers with `ReleaseSlot`."""

    code: str  # a code of the wire protocol
    message: str  # safe to show to a client


StepOutput = FrameOutput | AlignedOutput | FlushedOutput | StarvedOutput | DoneOutput | FailedOutput


class Faults(NamedTuple):
    """Faults that an engine has survived."""

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

    def step(self, inputs: Sequence[StepInput], run: Collection[int]) -> list[StepOutput]:
        """Apply `inputs` in their order, then speak one frame in every slot of `run`.

        A slot of `run` yields a `FrameOutput`, `StarvedOutput`, `DoneOutput` or `FailedOutput`: in this call, or in
        the next one where steps overlap; the epoch tells the request. A step must be shorter than a frame (80 ms).
        """
        ...

    def next_step_in_s(self) -> float | None:
        """None if all outputs have been given; otherwise the seconds after which to call `step` again.

        Outputs of the last step, or work, are pending then. The time is short enough for the next step to begin when
        this one ends, and long enough to take in commands that arrive until then.
        """
        return None

    @property
    def has_spare_work(self) -> bool:
        """Whether `do_spare_work` has something to do now."""
        return False

    def do_spare_work(self) -> None:
        """Do a part of what makes later steps faster, up to 0.2 s."""
        return

    def tidy(self) -> None:
        """Forget what is not to be kept any more, such as deleted voices. Called at each heartbeat; must not wait."""
        return

    def take_faults(self) -> Faults:
        """The faults since the last call."""
        return Faults()

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


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
