"""Nodes behind one address, of which a test kills the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.node_process import RunningProcess
from tests.support import running_node

# About 5 s.
TEXT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."


@asynccontextmanager
async def two_nodes_in_this_loop(**settings: str) -> AsyncIterator[Balancer]:
    """The load balancer of two nodes. The loss of one is `Balancer.lose`, which is all that a client sees of it.

    `settings` are the nodes'.
    """
    async with running_node(**settings) as first, running_node(**settings) as second:
        async with balancer(first.url, second.url) as balanced:
            yield balanced


def kill(node: RunningProcess) -> None:
    node.process.kill()
    node.process.wait()


class Balancer:
    """A port whose connections go to the first of some nodes that takes them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.url = ""
        # Their addresses, without those that are lost.
        self._nodes = list(nodes)
        # The sides of each connection, by its node.
        self._open: dict[str, list[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def lose(self) -> str:
        """The first node is gone: its connections are reset, and no other one reaches it. Returns its address."""
        gone = self._nodes.pop(0)
        for writer in self._open.pop(gone, []):
            writer.transport.abort()
        return gone

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy a connection to and from a node, in both directions."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            for node in list(self._nodes):
                host, port = node.rpartition("/")[2].split(":")
                try:
                    there, back = await asyncio.open_connection(host, int(port))
                except OSError:
                    continue
                self._open.setdefault(node, []).extend((writer, back))
                await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
                return
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def balancer(*nodes: str) -> AsyncIterator[Balancer]:
    """A running load balancer."""
    made = Balancer(nodes)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()
