"""A client of the wire protocol that shares no code with the package, written from the protocol's text."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

HEADER = struct.Struct("<BBHIQ")
LIMIT_S = 120.0  # an engine with a model has a share of a busy core


class Wire:
    """One connection; keeps everything that it receives."""

    def __init__(self, socket_: ClientConnection) -> None:
        self.socket = socket_
        self.messages: list[dict[str, Any]] = []  # JSON in order of arrival, removed by `until`
        self.frames: dict[int, list[tuple[int, int, bytes]]] = {}  # context_no -> (first_sample, flags, payload)
        self.numbers: dict[str, int] = {}  # context_id -> context_no

    async def send(self, type_: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, **fields}))

    async def say(self, context_id: str, text: str, **fields: Any) -> None:
        """A whole context: open, text, end."""
        await self.send("context.open", context_id=context_id, **fields)
        await self.send("text.append", context_id=context_id, text=text)
        await self.send("context.end", context_id=context_id)

    async def receive(self) -> dict[str, Any] | None:
        """Take one message from the socket; None for audio."""
        data = await self.socket.recv()
        if isinstance(data, bytes):
            version, kind, flags, number, first = HEADER.unpack_from(data)
            assert (version, kind) == (1, 1)
            self.frames.setdefault(number, []).append((first, flags, data[HEADER.size :]))
            return None
        message: dict[str, Any] = json.loads(data)
        if message["type"] == "context.started":
            self.numbers[message["context_id"]] = message["context_no"]
        self.messages.append(message)
        return message

    async def until(self, type_: str, context_id: str | None = None) -> dict[str, Any]:
        """The first message of this type that was not returned before."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for index, message in enumerate(self.messages):
                    if message["type"] == type_ and context_id in (None, message.get("context_id")):
                        return self.messages.pop(index)
                await self.receive()

    async def close_code(self) -> int | None:
        """The code with which the node closes the connection, after all that it tells."""
        async with asyncio.timeout(LIMIT_S):
            try:
                while True:
                    await self.receive()
            except ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else None

    async def until_audio(self, context_id: str, frames: int = 1) -> None:
        """Receive until the context has this many frames."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.frames.get(self.numbers.get(context_id, -1), [])) < frames:
                await self.receive()

    def pcm(self, context_id: str) -> bytes:
        return b"".join(payload for _, _, payload in self.frames.get(self.numbers.get(context_id, -1), []))


@asynccontextmanager
async def wire(url: str, *, rcvbuf: int | None = None, **options: Any) -> AsyncIterator[Wire]:
    """Connect to a node's stream; `rcvbuf` is the size of the kernel's receive buffer."""
    if rcvbuf is not None:
        host, port = url.split("/")[2].split(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        options["sock"] = sock
    usual = dict[str, Any](subprotocols=["agent_tts.v1"], compression=None, proxy=None, max_queue=4, close_timeout=1)
    options = usual | options
    async with connect(url, **options) as socket_:
        yield Wire(socket_)


async def speak(url: str, text: str, **fields: Any) -> bytes:
    """All audio of one text."""
    async with wire(url) as peer:
        await peer.say("t", text, **fields)
        done = await peer.until("context.done")
        assert done["reason"] == "end", done
        return peer.pcm("t")
