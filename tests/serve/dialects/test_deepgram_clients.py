"""Deepgram's clients, unmodified but for the URL, on a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from deepgram.speak.v1.types import SpeakV1Clear, SpeakV1Flush, SpeakV1Text
from deepgram.speak.v2.types import (
    SpeakV2Flush,
    SpeakV2Interrupt,
    SpeakV2InterruptPlaybackOffset,
    SpeakV2Speak,
    SpeakV2SpeechInterrupted,
    SpeakV2SpeechMetadata,
)
from livekit.plugins import deepgram as livekit_deepgram
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService

from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, check_spoken
from tests.serve.dialects.stock import AURA, DEEPGRAM, FLUX, Stock, stock_clients
from tests.support import until
from tests.test_speech_is_right import decoded

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module"), DEEPGRAM]

LIMIT_S = 20.0


async def test_pipecat_gets_the_reason_of_a_refusal() -> None:
    """The reason is lost without `dg-error`."""
    async with stock_clients(auth={"api_keys": ["right"]}) as stock:
        for kind in (DeepgramFluxTTSService, DeepgramTTSService):
            async with running([stock.pipecat(kind, api_key="wrong")]) as pipeline:
                await until(lambda: bool(pipeline.errors))
                assert "the API key is wrong" in pipeline.errors[0]


async def test_sdk_flux(stock: Stock) -> None:
    """A turn, one that is interrupted at the place that was heard, and the next."""
    query = {"model": FLUX, "sample_rate": 16_000}
    async with asyncio.timeout(LIMIT_S), stock.deepgram().speak.v2.connect(**query) as connection:
        messages = aiter(connection)

        async def turn() -> tuple[bytes, SpeakV2SpeechMetadata | SpeakV2SpeechInterrupted]:
            audio = b""
            async for message in messages:
                if isinstance(message, bytes):
                    audio += message
                elif isinstance(message, SpeakV2SpeechMetadata | SpeakV2SpeechInterrupted):
                    return audio, message
            raise AssertionError("closed")

        await connection.send_speak(SpeakV2Speak(text=FIRST))
        await connection.send_flush(SpeakV2Flush())
        audio, first = await turn()
        check_spoken(audio, FIRST, rate=16_000)
        assert isinstance(first, SpeakV2SpeechMetadata)
        assert abs(first.audio_duration_ms - len(audio) / 32) < 5

        await connection.send_speak(SpeakV2Speak(text=LONG.replace(" five", " [sad] five \\{pause:20ms\\}")))
        await until(lambda: stock.node.node.service.speaking == 1)
        heard_ms = first.audio_duration_ms + 1_000
        offset = SpeakV2InterruptPlaybackOffset(value=heard_ms)
        await connection.send_interrupt(SpeakV2Interrupt(playback_offset=offset))
        await until(lambda: stock.node.node.service.speaking == 0, 2)
        _, second = await turn()
        assert isinstance(second, SpeakV2SpeechInterrupted)
        assert second.text_spoken is not None
        assert f"{second.text_spoken}{second.text_remaining}".split() == LONG.split()
        assert second.audio_played_ms == min(heard_ms, first.audio_duration_ms + second.metadata.audio_duration_ms)

        await connection.send_speak(SpeakV2Speak(text=NEXT))
        await connection.send_close()
        audio, _ = await turn()
        check_spoken(audio, NEXT, rate=16_000)


async def test_sdk_aura(stock: Stock) -> None:
    """Without the purge in `Session._cancel` audio follows `Cleared`."""
    query = {"model": AURA, "encoding": "linear16", "sample_rate": 16_000}
    async with asyncio.timeout(LIMIT_S), stock.deepgram().speak.v1.connect(**query) as connection:

        async def until_told(type_: str) -> bytes:
            audio = b""
            while True:
                message = await connection.recv()
                if isinstance(message, bytes):
                    audio += message
                elif message.type == type_:
                    return audio

        await connection.send_text(SpeakV1Text(text=LONG))
        await connection.send_flush(SpeakV1Flush(type="Flush"))
        await until(lambda: stock.node.node.service.speaking == 1)
        await connection.send_clear(SpeakV1Clear(type="Clear"))
        await until_told("Cleared")
        for text in (FIRST, NEXT):
            await connection.send_text(SpeakV1Text(text=text))
            await connection.send_flush(SpeakV1Flush(type="Flush"))
        for text in (FIRST, NEXT):
            check_spoken(await until_told("Flushed"), text, rate=16_000)


async def test_livekit_decodes_each_encoding(stock: Stock) -> None:
    for encoding in ("mp3", "opus", "flac", "aac"):
        async with stock.livekit(livekit_deepgram.TTSv2, encoding=encoding) as speaker:
            check_spoken(await livekit_run.synthesized(speaker, FIRST), FIRST)


FILES: list[tuple[dict[str, Any], str, int]] = [
    ({}, "audio/mpeg", 22_050),
    ({"encoding": "mp3", "bit_rate": 32_000, "sample_rate": 24_000}, "audio/mpeg", 24_000),
    ({"encoding": "linear16"}, "audio/wav", 24_000),
    ({"encoding": "mulaw", "sample_rate": 16_000, "container": "wav"}, "audio/wav", 16_000),
    ({"encoding": "alaw", "sample_rate": 16_000}, "audio/wav", 16_000),
    ({"encoding": "opus", "container": "ogg"}, "audio/ogg", 48_000),
    ({"encoding": "flac"}, "audio/flac", 24_000),
    ({"encoding": "aac"}, "audio/aac", 24_000),
]


async def test_sdk_files(stock: Stock) -> None:
    seconds = []
    generate = stock.deepgram().speak.v1.audio.with_raw_response.generate
    for query, media_type, rate in FILES:
        async with generate(text=NEXT, model=AURA, **query) as response:
            assert response.headers["content-type"] == media_type
            assert response.headers["dg-model-name"] == AURA
            assert response.headers["dg-char-count"] == str(len(NEXT))
            samples, decoded_rate = decoded(b"".join([piece async for piece in response.data]))
        assert decoded_rate == rate
        if media_type == "audio/wav":  # compared with LiveKit's decoding for the other formats
            check_spoken(samples.tobytes(), NEXT, rate=rate)
        seconds.append(len(samples) / rate)
    assert max(seconds) - min(seconds) < 0.15  # padding by encoders


async def test_raw_audio_has_no_header(stock: Stock) -> None:
    query = {"encoding": "mulaw", "container": "none", "model": AURA}
    response = await stock.http.post(stock.url + "/v1/speak", params=query, json={"text": NEXT})
    assert response.headers["content-type"] == "audio/mulaw;rate=8000"
    assert not response.content.startswith(b"RIFF")


async def test_a_model_cannot_write_headers() -> None:
    """The response fails if the model goes into `dg-model-name` unescaped."""
    async with stock_clients(engine="tone", voice_aliases={"*": "tone-440"}) as stock:
        for model in ("a\r\nSet-Cookie: b=c", "a\nSet-Cookie: b=c", "\u00e9\u4e00", "a\x00"):
            response = await stock.http.post(stock.url + "/v1/speak", params={"model": model}, json={"text": NEXT})
            assert response.status_code == 200
            assert "set-cookie" not in response.headers
            assert response.headers["dg-model-name"].isprintable()
