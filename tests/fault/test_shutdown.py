"""F13: a node that is told to stop finishes running speech, refuses new connections and exits with 0.

`running_process` checks that no process outlives a node.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from agent_tts.bench.node import children_of
from tests.cli.process import is_running, start
from tests.node_process import RunningProcess, running_process
from tests.support import running_node, until
from tests.wire import Wire, speak, wire

pytestmark = [pytest.mark.real_time, pytest.mark.skipif(sys.platform != "linux", reason="/proc")]

TEXT = "They may all finish what they are saying."
SLOW, SLOW_MS = "word " * 45, 45 * 4 * 60
START_S = 60.0
EXIT_S = 30.0  # the default of `timeouts.drain_s`, on a busy machine


async def exit_code(node: RunningProcess) -> int:
    return await asyncio.to_thread(node.process.wait, EXIT_S)


async def test_f13_running_speech_finishes_and_the_exit_code_is_0(tmp_path: Path) -> None:
    """Guards `NodeServer._drain_then_exit`: contexts speak on two engines, others wait in the queue, all finish.

    And `NodeServer._is_sending`, with a client that reads slowly. `test_fronts.py` drains two fronts.
    """
    flags = ("--slots", "4", "--set", "engines=2", "--set", "timeouts.queue_s=20")
    with running_process(tmp_path, *flags) as node:
        expected = await speak(node.ws_url, TEXT, seed=3, lead_ms=None)
        async with wire(node.ws_url) as peer, wire(node.ws_url, rcvbuf=4_096, max_queue=1) as slow:
            await slow.say("t", SLOW, lead_ms=None)
            await slow.until_audio("t")
            reading = asyncio.create_task(read_slowly(slow))
            await peer.send("text.append", context_id="last", text="word " * 100)
            for number in range(10):
                await peer.say(f"t{number}", TEXT, seed=3, lead_ms=200)
            for number in range(5):
                await peer.until_audio(f"t{number}")
            await peer.send("ping")
            await peer.until("pong")  # the node has read all of them
            node.process.send_signal(signal.SIGTERM)
            await peer.until("session.draining")
            await peer.send("context.open", context_id="new")
            assert (await peer.until("error", "new"))["code"] == "draining"
            async with httpx.AsyncClient(trust_env=False) as client:
                assert (await client.get(f"{node.url}/ready")).status_code == 503
            async with wire(node.ws_url) as late:
                assert (await late.until("error"))["code"] == "draining"
                await ended(late, 1012)
            await peer.send("context.cancel", context_id="last")
            for number in range(10):
                assert (await peer.until("context.done", f"t{number}"))["reason"] == "end"
                assert peer.pcm(f"t{number}") == expected
            await reading
            await ended(peer, 1012)
        assert await exit_code(node) == 0


async def read_slowly(peer: Wire) -> None:
    """The engine has finished the text long before the client has read its audio, at a few times real time."""
    done = None
    while done is None:
        message = await peer.receive()
        done = message if message and message["type"] == "context.done" else None
        await asyncio.sleep(0.02)
    assert done["reason"] == "end"
    assert len(peer.pcm("t")) == SLOW_MS * 48


async def ended(peer: Wire, code: int) -> None:
    """The node closes the connection with this code."""
    with pytest.raises(ConnectionClosed) as closed:
        await peer.until("nothing that ever comes")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


async def test_f13_speech_beyond_the_drain_timeout_is_cut() -> None:
    async with running_node(timeouts={"drain_s": 0.5}) as node, wire(node.ws_url) as peer:
        await peer.say("t", "word " * 500)
        await peer.until_audio("t")
        node.server.handle_exit(signal.SIGTERM, None)
        await ended(peer, 1012)
        assert node.server.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", ["1", "2"])
async def test_a_second_signal_ends_the_drain_in_few_words(tmp_path: Path, count: str) -> None:
    with running_process(tmp_path, "--fronts", count) as node:
        async with wire(node.ws_url) as peer:
            await peer.say("t", "word " * 500)
            await peer.until_audio("t")
            node.process.send_signal(signal.SIGTERM)
            await until(lambda: "repeat it to exit now" in node.log, EXIT_S)
            node.process.send_signal(signal.SIGTERM)
            assert await exit_code(node) == 128 + signal.SIGTERM
        assert "Traceback" not in node.log


@pytest.mark.slow
async def test_an_engine_that_keeps_dying_ends_the_node(tmp_path: Path) -> None:
    """A node with one front: `test_several_engines.py`."""
    with running_process(tmp_path, "--fronts", "2") as node:
        for _ in range(6):
            await until(lambda: "engine 0" in node.pids(), EXIT_S)
            victim = node.kill("engine 0")
            await until(lambda: victim not in node.pids().values(), EXIT_S)  # noqa: B023
        assert await asyncio.to_thread(node.process.wait, EXIT_S) == 1
    assert "no engine can be kept running: the node exits" in node.log


async def test_f13_a_signal_during_the_start_ends_the_node() -> None:
    """A node with one front: `tests/serve/processes/test_careless_operator.py`."""
    with start("serve", "--engine", "tone", "--port", "0", "--fronts", "2") as process:
        await until(lambda: bool(children_of(process.pid)), START_S)
        pids = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate, timeout=EXIT_S)
    await until(lambda: not any(map(is_running, pids)), EXIT_S)
