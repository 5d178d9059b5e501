"""When a turn ends, by frames alone: what is said, when it is recognised, and what the turn detector makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer, BaseTurnParams, EndOfTurnState
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.turns.user_start import TranscriptionUserTurnStartStrategy, VADUserTurnStartStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from agent_tts.agent.one_message import OneMessageContext
from agent_tts.agent.stt import RecognisingFrame
from agent_tts.agent.turn_end import TurnEnd
from agent_tts.config.settings import Agent
from tests.agent.pipelines import Seen, running

START_S = STOP_S = 0.2
SILENCE_S, RESUME_S = 2.0, 1.0


class Melody(BaseTurnAnalyzer):
    """A turn detector that hears an end, or none."""

    def __init__(self, hears_end: bool) -> None:
        super().__init__()
        self.hears_end = hears_end

    @property
    def speech_triggered(self) -> bool:
        return False

    @property
    def params(self) -> BaseTurnParams:
        return BaseTurnParams()

    def append_audio(self, buffer: bytes, is_speech: bool) -> EndOfTurnState:
        return EndOfTurnState.INCOMPLETE

    async def analyze_end_of_turn(self) -> tuple[EndOfTurnState, None]:
        return EndOfTurnState.COMPLETE if self.hears_end else EndOfTurnState.INCOMPLETE, None

    def clear(self) -> None:
        pass


class Said:
    """A user who speaks for half a second at a time, and the recogniser."""

    def __init__(self, worker: PipelineWorker) -> None:
        self.worker = worker
        # Segments that are not recognised, and whether the recogniser tells of them.
        self._left = 0
        self.tells = True
        # When the voice ended.
        self.ended_at = 0.0

    async def voice(self, seconds: float = 0.5) -> None:
        """Speak; the voice detector notices the beginning and the end late."""
        await asyncio.sleep(START_S)
        await self.worker.queue_frame(VADUserStartedSpeakingFrame(start_secs=START_S))
        await self._count(1)
        await asyncio.sleep(seconds - START_S)
        self.ended_at = time.monotonic()
        await asyncio.sleep(STOP_S)
        await self.worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=STOP_S))

    async def recognised(self, *frames: Frame, takes_s: float = 0.3) -> None:
        await asyncio.sleep(takes_s)
        await self.worker.queue_frames(frames)
        await self._count(-1)

    async def _count(self, more: int) -> None:
        self._left += more
        if self.tells:
            await self.worker.queue_frame(RecognisingFrame(self._left))

    async def say(self, words: str, takes_s: float = 0.3) -> None:
        await self.voice()
        await self.recognised(heard(words), takes_s=takes_s)


def heard(words: str) -> TranscriptionFrame:
    frame = TranscriptionFrame(words, "", "")
    frame.finalized = True
    return frame


async def talk(
    script: Any,
    *,
    hears_end: bool,
    asked: str = "",
    early: int = 0,
    llm: FrameProcessor | None = None,
    speech: Sequence[FrameProcessor] = (),
    observers: list[BaseObserver] | None = None,
    rest_s: float = 4.0,
) -> tuple[Said, Seen, OneMessageContext]:
    agent = Agent(turn_silence_s=SILENCE_S, resume_after_s=RESUME_S)
    context = OneMessageContext([{"role": "assistant", "content": asked}] if asked else [])
    starts = [
        VADUserTurnStartStrategy(enable_interruptions=False),
        TranscriptionUserTurnStartStrategy(enable_interruptions=False),
    ]
    strategies = UserTurnStrategies(start=list(starts), stop=[TurnEnd(Melody(hears_end), context, agent, early)])
    user = LLMUserAggregatorParams(user_turn_strategies=strategies, user_turn_stop_timeout=15, empty_user_turn=None)
    after = Seen()
    pair = LLMContextAggregatorPair(context, user_params=user)
    parts = [pair.user(), *([] if llm is None else [llm]), *speech, after, pair.assistant()]
    worker = PipelineWorker(Pipeline(parts), enable_rtvi=False, observers=observers)
    said = Said(worker)
    async with running(worker):
        await asyncio.sleep(0.5)
        await script(said)
        await asyncio.sleep(rest_s)
    return said, after, context


@pytest.mark.parametrize(
    ("words", "hears_end", "asked", "silence_s"),
    [
        ("A table for four.", True, "", 0.0),
        ("A table for four.", False, "", SILENCE_S),
        ("I would like a table for", False, "", SILENCE_S),
        ("I would like a table for", True, "", SILENCE_S),
        ("I would like...", True, "", SILENCE_S),
        ("No.", False, "Shall I book it?", 0.0),
        ("Four people.", False, "For how many?", 0.0),
        ("No.", False, "I book it.", SILENCE_S),
        ("I think", False, "Shall I book it?", SILENCE_S),
    ],
)
async def test_the_silence_after_a_turn(words: str, hears_end: bool, asked: str, silence_s: float) -> None:
    """Mutations: `_wait` asks neither `is_half`, nor whether the agent has asked, nor the turn detector."""
    said, after, _ = await talk(lambda said: said.say(words), hears_end=hears_end, asked=asked)
    [(at, asks)] = after.of(LLMContextFrame)
    assert at - said.ended_at == pytest.approx(max(silence_s, STOP_S + 0.3), abs=0.05)
    assert asks.context.get_messages()[-1] == {"role": "user", "content": words}


async def test_a_turn_waits_for_all_of_its_words() -> None:
    """An answer is recognised while the user goes on, and the rest takes long.

    Mutation: the recogniser counts a segment when its voice has ended.
    """

    async def script(said: Said) -> None:
        await said.voice()
        recognition = asyncio.create_task(said.recognised(heard("No."), takes_s=0.4))
        await asyncio.sleep(0.1)
        await said.voice(0.9)
        await recognition
        await asyncio.sleep(0.5)
        await said.recognised(heard("the other one."), takes_s=2.5)

    said, after, _ = await talk(script, hears_end=False, asked="This one?")
    [(at, asks)] = after.of(LLMContextFrame)
    assert asks.context.get_messages()[-1]["content"] == "No. the other one."
    assert at - said.ended_at == pytest.approx(STOP_S + 3.0, abs=0.05)


@pytest.mark.parametrize("tells", [True, False])
async def test_a_user_who_goes_on_ends_no_turn(tells: bool) -> None:
    """For longer than the silence that would end it. Mutation: a voice does not stop the timer."""

    async def script(said: Said) -> None:
        said.tells = tells
        await said.say("I would like a table for")
        await asyncio.sleep(1.2)
        await said.voice(2.5)
        await said.recognised(heard("four people."))

    _, after, context = await talk(script, hears_end=False)
    assert len(after.of(LLMContextFrame)) == 1
    assert context.get_messages() == [{"role": "user", "content": "I would like a table for four people."}]


@pytest.mark.parametrize(
    ("found", "silence_s"), [((), RESUME_S), ((UserBackchannelFrame("Yeah.", "", ""),), STOP_S + 0.3)]
)
async def test_a_turn_without_words_ends_soon(found: tuple[Frame, ...], silence_s: float) -> None:
    async def script(said: Said) -> None:
        await said.voice()
        await said.recognised(*found)

    said, after, _ = await talk(script, hears_end=False)
    assert not after.of(LLMContextFrame)
    [(at, _)] = after.of(UserStoppedSpeakingFrame)
    assert at - said.ended_at == pytest.approx(silence_s, abs=0.05)


async def test_a_recogniser_that_tells_nothing_is_not_waited_for() -> None:
    """As streaming services of Pipecat: their words come when they come."""

    async def script(said: Said) -> None:
        said.tells = False
        await said.voice()
        await asyncio.sleep(0.1)
        await said.worker.queue_frame(heard("A table for four."))

    said, after, _ = await talk(script, hears_end=True)
    [(at, _)] = after.of(LLMContextFrame)
    assert at - said.ended_at == pytest.approx(STOP_S + 0.1, abs=0.05)
