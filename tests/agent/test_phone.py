"""The agent over a telephone carrier's WebSocket, at 8 kHz."""

from __future__ import annotations

import asyncio
import base64
import copy
import hmac
import importlib.util
import json
import runpy
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import websockets
from numpy.typing import NDArray
from pipecat.frames.frames import InputAudioRawFrame
from websockets.frames import Frame, Opcode

from agent_tts.config.loading import data_folder
from agent_tts.serve.access.fair_queue import FairQueue, Flow
from tests.agent.hearing import GrammarSpeechToText
from tests.agent.llm_server import running_llm
from tests.agent.node import RunningAgent
from tests.agent.people import says
from tests.recogniser import recognise
from tests.rtc_peer import LOUD, rms
from tests.support import app_of, ended, present, running_app, settings_of, until

RATE = 8_000
PIECE = RATE // 50
QUICK: dict[str, Any] = {"turn_silence_s": 0.6, "resume_after_s": 1.5, "echo_guard_s": 0.0}
STORY = "Winter nights are long and cold, and so people have always told each other many stories by the fire."
NOBODY = "http://127.0.0.1:9/v1"  # where no language model answers
MULAW = {"encoding": "audio/x-mulaw", "sampleRate": 8_000}
PCMU = {"encoding": "PCMU", "sample_rate": 8_000, "channels": 1}
TWILIO = {"accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"], "customParameters": {}}
TWILIO |= {"mediaFormat": MULAW | {"channels": 1}}
TELNYX = {"user_id": "u", "call_control_id": "v3:c", "media_format": PCMU}
PLIVO = {"callId": "CA1", "streamId": "MZ1", "accountId": "1", "tracks": ["inbound"], "mediaFormat": MULAW}
# What each carrier sends before its first audio, as published.
OPENINGS: dict[str, list[dict[str, Any]]] = {
    "twilio": [
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": TWILIO},
    ],
    "telnyx": [
        {"event": "connected", "version": "1.0.0"},
        {"event": "start", "sequence_number": "1", "stream_id": "MZ1", "start": TELNYX},
    ],
    "plivo": [{"event": "start", "sequenceNumber": 0, "start": PLIVO}],
}


def phone_file() -> Any:
    """The pipeline's file, as a module."""
    spec = present(importlib.util.spec_from_file_location("phone", data_folder("pipelines") / "phone.py"))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    """A carrier's end of a call."""

    def __init__(self, socket: Any, carrier: str) -> None:
        self._socket = socket
        # Fields that this carrier has in each message with audio.
        self._fields = {"telnyx": {"stream_id": "MZ1"}, "plivo": {"streamId": "MZ1"}}.get(carrier, {"streamSid": "MZ1"})
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

    @property
    def close_code(self) -> int | None:
        """None while the call goes on."""
        code: int | None = self._socket.close_code
        return code

    def loud(self, since: float = 0.0) -> list[float]:
        """When loud audio arrived."""
        return [at for at, samples in self.heard if at >= since and rms(samples) > LOUD]

    async def talk(self) -> None:
        """Send a piece every 20 ms: queued audio, or silence."""
        began, count = time.monotonic(), 0
        while True:
            payload = self._line.popleft() if self._line else b"\xff" * PIECE
            media = {"track": "inbound", "payload": base64.b64encode(payload).decode()}
            await self._socket.send(json.dumps({"event": "media", "media": media} | self._fields))
            count += 1
            await asyncio.sleep(max(0.0, began + count * 0.02 - time.monotonic()))

    async def press(self, digit: str) -> None:
        await self._socket.send(json.dumps({"event": "dtmf", "dtmf": {"digit": digit}} | self._fields))

    async def listen(self) -> None:
        async for raw in self._socket:
            message = json.loads(raw)
            self.events.append(message["event"])
            if message["event"] in ("media", "playAudio"):
                self.heard.append((time.monotonic(), linear(base64.b64decode(message["media"]["payload"]))))


@asynccontextmanager
async def running_phone(
    llm: str = NOBODY, *, hears: bool = True, node: dict[str, Any] | None = None, **agent: Any
) -> AsyncIterator[RunningAgent]:
    """A node with the espeak engine and an agent with a telephone route; `node` are settings of the node besides."""
    agent = {"llm": {"base_url": llm}, "stt": {"kind": "none"}, **agent}
    settings = settings_of(engine="espeak", agent=agent, **node or {})
    server = phone_file().PhoneServer(settings.agent, stt=GrammarSpeechToText() if hears else None)
    async with running_app(app_of(settings, server)) as running:
        yield RunningAgent(running.url, running, server)


@asynccontextmanager
async def telephoning(
    url: str, carrier: str = "twilio", query: str = "", **parameters: str
) -> AsyncIterator[Telephone]:
    """A call that has started; `parameters` are those of Twilio's stream."""
    async with websockets.connect(f"{url.replace('http', 'ws')}/api/phone/{carrier}{query}") as socket:
        *_, start = opening = copy.deepcopy(OPENINGS[carrier])
        if carrier == "twilio":
            start["start"]["customParameters"] = parameters
        for message in opening:
            await socket.send(json.dumps(message))
        phone = Telephone(socket, carrier)
        tasks = [asyncio.create_task(phone.talk()), asyncio.create_task(phone.listen())]
        try:
            yield phone
        finally:
            await ended(*tasks)


async def test_a_conversation_at_8_khz_and_an_interruption_clears_the_carriers_buffer() -> None:
    answer, question = "She bought a yellow umbrella.", says("My train leaves at seven.")
    async with running_llm(answer, STORY, answer) as llm, running_phone(llm.url, **QUICK) as agent:
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
            assert [role for role, _ in llm.history()] == ["user", "assistant", "user", "assistant", "user"]
            assert STORY.startswith(llm.history()[3][1])
        await until(lambda: agent.calls == 0)


async def test_whatever_else_comes_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an id of a call that is a path, a part of the address that ends it, or one that makes each answer long."""
    async with running_phone() as agent:
        address = f"{agent.url.replace('http', 'ws')}/api/phone"
        for first in (b"\x00", "[" * 20_000, "{}" * 2, "x"):
            async with websockets.connect(f"{address}/plivo") as socket:
                await socket.send(first)
                await socket.wait_closed()
                assert socket.close_code == 1008
        async with websockets.connect(f"{address}/twilio") as socket:  # without a start message
            await socket.send("{}")
            await socket.send("[]")
            await socket.wait_closed()
            assert socket.close_code == 1008
        for carrier, name in (("twilio", "callSid"), ("telnyx", "call_control_id"), ("plivo", "callId")):
            monkeypatch.setitem(OPENINGS[carrier][-1]["start"], name, "../../Calls")
            async with telephoning(agent.url, carrier) as phone:
                await until(lambda: phone.close_code == 1008)
        monkeypatch.undo()
        for place, name in ((TWILIO, "streamSid"), (OPENINGS["telnyx"][-1], "stream_id"), (PLIVO, "streamId")):
            monkeypatch.setitem(place, name, "M" * 10_000)
        for carrier in OPENINGS:
            async with telephoning(agent.url, carrier) as phone:
                await until(lambda: phone.close_code == 1008)


async def line(carrier: str) -> Any:
    """What reads the messages of one call."""
    module = phone_file()
    carriers = module.CARRIERS[carrier].serializer(OPENINGS[carrier][-1])
    made = module.Line(carriers, Flow(FairQueue().share(None)))
    await made.setup(SimpleNamespace(audio_in_sample_rate=RATE))
    return made


def media(seconds: float) -> str:
    payload = base64.b64encode(b"\x7f" * int(RATE * seconds)).decode()
    return json.dumps({"event": "media", "media": {"track": "inbound", "payload": payload}})


# None of them is a carrier's message.
MEDIA: list[Any] = [None, 7, "x", [], *({"payload": each} for each in (7, "x", [1], {"a": 1}, "é", True))]
DIGITS: list[Any] = [None, 7, [], {"digit": [1]}, {"digit": {}}]
WRONG: list[Any] = [
    *([1], None, 7, "x", {}, {"event": 1}, {"event": "media"}),
    *({"event": "media", "media": each} for each in MEDIA),
    *({"event": "dtmf", "dtmf": each} for each in DIGITS),
]


@pytest.mark.parametrize("carrier", OPENINGS)
async def test_a_call_hears_on_after_messages_that_are_no_carriers(carrier: str) -> None:
    """Mutation: `Line.deserialize` raises; then Pipecat reads nothing more of the call, which goes on."""
    ear = await line(carrier)
    for wrong in (*map(json.dumps, WRONG), "[" * 5_000, '{"a":' * 5_000, "nonsense", "", b"\xff", media(6.0)):
        assert await ear.deserialize(wrong) is None, wrong
    frame = await ear.deserialize(media(0.02))
    assert isinstance(frame, InputAudioRawFrame)


@pytest.mark.parametrize("carrier", OPENINGS)
async def test_audio_is_taken_little_faster_than_it_is_spoken(carrier: str) -> None:
    """What a call has not heard is kept without a bound. Mutation: `Line.deserialize` does not wait."""
    ear, began = await line(carrier), time.monotonic()
    for _ in range(100):
        await ear.deserialize(media(1.0))
    assert time.monotonic() - began > (100 - 5) / 1.25 - 1


async def test_a_call_ends_when_the_carrier_has_left_whatever_it_has_sent_before() -> None:
    """Its end lies behind audio that is taken little faster than it is spoken. Guards `_gone`."""
    async with running_phone() as agent:
        async with telephoning(agent.url) as phone:
            await until(lambda: agent.calls == 1)
            message = Frame(Opcode.TEXT, media(1.0).encode()).serialize(mask=True)
            phone._socket.transport.write(message * 60)
            phone._socket.transport.close()  # it sends all of it
            left_at = time.monotonic()
            await until(lambda: agent.calls == 0, 60)
    assert time.monotonic() - left_at < 10


async def test_keys_are_taken_as_fast_as_they_are_pressed() -> None:
    """Each passes all processors: four calls that send them without a pause make others wait for 50 ms."""
    ear, began = await line("twilio"), time.monotonic()
    for _ in range(150):
        assert await ear.deserialize(json.dumps({"event": "dtmf", "dtmf": {"digit": "1"}})) is not None
    assert time.monotonic() - began > (15 - 5) / 1.25 - 1


TOKEN = "12345"
KEY = "correct-horse-battery-staple"


def signature(text: str, algorithm: str) -> str:
    return base64.b64encode(hmac.new(TOKEN.encode(), text.encode(), algorithm).digest()).decode()


def signed(carrier: str, address: str) -> dict[str, str]:
    """The headers of a carrier that was given this address."""
    if carrier == "twilio":
        return {"X-Twilio-Signature": signature(address, "sha1")}
    return {"X-Plivo-Signature-V3": signature(f"{address}.7", "sha256"), "X-Plivo-Signature-V3-Nonce": "7"}


def test_a_stranger_has_few_signatures_compared() -> None:
    """8 kB of commas held the event loop for 8 ms."""
    has, right = phone_file()._has, signature("a", "sha1")
    assert has(f"x,{right}", TOKEN, "sha1", iter("ab"))
    assert not has("," * 8 + right, TOKEN, "sha1", iter("ab"))


def test_a_key_that_is_no_text_is_a_wrong_one() -> None:
    """Mutation: it raises, and a stranger writes tracebacks into the log."""
    handshake, start = SimpleNamespace(scope={"type": "websocket", "headers": []}), {"key": "\ud800"}
    assert (
        phone_file()._with_key(handshake, {"start": {"customParameters": start}}).headers["authorization"] == "Bearer ?"
    )


@pytest.mark.parametrize("carrier", ["twilio", "plivo"])
async def test_calls_are_signed_where_the_operator_has_set_the_token(
    carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{carrier.upper()}_AUTH_TOKEN", TOKEN)
    async with running_phone() as agent:
        address = f"{agent.url.replace('http', 'ws')}/api/phone/{carrier}"
        host = agent.url.removeprefix("http://")
        wrong = signed(carrier, f"wss://{host}/api/phone/other")
        for headers in ({}, wrong, dict.fromkeys(wrong, "é")):
            with pytest.raises(websockets.InvalidStatus) as caught:
                await websockets.connect(address, additional_headers=headers)
            assert caught.value.response.status_code == 403
        proxied = {"X-Forwarded-Host": "phone.example"}
        for headers in (
            signed(carrier, f"wss://{host}/api/phone/{carrier}"),
            proxied | signed(carrier, f"https://phone.example/api/phone/{carrier}"),
        ):
            async with websockets.connect(address, additional_headers=headers) as socket:
                await socket.send("x")
                await socket.wait_closed()
                assert socket.close_code == 1008


async def test_calls_are_requests_of_their_key() -> None:
    async with running_phone(node={"auth": {"api_keys": [KEY]}, "limits": {"requests_per_s": 0.1}}) as agent:
        codes = []
        for _ in range(2):
            async with telephoning(agent.url, "plivo", f"?key={KEY}") as phone:
                await asyncio.sleep(0.2)
                codes.append(phone.close_code)
        assert codes == [None, 1013]


@pytest.mark.parametrize(("carrier", "clear"), [("telnyx", "clear"), ("plivo", "clearAudio")])
async def test_other_carriers_are_spoken_to_in_their_own_messages(carrier: str, clear: str) -> None:
    """A question is heard and answered, and an interruption clears what the carrier has not played."""
    async with running_llm(STORY) as llm, running_phone(llm.url, **QUICK) as agent:
        question = says("My train leaves at seven.")
        async with telephoning(agent.url, carrier) as phone:
            phone.say(question)
            await until(lambda: bool(phone.loud()), 30)
            assert llm.history() == [("user", "my train leaves at seven")]
            phone.say(question)
            await until(lambda: clear in phone.events, 30)
        await until(lambda: agent.calls == 0)


async def test_a_key_comes_with_the_call() -> None:
    async with running_phone(node={"auth": {"api_keys": [KEY]}}) as agent:
        for carrier in OPENINGS:
            for key in ("", "wrong", KEY):
                given: dict[str, Any] = {"key": key} if carrier == "twilio" else {"query": f"?key={key}"}
                async with telephoning(agent.url, carrier, **given) as phone:
                    await until(lambda: agent.calls == 1 if key == KEY else phone.close_code == 1008)  # noqa: B023
            await until(lambda: agent.calls == 0)


async def test_a_call_that_nobody_would_hear_is_ended_at_once() -> None:
    """Mutation: it is taken, and the caller talks to silence."""
    async with running_phone(hears=False) as agent:
        for carrier in OPENINGS:
            async with telephoning(agent.url, carrier) as phone:
                await until(lambda: phone.close_code == 1008)


@pytest.mark.parametrize(
    ("flags", "said"), [(["--set", "agent.stt.kind=none"], "no keyboard"), (["--port", "x"], "port")]
)
def test_a_telephone_without_recognition_does_not_start_and_takes_a_port(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(data_folder("pipelines") / "phone.py")
    monkeypatch.setattr(sys, "argv", [file, *flags])
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(file, run_name="__main__")


async def test_keys_are_words_of_the_user_and_interrupt() -> None:
    async with running_llm(STORY, "You pressed one two.") as llm, running_phone(llm.url) as agent:
        async with telephoning(agent.url, "telnyx") as phone:
            for digit in "12#":
                await phone.press(digit)
            await until(lambda: bool(phone.loud()), 30)
            assert llm.history() == [("user", "DTMF: 12#")]
            await phone.press("9")
            await until(lambda: "clear" in phone.events, 30)
            await phone.press("#")
            await until(lambda: len(llm.requests) == 2, 30)
            assert llm.history()[-1] == ("user", "DTMF: 9#")
            assert llm.history()[1][0] == "assistant"
            assert STORY.startswith(llm.history()[1][1])
