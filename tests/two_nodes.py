"""Two nodes as processes behind one address, of which a test kills the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.node_process import RunningProcess, running_process

# About 5 s.
TEXT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."


@asynccontextmanager
async def two_nodes(folder: Path, *flags: str) -> AsyncIterator[tuple[RunningProcess, RunningProcess, str]]:
    """The nodes, and the url of a load balancer that prefers the first."""
    folders = [folder / "first", folder / "second"]
    for each in folders:
        each.mkdir()
    with running_process(folders[0], *flags) as first, running_process(folders[1], *flags) as second:
        async with balancer(first.url, second.url) as url:
            yield first, second, url


def kill(node: RunningProcess) -> None:
    node.process.kill()
    node.process.wait()


@asynccontextmanager
async def balancer(*nodes: str) -> AsyncIterator[str]:
    """The url of a port whose connections go to the first of these nodes that takes them."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            for node in nodes:
                host, port = node.rpartition("/")[2].split(":")
                try:
                    there, back = await asyncio.open_connection(host, int(port))
                except OSError:
                    continue
                await asyncio.gather(copy(reader, back), copy(there, writer))
                return
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
