"""Drives one engine as the scheduler does: gives slots their text, runs them and collects their outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from agent_tts.directives import Directive
from agent_tts.engine.base import (
    AddText,
    AlignedOutput,
    DoneOutput,
    Engine,
    FailedOutput,
    FrameOutput,
    ReleaseSlot,
    StartRequest,
    StarvedOutput,
    StepInput,
    StepOutput,
)
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE
from agent_tts.messages import Word
from agent_tts.options import CommonOptions, EngineOptions, SpeechOptions
from agent_tts.speech.routing import Routing

MAX_STEPS = 20_000
FLUSH = None  # an entry of a script: flush here
Piece = str | Directive | None


@dataclass(frozen=True, slots=True)
class Script:
    """The text of one slot, in pieces. Each piece is given in a step of its own."""

    pieces: Sequence[Piece]
    options: CommonOptions = field(default_factory=SpeechOptions)


@dataclass(slots=True)
class Spoken:
    """The outputs of one slot."""

    outputs: list[StepOutput] = field(default_factory=list)

    @property
    def frames(self) -> list[bytes]:
        return [output.pcm for output in self.outputs if isinstance(output, FrameOutput)]

    @property
    def pcm(self) -> NDArray[np.int16]:
        return np.frombuffer(b"".join(self.frames), "<i2")

    @property
    def seconds(self) -> float:
        return len(self.pcm) / SAMPLE_RATE

    @property
    def words(self) -> list[Word]:
        return [word for output in self.outputs if isinstance(output, AlignedOutput) for word in output.words]

    @property
    def kinds(self) -> list[str]:
        """Names of the outputs without `StarvedOutput`, whose number depends on when the text arrives."""
        outputs = [output for output in self.outputs if not isinstance(output, StarvedOutput)]
        return [type(output).__name__.removesuffix("Output") for output in outputs]


E = TypeVar("E", bound=Engine)


def resolved(engine: Engine, options: CommonOptions) -> EngineOptions:
    """The options with their voice resolved, as routing does before a request reaches its engine."""
    if isinstance(options, EngineOptions):
        return options
    assert isinstance(options, SpeechOptions)
    library = getattr(getattr(engine, "_voices", None), "_library", None)
    return Routing(engine.info, library.voices() if library else ()).resolve(options).options


def start_of(slot: int, epoch: int, options: CommonOptions) -> StartRequest:
    """Of a request to an engine that resolves its voice, see `routed`, unless it is resolved."""
    return StartRequest(slot, epoch, cast(EngineOptions, options))


def routed(engine: E) -> E:
    """The same engine, with the voices of its requests resolved."""
    step = engine.step

    def routed_step(inputs: Sequence[StepInput], run: Collection[int]) -> list[StepOutput]:
        return step(
            [
                replace(one, options=resolved(engine, one.options)) if isinstance(one, StartRequest) else one
                for one in inputs
            ],
            run,
        )

    engine.step = routed_step  # type: ignore[method-assign]
    return engine


def speak_all(engine: Engine, scripts: Mapping[int, Script]) -> dict[int, Spoken]:
    """Run the scripts in their slots together, from `StartRequest` to `ReleaseSlot`. The epochs are 100 + slot."""
    spoken = {slot: Spoken() for slot in scripts}
    left = {slot: list(script.pieces) for slot, script in scripts.items()}
    inputs: list[StepInput] = [
        StartRequest(slot, 100 + slot, resolved(engine, script.options)) for slot, script in scripts.items()
    ]
    running = set(scripts)
    for _ in range(MAX_STEPS):
        for slot in running & left.keys():
            inputs.append(add(slot, left[slot].pop(0), last=not left[slot]))
            if not left[slot]:
                del left[slot]
        for output in engine.step(inputs, running):
            assert output.slot in running, "output of a slot without a request"
            assert output.epoch == 100 + output.slot
            spoken[output.slot].outputs.append(output)
        over = {slot for slot in running if is_over(spoken[slot])}
        running -= over
        inputs = [ReleaseSlot(slot) for slot in over]
        if not running:
            engine.step(inputs, ())
            return spoken
    raise AssertionError("the requests did not end")


def speak(engine: Engine, *pieces: Piece, options: CommonOptions | None = None, slot: int = 0) -> Spoken:
    """Run one slot alone."""
    return speak_all(engine, {slot: Script(pieces, options or SpeechOptions())})[slot]


def is_over(spoken: Spoken) -> bool:
    return bool(spoken.outputs) and isinstance(spoken.outputs[-1], DoneOutput | FailedOutput)


def assert_well_formed(spoken: Spoken) -> None:
    """Frames are 80 ms, except the last, which is shorter and not empty."""
    assert all(len(frame) == FRAME_BYTES for frame in spoken.frames[:-1])
    assert all(0 < len(frame) <= FRAME_BYTES for frame in spoken.frames[-1:])


def add(slot: int, piece: Piece, *, last: bool) -> AddText:
    if isinstance(piece, str | None):
        return AddText(slot, piece or "", flush=piece is FLUSH, last=last)
    return AddText(slot, "", last=last, directive=piece)
