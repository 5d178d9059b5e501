"""The playout alone: pace, hold, interruption and back-pressure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.transports.base_output import BaseOutputTransport

from agent_tts.agent.playout import CHUNK_MS, LEAD_MS, MAX_QUEUED_MS, MAX_UNSENT_MS, PIECE_MS, Playout
from agent_tts.agent.turns import Turns
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.integrations.pipecat.words import SPOKEN, SpokenWord
from tests.agent.pipelines import Seen, running
from tests.integrations.pipecat.pipeline import Loudspeaker
from tests.support import until

RATE = 24_000
SLACK_S = 0.3  # for a loaded machine


class Notes(Turns):
    """Records the notifications about an answer."""

    def __init__(self) -> None:  # the base class is not initialised: the test uses none of it
        self.told: list[str] = []

    def sounded(self) -> None:
        self.told.append("sounded")

    def heard(self, text: str) -> None:
        self.told.append(text)

    def held(self, rest_s: float) -> None:
        assert 0 <= rest_s <= (LEAD_MS + PIECE_MS) / 1_000
        self.told.append("held")

    def resumed(self) -> None:
        self.told.append("resumed")

    def finished(self) -> None:
        self.told.append("finished")


class Ear(Seen):
    """What leaves the playout."""

    def audio_ms(self) -> float:
        return float(sum(frame.num_frames for _, frame in self.of(TTSAudioRawFrame)) * 1_000 / RATE)

    def words(self) -> list[str]:
        return [frame.text for _, frame in self.of(TTSTextFrame)]


class Lagging(Loudspeaker):
    """Plays at half speed: its clock loses as much time as it plays."""

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        return await super().write_audio_frame(frame)

    @property
    def played_ms(self) -> float:
        return int(np.count_nonzero(np.frombuffer(self.played, "<i2"))) * 1_000 / RATE


@asynccontextmanager
async def playing(
    output: BaseOutputTransport | None = None, out_rate: int = RATE
) -> AsyncIterator[tuple[PipelineWorker, Playout, Ear, Notes]]:
    """A running playout."""
    notes, ear = Notes(), Ear()
    playout = Playout(notes, AgentTTSService(), output)
    parts = [playout, ear, *([] if output is None else [output])]
    worker = PipelineWorker(Pipeline(parts), params=PipelineParams(audio_out_sample_rate=out_rate), enable_rtvi=False)
    async with running(worker):
        yield worker, playout, ear, notes


def spoken(words: str, ms: int = 400) -> list[Frame]:
    """An answer whose words take `ms` milliseconds each."""
    frames: list[Frame] = [LLMFullResponseStartFrame()]
    for word in words.split():
        audio = TTSAudioRawFrame(b"\1\1" * (RATE * ms // 1_000), RATE, 1, context_id="c")
        audio.metadata[SPOKEN] = [SpokenWord(word, 0.0, False)]
        frames.append(audio)
    return [*frames, TTSStoppedFrame(context_id="c"), LLMFullResponseEndFrame()]


async def test_an_answer_leaves_at_playback_speed_with_its_words_on_time() -> None:
    async with playing() as (worker, playout, ear, notes):
        began = time.monotonic()
        await worker.queue_frames(spoken("one two three"))
        await until(lambda: "finished" in notes.told)
        took = time.monotonic() - began
        assert 1.15 <= took <= 1.2 + SLACK_S
        assert ear.audio_ms() == 1_200
        assert notes.told == [" one", "sounded", " two", " three", "finished"]
        assert ear.words() == ["one", "two", "three"]
        (third,) = [at for at, frame in ear.frames if isinstance(frame, TTSTextFrame) and frame.text == "three"]
        assert third - began >= 0.8 - LEAD_MS / 1_000 - 0.01
        assert not playout.busy


async def test_the_playout_does_not_run_ahead_of_a_slow_transport() -> None:
    """Audio queued in the transport can be neither held nor separated from what was heard.

    It is held, and ends without a click, when the clock says that all has been played. Mutations: `Playout` does not
    wait for the output; `_fade` asks the clock alone.
    """
    output = Lagging(pieces=2)
    async with playing(output) as (worker, playout, ear, notes):
        await worker.queue_frames(spoken("one two three"))
        await until(lambda: output.played_ms > 600 and playout._played_at <= time.monotonic(), 10)
        assert 0 <= ear.audio_ms() - output.played_ms <= MAX_UNSENT_MS + PIECE_MS
        assert ear.words() == ["one", "two"]
        await worker.queue_frame(VADUserStartedSpeakingFrame())
        await until(lambda: "held" in notes.told)
        held_at_ms = output.played_ms
        await asyncio.sleep(0.5)
        assert output.played_ms - held_at_ms <= MAX_UNSENT_MS + PIECE_MS
        await worker.queue_frame(UserStoppedSpeakingFrame())
        await until(lambda: "finished" in notes.told, 10)
        assert ear.audio_ms() == 1_200 + CHUNK_MS


async def test_a_transport_with_another_sample_rate_plays_in_real_time() -> None:
    async with playing(Loudspeaker(pieces=2), 8_000) as (worker, _, ear, notes):
        began = time.monotonic()
        await worker.queue_frames(spoken("one two three"))
        await until(lambda: "finished" in notes.told)
        assert time.monotonic() - began <= 1.2 + SLACK_S
        assert ear.audio_ms() == 1_200


async def test_a_held_answer_resumes_where_it_stopped() -> None:
    async with playing() as (worker, _, ear, notes):
        await worker.queue_frames(spoken("one two three"))
        await until(lambda: ear.words() == ["one", "two"])
        await worker.queue_frame(VADUserStartedSpeakingFrame())
        await until(lambda: "held" in notes.told)
        await asyncio.sleep(0.1)
        left_ms = ear.audio_ms()
        await asyncio.sleep(0.6)
        assert ear.audio_ms() == left_ms
        await worker.queue_frame(UserStoppedSpeakingFrame())
        await until(lambda: "finished" in notes.told)
        assert notes.told == [" one", "sounded", " two", "held", "resumed", " three", "finished"]
        assert ear.audio_ms() == 1_200 + CHUNK_MS


async def test_an_interruption_drops_the_rest_and_the_next_answer_is_unaffected() -> None:
    async with playing() as (worker, playout, ear, notes):
        await worker.queue_frames(spoken("one two three"))
        await until(lambda: ear.words() == ["one"])
        await worker.queue_frame(VADUserStartedSpeakingFrame())
        await until(lambda: "held" in notes.told)
        await worker.queue_frame(InterruptionFrame())
        await until(lambda: not playout.busy)
        await worker.queue_frame(UserStoppedSpeakingFrame())
        await worker.queue_frames(spoken("four"))
        await until(lambda: "finished" in notes.told)
        assert notes.told == [" one", "sounded", "held", " four", "sounded", "finished"]
        # A transport that received a piece after the interruption treats the bot as speaking until a stop frame.
        kinds = [type(frame) for _, frame in ear.frames]
        assert kinds.index(TTSStoppedFrame) > kinds.index(InterruptionFrame)
        assert kinds.count(TTSStoppedFrame) == 2


@pytest.mark.parametrize("pieces", [1, 2, 4])
async def test_a_hold_and_an_interruption_fade(pieces: int) -> None:
    """A hold, a resumption and an interruption make no step in what the transport plays.

    Mutation: `_fade` returns None, or what left may be dropped in the transport.
    """
    output = Loudspeaker(pieces)
    tone = (8_000 * np.sin(2 * np.pi * 110 * np.arange(2 * RATE) / RATE)).astype(
        "<i2"
    )  # 110 Hz: not a whole number in 10 ms
    async with playing(output) as (worker, _, _, notes):
        await worker.queue_frames([LLMFullResponseStartFrame(), TTSAudioRawFrame(tone.tobytes(), RATE, 1)])
        await until(lambda: len(output.played) > RATE)
        await worker.queue_frame(VADUserStartedSpeakingFrame())
        await until(lambda: output.played[-480:] == bytes(480))
        await worker.queue_frame(UserStoppedSpeakingFrame())
        resumed_at = len(output.played)
        await until(lambda: len(output.played) > resumed_at + RATE // 2)
        await worker.queue_frame(InterruptionFrame())
        await until(lambda: output.played[-480:] == bytes(480))
    played = np.frombuffer(output.played, "<i2").astype(np.int32)
    assert np.abs(np.diff(played)).max() < 350  # 230 in the tone, 67 in the fade
    assert notes.told == ["sounded", "held", "resumed"]


async def test_a_long_answer_is_held_back_upstream() -> None:
    """At most MAX_QUEUED_MS are queued; the rest waits upstream.

    Mutation: no wait for room.
    """
    async with playing() as (worker, playout, ear, _):
        await worker.queue_frames(spoken("word " * 30, ms=400))
        await until(lambda: bool(ear.words()))
        await asyncio.sleep(0.3)
        assert MAX_QUEUED_MS - 400 <= playout._ahead_ms < MAX_QUEUED_MS + 400
