"""Measure what a frame costs the front: its CPU time from the engine's pipe to the clients' sockets.

`python -m tests.measure.frame_cost --help`. A node with the tone engine, clients in processes of their own, a WebSocket
for each stream. Other programs on the machine disturb it less than times would: CPU time is counted. The floor is what
the same machine needs for a `send` alone, and for a callback of the loop.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import typer
import uvloop

from agent_tts.bench.node import own_node
from agent_tts.bench.scenario import TEXTS
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import ready, work, workers
from agent_tts.bench.workers import report as answer

FRAME_BYTES = 3_840
HEAD_BYTES = 16
WORD_S = 0.04
REQUEST_WORDS = 14  # about 60 frames
LONG_WORDS = 180  # about a minute
WARMUP_S = 3.0
PROBE_S = 0.005
WORDS = " ".join(TEXTS).split()
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Counts:
    """What the clients of a process have got so far."""

    frames: int = 0
    messages: int = 0
    words: int = 0
    sent: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # by code

    def fail(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1


class Caller(asyncio.Protocol):
    """One WebSocket, which speaks one context after another."""

    def __init__(self, counts: Counts, way: str, lead_ms: int | None) -> None:
        self._counts, self._way, self._lead_ms = counts, way, lead_ms
        self._loop = asyncio.get_running_loop()
        self._data = bytearray()
        self._number = 0
        self._words_left = 0
        self._said = random.randrange(len(WORDS))
        self._timer: asyncio.TimerHandle | None = None
        self.greeted = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET /v1/tts/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._counts.fail("lost")
        if self._timer is not None:
            self._timer.cancel()

    def send(self, **message: Any) -> None:
        text = json.dumps(message).encode()
        head = struct.pack("!BB", 0x81, 0x80 | len(text)) if len(text) < 126 else None
        if head is None:
            head = struct.pack("!BBH", 0x81, 0xFE, len(text))
        self._transport.write(head + bytes(4) + text)  # a mask of zeros
        self._counts.sent += 1

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self.greeted.done():
            _, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                return
            self.greeted.set_result(None)
            self._data = rest
        while (size := self._frame()) is not None:
            del self._data[:size]

    def _frame(self) -> int | None:
        data = self._data
        if len(data) < 2:
            return None
        size, start = data[1] & 0x7F, 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        if len(data) < start + size:
            return None
        match data[0] & 0x0F:
            case 2:
                self._counts.frames += size > HEAD_BYTES
            case 1:
                self._take(json.loads(data[start : start + size]))
            case 9:
                self._transport.write(struct.pack("!BB", 0x8A, 0x80 | size) + bytes(4) + data[start : start + size])
        return start + size

    def _take(self, message: dict[str, Any]) -> None:
        self._counts.messages += 1
        match message["type"]:
            case "words":
                self._counts.words += len(message["words"])
            case "context.done":
                self.speak()
            case "error":
                self._counts.fail(message["code"])

    def begin(self) -> None:
        """Set the session, and speak."""
        timestamps = "word" if self._way == "words" else "none"
        self.send(type="session.update", session={"lead_ms": self._lead_ms, "timestamps": timestamps})
        self.speak()

    def speak(self) -> None:
        """Open the next context."""
        self._number += 1
        if self._way == "stream":
            self._words_left = REQUEST_WORDS
            self._type()
            return
        context_id = f"c{self._number}"
        self.send(type="text.append", context_id=context_id, text=" ".join(self._words(LONG_WORDS)))
        self.send(type="context.end", context_id=context_id)

    def _words(self, count: int) -> list[str]:
        self._said += count
        return [WORDS[number % len(WORDS)] for number in range(self._said - count, self._said)]

    def _type(self) -> None:
        context_id = f"c{self._number}"
        self.send(type="text.append", context_id=context_id, text=f"{self._words(1)[0]} ")
        self._words_left -= 1
        if self._words_left:
            self._timer = self._loop.call_later(WORD_S, self._type)
        else:
            self.send(type="context.end", context_id=context_id)

    def close(self) -> None:
        self._transport.abort()


async def call(job: dict[str, Any]) -> dict[str, Any]:
    """A process of callers; see `agent_tts.bench.workers.work`. It tells its counts whenever it is told to go on."""
    counts, loop = Counts(), asyncio.get_running_loop()
    callers: list[Caller] = []
    for _ in range(job["callers"]):
        _, caller = await loop.create_connection(
            lambda: Caller(counts, job["way"], job["lead_ms"]), "127.0.0.1", job["port"]
        )
        await caller.greeted
        callers.append(caller)
    go = await ready()
    for caller in callers:
        caller.begin()
        await asyncio.sleep(job["spread_s"] / len(callers))
    while "stop" not in go:
        go = await answer(asdict(counts))
    for caller in callers:
        caller.close()
    return {}


def times_of(pid: int) -> tuple[float, float]:
    """CPU time of a process: user, system, in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * TICK_S, int(fields[12]) * TICK_S


class Sink(asyncio.Protocol):
    """A connection whose data nobody looks at."""

    made: ClassVar[list[asyncio.Transport]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.append(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self.made.pop()


def floor_send(sockets: int = 400, seconds: float = 5.0) -> tuple[float, float]:
    """us of CPU, user and system, of the `write` of a frame to each of many sockets every 80 ms, in groups.

    The least that a front needs on this event loop. Another process reads.
    """

    async def read(address: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(sockets):
            await loop.create_connection(Sink, *address)
        while Sink.made:
            await asyncio.sleep(0.1)

    async def write(listener: socket.socket) -> tuple[float, float]:
        server = await asyncio.get_running_loop().create_server(Sink, sock=listener)
        while len(Sink.made) < sockets:
            await asyncio.sleep(0.1)
        transports = Sink.made[:]
        for transport in transports:
            transport.set_write_buffer_limits(high=1, low=0)
        frame, group, count = bytes(FRAME_BYTES + HEAD_BYTES + 4), max(1, sockets // 16), 0
        before, begun = os.times(), time.monotonic()
        while time.monotonic() - begun < seconds:
            for transport in (transports * 2)[count % sockets :][:group]:
                transport.write(frame)
            count += group
            await asyncio.sleep(max(0.0, begun + count / sockets * 0.08 - time.monotonic()))
        after = os.times()
        for transport in transports:
            transport.abort()
        server.close()
        return (after.user - before.user) / count * 1e6, (after.system - before.system) / count * 1e6

    with socket.create_server(("127.0.0.1", 0), backlog=sockets) as listener:
        pid = os.fork()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if not pid:
                runner.run(read(listener.getsockname()))
                os._exit(0)
            figures = runner.run(write(listener))
        os.waitpid(pid, 0)
    return figures


def floor_callback() -> float:
    """us of CPU of one callback of the loop that makes another."""
    count = 200_000

    async def run() -> float:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        left = count

        def again() -> None:
            nonlocal left
            left -= 1
            if left:
                loop.call_soon(again)
            else:
                done.set()

        begun = time.process_time()
        again()
        await done.wait()
        return time.process_time() - begun

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run()) / count * 1e6


async def probe(port: int, rtts_ms: list[float]) -> None:
    """A caller without speech: time from its `ping` to the `pong`, every `PROBE_S`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    caller = Caller(Counts(), "plain", None)
    caller.connection_made(writer.transport)
    await reader.readuntil(b"\r\n\r\n")
    await reader.read(1 << 16)  # the greeting
    while True:
        begun = time.monotonic()
        caller.send(type="ping")
        await reader.read(1 << 16)
        rtts_ms.append(1_000 * (time.monotonic() - begun))
        await asyncio.sleep(PROBE_S)


async def measure(
    callers: int, way: str, lead_ms: int | None, seconds: float, clients: int, spread_s: float, spy: list[str]
) -> dict[str, Any]:
    """Figures of one run."""
    settings = {
        "engine": "tone",
        "fronts": 1,
        "slots": callers,
        "limits__connections": callers + 64,
        "limits__max_frames": 1_000_000,
    }
    async with own_node(**settings) as node:
        port = int(node.url.rpartition(":")[2])
        job = {"port": port, "way": way, "lead_ms": lead_ms, "spread_s": spread_s}
        shares = [callers // clients + (number < callers % clients) for number in range(clients)]
        async with workers(
            "tests.measure.frame_cost", [job | {"callers": share} for share in shares], ready_s=60
        ) as found:

            async def counts() -> Counter[str]:
                told = await asyncio.gather(*(worker.tell({}, 60) for worker in found))
                return sum((Counter(one | one.pop("errors")) for one in told), Counter())

            rtts_ms: list[float] = []
            await counts()
            await asyncio.sleep(WARMUP_S)
            probing = asyncio.create_task(probe(port, rtts_ms))
            process = None
            if spy:
                process = await asyncio.create_subprocess_exec(
                    *(*spy, "--pid", str(node.pids["front"]), "--duration", str(round(seconds))),
                    stdout=asyncio.subprocess.DEVNULL,
                )
            before, began = await counts(), time.monotonic()
            used = {name: times_of(pid) for name, pid in node.pids.items()}
            await asyncio.sleep(seconds)
            after, took_s = await counts(), time.monotonic() - began
            times = {name: times_of(pid) for name, pid in node.pids.items()}
            probing.cancel()
            if process is not None:
                await process.wait()
            for worker in found:
                worker.answered = True
            await asyncio.gather(*(worker.tell({"stop": True}, 10) for worker in found))
    got = after - before
    frames = max(1, got["frames"])
    figures: dict[str, Any] = {"way": way, "callers": callers, "lead_ms": lead_ms, "s": round(took_s, 1)}
    if failed := {code: count for code, count in after.items() if code not in asdict(Counts())}:
        figures["errors"] = failed
    figures["frames_per_s"] = round(got["frames"] / took_s)
    figures["in_per_frame"] = round(got["sent"] / frames, 3)
    figures["out_per_frame"] = round(got["messages"] / frames, 3)
    for name, (user, system) in times.items():
        user, system = ((now - then) * 1e6 / frames for now, then in zip((user, system), used[name], strict=True))
        figures[f"{name}_us"] = {"user": round(user, 1), "system": round(system, 1), "all": round(user + system, 1)}
    figures["front_percent"] = round(figures["front_us"]["all"] * frames / took_s / 1e4, 1)
    figures["pong_ms"] = percentiles(rtts_ms, 50, 99, 100)
    return figures


def main(
    callers: Annotated[int, typer.Option(help="Streams, each with a WebSocket.")] = 200,
    way: Annotated[
        str, typer.Option(help="plain: a text at once; words: with word times; stream: a word every 40 ms.")
    ] = "plain",
    lead_ms: Annotated[int, typer.Option(help="Audio ahead of real time; 0: as fast as it goes.")] = 1_000,
    seconds: Annotated[float, typer.Option()] = 15.0,
    clients: Annotated[int, typer.Option(help="Processes of clients.")] = 1,
    spread_s: Annotated[float, typer.Option(help="From the first caller to the last; 0: all in the same step.")] = 2.0,
    runs: Annotated[int, typer.Option()] = 1,
    floor: Annotated[bool, typer.Option(help="Measure the machine's floor, too.")] = False,
    spy: Annotated[str, typer.Option(help="py-spy and its options: py-spy record -f raw -o FILE.")] = "",
) -> None:
    """CPU time of a front for each frame."""
    if floor:
        user, system = floor_send()
        print(f"floor: send {user:.1f} + {system:.1f} us, a callback {floor_callback():.2f} us")
    for _ in range(runs):
        print(
            json.dumps(asyncio.run(measure(callers, way, lead_ms or None, seconds, clients, spread_s, spy.split()))),
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:]:
        typer.run(main)
    else:
        work(call, uvloop.new_event_loop)
