"""Cartesia's clients, unmodified but for the URL, on a real node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from livekit.plugins import cartesia as livekit_cartesia
from pipecat.frames.frames import LLMFullResponseEndFrame, TTSTextFrame
from pipecat.services.cartesia.tts import CartesiaTTSService

from agent_tts.client.moving import connect
from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, SECOND, VOICE, check_spoken
from tests.serve.dialects.stock import RAW, SENTENCE, TOKEN, Stock, stock_clients
from tests.support import until
from tests.test_speech_is_right import decoded

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]


async def test_a_pause_tag_is_silence_and_no_word(stock: Stock) -> None:
    service = stock.pipecat(CartesiaTTSService, text_aggregation_mode=SENTENCE)
    async with running([service]) as pipeline:
        await pipeline.turn(*pipecat_run.tokens(f"{FIRST} {service.PAUSE_TAG(1.5)} {SECOND}"))
        assert pipeline.words == f"{FIRST} {SECOND}".split()
        check_spoken(pipeline.pcm(), FIRST, SECOND)
        first, last = (frame.pts or 0 for frame in pipeline.down(TTSTextFrame)[4:6])
        assert first
        assert last - first > 1.5e9


async def test_the_sdk_over_the_websocket(stock: Stock) -> None:
    """In its default format: 32 bit floats at 44.1 kHz."""
    async with stock.cartesia() as client, client.tts.websocket_connect() as connection:
        cut = connection.context(voice=VOICE)
        await cut.push(LONG)
        await anext(cut.receive())
        await cut.cancel()
        await until(lambda: stock.node.node.service.speaking == 0, 2)

        following = connection.context(voice=VOICE, add_timestamps=True)
        await following.push(NEXT, continue_=False)
        events = await received(following.receive())
        assert events[-1].type == "done"
        floats = np.frombuffer(sound(events), "<f4")
        check_spoken((floats * 32_767).astype("<i2").tobytes(), NEXT, rate=44_100)
        assert words(events) == NEXT.split()


async def test_contexts_of_the_sdk_speak_in_parallel(stock: Stock) -> None:
    async with stock.cartesia() as client, client.tts.websocket_connect() as connection:
        contexts = [connection.context(voice=VOICE, output_format=RAW) for _ in range(2)]
        for context, text in zip(contexts, (FIRST, NEXT), strict=True):
            await context.push(text, flush=True)
            await context.no_more_inputs()
        heard = await asyncio.gather(*(received(context.receive()) for context in contexts))
        for events, text in zip(heard, (FIRST, NEXT), strict=True):
            assert [event.flush_id for event in events if event.type == "flush_done"] == [1]
            check_spoken(sound(events), text)


@pytest.mark.parametrize("container", ["raw", "wav", "mp3"])
async def test_the_sdk_over_http(stock: Stock, container: str) -> None:
    output = RAW | {"container": container, "sample_rate": 22_050}
    if container == "mp3":
        output = {"container": "mp3", "bit_rate": 128_000, "sample_rate": 44_100}
    async with stock.cartesia() as client:
        answer = await client.tts.generate(model_id="sonic-3", transcript=FIRST, voice=VOICE, output_format=output)
        data = await answer.read()
    rate = 22_050
    if container != "raw":
        samples, rate = decoded(data)
        data = samples.tobytes()
    assert rate == output["sample_rate"]
    check_spoken(data, FIRST, rate=rate)


async def test_the_sdk_over_server_sent_events(stock: Stock) -> None:
    request: dict[str, Any] = {"model_id": "sonic-3", "voice": {"id": VOICE}, "context_id": "mine"}
    output = RAW | {"sample_rate": 8_000}
    async with stock.cartesia() as client:
        stream = await client.tts.generate_sse(transcript=FIRST, output_format=output, add_timestamps=True, **request)
        events: list[Any] = [event async for event in stream]
    assert {event.context_id for event in events} == {"mine"}
    assert [event.done for event in events] == [False] * (len(events) - 1) + [True]
    assert words(events) == FIRST.split()
    check_spoken(sound(events), FIRST, rate=8_000)


async def test_a_client_that_does_not_read_its_audio_is_cut() -> None:
    """Fails without pongs: small kernel buffers alone hold all of the audio."""
    async with stock_clients(engine="tone", timeouts={"ping_s": 0.2}) as stock:
        async with stock.session.ws_connect(stock.url + "/tts/websocket") as socket:
            await socket.send_json({"context_id": "a", "transcript": LONG})
            await until(lambda: stock.node.node.service.speaking == 1)
            await until(lambda: not stock.node.node.sessions, 2)


async def test_pipecat_gets_an_error_from_a_full_node() -> None:
    async with stock_clients(slots=1, queue=0) as stock, connect(stock.url) as other:
        speech = await other.open()
        async with running([stock.pipecat(CartesiaTTSService, text_aggregation_mode=TOKEN)]) as pipeline:
            await pipeline.begin(*pipecat_run.tokens(FIRST))
            await pipeline.end()
            await until(lambda: bool(pipeline.errors))
            assert "at_capacity" in pipeline.errors[0]
            await speech.cancel()
            await until(lambda: bool(pipeline.down(LLMFullResponseEndFrame)), 2)  # it does not wait for audio
            await pipeline.turn(*pipecat_run.tokens(NEXT))
            check_spoken(pipeline.pcm(), NEXT)


async def test_livekit_keeps_its_connection_between_replies() -> None:
    """Fails if pongs are demanded while nothing is sent: LiveKit reads its socket only while it waits for speech."""
    async with stock_clients(engine="tone", timeouts={"ping_s": 0.1}) as stock:
        async with stock.livekit(livekit_cartesia.TTS, voice="tone-440") as speaker:
            await livekit_run.say(speaker, FIRST)
            (first,) = stock.node.node.sessions
            await asyncio.sleep(0.5)
            await livekit_run.say(speaker, NEXT)
            assert stock.node.node.sessions == {first}


async def received(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


def sound(events: list[Any]) -> bytes:
    return b"".join(event.audio for event in events if event.type == "chunk")


def words(events: list[Any]) -> list[str]:
    """Received words with their times."""
    told = [event.word_timestamps for event in events if event.type == "timestamps"]
    times = [span for each in told for span in zip(each.start, each.end, strict=True)]
    assert times == sorted(times)
    return [word for each in told for word in each.words]
