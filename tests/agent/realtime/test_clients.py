"""OpenAI's SDKs, and the realtime classes of Pipecat and LiveKit, unmodified, in conversations with the node."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import function_tool, llm
from openai import AsyncOpenAI
from pipecat.frames.frames import InputAudioRawFrame, LLMRunFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

from agent_tts.agent.realtime.ear import PATIENCE_S
from tests.agent.llm_server import running_llm
from tests.agent.node import RunningAgent, running_agent
from tests.agent.test_spoken import LONG
from tests.integrations.pipecat.pipeline import running
from tests.recogniser import recognise
from tests.support import ended, until

UMBRELLA = "She bought a yellow umbrella."
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "open_door", "arguments": '{"wide":true}'}}
PIECE = 4_800  # bytes: 100 ms of 24 kHz pcm_s16le
LIMIT_S = 30.0


def text_item(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class Caller:
    """The SDK's connection, and all that it received."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[Any] = []
        self.pcm = b""
        self.first_at = 0.0  # when the first audio of the last item came
        self.item = ""

    async def listen(self) -> None:
        async for event in self.connection:
            self.events.append(event)
            if event.type == "response.output_audio.delta":
                if event.item_id != self.item:
                    self.pcm, self.item, self.first_at = b"", event.item_id, time.monotonic()
                self.pcm += base64.b64decode(event.delta)

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    async def wait(self, kind: str, count: int = 1) -> Any:
        await until(lambda: len(self.of(kind)) >= count, LIMIT_S)
        return self.of(kind)[count - 1]

    async def say(self, pcm: bytes, *, silence_s: float = 1.0) -> None:
        """At the pace of a microphone."""
        data = bytes(4 * PIECE) + pcm + bytes(int(silence_s * 48_000))
        began = time.monotonic()
        for number, start in enumerate(range(0, len(data), PIECE)):
            await asyncio.sleep(max(0.0, began + number / 10 - time.monotonic()))
            audio = base64.b64encode(data[start : start + PIECE]).decode()
            await self.connection.input_audio_buffer.append(audio=audio)

    def played_ms(self) -> int:
        """What a player without delay has played of the last item."""
        return int(min(len(self.pcm) / 48, (time.monotonic() - self.first_at) * 1_000))


@asynccontextmanager
async def calling(agent: RunningAgent, **options: Any) -> AsyncIterator[Caller]:
    async with AsyncOpenAI(base_url=f"{agent.url}/v1", api_key="none") as client:
        async with client.realtime.connect(model="gpt-realtime", **options) as connection:
            caller = Caller(connection)
            listening = asyncio.create_task(caller.listen())
            try:
                yield caller
            finally:
                await ended(listening)
    await until(lambda: agent.calls == 0)


async def test_text_becomes_speech_without_speech_recognition() -> None:
    async with running_llm(UMBRELLA) as llm, running_agent(llm.url) as agent, calling(agent) as caller:
        connection = caller.connection
        session = {"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"voice": "marin"}}}
        await connection.session.update(session=session)
        await connection.conversation.item.create(item=text_item("What did she buy?"))
        await connection.response.create()
        done = await caller.wait("response.done")
        assert done.response.status == "completed"
        assert done.response.output[0].content[0].transcript == UMBRELLA
        assert recognise(caller.pcm) == "she bought a yellow umbrella"
        spoken = "".join(event.delta for event in caller.of("response.output_audio_transcript.delta"))
        assert spoken == UMBRELLA
        first = next(event.type for event in caller.events if "delta" in event.type)
        assert first == "response.output_audio_transcript.delta"  # each word stands before the sound of it
        assert llm.requests == [
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What did she buy?"}]
        ]
        assert not caller.of("error")
        assert await agent.metric("agent_tts_agent_turns_total") == 1


async def test_a_spoken_conversation_with_an_interruption_keeps_what_was_heard() -> None:
    """Mutation: `Conversation._truncate` keeps all words."""
    async with running_llm(LONG, UMBRELLA) as llm, running_agent(llm.url, hears=True) as agent:
        question = await agent.speech("My train leaves at seven.")
        async with calling(agent) as caller:
            transcribed = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}
            await caller.connection.session.update(session={"type": "realtime"} | transcribed)
            await caller.say(question)
            heard = await caller.wait("conversation.item.input_audio_transcription.completed")
            assert heard.transcript == "my train leaves at seven"
            await until(lambda: len(caller.pcm) > 2 * 48_000, LIMIT_S)
            talking = asyncio.create_task(caller.say(question))
            await caller.wait("input_audio_buffer.speech_started", 2)
            played = caller.played_ms()
            await caller.connection.conversation.item.truncate(
                item_id=caller.item, content_index=0, audio_end_ms=played
            )
            done = await caller.wait("response.done")
            assert done.response.status_details.reason == "turn_detected"
            await caller.wait("response.done", 2)
            await talking
            assert recognise(caller.pcm) == "she bought a yellow umbrella"
        starts = {e.delta: e.start_time for e in caller.of("response.output_audio_transcript.delta")[:8]}
        assert min(starts.values()) == 0
        (_, first), (role, told), (_, again) = llm.history()
        assert (first, role, again) == ("my train leaves at seven", "assistant", "my train leaves at seven")
        assert LONG.startswith(told)
        deltas = [e for e in caller.of("response.output_audio_transcript.delta") if e.item_id != caller.item]
        assert told == "".join(event.delta for event in deltas if event.start_time * 1_000 < played)
        assert told != "".join(event.delta for event in deltas)


async def test_the_client_may_commit_its_turns() -> None:
    async with running_llm(UMBRELLA) as llm, running_agent(llm.url, hears=True) as agent:
        question = await agent.speech("My train leaves at seven.")
        async with calling(agent) as caller:
            connection = caller.connection
            manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
            await connection.session.update(session=manual)
            for start in range(0, len(question), PIECE):  # faster than it was spoken
                audio = base64.b64encode(question[start : start + PIECE]).decode()
                await connection.input_audio_buffer.append(audio=audio)
            await connection.input_audio_buffer.commit()
            await connection.response.create()
            await caller.wait("response.done")
            assert not caller.of("input_audio_buffer.speech_started")
        assert [text for role, text in llm.history() if role == "user"] == ["my train leaves at seven"]
        assert not caller.of("error")


async def test_the_beta_of_the_api() -> None:
    async with running_llm(UMBRELLA) as llm, running_agent(llm.url) as agent:
        async with aiohttp.ClientSession(trust_env=False) as http:
            headers = {"OpenAI-Beta": "realtime=v1"}
            async with http.ws_connect(f"{agent.url}/v1/realtime?model=x", headers=headers) as socket:
                assert (await socket.receive_json())["session"]["input_audio_format"] == "pcm16"
                await socket.send_json({"type": "session.update", "session": {"modalities": ["text"]}})
                await socket.send_json({"type": "conversation.item.create", "item": text_item("What did she buy?")})
                await socket.send_json({"type": "response.create"})
                text, kind = "", ""
                async with asyncio.timeout(LIMIT_S):
                    while kind != "response.done":
                        message = await socket.receive_json()
                        kind = message["type"]
                        text += message["delta"] if kind == "response.text.delta" else ""
        assert text == UMBRELLA


# ------------------------------------------------------------ OpenAI's Agents SDK


async def test_openais_agents_run_a_tool_and_hear_the_user() -> None:
    """It sends a whole session, of which it may later change a part."""
    import agents  # takes seconds, and only this test needs it
    from agents.realtime import RealtimeAgent, RealtimeRunner

    opened: list[bool] = []

    @agents.function_tool
    def open_door(wide: bool) -> str:
        """Opens the door."""
        opened.append(wide)
        return "open"

    async with running_llm({"tool_calls": [CALL]}, UMBRELLA) as server:
        async with running_agent(server.url, hears=True) as agent:
            question = await agent.speech("My train leaves at seven.")
            runner = RealtimeRunner(RealtimeAgent(name="Door", instructions="Be brief.", tools=[open_door]))
            url = f"{agent.url.replace('http', 'ws')}/v1/realtime?model=any"
            detection = {"type": "server_vad", "silence_duration_ms": 300}
            config: Any = {
                "url": url,
                "api_key": "none",
                "initial_model_settings": {"audio": {"input": {"turn_detection": detection}}, "tracing": None},
            }
            found: list[Any] = []

            async def listen(session: Any) -> None:
                async for event in session:
                    found.append(event)  # noqa: PERF401 - it is read meanwhile

            def pcm() -> bytes:
                return b"".join(event.audio.data for event in found if event.type == "audio")

            async with await runner.run(model_config=config) as session:
                listening = asyncio.create_task(listen(session))
                await session.send_message("Open the door.")
                await until(lambda: any(event.type == "audio_end" for event in found), LIMIT_S)
                assert opened == [True]
                assert recognise(pcm()) == "she bought a yellow umbrella"
                asked = server.requests[1]
                assert [message["role"] for message in asked] == ["system", "user", "assistant", "tool"]
                assert (asked[0]["content"], asked[-1]["content"]) == ("Be brief.", "open")
                for frame in frames(question):
                    await session.send_audio(frame.data.tobytes())
                await until(lambda: ("user", "my train leaves at seven") in server.history(), LIMIT_S)
                await until(lambda: sum(event.type == "audio_end" for event in found) == 2, LIMIT_S)
                await ended(listening)
            assert not [event for event in found if event.type == "error"]
        await until(lambda: agent.calls == 0)


# ------------------------------------------------------------ LiveKit


# A microphone goes on: a turn that does not sound complete ends after this.
SILENCE = bytes(round(max(PATIENCE_S.values()) + 1) * 48_000)


def frames(pcm: bytes) -> list[rtc.AudioFrame]:
    data = bytes(4 * PIECE) + pcm + bytes(10 * PIECE)
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    return [rtc.AudioFrame(piece, 24_000, 1, len(piece) // 2) for piece in pieces]


async def collected(generation: llm.GenerationCreatedEvent) -> tuple[str, bytes, list[llm.FunctionCall]]:
    """Text, audio and function calls of a generation."""
    text, pcm = "", b""
    async with asyncio.timeout(LIMIT_S):
        async for message in generation.message_stream:
            text += "".join([part async for part in message.text_stream])
            pcm += b"".join([frame.data.tobytes() async for frame in message.audio_stream])
        return text, pcm, [call async for call in generation.function_stream]


async def test_livekits_class_talks_calls_a_function_and_is_interrupted() -> None:
    """Its turns end when they sound complete."""
    from livekit.plugins.openai.realtime import RealtimeModel  # takes a second, and only this test needs it

    @function_tool
    async def open_door(wide: bool) -> str:
        """Opens the door."""
        return "open"

    async with running_llm({"tool_calls": [CALL]}, UMBRELLA, LONG, "Fine.") as server:
        async with running_agent(server.url, hears=True) as agent, aiohttp.ClientSession(trust_env=False) as http:
            question = await agent.speech("My train leaves at seven.")
            model = RealtimeModel(base_url=f"{agent.url}/v1", api_key="none", http_session=http)
            session = model.session()
            errors: list[Any] = []
            spoken: asyncio.Queue[llm.GenerationCreatedEvent] = asyncio.Queue()
            session.on("error", errors.append)
            session.on("generation_created", lambda event: None if event.user_initiated else spoken.put_nowait(event))
            try:
                await session.update_instructions("Be brief.")
                await session.update_tools([open_door])
                context = llm.ChatContext.empty()
                context.add_message(role="user", content="Open the door.")
                await session.update_chat_ctx(context)
                _, _, (call,) = await collected(await session.generate_reply())
                assert (call.name, json.loads(call.arguments)) == ("open_door", {"wide": True})
                context = session.chat_ctx.copy()
                context.items.append(
                    llm.FunctionCallOutput(call_id=call.call_id, name=call.name, output="open", is_error=False)
                )
                await session.update_chat_ctx(context)
                text, pcm, _ = await collected(await session.generate_reply())
                assert text == UMBRELLA
                assert recognise(pcm) == "she bought a yellow umbrella"
                assert [message["role"] for message in server.requests[1]] == ["system", "user", "assistant", "tool"]
                for frame in frames(question + SILENCE):
                    session.push_audio(frame)
                generation = await asyncio.wait_for(spoken.get(), LIMIT_S)
                message = await anext(aiter(generation.message_stream))
                await anext(aiter(message.audio_stream))
                session.interrupt()
                session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=50)
                left = await asyncio.wait_for(session.generate_reply(), LIMIT_S)
                await collected(left)
                assert server.history()[-1] == ("assistant", "Winter")
                assert ("user", "my train leaves at seven") in server.history()
                assert not errors
            finally:
                await session.aclose()
                await model.aclose()
            await until(lambda: agent.calls == 0)


# ------------------------------------------------------------ Pipecat


async def test_pipecats_class_answers_text_and_speech() -> None:
    async with running_llm(UMBRELLA) as server, running_agent(server.url, hears=True) as agent:
        question = await agent.speech("My train leaves at seven.")
        properties = events.SessionProperties(
            instructions="Be brief.",
            audio=events.AudioConfiguration(
                input=events.AudioInput(
                    transcription=events.InputAudioTranscription(), turn_detection=events.TurnDetection()
                )
            ),
        )
        service = OpenAIRealtimeLLMService(
            api_key="none",
            base_url=f"{agent.url.replace('http', 'ws')}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(session_properties=properties),
        )
        pair = LLMContextAggregatorPair(LLMContext([{"role": "user", "content": "What did she buy?"}]))
        async with running([pair.user(), service], after=[pair.assistant()]) as pipeline:
            await pipeline.send(LLMRunFrame())
            await until(lambda: "".join(pipeline.words) == UMBRELLA, LIMIT_S)
            await asyncio.sleep(0.5)
            first, told = pipeline.pcm(), len(pipeline.words)
            assert recognise(first) == "she bought a yellow umbrella"
            for frame in frames(question):
                await pipeline.send(InputAudioRawFrame(frame.data.tobytes(), 24_000, 1))
                await asyncio.sleep(0.05)
            await until(lambda: "".join(pipeline.words[told:]) == UMBRELLA, LIMIT_S)
            assert ("user", "my train leaves at seven") in server.history()
            assert not pipeline.errors
        await until(lambda: agent.calls == 0)
