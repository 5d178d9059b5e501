"""Measure an agent: callers type, listen and interrupt over WebRTC. `python -m tests.measure.agent --help`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack, MediaStreamError

from agent_tts.bench import report
from agent_tts.bench.node import own_node
from agent_tts.bench.statistics import percentiles
from agent_tts.cli.bench_options import Json, NodeOptions, Outputs, counts
from agent_tts.cli.bench_runs import run
from agent_tts.cli.options import command
from agent_tts.client.connection import http_url
from agent_tts.errors import SpeechError
from tests.measure.chat import running_chat
from tests.measure.cpu import cpu_used

CONNECT_S = 30.0
ANSWER_S = 20.0  # for a turn to be heard
LISTEN_S = (0.8, 2.8)  # delay before an answer is interrupted
SILENT_S = 0.25  # without sound, after which it counts as silent
LOUD = 300.0  # RMS of 20 ms; full scale is 32 767
PING_S = 1.0
ESPEAK = NodeOptions()
TIMES = ("interrupt_to_silence_ms", "first_word_to_audio_ms", "typed_to_heard_ms")


async def converse(url: str, key: str | None, calls: int, turns: int, pids: dict[str, int]) -> dict[str, Any]:
    """Have `calls` callers interrupt `turns` answers each; return their figures. Cancelling it hangs up.

    Args:
        url: http://, of a node with an agent and a language model that thinks longer than SILENT_S.
        pids: processes whose share of the CPU is reported, by name.

    Raises:
        SpeechError: a call failed, or an answer was not heard.
    """
    callers = [_Caller(seed) for seed in range(calls)]
    try:
        for caller in callers:
            await caller.call(url, key)
        before, began = cpu_used(pids), time.monotonic()
        await asyncio.gather(*(caller.converse(turns) for caller in callers))
        after, elapsed_s = cpu_used(pids), time.monotonic() - began
    except TimeoutError:
        raise SpeechError("an answer of the agent was not heard in time") from None
    finally:
        await asyncio.gather(*(caller.close() for caller in callers))
    used = {name: 100 * (after[name] - before[name]) / elapsed_s / calls for name in before.keys() & after.keys()}
    return {
        "calls": calls,
        "answers": sum(len(caller.heard_ms) for caller in callers),
        "interrupt_to_silence_ms": percentiles([ms for caller in callers for ms in caller.silence_ms], 50, 95),
        "first_word_to_audio_ms": percentiles([ms for caller in callers for ms in caller.speech_ms], 50, 95),
        "typed_to_heard_ms": percentiles([ms for caller in callers for ms in caller.heard_ms], 50, 95),
        "cpu_percent_per_call": {name: round(value, 1) for name, value in sorted(used.items())},
    }


class _Caller:
    """One call. Its audio is 80 ms late: aiortc's jitter buffer."""

    def __init__(self, seed: int) -> None:
        # Resolves with the duration of listening.
        self._random = random.Random(seed)
        self._changed = asyncio.Event()
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._connection.addTrack(AudioStreamTrack())
        self._connection.on("track", self._on_track)
        self._channel = self._connection.createDataChannel("chat")
        self._channel.on("open", self._changed.set)
        self._channel.on("message", self._on_message)
        # Tasks that listen and ping. Ended by `close`.
        self._tasks: list[asyncio.Task[None]] = []
        # When sound arrived last, and whether it arrived since the last turn began.
        self._loud_at = 0.0
        self._first_loud_at: float | None = None
        self._ready = False
        # Answers whose marks have arrived.
        self._told = 0
        # Times, ms: from typing to the last sound of the interrupted answer; from the first word to the first audio,
        # from the node's marks; from typing to the first sound of the answer.
        self.silence_ms: list[float] = []
        self.speech_ms: list[float] = []
        self.heard_ms: list[float] = []

    async def call(self, url: str, key: str | None) -> None:
        """Connect.

        Raises:
            SpeechError: the node refuses.
        """
        await self._connection.setLocalDescription(await self._connection.createOffer())
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(headers=headers, timeout=CONNECT_S) as client:
            body = {"sdp": self._connection.localDescription.sdp, "type": "offer"}
            reply = await client.post(f"{url}/api/agent/offer", json=body)
        if reply.status_code == 404:
            raise SpeechError("there is no agent: run the node with `agent-tts agent`")
        if not reply.is_success:
            raise SpeechError(f"the agent refuses a call with HTTP {reply.status_code}")
        answer = reply.json()
        await self._connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
        await self._wait(lambda: self._channel.readyState == "open", CONNECT_S)
        self._tasks.append(asyncio.create_task(self._ping(), name="pings"))
        self._send("client-ready", {"version": "2.0.0", "about": {"library": "agent-tts bench"}})
        await self._wait(lambda: self._ready, CONNECT_S)

    async def converse(self, turns: int) -> None:
        """Interrupt `turns` answers, and wait for the start of one more."""
        for turn in range(turns + 1):
            typed_at, told = time.monotonic(), self._told
            self._send("send-text", {"content": "Tell me a story.", "options": {"run_immediately": True}})
            if turn:
                while time.monotonic() - max(self._loud_at, typed_at) < SILENT_S:
                    await asyncio.sleep(0.02)
                self.silence_ms.append(1_000 * max(0.0, self._loud_at - typed_at))
            self._first_loud_at = None
            await self._wait(functools.partial(self._is_heard, told), ANSWER_S)
            assert self._first_loud_at is not None
            self.heard_ms.append(1_000 * (self._first_loud_at - typed_at))
            await asyncio.sleep(self._random.uniform(*LISTEN_S))

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()

    # ------------------------------------------------------------ inside

    def _is_heard(self, told: int) -> bool:
        """Whether an answer sounds, and the marks of more than `told` have arrived."""
        return self._first_loud_at is not None and self._told > told

    async def _wait(self, what: Callable[[], bool], timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            while not what():
                self._changed.clear()
                await self._changed.wait()

    def _send(self, type_: str, data: dict[str, Any]) -> None:
        self._channel.send(json.dumps({"label": "rtvi-ai", "type": type_, "id": "1", "data": data}))

    async def _ping(self) -> None:
        while True:
            self._channel.send("ping")
            await asyncio.sleep(PING_S)

    def _on_message(self, text: str) -> None:
        message = json.loads(text)
        data = message.get("data")
        if message.get("type") == "bot-ready":
            self._ready = True
        elif message.get("type") == "server-message" and data["kind"] == "turn":
            marks = data["marks"]
            self._told += 1
            self.speech_ms.append(marks["audio_first"] - marks["llm_first_token"])
        self._changed.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._tasks.append(asyncio.create_task(self._listen(track), name="ear"))

    async def _listen(self, track: MediaStreamTrack) -> None:
        with contextlib.suppress(MediaStreamError):
            while True:
                frame: Any = await track.recv()
                samples = frame.to_ndarray().astype(np.float64)
                if np.sqrt(np.mean(samples**2)) > LOUD:
                    self._loud_at = time.monotonic()
                    if self._first_loud_at is None:
                        self._first_loud_at = self._loud_at
                        self._changed.set()


# ---------------------------------------------------------------- the command


@command
def main(
    node: NodeOptions = ESPEAK,
    calls: Annotated[str, typer.Option(help="Calls at once, one run for each number.")] = "1,4,8",
    turns: Annotated[int, typer.Option(min=1, max=10_000, help="Answers that each caller interrupts.")] = 10,
    json: Json = None,
) -> None:
    """Time until an interrupted agent is silent and until an answer is heard, and the CPU time of a call.

    A node that is started has a language model of this program; a running one (--url) should use one that thinks for
    half a second.
    """
    sizes, outputs = counts("--calls", calls), Outputs(json=json)

    async def measure() -> list[dict[str, Any]]:
        async with _agent(node, max(sizes)) as (url, pids):
            return [await converse(url, node.key, size, turns, pids) for size in sizes]

    runs = run(measure())
    rows = [
        (
            *(each["calls"], each["answers"]),
            *(value for name in TIMES for value in each[name].values()),
            *each["cpu_percent_per_call"].values(),
        )
        for each in runs
    ]
    columns = (
        *("calls", "answers", "interrupt to silence ms p50", "p95", "first word to audio ms p50", "p95"),
        *("typed to heard ms p50", "p95", *(f"cpu % a call {name}" for name in runs[0]["cpu_percent_per_call"])),
    )
    report.table("agent: typed interruptions, heard by WebRTC peers (their jitter buffer holds 80 ms)", columns, rows)
    outputs.write("agent", {"engine": node.engine, "url": node.url}, runs)


@asynccontextmanager
async def _agent(options: NodeOptions, calls: int) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """The URL of a node with an agent, and the pids of its processes if it was started here."""
    if options.url is not None:
        yield http_url(options.url), {}
        return
    async with running_chat() as chat:
        settings = {"slots": 2 * calls, "agent__calls": calls, "agent__stt__kind": "none", "agent__llm__base_url": chat}
        async with own_node("agent", **settings, **options.settings) as node:
            yield node.url, node.pids


if __name__ == "__main__":
    typer.run(main)
