"""A stock Pipecat service on a real node: two turns, the first interrupted."""

from __future__ import annotations

import asyncio
import re

from pipecat.services.tts_service import TTSService

from tests.integrations.pipecat.pipeline import Running, running
from tests.serve.dialects.hearing import LONG, NEXT, check_spoken
from tests.support import RunningNode, until

# Longer than audio in flight takes to arrive, s.
SETTLED_S = 0.3


def tokens(text: str) -> list[str]:
    """Split text like an LLM: pieces of words, each with the space before it."""
    return re.findall(r" ?\S{1,4}|\s", text)


async def converse(service: TTSService, node: RunningNode, *, tells_words: bool = True, rate: int = 24_000) -> None:
    """Two turns of an agent; the first is interrupted and stops at once.

    Args:
        service: speaks with the node, in the voice `hearing.VOICE`.
        tells_words: whether the node sends word times; otherwise Pipecat uses the text.
    """
    async with running([service], sample_rate=rate) as pipeline:
        await interrupted(pipeline, node)
        turns, words = len(pipeline.contexts), len(pipeline.words)
        await pipeline.turn(*tokens(NEXT))
        assert len(pipeline.contexts) == turns + 1, "the turn contains other audio, or is incomplete"
        check_spoken(pipeline.pcm(pipeline.contexts[-1]), NEXT, rate=rate)
        if tells_words:
            assert pipeline.words[words:] == NEXT.split()
        assert not pipeline.errors


async def interrupted(pipeline: Running, node: RunningNode) -> None:
    """Interrupt a long turn: its slot becomes free, and no more of its audio comes."""
    turns = len(pipeline.contexts)
    await pipeline.begin(*tokens(LONG))
    await pipeline.end()
    await until(lambda: len(pipeline.contexts) > turns)
    await pipeline.interrupt()
    played = len(pipeline.pcm())
    await until(lambda: node.node.service.speaking == 0, 2)
    await asyncio.sleep(SETTLED_S)
    assert len(pipeline.pcm()) == played
