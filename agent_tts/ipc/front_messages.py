"""The messages between the supervisor and its front processes: what each may tell or ask the other.

A dataclass with a `Question` as its base is asked, and answered with the type in brackets; the others are told.
Fields are of the types that `wire.from_json` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from agent_tts.events import EngineReady

A = TypeVar("A")


class Question(Generic[A]):
    """Base of a message that is asked; `A` is the type of its answer."""

    __slots__ = ()


EngineState = Literal["ready", "starting", "lost", "failed"]

# ---------------------------------------------------------------- supervisor -> front


@dataclass(frozen=True, slots=True)
class FrontSetup(Question[str | None]):
    """The first message to a front: all that it needs to serve. The answer: why that is impossible."""

    number: int  # among the node's fronts, from 0
    settings: str  # JSON, with secrets
    port: int  # where it listens: `settings` may say 0
    engines: int
    extension: str | None  # see `serve.app.extension_of`


@dataclass(frozen=True, slots=True)
class EngineUp(Question[None]):
    """A link to a running engine; it comes with this message, as one descriptor."""

    engine: int  # among the node's engines, from 0
    greeting: EngineReady


@dataclass(frozen=True, slots=True)
class EngineIs:
    """The state of an engine, now and after each change."""

    engine: int
    state: EngineState


@dataclass(frozen=True, slots=True)
class Serve:
    """Take requests: the node's engines have started, and the links to those that run have come."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new speech, and exit with code 0 when open contexts have finished."""


@dataclass(frozen=True, slots=True)
class UseSettings(Question[str | None]):
    """Use these settings, JSON with secrets, which differ in live keys alone. The answer: why that is impossible."""

    settings: str


@dataclass(frozen=True, slots=True)
class Beat(Question[None]):
    """Heartbeat, answered by the front's event loop."""


ToFront = FrontSetup | EngineUp | EngineIs | Serve | Drain | UseSettings | Beat

# ---------------------------------------------------------------- front -> supervisor


@dataclass(frozen=True, slots=True)
class FrontReady:
    """The front takes requests."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The front has lost its link to an engine of which it does not know that it is lost: it needs a new one."""

    engine: int


ToSupervisor = FrontReady | LinkLost
