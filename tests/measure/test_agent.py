"""Real callers on a real agent."""

from __future__ import annotations

import os

import pytest

from agent_tts.errors import SpeechError
from tests.agent.node import running_agent
from tests.measure.agent import converse
from tests.measure.chat import THINK_S, running_chat
from tests.support import running_node


async def test_callers_interrupt_answers_and_their_figures_add_up() -> None:
    async with running_chat() as chat, running_agent(chat) as agent:
        figures = await converse(agent.url, None, 2, 2, {"front": os.getpid()})
    assert (figures["calls"], figures["answers"]) == (2, 6)
    assert 0 <= figures["interrupt_to_silence_ms"]["p50"] < 600
    assert 0 <= figures["first_word_to_audio_ms"]["p50"] < 500
    assert figures["typed_to_heard_ms"]["p50"] > 1_000 * THINK_S
    assert figures["cpu_percent_per_call"].keys() == {"front"}


async def test_a_node_without_an_agent_is_an_error() -> None:
    async with running_node() as node:
        with pytest.raises(SpeechError, match="agent-tts agent"):
            await converse(node.url, None, 1, 1, {})
