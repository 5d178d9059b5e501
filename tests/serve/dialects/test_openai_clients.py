"""OpenAI's clients, unmodified but for the URL, on a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from livekit.agents import tokenize, tts
from livekit.plugins import openai as livekit_openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TextAggregationMode

from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, check_spoken
from tests.support import RunningNode, running_node, until

pytestmark = pytest.mark.node

VOICE = "marin"  # the espeak voice that the recogniser recognises best


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak") as running_:
        yield running_


@asynccontextmanager
async def pipecat_service(node: RunningNode, mode: TextAggregationMode) -> AsyncIterator[OpenAITTSService]:
    async with DefaultAsyncHttpxClient(trust_env=False) as http_client:  # the service would not close its own
        yield OpenAITTSService(
            api_key="none",
            base_url=node.url + "/v1",
            http_client=http_client,
            settings=OpenAITTSService.Settings(voice=VOICE),
            text_aggregation_mode=mode,
        )


async def test_pipecat_in_sentences(node: RunningNode) -> None:
    async with pipecat_service(node, TextAggregationMode.SENTENCE) as service:
        await pipecat_run.converse(service, node, tells_words=False)


async def test_pipecat_in_tokens(node: RunningNode) -> None:
    """Each token is a request, so only whole words are recognised."""
    async with pipecat_service(node, TextAggregationMode.TOKEN) as service, running([service]) as pipeline:
        await pipeline.turn(*(f"{word} " for word in FIRST.split()))
        check_spoken(pipeline.pcm(), FIRST)
        await pipecat_run.interrupted(pipeline, node)
        await pipeline.turn(*(f"{word} " for word in NEXT.split()))
        check_spoken(pipeline.pcm(pipeline.contexts[-1]), NEXT)
        assert not pipeline.errors


@pytest.mark.parametrize("response_format", ["mp3", "pcm"])
async def test_livekit(node: RunningNode, response_format: livekit_openai.tts.RESPONSE_FORMATS) -> None:
    speaker = livekit_openai.TTS(
        api_key="none", base_url=node.url + "/v1", voice=VOICE, response_format=response_format
    )
    async with speaker:
        adapter = tts.StreamAdapter(tts=speaker, sentence_tokenizer=tokenize.blingfire.SentenceTokenizer())
        await livekit_run.converse(adapter, node, tells_words=False, is_paced=False)
        check_spoken(await livekit_run.synthesized(speaker, NEXT), NEXT)


async def test_the_sdk(node: RunningNode) -> None:
    async with AsyncOpenAI(api_key="none", base_url=node.url + "/v1", max_retries=0) as client:
        speech = client.audio.speech.with_streaming_response
        async with speech.create(model="tts-1", voice=VOICE, input=LONG, response_format="pcm") as answer:
            async for _ in answer.iter_bytes():
                break
        await until(lambda: node.node.service.speaking == 0, 2)
        async with speech.create(model="tts-1", voice=VOICE, input=NEXT, response_format="pcm") as answer:
            check_spoken(b"".join([piece async for piece in answer.iter_bytes()]), NEXT)
