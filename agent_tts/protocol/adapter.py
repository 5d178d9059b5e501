"""What an adapter and its session tell each other, and the interface of adapters.

An adapter translates between a client's dialect and these commands and events. `id` is the client's context id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_tts.errors import SpeechError
from agent_tts.messages import Append, Cancel, Cancelled, End, Flush, Open, Started
from agent_tts.protocol.options import SessionConfig
from agent_tts.protocol.utterance import UtteranceEvent

# ---------------------------------------------------------------- commands, besides those of `messages`

ALL = "*"  # a `Cancel` of this id is one of every context


@dataclass(frozen=True, slots=True)
class Update:
    """Fields of the `SessionConfig` of later contexts; answered by `Updated`."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Played:
    """The listener has played so much of a context."""

    id: str
    played_ms: float


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by `Pong`, with the same `t`."""

    t: int | float | str | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Cancel every context, then end the session."""


@dataclass(frozen=True, slots=True)
class Echo:
    """An item of the adapter's own: the session gives it back in its place among the answers."""

    item: Any = None


@dataclass(frozen=True, slots=True)
class Later:
    """Commands that are translated and obeyed when the client has been told of the end of a context.

    This is how contexts wait for one another where a dialect has them spoken one at a time: the adapter yields a
    generator that has not begun, of a message of so many characters, and the session iterates it as if the message had
    come then. The generator yields another `Later` if it must wait again, and with it waits all that is behind it:
    it is not asked. What waits for one context keeps its order, and what comes while some of it is obeyed stays behind
    all of it. The session refuses what is too much with `TextTooLong`, about no context.
    """

    context_id: str
    chars: int
    commands: Iterator[Command]


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what waits for the end of a context."""

    context_id: str


# The options of `Open` are the fields of `SessionConfig` that differ from the session's.
ContextCommand = Open[str, dict[str, Any]] | Append[str] | Flush[str] | End[str] | Cancel[str]
Command = ContextCommand | Update | Played | Ping | Close | Echo | Later | Drop

# ---------------------------------------------------------------- events, besides those of `messages`


@dataclass(frozen=True, slots=True)
class Created:
    """The first event of a session; `engine` and `model` are None before the engine's first start."""

    session_id: str
    engine: str | None
    model: str | None
    provenance: Mapping[str, Any]
    limits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Updated:
    """An `Update` was taken."""

    session: SessionConfig


@dataclass(frozen=True, slots=True)
class AskedToMove:
    """The client is asked to move: new contexts belong on another node."""

    deadline_ms: int
    reason: str
    address: str | None


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`."""

    t: int | float | str | None
    played: Mapping[str, int] | None  # ms of each context that this node plays; None: it plays none


@dataclass(frozen=True, slots=True)
class Failed:
    """A command was refused, or a context failed."""

    id: str | None  # None: it concerns no context
    error: SpeechError
    ends: bool = False  # it is not open, so that no `Finished` follows
    fatal: bool = False  # the connection ends


Event = UtteranceEvent | Started[str] | Cancelled[str] | Created | Updated | AskedToMove | Pong | Failed | Echo


class ProtocolAdapter:
    """The dialect of one connection: it keeps the state that its dialect needs, and does no I/O."""

    # (WebSocket close code, reason) when the connection must close after the last encoded message.
    closing: tuple[int, str] | None = None

    def begin(self) -> Iterator[Command]:
        """Commands that the URL of the connection implies. A generator, as `decode`, with the same errors."""
        yield from ()

    def prepare(self, data: str | bytes) -> Callable[[], object] | None:
        """What a thread is to do before `decode` gets this message, which may then be quick. Raises its errors."""
        return None

    def decode(self, data: str | bytes) -> Iterator[Command]:
        """The commands in a message of the client. A generator: errors are raised while it is iterated.

        It may rest between any two of them, and `encode` get events meanwhile.

        Raises:
            SpeechError: the client's message is invalid. Commands that were yielded before remain valid. The error is
                one of the context that it names, or of the last command's.
        """
        raise NotImplementedError

    def encode(self, event: Event) -> Iterable[str | bytes]:
        """The client's messages for an event of the session; empty where the dialect has none."""
        raise NotImplementedError

    def follow(self) -> Iterable[Command]:
        """Commands that the events so far bring about; called after each `encode`. Raises the errors of `decode`."""
        return ()
