"""The agent over a telephone carrier's WebSocket, at 8 kHz."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import websockets
from numpy.typing import NDArray

from agent_tts.config.loading import data_folder
from agent_tts.serve.app import create_app
from tests.agent.hearing import GrammarSpeechToText
from tests.agent.llm_server import running_llm
from tests.agent.node import RunningAgent
from tests.recogniser import recognise
from tests.rtc_peer import LOUD, rms
from tests.support import running_app, settings_of, until

pytestmark = pytest.mark.real_time  # speech recognition runs in threads of its library

RATE = 8_000
PIECE = RATE // 50
START: dict[str, Any] = {"streamSid": "MZ1", "callSid": "CA1", "customParameters": {}}


def phone_server(settings: Any, stt: Any = None) -> Any:
    spec = importlib.util.spec_from_file_location("phone", data_folder("pipelines") / "phone.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PhoneServer(settings.agent, stt=stt)


def mulaw(samples: NDArray[np.int16]) -> bytes:
    """G.711 mu-law, implemented from its definition."""
    values = np.clip(np.abs(samples.astype(np.int32)), 0, 32_635) + 132
    exponent = np.floor(np.log2(values)).astype(np.int32) - 7
    mantissa = (values >> (exponent + 3)) & 0x0F
    sign = np.where(samples < 0, 0x80, 0)
    return bytes((~(sign | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8))


def linear(data: bytes) -> NDArray[np.int16]:
    coded = ~np.frombuffer(data, np.uint8).astype(np.int32) & 0xFF
    values = (((coded & 0x0F) << 3) + 132 << ((coded >> 4) & 7)) - 132
    return np.where(coded & 0x80, -values, values).astype(np.int16)


class Telephone:
    """Twilio's end of a call."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        # Pieces of 20 ms, not sent yet.
        self._line: deque[bytes] = deque()
        # (arrival, samples) of the received audio.
        self.heard: list[tuple[float, NDArray[np.int16]]] = []
        self.events: list[str] = []

    def say(self, pcm: bytes) -> None:
        """pcm_s16le, 24 kHz."""
        samples = np.frombuffer(pcm, "<i2")[: len(pcm) // 6 * 3].reshape(-1, 3).mean(axis=1).astype(np.int16)
        coded = mulaw(np.pad(samples, (0, -len(samples) % PIECE)))
        self._line.extend(coded[at : at + PIECE] for at in range(0, len(coded), PIECE))

    def loud(self, since: float = 0.0) -> list[float]:
        """When loud audio arrived."""
        return [at for at, samples in self.heard if at >= since and rms(samples) > LOUD]

    async def talk(self) -> None:
        """Send a piece every 20 ms: queued audio, or silence."""
        began, count = time.monotonic(), 0
        while True:
            payload = self._line.popleft() if self._line else b"\xff" * PIECE
            media = {"payload": base64.b64encode(payload).decode()}
            await self._socket.send(json.dumps({"event": "media", "streamSid": "MZ1", "media": media}))
            count += 1
            await asyncio.sleep(max(0.0, began + count * 0.02 - time.monotonic()))

    async def listen(self) -> None:
        async for raw in self._socket:
            message = json.loads(raw)
            self.events.append(message["event"])
            if message["event"] == "media":
                self.heard.append((time.monotonic(), linear(base64.b64decode(message["media"]["payload"]))))


@asynccontextmanager
async def running_phone(llm: str, **agent: Any) -> AsyncIterator[RunningAgent]:
    """A node with the espeak engine and an agent with a telephone route."""
    settings = settings_of(engine="espeak", agent={"llm": {"base_url": llm}, "stt": {"kind": "none"}, **agent})
    server = phone_server(settings, GrammarSpeechToText())
    async with running_app(create_app(settings, extension=server)) as node:
        yield RunningAgent(node.url, node, server)


@asynccontextmanager
async def telephoning(url: str, **parameters: str) -> AsyncIterator[Telephone]:
    """A call that has started."""
    async with websockets.connect(f"{url.replace('http', 'ws')}/api/phone/twilio") as socket:
        await socket.send(json.dumps({"event": "connected", "protocol": "Call"}))
        start = START | {"customParameters": parameters}
        await socket.send(json.dumps({"event": "start", "streamSid": "MZ1", "start": start}))
        phone = Telephone(socket)
        tasks = [asyncio.create_task(phone.talk()), asyncio.create_task(phone.listen())]
        try:
            yield phone
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_conversation_at_8_khz_and_an_interruption_clears_the_carriers_buffer() -> None:
    quick = {"turn_silence_s": 0.6, "resume_after_s": 1.5, "echo_guard_s": 0.0}
    answer = "She bought a yellow umbrella."
    story = "Winter nights are long and cold, and so people have always told each other many stories by the fire."
    async with running_llm(answer, story, answer) as llm, running_phone(llm.url, **quick) as agent:
        question = await agent.speech("My train leaves at seven.")
        async with telephoning(agent.url) as phone:
            phone.say(question)
            await until(lambda: bool(phone.loud()), 30)
            await until(lambda: time.monotonic() - phone.loud()[-1] > 1, 30)
            samples = np.concatenate([samples for _, samples in phone.heard])
            assert recognise(samples, RATE) == "she bought a yellow umbrella"
            phone.say(question)
            again = time.monotonic()
            await until(lambda: len(llm.requests) == 2, 30)
            await until(lambda: bool(phone.loud(again)), 30)
            assert llm.history()[:2] == [("user", "my train leaves at seven"), ("assistant", answer)]
            phone.say(question)
            await until(lambda: "clear" in phone.events, 30)
            await until(lambda: len(llm.requests) == 3, 30)
            assert [role for role, _ in llm.history()] == ["user", "assistant", "user", "assistant", "user"], (
                llm.history()
            )
            assert story.startswith(llm.history()[3][1])
        await until(lambda: agent.calls == 0)


async def test_a_carrier_without_a_start_message_is_refused() -> None:
    async with running_phone("http://127.0.0.1:9/v1") as agent:
        async with websockets.connect(f"{agent.url.replace('http', 'ws')}/api/phone/twilio") as socket:
            await socket.send("{}")
            await socket.send("[]")
            await socket.wait_closed()
            assert socket.close_code == 1008
