"""Deepgram's clients, unmodified but for the URL, on a real node."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import httpx
import pytest
from deepgram import AsyncDeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Clear, SpeakV1Flush, SpeakV1Text
from deepgram.speak.v2.types import (
    SpeakV2Flush,
    SpeakV2Interrupt,
    SpeakV2InterruptPlaybackOffset,
    SpeakV2Speak,
    SpeakV2SpeechInterrupted,
    SpeakV2SpeechMetadata,
)
from livekit.agents import APIError
from livekit.plugins import deepgram as livekit_deepgram
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.tts_service import TextAggregationMode

from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, VOICE, check_spoken
from tests.support import RunningNode, running_node, until
from tests.wire import wire

# Deepgram's SDK uses names that this release of websockets deprecates.
pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore:websockets:DeprecationWarning")]

MODES = [TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN]
KEY = "a-key"
LIMIT_S = 20.0


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    """With a key, and with the recogniser's voice under the name of one of Deepgram's voices."""
    auth = {"api_keys": [KEY]}
    aliases = {"aura-2-thalia-en": VOICE, "flux-haley-en": VOICE}
    async with running_node(engine="espeak", lead_ms=4_000, auth=auth, voice_aliases=aliases) as running:
        yield running


def ws(node: RunningNode) -> str:
    return node.url.replace("http", "ws", 1)


# ---------------------------------------------------------------- Pipecat


@pytest.mark.parametrize("mode", MODES)
async def test_pipecat_flux(node: RunningNode, mode: TextAggregationMode) -> None:
    service = DeepgramFluxTTSService(
        api_key=KEY,
        url=ws(node) + "/v2/speak",
        settings=DeepgramFluxTTSService.Settings(voice="flux-haley-en"),
        text_aggregation_mode=mode,
    )
    await pipecat_run.converse(service, node, tells_words=False)


@pytest.mark.parametrize("mode", MODES)
async def test_pipecat_aura(node: RunningNode, mode: TextAggregationMode) -> None:
    service = DeepgramTTSService(
        api_key=KEY,
        base_url=ws(node),
        settings=DeepgramTTSService.Settings(voice="aura-2-thalia-en"),
        text_aggregation_mode=mode,
    )
    await pipecat_run.converse(service, node, tells_words=False)


async def test_pipecat_gets_the_reason_of_a_refusal(node: RunningNode) -> None:
    """The reason is lost without `dg-error`."""
    for service in (
        DeepgramFluxTTSService(api_key="wrong", url=ws(node) + "/v2/speak"),
        DeepgramTTSService(api_key="wrong", base_url=ws(node)),
    ):
        async with running([service], sample_rate=24_000) as pipeline:
            await until(lambda: bool(pipeline.errors))
            assert "the API key is wrong" in str(pipeline.errors[0])


# ---------------------------------------------------------------- LiveKit


async def test_livekit_flux(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        url = node.url + "/v2/speak"
        speaker = livekit_deepgram.TTSv2(api_key=KEY, base_url=url, model="flux-haley-en", http_session=session)
        async with speaker:
            await livekit_run.converse(speaker, node, tells_words=False)


async def test_livekit_aura(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        url = node.url + "/v1/speak"
        speaker = livekit_deepgram.TTS(api_key=KEY, base_url=url, model="aura-2-thalia-en", http_session=session)
        async with speaker:
            await livekit_run.converse(speaker, node, tells_words=False)


async def test_livekit_and_a_full_node() -> None:
    """An error comes at once when there is no slot; when one is free, the next reply is spoken."""
    async with (
        running_node(slots=1, queue=0) as node,
        wire(node.ws_url) as other,
        livekit_run.http_session() as session,
    ):
        await other.send("text.append", context_id="a", text=LONG)
        await other.until("context.started")
        for make, path in ((livekit_deepgram.TTS, "/v1/speak"), (livekit_deepgram.TTSv2, "/v2/speak")):
            async with make(api_key=KEY, base_url=node.url + path, http_session=session) as speaker:
                with pytest.raises(APIError, match="returned error") as refused:
                    await livekit_run.say(speaker, FIRST)
                assert "try again" in str(refused.value.body)
                await other.send("context.cancel", context_id="a")
                await other.until("context.done")
                assert livekit_run.pcm(await livekit_run.say(speaker, FIRST))
                await other.send("text.append", context_id="a", text=LONG)
                await other.until("context.started")


# ---------------------------------------------------------------- Deepgram's SDK


@asynccontextmanager
async def sdk(node: RunningNode) -> AsyncIterator[AsyncDeepgramClient]:
    url = ws(node)
    environment = DeepgramClientEnvironment(base=node.url, production=url, agent=url, agent_rest=node.url)
    async with httpx.AsyncClient(trust_env=False) as client:
        yield AsyncDeepgramClient(api_key=KEY, environment=environment, httpx_client=client)


async def test_sdk_flux(node: RunningNode) -> None:
    """A turn, one that is interrupted at the place that was heard, and the next."""
    query = {"model": "flux-haley-en", "sample_rate": 16_000}
    async with asyncio.timeout(LIMIT_S), sdk(node) as client, client.speak.v2.connect(**query) as connection:
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

        await connection.send_speak(SpeakV2Speak(text=LONG))
        await until(lambda: node.node.service.speaking == 1)
        heard_ms = first.audio_duration_ms + 1_000
        offset = SpeakV2InterruptPlaybackOffset(value=heard_ms)
        await connection.send_interrupt(SpeakV2Interrupt(playback_offset=offset))
        await until(lambda: node.node.service.speaking == 0, 2)
        _, second = await turn()
        assert isinstance(second, SpeakV2SpeechInterrupted)
        assert second.text_spoken is not None
        assert second.text_remaining is not None
        assert second.text_spoken + second.text_remaining == LONG
        assert second.audio_played_ms == min(heard_ms, first.audio_duration_ms + second.metadata.audio_duration_ms)

        await connection.send_speak(SpeakV2Speak(text=NEXT))
        await connection.send_close()
        audio, _ = await turn()
        check_spoken(audio, NEXT, rate=16_000)


async def test_sdk_aura(node: RunningNode) -> None:
    """Without the purge in `Session._cancel` audio follows `Cleared`."""
    query = {"model": "aura-2-thalia-en", "encoding": "linear16", "sample_rate": 16_000}
    async with asyncio.timeout(LIMIT_S), sdk(node) as client, client.speak.v1.connect(**query) as connection:

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
        await until(lambda: node.node.service.speaking == 1)
        await connection.send_clear(SpeakV1Clear(type="Clear"))
        await until_told("Cleared")
        for text in (FIRST, NEXT):
            await connection.send_text(SpeakV1Text(text=text))
            await connection.send_flush(SpeakV1Flush(type="Flush"))
        for text in (FIRST, NEXT):
            check_spoken(await until_told("Flushed"), text, rate=16_000)


# ---------------------------------------------------------------- HTTP


async def test_pipecat_http(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        service = DeepgramHttpTTSService(
            api_key=KEY,
            base_url=node.url,
            aiohttp_session=session,
            settings=DeepgramHttpTTSService.Settings(voice="aura-2-thalia-en"),
        )
        async with running([service], sample_rate=24_000) as pipeline:
            await pipeline.turn(*pipecat_run.tokens(FIRST))
            check_spoken(pipeline.pcm(), FIRST)
            assert not pipeline.errors


async def test_livekit_whole_texts(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        for make, path, model in (
            (livekit_deepgram.TTS, "/v1/speak", "aura-2-thalia-en"),
            (livekit_deepgram.TTSv2, "/v2/speak", "flux-haley-en"),
        ):
            async with make(api_key=KEY, base_url=node.url + path, model=model, http_session=session) as speaker:
                check_spoken(await livekit_run.synthesized(speaker, FIRST), FIRST)
        for encoding in ("mp3", "opus", "flac", "aac"):
            url = node.url + "/v2/speak"
            speaker = livekit_deepgram.TTSv2(
                api_key=KEY, base_url=url, model="flux-haley-en", encoding=encoding, http_session=session
            )
            async with speaker:
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


async def test_sdk_files(node: RunningNode) -> None:
    seconds = []
    async with sdk(node) as client:
        for query, media_type, rate in FILES:
            speaking = client.speak.v1.audio.with_raw_response.generate(text=NEXT, model="aura-2-thalia-en", **query)
            async with speaking as response:
                assert response.headers["content-type"] == media_type
                assert response.headers["dg-model-name"] == "aura-2-thalia-en"
                assert response.headers["dg-char-count"] == str(len(NEXT))
                audio = b"".join([piece async for piece in response.data])
            pcm = decoded(audio, rate)
            if media_type == "audio/wav":  # compared with LiveKit's decoding for the other formats
                check_spoken(pcm, NEXT)
            seconds.append(len(pcm) / 48_000)
    assert max(seconds) - min(seconds) < 0.15  # padding by encoders


def decoded(audio: bytes, rate: int) -> bytes:
    """A file of this rate as pcm_s16le, 24 kHz."""
    with av.open(io.BytesIO(audio), "r") as file:
        assert file.streams.audio[0].rate == rate
        resampler = av.AudioResampler("s16", "mono", 24_000)
        frames = [frame for decoded in file.decode(audio=0) for frame in resampler.resample(decoded)]
    return b"".join(frame.to_ndarray().tobytes() for frame in frames)


async def test_raw_audio_has_no_header(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        query = {"encoding": "mulaw", "container": "none", "model": "aura-2-thalia-en"}
        url, headers = node.url + "/v1/speak", {"Authorization": f"Token {KEY}"}
        async with session.post(url, params=query, json={"text": NEXT}, headers=headers) as response:
            assert response.headers["content-type"] == "audio/mulaw;rate=8000"
            assert not (await response.read()).startswith(b"RIFF")


async def test_a_model_cannot_write_headers() -> None:
    """The response fails if the model goes into `dg-model-name` unescaped."""
    async with running_node(voice_aliases={"*": "tone-440"}) as node, httpx.AsyncClient(trust_env=False) as client:
        for model in ("a\r\nSet-Cookie: b=c", "a\nSet-Cookie: b=c", "\u00e9\u4e00", "a\x00"):
            response = await client.post(node.url + "/v1/speak", params={"model": model}, json={"text": NEXT})
            assert response.status_code == 200
            assert "set-cookie" not in response.headers
            assert response.headers["dg-model-name"].isprintable()


REFUSED: list[tuple[dict[str, str], dict[str, Any], str, int]] = [
    ({"model": "nobody"}, {"text": "a"}, "UNKNOWN_VOICE", 400),
    ({"encoding": "secret"}, {"text": "a"}, "UNSUPPORTED_FORMAT", 400),
    ({"encoding": "linear16", "sample_rate": "12345"}, {"text": "a"}, "UNSUPPORTED_FORMAT", 400),
    ({"encoding": "linear16", "container": "ogg"}, {"text": "a"}, "UNSUPPORTED_FORMAT", 400),
    ({"speed": "secret"}, {"text": "a"}, "BAD_MESSAGE", 400),
    ({"speed": "9"}, {"text": "a"}, "BAD_MESSAGE", 400),
    ({"callback": "http://secret"}, {"text": "a"}, "UNSUPPORTED", 400),
    ({}, {"text": " "}, "BAD_MESSAGE", 400),
    ({}, {"text": 5, "other": "secret"}, "BAD_MESSAGE", 400),
    ({}, {"text": "a" * 20_001}, "TEXT_TOO_LONG", 413),
]


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
async def test_refusals_over_http(path: str) -> None:
    async with running_node() as node, livekit_run.http_session() as session:
        for query, body, code, status in REFUSED:
            async with session.post(node.url + path, params=query, json=body) as response:
                told = await response.json()
                assert (response.status, told["err_code"]) == (status, code)
                assert "secret" not in told["err_msg"]
