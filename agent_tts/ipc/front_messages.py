"""The messages between the supervisor and its front processes: what each may tell or ask the other.

A dataclass with a `Question` as its base is asked, and answered with the type in brackets; the others are told.
Fields are of the types that `wire.from_json` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A")


class Question(Generic[A]):
    """Base of a message that is asked; `A` is the type of its answer."""

    __slots__ = ()


# ---------------------------------------------------------------- supervisor -> front


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """The first message to a front: all that it needs to take requests."""

    number: int  # among the node's fronts, from 0
    settings: str  # JSON, with secrets
    port: int  # where it listens, in place of `port`, which may be 0
    engines: int
    extension: str  # what it serves besides the node: "agent" or nothing


@dataclass(frozen=True, slots=True)
class EngineUp(Question[None]):
    """An engine has started; its link comes with this message, as one descriptor."""

    engine: int


@dataclass(frozen=True, slots=True)
class EngineDown:
    """An engine is lost. `EngineUp` follows when it has restarted, unless it has failed."""

    engine: int
    failed: bool  # permanently


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new speech, end when open contexts have finished, and tell it with exit code 0."""


@dataclass(frozen=True, slots=True)
class NewSettings(Question[str]):
    """Use these settings, JSON with secrets, as far as it is possible without a restart. The answer: what failed."""

    settings: str


ToFront = FrontSetup | EngineUp | EngineDown | Drain | NewSettings

# ---------------------------------------------------------------- front -> supervisor


@dataclass(frozen=True, slots=True)
class FrontReady:
    """The front takes requests."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The front has lost its link to an engine, which may still run: it needs a new one."""

    engine: int


ToSupervisor = FrontReady | LinkLost
