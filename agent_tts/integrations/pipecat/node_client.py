"""How the service reaches its node: over a WebSocket, or in the same process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from agent_tts.client.connection import ConnectionLost
from agent_tts.client.moving import AnyConnection, Target
from agent_tts.config.settings import Limits
from agent_tts.errors import RETRY_MS, Draining, EngineLost, SpeechError
from agent_tts.integrations.pool import Pool
from agent_tts.protocol.options import SessionConfig
from agent_tts.protocol.utterance import AnyUtterance
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Listener, Utterance
from agent_tts.speech.words.timeline import Paces

CONNECT_S = 3.0  # for the node to answer a connection or settings; a turn waits for it
TRANSPORT = "pipecat"  # of what is spoken in the same process, in metrics

Session = Mapping[str, Any]  # fields of protocol.md's `session`
T = TypeVar("T")


class WebSocketNodeClient:
    """A node elsewhere. `connect` replaces a connection that was lost or whose node is draining."""

    def __init__(self, target: Target) -> None:
        self._pool = Pool(target)
        # The connection for new contexts. None before the first.
        self._node: AnyConnection | None = None

    async def connect(self) -> bool:
        """Make sure within `CONNECT_S` that contexts can begin; True if this made a new connection. Safe to cancel.

        Raises `SpeechError` when the node cannot be reached, or refuses.
        """
        self._node, is_reused = await _in_time(self._pool.usable(CONNECT_S))
        return not is_reused

    async def check(self, session: Session) -> None:
        """Raise a `SpeechError` if the node refuses these settings. Safe to cancel."""
        await _in_time(self._connected.update(**session))

    def begin(self, session: Session) -> AnyUtterance:
        """Start a context; it takes a slot, or a place in the queue, before its first word.

        Raises `SpeechError` for a refusal at once; its events raise a later one.
        """
        return self._connected.begin(**session)

    async def close(self) -> bool:
        """Stop all speech and disconnect; True if there was a connection. Idempotent; `connect` may follow."""
        node, self._node = self._node, None
        await self._pool.close()
        return node is not None

    @property
    def _connected(self) -> AnyConnection:
        if self._node is None:
            raise ConnectionLost("there is no connection to the node")
        return self._node


class InProcessNodeClient:
    """A node in this event loop, which its owner starts and closes: no socket and no JSON, otherwise the same."""

    def __init__(self, speech: SpeechService, metrics: Metrics, owner: int) -> None:
        self._service = speech
        self._metrics = metrics
        self._owner = owner
        # How fast the voices of earlier utterances have spoken.
        self._paces = Paces()

    async def connect(self) -> bool:
        if self._service.draining:
            raise Draining
        if not self._service.alive:
            raise EngineLost("the engine is restarting: try again", retry_after_ms=RETRY_MS)
        return False

    async def check(self, session: Session) -> None:
        self._service.resolve(_config(session).options())

    def begin(self, session: Session) -> Utterance:
        config = _config(session)
        listener = Listener(output=config.output, words="told", paces=self._paces)
        return self._metrics.open(self._service, TRANSPORT, config.options(), self._owner, listener)

    def prepare(self, session: Session) -> Utterance | None:
        """Start a context that may be stopped unheard if a slot is free; None otherwise."""
        with contextlib.suppress(SpeechError):
            if any(engine.able and engine.free > 0 for engine in self._service.engines):
                return self.begin(session)
        return None

    async def close(self) -> bool:
        """There is no connection; each utterance is stopped by who began it."""
        return False


NodeClient = WebSocketNodeClient | InProcessNodeClient


async def _in_time(answer: Awaitable[T]) -> T:
    """An answer of the node within `CONNECT_S`; raises `ConnectionLost` without one."""
    try:
        async with asyncio.timeout(CONNECT_S):
            return await answer
    except TimeoutError:
        raise ConnectionLost(f"the node did not answer within {CONNECT_S:g} s") from None


def _config(session: Session) -> SessionConfig:
    return SessionConfig().merged(dict(session), Limits().max_lead_ms)
