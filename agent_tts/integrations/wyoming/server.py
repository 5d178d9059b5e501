"""The adapter's listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from urllib.parse import urlsplit

from loguru import logger

from agent_tts.errors import SettingsError
from agent_tts.integrations.wyoming.conversation import Conversation, Target
from agent_tts.integrations.wyoming.wire import MAX_LINE

MAX_CLIENTS = 64


def serve(uri: str, target: Target) -> None:
    """Serve Home Assistant from a node until a signal ends it. The node may start later.

    Raises:
        SettingsError: the address cannot be used.
        KeyboardInterrupt: on SIGINT, after all clients are closed.
    """
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve_until_signal(uri, target))


async def _serve_until_signal(uri: str, target: Target) -> None:
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with WyomingServer(target) as server:
        print(f"{await server.listen(uri)} speaks with {target.url}", flush=True)
        await asyncio.Event().wait()


class WyomingServer:
    """Serves Wyoming's clients from a node. An async context manager."""

    def __init__(self, target: Target) -> None:
        self._target = target
        # One for each client. Cancelled and awaited by `__aexit__`.
        self._tasks: set[asyncio.Task[None]] = set()
        # None before it listens.
        self._server: asyncio.Server | None = None

    async def listen(self, uri: str) -> str:
        """Take clients; returns the address, with the chosen port for port 0.

        Raises:
            SettingsError: the address cannot be used.
        """
        host, port = parse(uri)
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=MAX_LINE)
        except OSError as error:
            raise SettingsError(f"cannot listen on {uri}: {error.strerror or 'no such host'}") from error
        chosen = self._server.sockets[0].getsockname()[1]
        return f"tcp://[{host}]:{chosen}" if ":" in host else f"tcp://{host}:{chosen}"

    async def __aenter__(self) -> WyomingServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect every client at once."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="wyoming client")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Conversation(self._target, reader, writer).run()
            writer.close()
        except (OSError, TimeoutError):
            logger.debug("wyoming: a client has gone")
        except Exception as error:  # noqa: BLE001 - the edge of a task: only its client is disconnected
            logger.error("wyoming: {}", type(error).__name__)
        finally:
            if not writer.is_closing():
                writer.transport.abort()


def parse(uri: str) -> tuple[str, int]:
    """Host and port of `tcp://host:port`.

    Raises:
        SettingsError: another form.
    """
    try:
        parts = urlsplit(uri)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:  # an invalid address or port
        scheme, host, port = "", None, None
    if scheme != "tcp" or not host or port is None:
        raise SettingsError("--uri is tcp://host:port, like tcp://0.0.0.0:10200")
    return host, port
