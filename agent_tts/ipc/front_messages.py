"""The messages between the supervisor and its front processes: what each may tell or ask the other.

A dataclass with a `Question` as its base is asked, and answered with the type in brackets; the others are told.
Fields are of the types that `wire.from_json` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from agent_tts.messages import EngineReady, EngineState

A = TypeVar("A")


class Question(Generic[A]):
    """Base of a message that is asked; `A` is the type of its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A one-time token that was checked. It cannot be made from this."""

    id: str
    expires_at: float  # on the machine's monotonic clock, s


# ---------------------------------------------------------------- supervisor -> front


@dataclass(frozen=True, slots=True)
class FrontSetup(Question[str | None]):
    """The first message to a front: all that it needs to serve. The answer: why that is impossible."""

    number: int  # among the node's fronts, from 0
    settings: dict[str, Any]  # a document, with secrets
    files: dict[str, str]  # contents of those that the settings name, by path, as latin1
    port: int | None  # where it listens; None: it gets calls from other fronts alone
    engines: int
    extension: str | None  # see `serve.app.extension_of`
    token_secret: str  # of the node's one-time tokens, in hex


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
    """Use these settings, with secrets, which differ in live keys alone. The answer: why that is impossible."""

    settings: dict[str, Any]
    files: dict[str, str]  # as of `FrontSetup`


@dataclass(frozen=True, slots=True)
class NodeReady:
    """All fronts have been ready: the node is."""


@dataclass(frozen=True, slots=True)
class Beat(Question[None]):
    """Heartbeat, answered by the front's event loop."""


@dataclass(frozen=True, slots=True)
class FreeAt:
    """From when on, on the machine's monotonic clock, a key has characters left: it has used up what it may."""

    key_id: str
    at: float


@dataclass(frozen=True, slots=True)
class FrontPage(Question[str]):
    """The answer: the front's metrics, as `agent_tts/serve/telemetry/pages.py` writes them."""


# ---------------------------------------------------------------- front -> supervisor -> the front that has the session


@dataclass(frozen=True, slots=True)
class ClosePeer(Question[None]):
    """Close a WebRTC peer of the client with this key, and wait until it is closed. Refused with `BadMessage`."""

    session_id: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An ICE candidate of a call, found after its offer: its line, and the section that it is for."""

    line: str
    mid: str
    index: int


@dataclass(frozen=True, slots=True)
class AddCandidates(Question[None]):
    """Add candidates to a call of the client with this key. Refused with `BadMessage`."""

    session_id: str
    key_id: str | None
    candidates: tuple[Candidate, ...]


ForOwner = ClosePeer | AddCandidates

# ---------------------------------------------------------------- front -> supervisor -> a front that runs calls


@dataclass(frozen=True, slots=True)
class BeginCall(Question[dict[str, str]]):
    """Begin a call of the agent. The answer is one to its offer; it may be refused as a session may."""

    sdp: str  # of the offer
    instead: str | None  # session id of the client's call that ends first, if it is of the same front
    voice: str | None
    language: str | None
    instructions: str | None
    key_id: str | None
    token: Token | None


@dataclass(frozen=True, slots=True)
class DescribeAgent(Question[dict[str, Any]]):
    """The answer: what recognises and answers speech."""


ForCalls = BeginCall | DescribeAgent
OfSupervisor = FrontSetup | EngineUp | EngineIs | Serve | Drain | NodeReady | UseSettings | Beat | FreeAt | FrontPage
ToFront = OfSupervisor | ForOwner | ForCalls

# ---------------------------------------------------------------- front -> supervisor


@dataclass(frozen=True, slots=True)
class FrontReady:
    """The front takes requests."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The front has lost its link to an engine of which it does not know that it is lost: it needs a new one."""

    engine: int


# What there is a number of, apart from sessions.
Place = Literal["WebRTC peers", "calls", "new voices", "clips", "whole files", "long bodies"]


@dataclass(frozen=True, slots=True)
class Claim(Question[int]):
    """A session, a place, or both, until `Release`. The answer is the owner; see `agent_tts/serve/access/ledger.py`."""

    number: int  # the front's; it never uses it again
    key_id: str | None = None
    token: Token | None = None  # of this key, and used up by the session
    place: Place | None = None
    session: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    number: int
    unused: bool = False  # the front had given it up before the answer came: its token is good again


@dataclass(frozen=True, slots=True)
class TakeRequests(Question[int]):
    """Requests that a key may send through this front; the answer is how many, one at least."""

    key_id: str | None


@dataclass(frozen=True, slots=True)
class Spend:
    """Characters that a key has had spoken through this front."""

    key_id: str
    characters: int


@dataclass(frozen=True, slots=True)
class NodePage(Question[str]):
    """The answer: the metrics of the node, as Prometheus reads them."""


ToSupervisor = FrontReady | LinkLost | Claim | Release | TakeRequests | Spend | NodePage | ForOwner | ForCalls
