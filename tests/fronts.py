"""Several fronts in one event loop, each with an engine of its own, and real channels to their supervisor's part."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_tts.config.settings import Settings
from agent_tts.ipc.channel import Channel
from agent_tts.ipc.front_messages import ToFront, ToSupervisor
from agent_tts.serve.access.node_counts import NodeCounts
from agent_tts.serve.access.supervisor_client import SupervisorClient
from agent_tts.serve.app import Extension, create_app
from agent_tts.serve.local_engine import service_of
from agent_tts.speech.engine_handle import EngineClientFactory
from tests.support import RunningNode, in_this_loop, running_app, settings_of


@dataclass(slots=True)
class Fronts:
    """Running fronts, and what they are together."""

    counts: NodeCounts
    fronts: list[RunningNode] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)  # the supervisor's ends

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The supervisor stands still in the block: its messages wait."""
        loop = asyncio.get_running_loop()
        for channel in self.channels:
            loop.remove_reader(channel._sock)
        try:
            yield
        finally:
            for channel in self.channels:
                loop.add_reader(channel._sock, channel._read)

    async def kill(self, number: int) -> None:
        """End a front, for its supervisor: it still answers clients."""
        await self.channels[number].close()
        self.counts.lose(number)


def join(counts: NodeCounts, number: int, *, calls: bool = False) -> tuple[SupervisorClient, Channel]:
    """A front's end of a new channel, and the supervisor's."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours, ToSupervisor, lambda _: counts.lose(number))
    counts.attach(number, channel)
    if calls:
        counts.for_calls.add(number)
    return SupervisorClient(number, Channel(theirs, ToFront, lambda _: None), counts.ledger.secret), channel


@asynccontextmanager
async def running_fronts(
    count: int = 2,
    extensions: Sequence[Callable[[Settings], Extension]] = (),
    engine: EngineClientFactory | None = None,
    **values: Any,
) -> AsyncIterator[Fronts]:
    """So many fronts of one node, each with an engine of its own. `values` are settings.

    Args:
        extensions: make that of each front; a front beyond `count` runs the calls of the others.
    """
    settings = settings_of(**values)
    found = Fronts(NodeCounts(settings))
    async with AsyncExitStack() as closing:
        for number in range(max(count, len(extensions))):
            supervisor, channel = join(found.counts, number, calls=number >= count)
            closing.push_async_callback(channel.close)
            closing.push_async_callback(supervisor.channel.close)
            client = engine or in_this_loop(settings)
            extended = extensions[number](settings) if extensions else None
            app = create_app(settings, service_of(settings, [client], prefers=number), extended, supervisor)
            found.fronts.append(await closing.enter_async_context(running_app(app)))
            found.channels.append(channel)
            supervisor.node_ready.set()
        yield found
