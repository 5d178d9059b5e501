"""Drives one engine as the scheduler does: gives slots their text, runs them and collects their outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from agent_tts.directives import Directive
from agent_tts.engine.base import Engine
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    End,
    Finished,
    Flush,
    Open,
    OutOfText,
    StepCommand,
    StepEvent,
    Word,
    Words,
)
from agent_tts.options import CommonOptions, EngineOptions, SpeechOptions
from agent_tts.speech.routing import Routing

MAX_STEPS = 20_000
FLUSH = None  # an entry of a script: flush here
Piece = str | Directive | None


@dataclass(frozen=True, slots=True)
class Script:
    """The text of one request, in pieces. Each piece is given in a step of its own."""

    pieces: Sequence[Piece]
    options: CommonOptions = field(default_factory=SpeechOptions)


@dataclass(slots=True)
class Spoken:
    """The events of one request."""

    outputs: list[StepEvent] = field(default_factory=list)

    @property
    def frames(self) -> list[bytes]:
        return [output.payload for output in self.outputs if isinstance(output, Audio)]

    @property
    def pcm(self) -> NDArray[np.int16]:
        return np.frombuffer(b"".join(self.frames), "<i2")

    @property
    def seconds(self) -> float:
        return len(self.pcm) / SAMPLE_RATE

    @property
    def words(self) -> list[Word]:
        return [word for output in self.outputs if isinstance(output, Words) for word in output.words]

    @property
    def end(self) -> Finished:
        """The last of them, which has to be its end."""
        end = self.outputs[-1]
        assert isinstance(end, Finished)
        return end

    @property
    def kinds(self) -> list[str]:
        """Names of the events without `OutOfText`, whose number depends on when the text arrives; how it finished."""
        outputs = [output for output in self.outputs if not isinstance(output, OutOfText)]
        return [output.reason if isinstance(output, Finished) else type(output).__name__ for output in outputs]


E = TypeVar("E", bound=Engine)


def resolved(engine: Engine, options: CommonOptions) -> EngineOptions:
    """The options with their voice resolved, as routing does before a request reaches its engine."""
    if isinstance(options, EngineOptions):
        return options
    assert isinstance(options, SpeechOptions)
    library = getattr(getattr(engine, "_voices", None), "_library", None)
    return Routing(engine.info, library.voices() if library else ()).resolve(options).options


def start_of(request: int, options: CommonOptions) -> Open[int, EngineOptions]:
    """Of a request to an engine that resolves its voice, see `routed`, unless it is resolved."""
    return Open(request, cast(EngineOptions, options))


def appended(
    request: int, text: str = "", *, flush: bool = False, last: bool = False, directive: Directive | None = None
) -> list[StepCommand]:
    """Text of a request, and what follows it."""
    contents = [content for content in (text, directive) if content]
    ends = ([Flush(request)] if flush else []) + ([End(request)] if last else [])
    return [*(Append(request, content) for content in contents), *ends]


def routed(engine: E) -> E:
    """The same engine, with the voices of its requests resolved; an `Open` ends a request of its id that is left."""
    step, open_ids = engine.step, set[int]()

    def routed_step(commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
        given: list[StepCommand] = []
        for one in commands:
            if isinstance(one, Open):
                given += [Cancel(one.id)] if one.id in open_ids else []
                one = replace(one, options=resolved(engine, one.options))
                open_ids.add(one.id)
            elif isinstance(one, Cancel):
                open_ids.discard(one.id)
            given.append(one)
        return step(given, run)

    engine.step = routed_step
    return engine


@contextmanager
def opened(engine: E) -> Iterator[E]:
    """The same engine, see `routed`; closed at the end."""
    with closing(engine):
        yield routed(engine)


def speak_all(engine: Engine, scripts: Mapping[int, Script]) -> dict[int, Spoken]:
    """Run the scripts together, from `Open` to `Cancel`."""
    spoken = {request: Spoken() for request in scripts}
    left = {request: list(script.pieces) for request, script in scripts.items()}
    commands: list[StepCommand] = [
        Open(request, resolved(engine, script.options)) for request, script in scripts.items()
    ]
    running = set(scripts)
    for _ in range(MAX_STEPS):
        for request in running & left.keys():
            commands += add(request, left[request].pop(0), last=not left[request])
            if not left[request]:
                del left[request]
        for output in engine.step(commands, running):
            assert output.id in running, "an event of no request"
            spoken[output.id].outputs.append(output)
        over = {request for request in running if is_over(spoken[request])}
        running -= over
        commands = [Cancel(request) for request in over]
        if not running:
            engine.step(commands, ())
            return spoken
    raise AssertionError("the requests did not end")


def speak(engine: Engine, *pieces: Piece, options: CommonOptions | None = None, slot: int = 0) -> Spoken:
    """Run one request alone."""
    return speak_all(engine, {slot: Script(pieces, options or SpeechOptions())})[slot]


def is_over(spoken: Spoken) -> bool:
    return bool(spoken.outputs) and isinstance(spoken.outputs[-1], Finished)


def assert_well_formed(spoken: Spoken) -> None:
    """Frames are 80 ms, except the last, which is shorter and not empty."""
    assert all(len(frame) == FRAME_BYTES for frame in spoken.frames[:-1])
    assert all(0 < len(frame) <= FRAME_BYTES for frame in spoken.frames[-1:])


def add(request: int, piece: Piece, *, last: bool) -> list[StepCommand]:
    if isinstance(piece, str | None):
        return appended(request, piece or "", flush=piece is FLUSH, last=last)
    return appended(request, directive=piece, last=last)
