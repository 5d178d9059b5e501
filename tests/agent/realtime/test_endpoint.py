"""Who gets a realtime session, and how one ends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from agent_tts.agent.realtime.conversation import Conversation, read
from agent_tts.agent.realtime.session import ANSWERS_BURST, MAX_EVENTS
from agent_tts.errors import AtCapacity
from agent_tts.serve.routes.http import PARSED_AT_ONCE
from tests.agent.llm_server import call, running_llm, status, stream
from tests.agent.node import RunningAgent, running_agent
from tests.support import logged, until

KEY = "correct-horse-battery-staple"
LIMIT_S = 20.0


@asynccontextmanager
async def session(agent: RunningAgent, **options: Any) -> AsyncIterator[ClientConnection]:
    """A session that has begun."""
    async with connect(f"{agent.url.replace('http', 'ws')}/v1/realtime?model=x", **options) as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"
        yield socket


async def until_type(socket: ClientConnection, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        while (message := json.loads(await socket.recv()))["type"] != kind:
            pass
    found: dict[str, Any] = message
    return found


async def refused(agent: RunningAgent, **options: Any) -> tuple[int, str]:
    """HTTP status and OpenAI's code of a refusal."""
    with pytest.raises(InvalidStatus) as caught:
        async with session(agent, **options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["code"]


def running(**settings: Any) -> AbstractAsyncContextManager[RunningAgent]:
    """An agent with one place and these settings of its node."""
    return running_agent(calls=1, node=settings)


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def respond(socket: ClientConnection, **response: Any) -> dict[str, Any]:
    """Ask for a response; returns it when it is done."""
    await send(socket, "response.create", response=response)
    found: dict[str, Any] = (await until_type(socket, "response.done"))["response"]
    return found


async def test_a_key_comes_in_a_header_or_as_browsers_send_it() -> None:
    async with running(auth={"api_keys": [KEY]}) as agent:
        assert await refused(agent) == (401, "unauthorized")
        wrong = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.wrong")]
        assert await refused(agent, subprotocols=wrong) == (401, "unauthorized")
        right = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
        async with session(agent, subprotocols=right) as socket:
            assert socket.subprotocol == "realtime"
            headers = {"Authorization": f"Bearer {KEY}"}
            assert (await refused(agent, additional_headers=headers))[1] == "at_capacity"
        await until(lambda: agent.calls == 0)
        async with session(agent, additional_headers=headers):
            assert agent.calls == 1


async def test_a_session_ends_with_the_node_after_its_answer() -> None:
    async with running_llm("The library closes on sunday.") as llm, running_agent(llm.url) as agent:
        async with session(agent) as socket:
            await socket.send('{"type":"response.create"}')
            await until_type(socket, "response.output_audio.delta")
            agent.node.server.drain()
            assert (await until_type(socket, "response.done"))["response"]["status"] == "completed"
            await asyncio.wait_for(socket.wait_closed(), LIMIT_S)
            assert socket.close_code == 1012


async def test_without_speech_recognition_audio_is_refused_once_and_no_sign_of_life() -> None:
    async with running_agent(idle_s=1.0) as agent, session(agent) as socket:
        audio = base64.b64encode(bytes(48_000 * 8)).decode()  # a message larger than the native protocol's
        for _ in range(2):
            await send(socket, "input_audio_buffer.append", audio=audio)
        assert (await until_type(socket, "error"))["error"]["code"] == "speech_recognition_unavailable"
        await send(socket, "input_audio_buffer.clear")
        assert json.loads(await socket.recv())["type"] == "input_audio_buffer.cleared"
        silence = base64.b64encode(bytes(4_800)).decode()
        with contextlib.suppress(ConnectionClosed):
            async with asyncio.timeout(LIMIT_S):
                while True:
                    await send(socket, "input_audio_buffer.append", audio=silence)
                    await asyncio.sleep(0.05)
        assert socket.close_code == 1000


async def test_a_failing_language_model_fails_the_response_and_not_the_session() -> None:
    """What its server says is not for the client."""
    answers = (status(401), {"content": "Fine.", "finish_reason": "stop"})
    async with running_llm(*answers) as llm, running_agent(llm.url) as agent, session(agent) as socket:
        failed = await respond(socket)
        assert failed["status"] == "failed"
        assert failed["status_details"]["error"]["message"] == "The language model's server does not accept the key."
        assert failed["output"] == []
        assert (await respond(socket))["status"] == "completed"


async def test_a_full_node_says_in_the_session_when_to_ask_again() -> None:
    node = {"slots": 1, "queue": 0}
    async with running_llm("Fine.") as llm, running_agent(llm.url, node=node) as agent, session(agent) as socket:
        speech = {"input": "word " * 3_900, "response_format": "pcm"}
        async with (
            httpx.AsyncClient(base_url=agent.url, timeout=LIMIT_S) as http,
            http.stream("POST", "/v1/audio/speech", json=speech),
        ):
            error = (await respond(socket))["status_details"]["error"]
        assert (error["type"], "at_capacity" in error["message"]) == ("server_error", True)
        assert error["retry_after_ms"] > 0


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_text_before_a_call_comes_before_it_in_the_output_and_the_next_question(modality: str) -> None:
    """Mutation: the message begins with its first sound; then the preamble looks like the answer."""
    calls = stream({"content": "I look."}, call(1, "look", "{bad", "a"), call(1, "look", {"x": 1}, "b"))
    async with running_llm(calls, "Fine.") as llm, running_agent(llm.url) as agent, session(agent) as socket:
        tools = [{"type": "function", "name": "look"}]
        output = (await respond(socket, output_modalities=[modality], tools=tools))["output"]
        assert [each["type"] for each in output] == ["message", "function_call", "function_call"]
        assert [each["arguments"] for each in output[1:]] == ["{bad", '{"x": 1}']
        assert "I look." in json.dumps(output[0])
        for each in output[1:]:
            item = {"type": "function_call_output", "call_id": each["call_id"], "output": "Ten."}
            await send(socket, "conversation.item.create", item=item)
        await respond(socket, output_modalities=["text"])
        roles = [message["role"] for message in llm.requests[-1] if message["role"] != "system"]
        assert roles == ["assistant", "tool", "tool"]  # servers that check roles refuse two of the assistant
        asked = llm.requests[-1][-3]
        assert (asked["content"], len(asked["tool_calls"])) == ("I look.", 2)


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_an_answer_whose_stream_ends_without_a_reason_is_incomplete(modality: str) -> None:
    cut = stream({"content": "Winter nights are"}, finish=None)
    async with running_llm(cut) as llm, running_agent(llm.url) as agent, session(agent) as socket:
        done = await respond(socket, output_modalities=[modality])
        assert (done["status"], done["status_details"]) == ("incomplete", {"type": "incomplete"})
        assert done["output"][0]["status"] == "incomplete"


async def test_nothing_of_a_cancelled_answer_comes_in_the_next_one() -> None:
    """The next one is asked for in the same moment. Mutation: `_OfAnswer` takes all frames after a start."""
    names = ("one", "two", "three", "four", "five", "six")
    answers = [f"{name}, {name}, {name}, {name}, {name}, {name}" for name in names]
    async with running_llm(*answers, token_s=0.0) as llm, running_agent(llm.url) as agent, session(agent) as socket:
        await socket.send('{"type":"response.create"}')
        for name in names:
            await until_type(socket, "response.output_audio.delta")
            await send(socket, "response.cancel")
            told = (await respond(socket))["output"][0]["content"][0]["transcript"]
            assert set(told.replace(",", " ").split()) == {name}


async def test_a_client_that_does_not_read_is_cut() -> None:
    """What it asks for waits in its socket, not in the node.

    Mutation: the reader does not wait for room; then all messages are answered in memory.
    """
    async with running(timeouts={"write_s": 0.5}) as agent, session(agent) as socket:
        socket.transport.pause_reading()
        long = json.dumps({"type": "session.update", "session": {"instructions": "x" * 60_000}})
        sent = 0
        with contextlib.suppress(ConnectionClosed):
            async with asyncio.timeout(LIMIT_S):
                for sent in range(8 * MAX_EVENTS):  # noqa: B007
                    await socket.send(long)
        assert sent < 4 * MAX_EVENTS
        await until(lambda: agent.calls == 0, LIMIT_S)
        socket.transport.abort()
        assert await agent.metric("agent_tts_refused_total") == 1


async def test_a_schema_reaches_the_language_model_as_it_is_and_an_answer_of_too_many_tokens_is_incomplete() -> None:
    schema = {
        "type": "object",
        "properties": {"door": {"$ref": "#/$defs/door"}},
        "required": ["door"],
        "additionalProperties": False,
        "$defs": {"door": {"enum": ["front", "back"]}},
    }
    tool = {"type": "function", "name": "open", "description": "Opens it.", "parameters": schema}
    answer = {"content": "Winter nights are", "finish_reason": "length"}
    async with running_llm("Fine.", answer) as llm, running_agent(llm.url) as agent, session(agent) as socket:
        await respond(socket, tools=[tool], output_modalities=["text"])
        function = {name: value for name, value in tool.items() if name != "type"}
        assert llm.tools == [[{"type": "function", "function": function}]]
        for modality in ("text", "audio"):
            cut = await respond(socket, max_output_tokens=3, output_modalities=[modality])
            assert (cut["status"], cut["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
            assert "Winter nights are" in json.dumps(cut["output"])


async def test_a_client_cannot_ask_the_language_model_as_often_as_it_sends_messages() -> None:
    async with running_llm("Fine.") as llm, running_agent(llm.url) as agent, session(agent) as socket:
        for _ in range(5 * ANSWERS_BURST):
            await socket.send('{"type":"response.create","response":{"output_modalities":["text"]}}')
            await socket.send('{"type":"response.cancel"}')
        await socket.send('{"type":"input_audio_buffer.clear"}')
        errors = []
        async with asyncio.timeout(LIMIT_S):
            while (message := json.loads(await socket.recv()))["type"] != "input_audio_buffer.cleared":
                if message["type"] == "response.done" and message["response"]["status"] == "failed":
                    errors.append(message["response"]["status_details"]["error"])
        assert {(error["code"], error["retry_after_ms"]) for error in errors} == {("rate_limit_exceeded", 250)}
        assert len(llm.requests) < 3 * ANSWERS_BURST


async def test_a_fault_of_the_node_is_told_by_the_close_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """And why a session cannot begin after the handshake."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def none(*_: object, **__: object) -> None:
        raise AtCapacity("none is free")

    async with running_agent() as agent:
        async with session(agent) as socket:
            monkeypatch.setattr(Conversation, "receive", fail)
            await socket.send("{}")
            await asyncio.wait_for(socket.wait_closed(), LIMIT_S)
            assert socket.close_code == 1011
        monkeypatch.setattr(agent.server.llm, "service", none)
        with pytest.raises(ConnectionClosed) as caught:
            async with session(agent):
                pass
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1013, "none is free")
        await until(lambda: agent.calls == 0)


# What a client does before it vanishes: the messages it has sent, and the type of the last one that it got.
ASK = '{"type":"response.create"}'
MANUAL = '{"type":"session.update","session":{"audio":{"input":{"turn_detection":null}}}}'
STATES: dict[str, tuple[list[str], str | None]] = {
    "begun": ([], None),
    "asked": ([ASK], None),
    "writing": ([ASK], "response.created"),
    "speaking": ([ASK], "response.output_audio.delta"),
    "recognising": ([MANUAL, "AUDIO", '{"type":"input_audio_buffer.commit"}'], "input_audio_buffer.committed"),
    "flooding": (['{"type":"conversation.item.delete","item_id":"x"}'] * 200, None),
}


async def test_clients_vanish_at_once_in_any_state_and_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Their connections are reset. Tasks, threads and files that are left fail each test."""
    count = 2 * len(STATES)
    with logged("ERROR") as errors:
        async with running_llm("one two three " * 40) as llm, running_agent(llm.url, hears=True, calls=count) as agent:
            speech = base64.b64encode(await agent.speech("My train leaves at seven.")).decode()
            audio = json.dumps({"type": "input_audio_buffer.append", "audio": speech})

            async def begin(state: str) -> ClientConnection:
                socket = await connect(f"{agent.url.replace('http', 'ws')}/v1/realtime", open_timeout=LIMIT_S)
                messages, last = STATES[state]
                for message in messages:
                    await socket.send(audio if message == "AUDIO" else message)
                if last is not None:
                    await until_type(socket, last)
                return socket

            sockets = await asyncio.gather(*(begin(state) for state in STATES for _ in range(2)))
            assert agent.calls == count
            for socket in sockets:
                socket.transport.abort()
            await until(lambda: agent.calls == 0, LIMIT_S)
    assert not errors
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_long_message_is_parsed_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MiB takes milliseconds, of which the decoding of its audio takes two."""
    found: list[tuple[bool, bool]] = []

    def recorded(data: str | bytes) -> Any:
        found.append((len(data) > PARSED_AT_ONCE, threading.current_thread() is threading.main_thread()))
        return read(data)

    monkeypatch.setattr("agent_tts.agent.realtime.session.read", recorded)
    async with running_agent() as agent, session(agent) as socket:
        audio = base64.b64encode(bytes(48_000 * 16)).decode()
        item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
        for message in (
            {"type": "input_audio_buffer.append", "audio": audio},
            {"type": "conversation.item.create", "item": item},
            {"type": "input_audio_buffer.clear"},
        ):
            await socket.send(json.dumps(message))
        await until_type(socket, "input_audio_buffer.cleared")
    assert found == [(True, False), (True, False), (False, True)]
