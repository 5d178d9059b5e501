"""F13: a node that is told to stop finishes running speech, refuses new connections and exits with 0."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.node_process import processes_of
from tests.support import until
from tests.wire import Wire, speak, wire

TEXT = "They may all finish what they are saying."
START_S = 30.0
EXIT_S = 15.0  # on a busy machine; half of the default of `timeouts.drain_s`
ASKED = 8  # connections


class NodeProcess:
    """A node in its own process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.ws_url = f"ws://127.0.0.1:{port}/v1/tts/stream"

    def engines(self) -> list[int]:
        """Its engines."""
        return [pid for name, pid in processes_of(self.process.pid).items() if name.startswith("engine")]

    async def ready(self) -> int | None:
        """Status of /ready; None while the port is closed."""
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                return (await client.get(self.url + "/ready")).status_code
            except httpx.HTTPError:
                return None

    async def wait_ready(self) -> None:
        """Wait until each of some new connections, which may reach different fronts, is told so."""
        async with asyncio.timeout(START_S):
            told = 0
            while told < ASKED:
                assert self.process.returncode is None, "the node has ended"
                told = told + 1 if await self.ready() == 200 else 0
                if not told:
                    await asyncio.sleep(0.05)

    async def exit_code(self, within_s: float) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()


@asynccontextmanager
async def node_process(*flags: str) -> AsyncIterator[NodeProcess]:
    """`agent-tts serve` on a free port, not ready yet."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["-m", "agent_tts", "serve", "--port", str(port), *flags]
    log = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=log, stderr=log)
    try:
        yield NodeProcess(process, port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]


@pytest.mark.usefixtures("fronts")
async def test_f13_running_speech_finishes_and_the_exit_code_is_0() -> None:
    """Guards `NodeServer._drain_then_exit`: 8 contexts speak, 2 wait in the queue, all finish."""
    async with node_process("--engine", "espeak", "--slots", "8") as node:
        await node.wait_ready()
        expected = await speak(node.ws_url, TEXT, seed=3, lead_ms=None)
        engine_pid = node.engines()[0]
        async with wire(node.ws_url) as peer:
            for number in range(10):
                await peer.say(f"t{number}", TEXT, seed=3, lead_ms=200)
            for number in range(8):
                await peer.until_audio(f"t{number}")
            node.process.send_signal(signal.SIGTERM)
            await peer.until("session.draining")
            assert await node.ready() == 503
            await peer.send("context.open", context_id="new")
            assert (await peer.until("error", "new"))["code"] == "draining"
            await refused(node)
            await finish(peer, expected)
            with pytest.raises(ConnectionClosed) as closed:
                await peer.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        assert await node.exit_code(EXIT_S) == 0
        await until(lambda: not is_running(engine_pid), 2.0)


@pytest.mark.usefixtures("fronts")
async def test_f13_generated_audio_is_sent_before_the_exit() -> None:
    """Guards `NodeServer._is_sending`: the engine finishes long before a slow client has read its audio."""
    async with node_process("--engine", "tone") as node:
        await node.wait_ready()
        async with wire(node.ws_url, rcvbuf=4_096, max_queue=1) as peer:
            await peer.say("t", "word " * 45, lead_ms=None)
            await peer.until_audio("t")
            node.process.send_signal(signal.SIGTERM)
            done = None
            while done is None:
                message = await peer.receive()
                done = message if message and message["type"] == "context.done" else None
                await asyncio.sleep(0.02)  # four times real time
            assert done["reason"] == "end"
            assert len(peer.pcm("t")) == 45 * 4 * 60 * 48
        assert await node.exit_code(EXIT_S) == 0


async def refused(node: NodeProcess) -> None:
    """A new connection gets the error `draining`."""
    async with wire(node.ws_url) as late:
        assert (await late.until("error"))["code"] == "draining"
        with pytest.raises(ConnectionClosed) as closed:
            await late.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def finish(peer: Wire, expected: bytes) -> None:
    """All ten contexts end. Those with a slot are complete; those that waited more than 2 s got an error."""
    for number in range(10):
        done = await peer.until("context.done", f"t{number}")
        if number < 8 or done["reason"] == "end":
            assert done["reason"] == "end"
            assert peer.pcm(f"t{number}") == expected
        else:
            assert (await peer.until("error", f"t{number}"))["code"] == "at_capacity"


@pytest.mark.usefixtures("fronts")
async def test_f13_a_second_signal_ends_the_node_at_once() -> None:
    async with node_process("--engine", "tone") as node:
        await node.wait_ready()
        engine_pid = node.engines()[0]
        async with wire(node.ws_url) as peer:
            await peer.say("t", "word " * 500)
            await peer.until_audio("t")
            node.process.send_signal(signal.SIGTERM)
            await peer.until("session.draining")
            node.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                await peer.until("nothing that ever comes")
        assert await node.exit_code(EXIT_S) == 128 + signal.SIGTERM
        await until(lambda: not is_running(engine_pid), 2.0)


@pytest.mark.usefixtures("fronts")
async def test_f13_speech_beyond_the_drain_timeout_is_cut() -> None:
    async with node_process("--engine", "tone", "--set", "timeouts.drain_s=0.5") as node:
        await node.wait_ready()
        async with wire(node.ws_url) as peer:
            await peer.say("t", "word " * 500)
            await peer.until_audio("t")
            node.process.send_signal(signal.SIGTERM)
            assert await node.exit_code(EXIT_S) == 0


@pytest.mark.usefixtures("fronts")
async def test_f13_a_signal_during_the_start_ends_the_node() -> None:
    async with node_process("--engine", "tone") as node:
        async with asyncio.timeout(START_S):
            while not node.engines():
                await asyncio.sleep(0.01)
        engine_pid = node.engines()[0]
        node.process.send_signal(signal.SIGTERM)
        await node.exit_code(EXIT_S)
        await until(lambda: not is_running(engine_pid), 2.0)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
@pytest.mark.usefixtures("fronts")
async def test_f10_f11_a_dead_or_hung_engine_is_reported_and_restarted(sig: signal.Signals) -> None:
    """Guards `SpeechService._on_lost` and the heartbeat, with 32 requests: all of them end."""
    async with node_process("--engine", "espeak", "--set", "timeouts.engine_heartbeat_s=1") as node:
        await node.wait_ready()
        async with wire(node.ws_url) as first, wire(node.ws_url) as second:
            for peer in (first, second):
                for number in range(16):
                    await peer.say(f"t{number}", "word " * 500)
                for number in range(16):
                    await peer.until_audio(f"t{number}")
            os.kill(node.engines()[0], sig)
            for peer in (first, second):
                for number in range(16):
                    assert (await peer.until("error", f"t{number}"))["code"] == "engine_lost"
                    assert (await peer.until("context.done", f"t{number}"))["reason"] == "error"
            await node.wait_ready()
            await first.say("again", "Hello")
            assert (await first.until("context.done", "again"))["reason"] == "end"
        node.process.send_signal(signal.SIGTERM)
        assert await node.exit_code(EXIT_S) == 0


async def test_f10_an_engine_that_keeps_dying_ends_the_node_with_1() -> None:
    async with node_process("--engine", "tone") as node:
        await node.wait_ready()
        async with asyncio.timeout(START_S):
            while node.process.returncode is None:
                for child in node.engines():
                    os.kill(child, signal.SIGKILL)
                await asyncio.sleep(0.05)
        assert await node.exit_code(1.0) == 1


async def test_f12_the_engine_does_not_outlive_a_killed_node() -> None:
    async with node_process("--engine", "espeak") as node:
        await node.wait_ready()
        engine_pid = node.engines()[0]
        node.process.kill()
        await until(lambda: not is_running(engine_pid), 1.0)
