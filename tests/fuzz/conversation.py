"""A session in any dialect, with its own engine. The engine's steps and time advance on demand only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.websockets import WebSocket

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import create_loop
from agent_tts.messages import EngineCommand, OnEvents, OnLost
from agent_tts.protocol.adapter import ProtocolAdapter
from agent_tts.serve.access.guard import Guard
from agent_tts.serve.node import Node
from agent_tts.serve.session import Session
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.serve.transports.websocket import Dialect
from agent_tts.speech.service import SpeechService

LIMITS = {"contexts_per_session": 2, "text_context_chars": 60, "text_message_chars": 40, "text_idle_s": 3}
SETTINGS = Settings.model_validate(
    {"engine": "tone", "slots": 1, "queue": 1, "limits": LIMITS, "tone": {"char_ms": 30}}
)


class Clocked:
    """An engine client whose steps and clock advance on demand only."""

    alive = True
    late = False

    def __init__(self, settings: Settings, on_events: OnEvents, on_lost: OnLost) -> None:
        self.now = 0.0
        self.loop = create_loop(settings, lambda: self.now)
        self.on_events = on_events
        self.lost = on_lost

    def send(self, command: EngineCommand, *, waits: bool = False) -> None:
        self.loop.submit(command)

    def turn(self) -> None:
        self.on_events(self.loop.step())


class Conversation:
    """One session and its node."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        metrics = Metrics()
        links: list[Clocked] = []

        def make(on_events: Any, on_lost: Any) -> Any:
            links.append(Clocked(settings, on_events, on_lost))
            return links[0]

        self.service = SpeechService([make], aliases=settings.voice_aliases)
        self.link = links[0]
        self.service.engines[0].info = self.link.loop.ready().info
        self.node = Node(settings, self.service, Guard(settings, metrics), metrics)
        self.session = Session(self.node, "test", clock=lambda: self.link.now)

    def turn(self, steps: int, seconds: float) -> None:
        """Run `steps` steps of the engine, then advance the clock."""
        for _ in range(steps):
            self.link.turn()
        self.link.now += seconds

    def told(self, adapter: ProtocolAdapter) -> Iterator[str | bytes]:
        """All messages to the client that are due now, encoded in its dialect."""
        while adapter.closing is None and (event := self.session.poll()) is not None:
            yield from adapter.encode(event)
            if more := adapter.follow():
                self.session.receive(more)

    def lose_engine(self) -> None:
        """The engine dies and is replaced at once."""
        self.service.engines[0]._on_lost("scripted")
        self.link.loop = create_loop(self.node.settings, lambda: self.link.now)


def codec_of(conversation: Conversation, dialect: Dialect, path: str, query: str = "") -> ProtocolAdapter:
    """An adapter for a connection to a path with a query."""

    scope = {
        "type": "websocket",
        "path": path,
        "path_params": {"voice": "tone-660", "voice_id": "tone-660"},
        "query_string": query.encode(),
        "headers": [],
    }

    async def unused(*_: object) -> Any:
        raise AssertionError("an adapter does no I/O")

    return dialect.make_adapter(WebSocket(scope, unused, unused), conversation.node)
