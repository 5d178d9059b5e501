"""Clients that vanish, stall, read or write slowly, or never stop. Each fault runs beside an undisturbed client.

Each docstring names the line that the test guards: without it the test fails.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_tts.serve.node import Node
from agent_tts.serve.session import Session
from tests.fault.witness import undisturbed
from tests.support import RunningNode, running_node, until
from tests.wire import Wire, speak, wire

LONG = "This sentence is only here to be long enough that nobody ever hears the end of it. " * 12
FREE_S = 0.3  # promised: 0.1 s after detection
LATE_S = 15.0  # the same in real time on a busy machine; without detection a client stays for half a minute


def open_contexts(node: Node) -> int:
    """Contexts open in all sessions."""
    return sum(len(session._contexts) for session in node.sessions if isinstance(session, Session))


async def gone(running: RunningNode, sessions: int, within_s: float, free_s: float = FREE_S) -> None:
    """Wait until only `sessions` sessions and their requests are left, in the node and in the engine."""
    node = running.node
    await until(lambda: len(node.sessions) == sessions, within_s)
    await until(lambda: node.service.speaking == open_contexts(node), free_s)
    await until(lambda: node.guard.sessions == sessions, free_s)


def cut(peer: Wire, how: str) -> None:
    """Close the TCP connection without a close frame."""
    transport = peer.socket.transport
    if how == "reset":
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


@pytest.mark.parametrize(("engine", "how"), [("tone", "fin"), ("espeak", "reset")])
async def test_f1_a_client_that_vanishes_frees_its_slot(engine: str, how: str) -> None:
    """Guards `Session.close` in `Connection.run`."""
    draw = random.Random(1)
    async with running_node(engine=engine) as running, undisturbed(running.ws_url):
        for frames in [0, 1, *draw.sample(range(2, 12), 3)]:
            async with wire(running.ws_url) as peer:
                await peer.send("context.open", context_id="t", lead_ms=10_000)
                await peer.send("text.append", context_id="t", text=LONG)
                await peer.until_audio("t", frames)
                cut(peer, how)
                await gone(running, sessions=1, within_s=0.2 * 3)


async def test_f1_a_client_that_vanishes_in_the_queue_frees_its_place() -> None:
    """Guards the removal from `_waiting` in `Scheduler._finish`."""
    async with running_node(slots=1, queue=2) as running, wire(running.ws_url) as speaker:
        await speaker.send("text.append", context_id="t", text="Hello ")
        await speaker.until("context.started")
        async with wire(running.ws_url) as waiter:
            await waiter.send("text.append", context_id="w", text="Hello ")
            await until(lambda: running.node.service.speaking == 2)
            cut(waiter, "reset")
            await gone(running, sessions=1, within_s=0.6)
        async with wire(running.ws_url) as next_:
            await next_.say("n", "Hello")
            await speaker.send("context.cancel", context_id="t")
            assert (await next_.until("context.done"))["reason"] == "end"


CLIENT = """
import asyncio, sys
from tests.wire import wire
async def main():
    async with wire(sys.argv[1]) as peer:
        await peer.send("text.append", context_id="t", text="word " * 400)
        await peer.until_audio("t", 2)
        print("speaking", flush=True)
        while True:
            await peer.receive()
asyncio.run(main())
"""


@asynccontextmanager
async def client_process(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client in its own process that receives speech."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"speaking\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process.stdout._transport.close()  # pyrefly: ignore[missing-attribute]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
async def test_f1_f2_a_dead_or_stopped_client_process_is_detected(sig: signal.Signals) -> None:
    """Guards `ws_ping_interval` and `ws_ping_timeout` (a tenth of their defaults here) and TCP_USER_TIMEOUT."""
    async with running_node(timeouts={"ping_s": 0.5, "tcp_user_s": 0.5}) as running:
        async with client_process(running.ws_url) as process, undisturbed(running.ws_url):
            process.send_signal(sig)
            await gone(running, sessions=1, within_s=LATE_S, free_s=LATE_S)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a machine last answered")
@pytest.mark.real_time
@pytest.mark.parametrize("fields", [{"lead_ms": None}, {"output": {"encoding": "opus"}}], ids=["full", "not full"])
async def test_f2_a_machine_that_vanishes_is_detected(fields: dict[str, Any]) -> None:
    """Guards `tcp.is_lost`, in `Writer.room` and between pings: its kernel takes no more packets."""
    async with running_node(timeouts={"ping_s": 0.5, "tcp_user_s": 0.5}) as running:
        async with undisturbed(running.ws_url), wire(running.ws_url, max_queue=None) as peer:
            await peer.send("context.open", context_id="t", **fields)
            await peer.send("text.append", context_id="t", text=LONG * 3)
            await peer.until_audio("t", 25)
            vanish(peer.socket.transport.get_extra_info("socket"))
            await gone(running, sessions=1, within_s=LATE_S, free_s=LATE_S)


def vanish(sock: socket.socket) -> None:
    """Drop all packets that arrive for a socket, which then answers none of them."""
    drop_all = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0
    code = ctypes.create_string_buffer(drop_all, len(drop_all))
    attach_filter = 26
    sock.setsockopt(socket.SOL_SOCKET, attach_filter, struct.pack("HL", 1, ctypes.addressof(code)))


async def test_f3_a_client_that_never_reads_is_cut() -> None:
    """Guards the deadline in `Writer.room`, SO_SNDBUF and the credit window."""
    async with running_node() as running, undisturbed(running.ws_url):
        async with wire(running.ws_url, rcvbuf=4_096) as peer:
            await peer.send("context.open", context_id="t", lead_ms=None)
            await peer.send("text.append", context_id="t", text=LONG)
            await peer.until_audio("t")
            transport = peer.socket.transport
            transport.pause_reading()
            await gone(running, sessions=1, within_s=8.0)
            await until(lambda: len(running.server.server_state.connections) == 1, 6.0)
        refused = running.node.metrics.registry.get_sample_value("agent_tts_refused_total", {"code": "slow_consumer"})
        assert refused == 1


async def test_f3_a_short_text_that_fits_the_buffers_ends_normally() -> None:
    async with running_node() as running, wire(running.ws_url, rcvbuf=4_096) as peer:
        await peer.say("t", "Hi", lead_ms=None)
        peer.socket.transport.pause_reading()
        await gone_contexts(running)
        peer.socket.transport.resume_reading()
        assert (await peer.until("context.done"))["reason"] == "end"


async def gone_contexts(running: RunningNode) -> None:
    await until(lambda: open_contexts(running.node) == 0)


async def test_f4_a_reader_at_half_speed_gets_everything() -> None:
    """Guards the looks in `Writer.room`, and that no frame is dropped."""
    text = LONG[:500]
    async with running_node() as running:
        expected = await speak(running.ws_url, text, seed=5, lead_ms=None)
        async with undisturbed(running.ws_url), wire(running.ws_url, rcvbuf=4_096, max_queue=1) as peer:
            await peer.say("t", text, seed=5, lead_ms=None)
            done = None
            begun, half_s = time.monotonic(), min(6.0, 2 * len(expected) / 48_000)
            while done is None:
                message = await peer.receive()
                done = message if message and message["type"] == "context.done" else None
                read_s = begun + half_s * len(peer.pcm("t")) / len(expected) - time.monotonic()
                await asyncio.sleep(max(0.0, read_s))
            assert done["reason"] == "end"
            assert peer.pcm("t") == expected


async def test_f5_text_by_characters_that_stops_in_a_word() -> None:
    """Guards `Scheduler._expire`, with less than its default of 15 s."""
    async with running_node(limits={"text_idle_s": 1.5}) as running, undisturbed(running.ws_url):
        async with wire(running.ws_url) as peer:
            await peer.send("context.open", context_id="t")
            for character in "Slow words come one by on":
                await peer.send("text.append", context_id="t", text=character)
                await asyncio.sleep(0.01)
            error = await peer.until("error")
            assert error["code"] == "starved"
            assert (await peer.until("context.done"))["reason"] == "error"
            assert running.node.service.speaking == 1  # the undisturbed client


async def test_f15_text_without_words_is_done() -> None:
    async with running_node() as running, undisturbed(running.ws_url), wire(running.ws_url) as peer:
        for number, text in enumerate(["", " ", "a", "…", "```\ncode\n```", "\u200b\n", "<|im_end|>"]):
            await peer.say(f"t{number}", text)
            assert (await peer.until("context.done"))["reason"] == "end"


async def test_f15_a_runaway_ends_at_the_cap() -> None:
    """Guards the cap in `Scheduler._take`."""
    async with running_node(tone={"scripted_faults": True}) as running, undisturbed(running.ws_url):
        async with wire(running.ws_url) as peer:
            await peer.say("t", "one", instructions="fault:never_end@0", lead_ms=None)
            done = await peer.until("context.done")
            assert done["reason"] == "length"
            assert done["audio_ms"] == (50 + 10 * 3) * 80


async def test_f14_steps_of_the_wall_clock_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front paces, meters and expires by the monotonic clock alone; ruff bans the wall clock."""
    async with running_node() as running, undisturbed(running.ws_url):
        real = time.time  # noqa: TID251
        for step_s in (3_600.0, -3_600.0):
            monkeypatch.setattr(time, "time", lambda step_s=step_s: real() + step_s)
            assert await speak(running.ws_url, "Hello there.") != b""


async def test_f14_a_stalled_event_loop_loses_no_frame() -> None:
    async with running_node() as running, undisturbed(running.ws_url):
        await asyncio.sleep(0.5)
        time.sleep(0.5)  # noqa: ASYNC251 - the fault
        assert await speak(running.ws_url, "Hello there.") != b""
