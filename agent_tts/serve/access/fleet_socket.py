"""The counts of a fleet behind a Unix socket: a batch is a line of JSON, and its answer is another.

A node's end is `SocketCounts`; `CountsServer` is that of the process which knows where the fleet counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from loguru import logger

from agent_tts.serve.access.fleet_counts import Batch, SharedCounts
from agent_tts.system.open_files import short

SCHEME = "socket://"
MAX_LINE = 4 << 20  # bytes
MAX_NODES = 16  # connections to one server


class SocketCounts(SharedCounts):
    """The counts behind a socket, at `socket:///PATH`."""

    def __init__(self, address: str) -> None:
        self._path = Path(address.removeprefix(SCHEME))
        # While connected; a connection whose answer was not awaited is closed, because the answer may still come.
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, batch: Batch) -> tuple[list[int], list[int]]:
        """Raises `OSError`, `EOFError`, `ValueError`."""
        try:
            if self._streams is None:
                with short(self._path) as path:
                    self._streams = await asyncio.open_unix_connection(path, limit=MAX_LINE)
            reader, writer = self._streams
            writer.write(json.dumps(asdict(batch)).encode() + b"\n")
            await writer.drain()
            outcomes, waits_ms = json.loads(await reader.readuntil())
        except BaseException:
            await self.close()
            raise
        return outcomes, waits_ms

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class CountsServer:
    """Answers the batches of this machine's nodes at a path.

    Args:
        exchange: gives the answer to a batch, as a dict of its fields. May raise: the node's connection is closed then.
    """

    def __init__(self, path: Path, exchange: Callable[[dict[str, object]], Awaitable[object]]) -> None:
        self._path = path
        self._exchange = exchange
        self._server: asyncio.Server | None = None
        # One for each connection. They end by themselves, or are cancelled and awaited by `close`.
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, in place of a server that is gone. The path is for this user alone if its folder is."""
        self._path.unlink(missing_ok=True)
        with short(self._path) as path:
            self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_LINE)

    async def close(self) -> None:
        """Stop answering. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()
        self._path.unlink(missing_ok=True)
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= MAX_NODES:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="counts of a node")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, EOFError):
                while True:
                    answer = await self._exchange(json.loads(await reader.readuntil()))
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        except Exception as error:  # noqa: BLE001 - each place to count in has errors of its own
            logger.warning("the fleet's counts cannot be exchanged ({})", type(error).__name__)
        finally:
            writer.transport.abort()
