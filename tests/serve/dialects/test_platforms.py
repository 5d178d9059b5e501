"""Vapi's and jambonz' custom voices on a real node, as these platforms call them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import av
import httpx
import numpy as np
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from agent_tts.protocol.adapter import Update
from agent_tts.serve.dialects.platforms import JambonzAdapter
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, SECOND, VOICE, check_spoken
from tests.support import RunningNode, running_node

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

KEY = "correct-horse-battery-staple"
LIMIT_S = 20.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak", auth={"api_keys": [KEY]}) as running:
        yield running


def client(node: RunningNode, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=node.url, headers=headers, timeout=LIMIT_S)


async def test_vapis_voice_request_is_answered_with_raw_pcm(node: RunningNode) -> None:
    """The request tells much of the call, which is ignored."""
    call = {"id": "c", "messages": [{"role": "user", "text": "x" * 500}] * 200}
    message = {"type": "voice-request", "text": FIRST, "sampleRate": 16_000, "timestamp": 1.5, "call": call}
    async with client(node, **{"X-VAPI-SECRET": KEY}) as vapi:
        answer = await vapi.post(f"/v1/vapi?voice={VOICE.replace('+', '%2B')}", json={"message": message})
        assert answer.headers["content-type"] == "application/octet-stream"
        check_spoken(answer.content, FIRST, rate=16_000)
        assert (await vapi.post("/v1/vapi", content=b"[[" * 9_000)).status_code == 400


async def test_jambonz_request_is_answered_with_mp3(node: RunningNode) -> None:
    body = {"language": "en-US", "voice": VOICE, "type": "ssml", "text": f"<speak>{SECOND}</speak>"}
    async with client(node, Authorization=f"Bearer {KEY}") as jambonz:
        answer = await jambonz.post("/v1/jambonz", json=body)
    assert answer.headers["content-type"] == "audio/mpeg"
    with av.open(io.BytesIO(answer.content), "r") as file:
        samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
        rate = file.streams.audio[0].rate
    check_spoken((samples * 32_767).astype("<i2").tobytes(), SECOND, rate=rate)


async def spoken(socket: ClientConnection, quiet_s: float = 0.6) -> bytes:
    """The audio up to a pause: jambonz gets no other sign of its end."""
    pcm = b""
    while True:
        try:
            async with asyncio.timeout(quiet_s if pcm else LIMIT_S):
                data = await socket.recv()
        except TimeoutError:
            return pcm
        assert isinstance(data, bytes), data
        pcm += data


async def test_jambonz_stream_speaks_and_is_interrupted(node: RunningNode) -> None:
    query = f"voice={VOICE.replace('+', '%2B')}&language=en-US&sampleRate=16000"
    url = f"{node.url.replace('http', 'ws')}/v1/jambonz?{query}"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url)
    assert refused.value.response.status_code == 401
    async with connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:
        connected = {"type": "connect", "data": {"sample_rate": 16_000, "base64_encoding": False}}
        assert json.loads(await socket.recv()) == connected

        async def send(kind: str, **fields: Any) -> None:
            await socket.send(json.dumps({"type": kind} | fields))

        half = len(FIRST) // 2
        first, second = FIRST[: FIRST.index(" ", half)], FIRST[FIRST.index(" ", half) + 1 :]
        await send("stream", text=first)  # without the space between them, as jambonz sends it
        await send("stream", text=second)
        await send("flush")
        check_spoken(await spoken(socket), FIRST, rate=16_000)
        await send("stream", text=LONG)
        await send("flush")
        assert isinstance(await socket.recv(), bytes)
        await send("stop")
        await spoken(socket, 0.3)
        await send("stream", text=NEXT)
        await send("flush")
        check_spoken(await spoken(socket), NEXT, rate=16_000)
        await send("keepalive")
        await send("dance")
        error = json.loads(await socket.recv())
        assert error["type"] == "error"
        assert "stream, flush, stop" in error["error"]


@pytest.mark.parametrize(("asked", "rate"), [("8000", 8_000), ("48000", 48_000), ("11025", 16_000), ("x", 16_000)])
async def test_a_rate_that_jambonz_cannot_take_is_not_used(asked: str, rate: int) -> None:
    (update,) = JambonzAdapter({"sampleRate": asked, "voice": "", "language": ""}).begin()
    assert isinstance(update, Update)
    assert (update.fields["output"]["sample_rate"], update.fields["voice"]) == (rate, None)
