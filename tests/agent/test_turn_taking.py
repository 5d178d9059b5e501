"""Turns by real recognition and natural speech: what a caller says, and what the language model is asked, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from pipecat.frames.frames import BotStartedSpeakingFrame, Frame, InputAudioRawFrame, LLMContextFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from agent_tts.agent.barge_in import EchoGuard
from agent_tts.agent.call import IN_RATE
from agent_tts.agent.one_message import OneMessageContext
from agent_tts.agent.stt import SpeechToText, _loaded
from agent_tts.config.settings import Agent, AgentStt
from pipelines.voice_agent import turn_taking
from tests.agent.people import says, silence
from tests.agent.pipelines import running
from tests.recogniser import TINY_EN, to_16k
from tests.support import until

STT = AgentStt(model=TINY_EN, device="cpu", compute_type="int8")
PIECE = IN_RATE // 50 * 2  # bytes of 20 ms


class Asked(FrameProcessor):
    """Stands for the language model: what it is asked, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[float, str]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            messages: list[Any] = list(frame.context.get_messages())
            self.turns.append((time.monotonic(), str(messages[-1]["content"]).strip()))
        await self.push_frame(frame, direction)


class Listener:
    """The half of a call that listens."""

    def __init__(self, worker: PipelineWorker, asked: Asked) -> None:
        self._worker = worker
        self.asked = asked
        # When the last speech was all heard.
        self.ended_at = 0.0

    async def agent_speaks(self) -> None:
        await self._worker.queue_frame(BotStartedSpeakingFrame())

    async def hear(self, speech: bytes) -> None:
        sound = to_16k(np.frombuffer(speech, "<i2"), 24_000).tobytes()
        for start in range(0, len(sound) - PIECE + 1, PIECE):
            await self._worker.queue_frame(InputAudioRawFrame(sound[start : start + PIECE], IN_RATE, 1))
            await asyncio.sleep(0.02)

    async def say(self, text: str) -> None:
        await self.hear(says(text))
        self.ended_at = time.monotonic()


@pytest.fixture(scope="module")
def whisper() -> SpeechToText:
    stt = SpeechToText(STT)
    stt._model = _loaded(STT)
    return stt


@asynccontextmanager
async def listening(whisper: SpeechToText, agent: Agent, said: str = "") -> AsyncIterator[Listener]:
    """`said`: what the agent said last."""
    context = OneMessageContext([{"role": "assistant", "content": said}] if said else [])
    stt = whisper.service()
    assert stt is not None
    pair, asked = LLMContextAggregatorPair(context, user_params=turn_taking(agent, context, stt)), Asked()
    pipeline = Pipeline([stt, EchoGuard(agent.echo_guard_s), pair.user(), asked])
    worker = PipelineWorker(pipeline, params=PipelineParams(audio_in_sample_rate=IN_RATE), enable_rtvi=False)
    async with running(worker):
        yield Listener(worker, asked)


async def test_words_that_begin_as_the_agent_begins_are_whole(whisper: SpeechToText) -> None:
    """Mutation: the guard's place is before the recogniser."""
    async with listening(whisper, Agent(echo_guard_s=0.5)) as caller:
        await caller.hear(silence(0.3))
        await caller.agent_speaks()
        await caller.say("And what day is it today?")
        await caller.hear(silence(3))
        await until(lambda: bool(caller.asked.turns))
    assert caller.asked.turns[0][1] == "And what day is it today?"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("I would like to book a table for", "four people tonight."),
        *(
            pytest.param(first, second, marks=pytest.mark.slow)
            for first, second in (
                ("When I opened the box", "two of the cups were broken."),
                ("I need to change my address because", "I moved last week."),
                ("It should be delivered on", "Monday morning."),
                ("My name is", "Anna Miller."),
            )
        ),
    ],
)
async def test_half_a_turn_is_not_answered(whisper: SpeechToText, first: str, second: str) -> None:
    """Mutation: `TurnEnd` does not ask `is_half`."""
    async with listening(whisper, Agent()) as caller:
        await caller.hear(silence(0.5))
        await caller.say(first)
        await caller.hear(silence(0.5))
        assert not caller.asked.turns
        await caller.say(second)
        await caller.hear(silence(3))
        await until(lambda: bool(caller.asked.turns))
    assert len(caller.asked.turns) == 1
    said = caller.asked.turns[0][1].lower()
    assert first.split()[1].lower() in said
    assert second.split()[-1].rstrip(".").lower()[:4] in said


@pytest.mark.parametrize(
    "answer",
    [
        "No.",
        "Four people.",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("Yes please.", "Five.", "Berlin.")),
    ],
)
async def test_a_short_answer_to_a_question_ends_at_once(whisper: SpeechToText, answer: str) -> None:
    """Recognition takes threads, and so no virtual time: what is left is the silence of the voice detector."""
    async with listening(whisper, Agent(), "Shall I book the table?") as caller:
        await caller.hear(silence(0.5))
        await caller.say(answer)
        await caller.hear(silence(3))
        await until(lambda: bool(caller.asked.turns))
        assert caller.asked.turns[0][0] - caller.ended_at < 0.6


def test_what_the_user_says_in_a_row_is_one_message() -> None:
    context = OneMessageContext([{"role": "user", "content": "A table for"}])
    context.add_message({"role": "user", "content": " four. "})
    context.add_messages([{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "A"}])
    context.add_messages([{"role": "user", "content": [{"type": "text", "text": "B"}]}])
    assert context.get_messages() == [
        {"role": "user", "content": "A table for four."},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "A"},
        {"role": "user", "content": [{"type": "text", "text": "B"}]},
    ]
