"""Cartesia's clients, unmodified but for the URL, on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from cartesia import AsyncCartesia
from livekit.agents import APIError
from livekit.plugins import cartesia as livekit_cartesia
from pipecat.frames.frames import LLMFullResponseEndFrame, TTSTextFrame
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.tts_service import TextAggregationMode

from agent_tts.client.moving import connect
from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, SECOND, VOICE, check_spoken
from tests.support import RunningNode, running_node, until
from tests.test_speech_is_right import decoded

pytestmark = pytest.mark.node


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak") as running:
        yield running


def pipecat_service(node: RunningNode, mode: TextAggregationMode) -> CartesiaTTSService:
    return CartesiaTTSService(
        api_key="none",
        url=node.url.replace("http", "ws", 1) + "/tts/websocket",
        settings=CartesiaTTSService.Settings(voice=VOICE),
        text_aggregation_mode=mode,
    )


@pytest.mark.parametrize("mode", [TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN])
async def test_pipecat(node: RunningNode, mode: TextAggregationMode) -> None:
    await pipecat_run.converse(pipecat_service(node, mode), node)


async def test_a_pause_tag_is_silence_and_no_word(node: RunningNode) -> None:
    service = pipecat_service(node, TextAggregationMode.SENTENCE)
    async with running([service]) as pipeline:
        await pipeline.turn(*pipecat_run.tokens(f"{FIRST} {service.PAUSE_TAG(1.5)} {SECOND}"))
        assert pipeline.words == f"{FIRST} {SECOND}".split()
        check_spoken(pipeline.pcm(), FIRST, SECOND)
        first, last = pipeline.down(TTSTextFrame)[4].pts, pipeline.down(TTSTextFrame)[5].pts
        assert first is not None
        assert last is not None
        assert last - first > 1.5e9


async def test_pipecat_over_http(node: RunningNode) -> None:
    service = CartesiaHttpTTSService(
        api_key="none", base_url=node.url, settings=CartesiaHttpTTSService.Settings(voice=VOICE)
    )
    await pipecat_run.converse(service, node, tells_words=False)


async def test_livekit(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        speaker = livekit_cartesia.TTS(api_key="none", base_url=node.url, voice=VOICE, http_session=session)
        async with speaker:
            await livekit_run.converse(speaker, node)
            check_spoken(await livekit_run.synthesized(speaker, NEXT), NEXT)


async def test_the_sdk_over_the_websocket(node: RunningNode) -> None:
    """In its default format: 32 bit floats at 44.1 kHz."""
    async with AsyncCartesia(api_key="none", websocket_base_url=node.url.replace("http", "ws", 1)) as client:
        async with client.tts.websocket_connect() as connection:
            context = connection.context(voice=VOICE, add_timestamps=True)
            for token in pipecat_run.tokens(f"{FIRST} {SECOND}"):
                await context.push(token)
            await context.no_more_inputs()
            events = [event async for event in context.receive()]
            assert events[-1].type == "done"
            check_spoken(as_s16(b"".join(chunks(events))), FIRST, SECOND, rate=44_100)
            assert words(events) == f"{FIRST} {SECOND}".split()

            cut = connection.context(voice=VOICE)
            await cut.push(LONG)
            await anext(cut.receive())
            await cut.cancel()
            await until(lambda: node.node.service.speaking == 0, 2)

            following = connection.context(voice=VOICE)
            await following.push(NEXT, continue_=False)
            pcm = b"".join(chunks([event async for event in following.receive()]))
            check_spoken(as_s16(pcm), NEXT, rate=44_100)


async def test_contexts_of_the_sdk_speak_in_parallel(node: RunningNode) -> None:
    async with AsyncCartesia(api_key="none", websocket_base_url=node.url.replace("http", "ws", 1)) as client:
        async with client.tts.websocket_connect() as connection:
            output = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 16_000}
            contexts = [connection.context(voice=VOICE, output_format=output) for _ in range(2)]
            for context, text in zip(contexts, (FIRST, NEXT), strict=True):
                await context.push(text, flush=True)
                await context.no_more_inputs()
            heard = await asyncio.gather(*(received(context.receive()) for context in contexts))
            for events, text in zip(heard, (FIRST, NEXT), strict=True):
                assert [event.flush_id for event in events if event.type == "flush_done"] == [1]
                check_spoken(b"".join(chunks(events)), text, rate=16_000)


@pytest.mark.parametrize("container", ["raw", "wav", "mp3"])
async def test_the_sdk_over_http(node: RunningNode, container: str) -> None:
    output: Any = {"container": container, "encoding": "pcm_s16le", "sample_rate": 22_050}
    if container == "mp3":
        output = {"container": "mp3", "bit_rate": 128_000, "sample_rate": 44_100}
    async with AsyncCartesia(api_key="none", base_url=node.url) as client:
        answer = await client.tts.generate(model_id="sonic-3", transcript=FIRST, voice=VOICE, output_format=output)
        data = await answer.read()
    if container == "raw":
        check_spoken(data, FIRST, rate=22_050)
    else:
        samples, rate = decoded(data)
        assert rate == output["sample_rate"]
        check_spoken(samples.tobytes(), FIRST, rate=rate)


async def test_the_sdk_over_server_sent_events(node: RunningNode) -> None:
    output: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8_000}
    async with AsyncCartesia(api_key="none", base_url=node.url) as client:
        stream = await client.tts.generate_sse(
            model_id="sonic-3",
            transcript=FIRST,
            voice={"id": VOICE},
            output_format=output,
            add_timestamps=True,
            context_id="mine",
        )
        events: list[Any] = [event async for event in stream]
    assert {event.context_id for event in events} == {"mine"}
    assert [event.done for event in events] == [False] * (len(events) - 1) + [True]
    assert words(events) == FIRST.split()
    check_spoken(b"".join(chunks(events)), FIRST, rate=8_000)


async def test_a_client_that_does_not_read_its_audio_is_cut() -> None:
    """Fails without pongs: small kernel buffers alone hold all of the audio."""
    async with running_node(timeouts={"ping_s": 0.2}) as node, livekit_run.http_session() as session:
        async with session.ws_connect(node.url + "/tts/websocket") as socket:
            await socket.send_json({"context_id": "a", "transcript": LONG})
            await until(lambda: node.node.service.speaking == 1)
            await until(lambda: not node.node.sessions, 2)


async def test_pipecat_gets_an_error_from_a_full_node() -> None:
    async with running_node(engine="espeak", slots=1, queue=0) as node, connect(node.url) as other:
        speech = await other.open()
        service = pipecat_service(node, TextAggregationMode.TOKEN)
        async with running([service]) as pipeline:
            await pipeline.begin(*pipecat_run.tokens(FIRST))
            await pipeline.end()
            await until(lambda: bool(pipeline.errors))
            assert "at_capacity" in pipeline.errors[0]
            await speech.cancel()
            await until(lambda: bool(pipeline.down(LLMFullResponseEndFrame)), 2)  # it does not wait for audio
            await pipeline.turn(*pipecat_run.tokens(NEXT))
            check_spoken(pipeline.pcm(), NEXT)


async def test_livekit_gets_an_error_from_a_full_node() -> None:
    async with running_node(engine="espeak", slots=1, queue=0) as node, connect(node.url) as other:
        await other.open()
        async with livekit_run.http_session() as session:
            async with livekit_cartesia.TTS(api_key="none", base_url=node.url, http_session=session) as speaker:
                with pytest.raises(APIError, match="at_capacity"):
                    await livekit_run.say(speaker, FIRST)


async def received(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


def chunks(events: list[Any]) -> list[bytes]:
    return [event.audio for event in events if event.type == "chunk"]


def words(events: list[Any]) -> list[str]:
    """Received words with their times."""
    told = [event.word_timestamps for event in events if event.type == "timestamps"]
    times = [span for each in told for span in zip(each.start, each.end, strict=True)]
    assert times == sorted(times)
    return [word for each in told for word in each.words]


def as_s16(floats: bytes) -> bytes:
    return (np.frombuffer(floats, "<f4") * 32_767).astype("<i2").tobytes()


async def test_livekit_keeps_its_connection_between_replies() -> None:
    """Fails if pongs are demanded while nothing is sent: LiveKit reads its socket only while it waits for speech."""
    async with running_node(timeouts={"ping_s": 0.1}) as node, livekit_run.http_session() as session:
        async with livekit_cartesia.TTS(api_key="none", base_url=node.url, http_session=session) as speaker:
            await livekit_run.say(speaker, FIRST)
            (first,) = node.node.sessions
            await asyncio.sleep(0.5)
            await livekit_run.say(speaker, NEXT)
            assert node.node.sessions == {first}
