"""No log line, metric or span of a node contains spoken text, whatever fails."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import httpx
import pytest

from agent_tts.bench.statistics import serving
from agent_tts.bench.trace import Collector
from tests.cli.process import environment, start
from tests.rtc_peer import connected
from tests.support import present
from tests.wire import wire

pytestmark = pytest.mark.node

SECRET = "xylophone"
TEXT = f"My {SECRET} is in the cellar."
AUDIO = "UklGRg"  # start of a WAV in base64
ENGINE_LOST_S = 20.0


async def speak_everywhere(url: str) -> str:
    """Speak it over every route, and cause every error with it; return the metrics."""
    ws_url = url.replace("http", "ws", 1) + "/v1/tts/stream"
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        for body in (
            {"input": TEXT, "response_format": "wav"},
            {"input": TEXT, "stream_format": "sse"},
            {"input": TEXT, "voice": SECRET},
            {"input": TEXT, "language": SECRET},
            {"input": TEXT, SECRET: 1},
            {"input": TEXT, "instructions": "fault:raise@0"},
            {"input": f"{TEXT} " * 1_000},
        ):
            await client.post("/v1/audio/speech", json=body)
        await client.post("/v1/audio/speech", content=f'{{"input": "{TEXT}'.encode())
        await client.get(f"/v1/models/{SECRET}")
        await client.get(f"/v1/{SECRET}", params={"token": SECRET})
        async with wire(ws_url) as peer:
            for name, fault in ((SECRET, None), ("fault", "fault:raise@1"), ("nan", "fault:nan@1")):
                await peer.say(name, TEXT, instructions=fault)
                await peer.until("context.done")
            await peer.send(SECRET, text=TEXT)
            await peer.send("text.append", context_id="t", txt=TEXT)
            await peer.socket.send(f"not JSON: {TEXT}")
            for _ in range(3):
                await peer.until("error")
        async with wire(ws_url) as peer:  # cut while it speaks
            await peer.send("text.append", context_id="t", text=f"{TEXT} " * 20)
            await peer.until_audio("t")
            peer.socket.transport.abort()
        async with connected(url) as caller:
            caller.say("t", TEXT)
            await caller.message("context.done")
            caller.channel.send(f"not JSON: {TEXT}")
            await caller.message("error")
        async with wire(ws_url) as peer:
            await peer.say("lost", TEXT, instructions="fault:crash@1")
            assert (await peer.until("error"))["code"] == "engine_lost"
        async with asyncio.timeout(ENGINE_LOST_S):
            while (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.1)
        return (await client.get("/metrics")).text


def test_a_spoken_secret_appears_nowhere() -> None:
    """Lines of text have the same content as those of JSON: `telemetry/test_logs.py`."""
    with serving(Collector(), "collector") as spans:
        settings = ("tone.scripted_faults=true", f"telemetry.endpoint={spans.url}")
        flags = ("--port", "0", "--engine", "tone", "--log-level", "debug", "--log-format", "json")
        told = [argument for setting in settings for argument in ("--set", setting)]
        process = start("serve", *flags, *told, env=environment())
        try:
            said = iter(present(process.stderr).readline, b"")
            url = next(line for line in said if line.startswith(b"agent-tts: ")).decode().removeprefix("agent-tts: ")
            metrics = asyncio.run(speak_everywhere(url.strip()))
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    found: dict[str, Any] = {
        "log": log.decode(),
        "metrics": metrics,
        "spans": "\n".join(str(request) for _, request, _ in spans.received),
    }
    for where, what in found.items():
        assert SECRET not in what, where
        assert "cellar" not in what, where
        assert AUDIO not in what, where
    assert "slot" in found["log"]  # the fault is logged without its input
    assert "agent_tts_contexts_total" in metrics
    assert "first_audio" in found["spans"]
    assert [json.loads(line)["level"] for line in log.decode().splitlines()]
