"""Stock clients of every dialect on a real node: a conversation, whole texts, and a full node."""

from __future__ import annotations

from typing import Any

import pytest
from livekit.agents import APIError
from livekit.plugins import cartesia, deepgram, elevenlabs, openai
from pipecat.services.openai.tts import OpenAITTSService

from agent_tts.client.moving import connect
from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, NEXT, check_spoken
from tests.serve.dialects.stock import DEEPGRAM, LIVEKIT, PIPECAT, TOKEN, Stock, stock_clients, streaming

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module"), DEEPGRAM]

# With the formats that LiveKit's classes ask for by default, too.
CONVERSATIONS = LIVEKIT | {
    "elevenlabs, livekit": (elevenlabs.TTS, {}, True),
    "dialogue, livekit, mp3": (elevenlabs.TTS, {"model": "eleven_v3"}, True),
    "dialogue, livekit, opus": (elevenlabs.TTS, {"model": "eleven_v4", "encoding": "opus_48000_64"}, True),
    "openai, livekit, mp3": (openai.TTS, {}, False),
}


@pytest.mark.parametrize("name", PIPECAT)
async def test_a_conversation_by_pipecat(stock: Stock, name: str) -> None:
    kind, mode, tells_words = PIPECAT[name]
    service = stock.pipecat(kind, text_aggregation_mode=mode)
    await pipecat_run.converse(service, stock.node, tells_words=tells_words)


async def test_a_conversation_by_pipecat_in_a_request_for_each_token(stock: Stock) -> None:
    """So only whole words are recognised."""
    service = stock.pipecat(OpenAITTSService, text_aggregation_mode=TOKEN)
    async with running([service]) as pipeline:
        await pipeline.turn(*(f"{word} " for word in FIRST.split()))
        check_spoken(pipeline.pcm(), FIRST)
        await pipecat_run.interrupted(pipeline, stock.node)
        await pipeline.turn(*(f"{word} " for word in NEXT.split()))
        check_spoken(pipeline.pcm(pipeline.contexts[-1]), NEXT)
        assert not pipeline.errors


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_by_livekit(stock: Stock, name: str) -> None:
    kind, options, tells_words = CONVERSATIONS[name]
    async with stock.livekit(kind, **options) as speaker:
        is_paced = kind is not openai.TTS and not name.startswith("dialogue")
        await livekit_run.converse(streaming(speaker), stock.node, tells_words=tells_words, is_paced=is_paced)
        check_spoken(await livekit_run.synthesized(speaker, NEXT), NEXT, rate=speaker.sample_rate)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(cartesia.TTS, "at_capacity"), (deepgram.TTS, "try again"), (deepgram.TTSv2, "try again")],
    ids=["cartesia", "aura", "flux"],
)
async def test_livekit_and_a_full_node(kind: type[Any], said: str) -> None:
    """An error comes at once when there is no slot; when one is free, the next reply is spoken."""
    async with stock_clients(slots=1, queue=0) as stock, connect(stock.url) as other:
        speech = await other.open()
        async with stock.livekit(kind) as speaker:
            with pytest.raises(APIError) as refused:
                await livekit_run.say(speaker, FIRST)
            assert said in f"{refused.value} {refused.value.body}"
            await speech.cancel()
            check_spoken(livekit_run.pcm(await livekit_run.say(speaker, FIRST)), FIRST, rate=speaker.sample_rate)
