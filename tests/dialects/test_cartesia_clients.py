"""Cartesia's clients on a real node, unmodified; only the URL is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from livekit.plugins import cartesia as livekit_cartesia
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.tts_service import TextAggregationMode

from tests.dialects import livekit_run, pipecat_run
from tests.dialects.hearing import FIRST, NEXT, VOICE
from tests.support import RunningNode, running_node


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak") as running:
        yield running


@pytest.mark.parametrize("mode", [TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN])
async def test_pipecat(node: RunningNode, mode: TextAggregationMode) -> None:
    service = CartesiaTTSService(
        api_key="none",
        url=node.url.replace("http", "ws", 1) + "/tts/websocket",
        settings=CartesiaTTSService.Settings(voice=VOICE),
        text_aggregation_mode=mode,
    )
    await pipecat_run.converse(service, node)


async def test_livekit(node: RunningNode) -> None:
    async with livekit_run.http_session() as session:
        speaker = livekit_cartesia.TTS(api_key="none", base_url=node.url, voice=VOICE, http_session=session)
        async with speaker:
            await livekit_run.converse(speaker, node)


async def test_livekit_keeps_its_connection_between_replies() -> None:
    """Demand pongs at any time to see it fail: it reads its socket only while it waits for speech."""
    async with running_node(timeouts={"ping_s": 0.1}) as node, livekit_run.http_session() as session:
        async with livekit_cartesia.TTS(api_key="none", base_url=node.url, http_session=session) as speaker:
            await livekit_run.say(speaker, FIRST)
            (first,) = node.node.sessions
            await asyncio.sleep(0.5)
            await livekit_run.say(speaker, NEXT)
            assert node.node.sessions == {first}
