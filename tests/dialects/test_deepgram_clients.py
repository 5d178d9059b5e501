"""Deepgram's clients on a real node, unmodified; only the URL is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

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
from livekit.plugins import deepgram as livekit_deepgram
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.tts_service import TextAggregationMode

from tests.dialects import livekit_run, pipecat_run
from tests.dialects.hearing import FIRST, LONG, NEXT, VOICE, check_spoken
from tests.support import RunningNode, running_node, until

MODES = [TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN]
KEY = "a-key"
LIMIT_S = 20.0


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    """With a key, and with the recogniser's voice by the name of one of Deepgram's."""
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


# ---------------------------------------------------------------- Deepgram's SDK


# The SDK uses what this release of websockets has deprecated.
OF_ITS_OWN = pytest.mark.filterwarnings("ignore:websockets:DeprecationWarning")


def sdk(node: RunningNode) -> AsyncDeepgramClient:
    url = ws(node)
    environment = DeepgramClientEnvironment(base=node.url, production=url, agent=url, agent_rest=node.url)
    return AsyncDeepgramClient(api_key=KEY, environment=environment)


@OF_ITS_OWN
async def test_sdk_flux(node: RunningNode) -> None:
    """A turn, one that is interrupted with the place that was heard, and the next."""
    query = {"model": "flux-haley-en", "sample_rate": 16_000}
    async with asyncio.timeout(LIMIT_S), sdk(node).speak.v2.connect(**query) as connection:
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
        await check_spoken(audio, FIRST, rate=16_000)
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
        await check_spoken(audio, NEXT, rate=16_000)


@OF_ITS_OWN
async def test_sdk_aura(node: RunningNode) -> None:
    """Remove the purge of `Session._cancel` to see audio after `Cleared`."""
    query = {"model": "aura-2-thalia-en", "encoding": "linear16", "sample_rate": 16_000}
    async with asyncio.timeout(LIMIT_S), sdk(node).speak.v1.connect(**query) as connection:

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
            await check_spoken(await until_told("Flushed"), text, rate=16_000)
