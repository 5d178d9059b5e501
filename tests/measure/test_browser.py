"""A user talks to a real agent in a real browser."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.agent.node import running_agent
from tests.measure.browser import talk
from tests.measure.chat import running_chat
from tests.measure.test_tools import tool

pytestmark = pytest.mark.real_time

THINK_S = 0.3


@pytest.mark.slow  # 20 s, with limits in real time
async def test_a_spoken_question_is_answered_and_the_answer_interrupted_by_voice(tmp_path: Path) -> None:
    """Mutations: `ScriptedSTT.run_stt` yields nothing; `Playout._hold` returns at once."""
    first_words: list[float] = []
    async with (
        running_chat(think_s=THINK_S, on_first=lambda: first_words.append(time.monotonic())) as chat,
        running_agent(chat, stt={"kind": "scripted"}) as agent,
    ):
        spoken = [await agent.speech("Tell me a story.")]
        pids = {"front": os.getpid()}
        figures = await talk(agent.url, spoken, tmp_path, lambda: first_words, pids, calls=1, turns=1)
    assert (figures["calls"], figures["interruptions"], figures["answers"]) == (1, 1, 2)
    assert len(first_words) == 2
    # The node, the agent and this test share one loop; on a busy machine the browser buffers more.
    buffer_ms = figures["jitter_buffer_ms"]
    assert 0 < buffer_ms < 5_000
    assert 0 <= figures["told_to_silence_ms"]["p50"] < 600 + 3 * buffer_ms
    assert 200 < figures["voice_to_unheard_ms"]["p50"] < 1_500
    assert 0 < figures["first_word_to_heard_ms"]["p50"] < 800 + 3 * buffer_ms
    assert figures["asked_to_heard_ms"]["p50"] > 1_000 * THINK_S + figures["first_word_to_heard_ms"]["p50"]
    assert figures["cpu_percent_per_call"].keys() == {"front"}


def test_the_command_names_the_missing_browser() -> None:
    done = tool("browser", "nowhere", "--calls", "1", "--turns", "1")
    assert (done.exit_code, "nowhere is no browser" in done.stderr) == (2, True)
