"""ElevenLabs' clients on a real node, unmodified; only the URL is ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from livekit.plugins import elevenlabs as livekit_elevenlabs
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.tts_service import TextAggregationMode

from tests.dialects import livekit_run, pipecat_run
from tests.dialects.hearing import FIRST, VOICE, check_spoken
from tests.support import RunningNode, running_node


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak") as running:
        yield running


@pytest.mark.parametrize("mode", [TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN])
async def test_pipecat(node: RunningNode, mode: TextAggregationMode) -> None:
    service = ElevenLabsTTSService(
        api_key="none",
        url=node.url.replace("http", "ws", 1),
        settings=ElevenLabsTTSService.Settings(voice=VOICE),
        text_aggregation_mode=mode,
    )
    await pipecat_run.converse(service, node)


@pytest.mark.parametrize("encoding", ["mp3_22050_32", "pcm_24000"])
async def test_livekit(node: RunningNode, encoding: livekit_elevenlabs.TTSEncoding) -> None:
    """The first is what it asks for by itself."""
    async with livekit_run.http_session() as session:
        speaker = livekit_elevenlabs.TTS(
            api_key="none", base_url=f"{node.url}/v1", voice_id=VOICE, encoding=encoding, http_session=session
        )
        async with speaker:
            await livekit_run.converse(speaker, node)
            await check_spoken(await livekit_run.synthesized(speaker, FIRST), FIRST, rate=speaker.sample_rate)
