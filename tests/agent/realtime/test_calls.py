"""Client secrets, sessions over WebRTC by a client of aiortc, transcription sessions, and how they are refused."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError
from openai.types.realtime.realtime_server_event import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from agent_tts.serve.access.guard import Client
from agent_tts.serve.transports import sdp
from tests.agent.caller import Caller
from tests.agent.llm_server import running_llm
from tests.agent.node import RunningAgent, running_agent
from tests.agent.realtime.test_endpoint import KEY, running, until_type
from tests.support import until

pytestmark = pytest.mark.real_time

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
LONG = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve."


class OpenAICaller(Caller):
    """A caller over WebRTC; each message is one that the SDK knows."""

    def __init__(self) -> None:
        super().__init__("oai-events")

    async def close(self) -> None:
        await super().close()
        for _, message in self.messages:
            SERVER_EVENT.validate_python(message)

    def tell(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind} | fields))

    def kinds(self) -> list[str]:
        return [message["type"] for _, message in self.messages]


@asynccontextmanager
async def calling(agent: RunningAgent, key: str = "none", **options: Any) -> AsyncIterator[OpenAICaller]:
    """A session over WebRTC that has begun."""
    async with openai(agent, key) as client, OpenAICaller() as caller:
        reply = await client.realtime.calls.with_raw_response.create(sdp=await caller.offer(), **options)
        assert (reply.status_code, reply.headers["content-type"]) == (201, "application/sdp")
        assert reply.headers["location"].startswith("/v1/realtime/calls/rtc_")
        await caller.connect(reply.http_response.text)
        await caller.message("session.created")
        yield caller


@asynccontextmanager
async def openai(agent: RunningAgent, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{agent.url}/v1", api_key=key, max_retries=0) as client:
        yield client


async def test_a_call_plays_its_answer_and_drops_what_the_client_clears() -> None:
    """Without recognition it is told once that nothing hears, however long the microphone sends.

    Mutation: `RtcLine.hush` drops nothing; then `stopped` follows, and the sound goes on.
    """
    async with running_llm(LONG, "Fine.") as llm, running_agent(llm.url) as agent:
        async with calling(agent, session={"type": "realtime", "instructions": "Count."}) as caller:
            caller.tell("response.create")
            began = await caller.loud()
            await asyncio.sleep(1.0)
            caller.tell("output_audio_buffer.clear")
            cut = await caller.message("conversation.item.truncated")
            assert 500 < cut["audio_end_ms"] < 2_500
            (done,) = caller.of("response.done")
            assert done["response"]["status"] == "cancelled"
            await caller.quiet(600)
            assert caller.played_ms(began + 30) < cut["audio_end_ms"] + 300
            caller.tell("response.create")
            await caller.message("output_audio_buffer.stopped")
            kinds = [kind for kind in caller.kinds() if kind.startswith("output_audio_buffer")]
            assert kinds == [f"output_audio_buffer.{kind}" for kind in ("started", "cleared", "started", "stopped")]
            (error,) = caller.of("error")
            assert error["error"]["code"] == "speech_recognition_unavailable"
            assert "response.output_audio.delta" not in caller.kinds()
        await until(lambda: agent.calls == 0)
        (_, said), *_ = llm.history()
        assert llm.requests[0][0]["content"] == "Count."
        assert LONG.startswith(said.split(".")[0])


async def test_a_node_that_stops_ends_its_calls_over_webrtc() -> None:
    async with running_agent() as agent, calling(agent) as caller:
        assert agent.calls == 1
        async with asyncio.timeout(10):
            await agent.server.calls.close()
        assert agent.calls == 0
        await caller.wait(lambda: caller.channel.readyState == "closed")


async def test_a_session_that_is_ended_before_its_first_step_leaves_nothing() -> None:
    """Mutation: its task alone closes what belongs to it."""
    async with running_agent() as agent, OpenAICaller() as caller:
        realtime, client = agent.server.realtime, Client(None)
        await realtime.call(sdp.read_offer(await caller.offer(), microphone=True), client, realtime.start({}, client))
        assert agent.calls == 1
        await agent.server.calls.close()
        assert agent.calls == 0


@pytest.mark.parametrize("what", ["text", "many", "channels"])
async def test_a_client_that_sends_too_much_is_hung_up_on(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room for what is answered: else thousands of messages have to be sent before some wait."""
    for most, number in (("lines.MAX_MESSAGES", 16), ("lines.MAX_BUFFERED", 1), ("session.MAX_EVENTS", 4)):
        monkeypatch.setattr(f"agent_tts.agent.realtime.{most}", number)
    async with running_agent() as agent, calling(agent) as caller:
        if what == "channels":
            for number in range(12):
                caller.connection.createDataChannel(str(number))
        else:
            for _ in range(1 if what == "text" else 400):
                caller.channel.send("x" * (65_537 if what == "text" else 2))
        await until(lambda: agent.calls == 0, 20)


async def test_a_client_secret_carries_what_a_body_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is no UTF-8, 105 kB of JSON; packed by a thread: 60 kB of two letters in any order take 4 ms."""
    packed_by: list[threading.Thread] = []
    pack = zlib.compress

    def packed(data: bytes) -> bytes:
        packed_by.append(threading.current_thread())
        return pack(data)

    monkeypatch.setattr(zlib, "compress", packed)
    headers = {"X-API-Key": KEY}
    async with (
        running(auth={"api_keys": [KEY]}) as agent,
        httpx.AsyncClient(base_url=agent.url, headers=headers) as http,
    ):
        long = "é " * 15_000 + "\ud800"
        body = json.dumps({"session": {"instructions": long}}, ensure_ascii=False).encode(errors="backslashreplace")
        made = await http.post("/v1/realtime/client_secrets", content=body)
        value = made.json()["value"]
        protocols = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{value}")]
        async with connect(f"{agent.url.replace('http', 'ws')}/v1/realtime", subprotocols=protocols) as socket:
            assert json.loads(await socket.recv())["session"]["instructions"] == long
        await until(lambda: agent.calls == 0)
    assert threading.main_thread() not in packed_by


async def test_a_client_secret_opens_sessions_as_its_owner_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one, over both transports, until it expires. It is no key: it opens nothing else."""
    async with running(auth={"api_keys": [KEY]}) as agent:
        async with openai(agent, "wrong") as client:
            with pytest.raises(AuthenticationError):
                await client.realtime.client_secrets.create()
        async with openai(agent, KEY) as client:
            made = await client.realtime.client_secrets.create(
                session={"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"speed": 1.25}}},
                expires_after={"anchor": "created_at", "seconds": 60},
            )
            assert made.value.startswith("ek_")
            assert made.session.type == "realtime"
            assert made.session.instructions == "Be brief."
            for wrong in ({"type": "realtime", "audio": {"output": {"voice": "nobody"}}}, {"type": "image"}):
                with pytest.raises(BadRequestError, match=r"no such voice|session\.type"):
                    await client.realtime.client_secrets.create(session=wrong)
            noise = base64.b85encode(random.Random(1).randbytes(20_000)).decode()
            with pytest.raises(BadRequestError, match=r"session\.update"):
                await client.realtime.client_secrets.create(session={"type": "realtime", "instructions": noise})
        protocols = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{made.value}")]
        for _ in range(2):
            async with connect(f"{agent.url.replace('http', 'ws')}/v1/realtime", subprotocols=protocols) as socket:
                told = json.loads(await socket.recv())["session"]
                assert (told["instructions"], told["audio"]["output"]["speed"]) == ("Be brief.", 1.25)
            await until(lambda: agent.calls == 0)
        async with calling(agent, made.value) as caller:
            (created,) = caller.of("session.created")
            assert created["session"]["instructions"] == "Be brief."
        await until(lambda: agent.calls == 0)
        async with openai(agent, made.value) as client:
            with pytest.raises(AuthenticationError):
                await client.models.list()
            with pytest.raises(AuthenticationError):
                await client.realtime.client_secrets.create()
            with pytest.raises(BadRequestError, match="v=0"):
                await client.realtime.calls.create(sdp="nonsense")
            clock = agent.node.node.guard._clock
            monkeypatch.setattr(agent.node.node.guard, "_clock", lambda: clock() + 61)
            with pytest.raises(AuthenticationError, match="expired"):
                await client.realtime.calls.create(sdp="nonsense")


async def test_a_session_may_only_transcribe() -> None:
    async with running_agent(hears=True) as agent:
        speech = base64.b64encode(bytes(12_000) + await agent.speech("My train leaves at seven.") + bytes(48_000))
        async with openai(agent) as client:
            made = await client.realtime.client_secrets.create(session={"type": "transcription"})
            assert (made.session.type, made.session.object) == ("transcription", "realtime.transcription_session")
            with pytest.raises(BadRequestError, match="WebSocket"):
                async with AsyncOpenAI(base_url=f"{agent.url}/v1", api_key=made.value, max_retries=0) as page:
                    await page.realtime.calls.create(sdp="v=0")
        url = f"{agent.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
        async with connect(url, additional_headers={"OpenAI-Beta": "realtime=v1"}) as socket:
            told = await until_type(socket, "session.created")
            assert (told["session"]["type"], set(told["session"]["audio"])) == ("transcription", {"input"})
            flat = {"input_audio_transcription": {"model": "whisper-1"}, "turn_detection": {"type": "server_vad"}}
            await socket.send(json.dumps({"type": "transcription_session.update", "session": flat}))
            await until_type(socket, "session.updated")
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": speech.decode()}))
            told = await until_type(socket, "conversation.item.input_audio_transcription.completed")
            assert told["transcript"] == "my train leaves at seven"
            await socket.send('{"type":"response.create"}')
            told = json.loads(await socket.recv())  # nothing was answered
            assert told["error"]["message"] == "a transcription session has no responses"
