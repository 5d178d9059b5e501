"""LiveKit's stock classes on a real node: two turns, the first interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

from livekit.agents import APIConnectOptions, tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

from tests.serve.dialects.hearing import LONG, NEXT, check_spoken
from tests.serve.dialects.pipecat_run import tokens
from tests.support import RunningNode, until

ONCE = APIConnectOptions(max_retry=0)
LIMIT_S = 20.0


async def say(speaker: tts.TTS[Any], text: str) -> list[tts.SynthesizedAudio]:
    """An LLM's reply, token by token."""
    async with speaker.stream(conn_options=ONCE) as stream, asyncio.timeout(LIMIT_S):
        for token in tokens(text):
            stream.push_text(token)
            await asyncio.sleep(0)
        stream.end_input()
        return [event async for event in stream]


def pcm(events: list[tts.SynthesizedAudio]) -> bytes:
    """All of its audio."""
    return b"".join(event.frame.data.tobytes() for event in events)


def words(events: list[tts.SynthesizedAudio]) -> list[str]:
    """The words for which it received times."""
    told: list[str] = [word for event in events for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())]
    return "".join(told).split()


async def converse(
    speaker: tts.TTS[Any], node: RunningNode, *, tells_words: bool = True, is_paced: bool = True
) -> None:
    """Two turns of an agent; the first is interrupted and stops at once.

    Args:
        speaker: speaks with the node, in the voice `hearing.VOICE`.
        tells_words: whether the node sends word times.
        is_paced: whether audio comes in about real time; otherwise all of it has come before the interruption.
    """
    rate = speaker.sample_rate
    await interrupted(speaker, node, is_paced=is_paced)
    events = await say(speaker, NEXT)
    await until(lambda: node.node.service.speaking == 0, 2)
    check_spoken(pcm(events), NEXT, rate=rate)
    if tells_words:
        assert words(events) == NEXT.split()


async def interrupted(speaker: tts.TTS[Any], node: RunningNode, *, is_paced: bool = True) -> None:
    """Interrupt a long reply.

    Its slot must be free before the next reply begins: LiveKit's pool may close the connection only then.
    """
    async with speaker.stream(conn_options=ONCE) as stream, asyncio.timeout(LIMIT_S):
        for token in tokens(LONG):
            stream.push_text(token)
        await anext(stream)
        assert not is_paced or node.node.service.speaking == 1


async def synthesized(speaker: tts.TTS[Any], text: str) -> bytes:
    """The audio of a whole text."""
    async with speaker.synthesize(text, conn_options=ONCE) as stream, asyncio.timeout(LIMIT_S):
        return pcm([event async for event in stream])
