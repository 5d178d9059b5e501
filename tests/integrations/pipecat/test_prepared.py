"""The beginning of a turn that may not come is spoken ahead: its audio waits in the node, and nothing tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pipecat.frames.frames import TTSAudioRawFrame, TTSSpeakFrame, TTSStartedFrame, TTSTextFrame, TTSUpdateSettingsFrame

from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.options import SpeechOptions
from tests.integrations.pipecat.pipeline import Running, running
from tests.support import RunningNode, running_node, until

TEXT = "One two three four five six seven eight nine ten."
CARRIER = {"carrier": "pipecat"}


class Prepared:
    """A pipeline in whose service text can be prepared."""

    def __init__(self, node: RunningNode, tts: AgentTTSService, pipeline: Running) -> None:
        self.node, self.tts, self.pipeline = node, tts, pipeline
        self.became: list[tuple[str, float]] = []
        tts.on_prepared = lambda outcome, seconds: self.became.append((outcome, seconds))

    async def prepare(self, text: str, *, is_whole: bool = False) -> None:
        """Prepare it character by character, and wait until audio waits."""
        for end in range(1, len(text) + 1):
            self.tts.prepare(text[:end])
        self.tts.prepare(text, is_whole=is_whole)
        prepared = self.tts._prepared
        assert prepared is not None
        await until(lambda: prepared.utterance.received > 5_000)

    @property
    def outcomes(self) -> list[str]:
        return [outcome for outcome, _ in self.became]

    def metric(self, name: str, **labels: str) -> float:
        return self.node.node.metrics.registry.get_sample_value(name, CARRIER | labels) or 0.0


@asynccontextmanager
async def preparing(**settings: int) -> AsyncIterator[Prepared]:
    async with running_node(**settings) as node:
        tts = AgentTTSService(speech=node.node.service, metrics=node.node.metrics)
        async with running([tts]) as pipeline:
            yield Prepared(node, tts, pipeline)


@pytest.mark.parametrize(
    ("prepared", "is_whole", "tokens"),
    [
        (TEXT, False, (TEXT,)),
        (TEXT, False, (" ", "On", "e two th", "ree", TEXT[13:])),
        (TEXT[:20], False, tuple(TEXT)),
        ("One two.", True, ("One ", "two.")),
        ("One two.", True, ("One two.", " Three four.")),
    ],
)
async def test_a_turn_goes_on_with_its_prepared_beginning(
    prepared: str, *, is_whole: bool, tokens: tuple[str, ...]
) -> None:
    """It is one context; who listens has waited for the turn alone.

    Mutations: `_join` writes all of the text; `_begin` begins a context; the meter's `awaited` does nothing.
    """
    async with preparing() as it:
        await it.prepare(prepared, is_whole=is_whole)
        await asyncio.sleep(0.5)
        assert not it.pipeline.down(TTSStartedFrame)
        assert not it.pipeline.down(TTSAudioRawFrame)
        assert not it.pipeline.down(TTSTextFrame)
        await it.pipeline.turn(*tokens)
        assert it.outcomes == ["spoken"]
        assert "".join(it.pipeline.words) == "".join(tokens).replace(" ", "")
        assert it.metric("agent_tts_contexts_total", reason="end") == 1
        assert it.metric("agent_tts_ttfa_seconds_sum") < 0.4
        heard = len(it.pipeline.pcm())
        await it.pipeline.turn(*tokens)
        assert len(it.pipeline.pcm()) - heard == pytest.approx(heard, abs=48 * 100)


async def test_of_a_turn_that_does_not_come_nothing_is_left() -> None:
    """What was made is bounded. Mutations: `PREPARED_CHARS` is not asked; `drop_prepared` stops nothing."""
    async with preparing() as it:
        await it.prepare(TEXT * 20)
        assert it.node.node.service.speaking == 1
        await asyncio.sleep(4.0)
        it.tts.drop_prepared()
        it.tts.drop_prepared()
        await until(lambda: it.node.node.service.speaking == 0, 0.5)
        [(outcome, seconds)] = it.became
        assert outcome == "dropped"
        assert 0.5 < seconds < 2.5
        await it.pipeline.turn("Clean.")
        assert it.pipeline.words == ["Clean."]
        assert it.outcomes == ["dropped"]
    assert not it.pipeline.errors


@pytest.mark.parametrize("tokens", [("Right ", "you are."), ("One two", " and more."), ("One ",)])
async def test_a_turn_of_other_words_is_spoken_as_it_is(tokens: tuple[str, ...]) -> None:
    """A processor between has changed them. Mutation: `_join` takes all text for what was prepared."""
    async with preparing() as it:
        await it.prepare(TEXT)
        await it.pipeline.turn(*tokens)
        assert " ".join(it.pipeline.words) == "".join(tokens).strip()
        assert it.outcomes == ["dropped"]
        await until(lambda: it.node.node.service.speaking == 0)


async def test_another_voice_and_an_end_of_the_prepared_context_begin_anew() -> None:
    """Mutation: `_begin` takes what is prepared in any case."""
    async with preparing() as it:
        await it.prepare(TEXT)
        faster = TTSUpdateSettingsFrame(delta=AgentTTSService.Settings(speed=2.0))
        await it.pipeline.send(faster)
        await it.pipeline.turn(TEXT)
        await it.prepare(TEXT)
        for engine in it.node.node.service.engines:
            engine.fail_all("internal", "lost")
        await it.pipeline.turn(TEXT)
        assert it.outcomes == ["dropped", "dropped"]
        assert it.metric("agent_tts_contexts_total", reason="end") == 2


async def test_what_is_said_between_is_a_turn_of_its_own() -> None:
    """A filler, for example."""
    async with preparing() as it:
        await it.prepare(TEXT)
        await it.pipeline.send(TTSSpeakFrame("One moment."))
        await until(lambda: bool(it.pipeline.down(TTSAudioRawFrame)))
        await it.pipeline.turn(TEXT)
        assert it.pipeline.words == ["One", "moment.", *TEXT.split()]
        assert it.outcomes == ["dropped"]


async def test_nothing_is_prepared_where_no_slot_is_free() -> None:
    """Mutation: `InProcessNodeClient.prepare` does not look for a slot."""
    async with preparing(slots=1) as it:
        other = it.node.node.service.open(SpeechOptions())
        it.tts.prepare(TEXT)
        assert it.node.node.service.speaking == 1
        await other.cancel()
        it.tts.prepare(TEXT)
        assert it.node.node.service.speaking == 1
        await it.pipeline.turn(TEXT)
        assert it.outcomes == ["spoken"]


async def test_who_waits_gets_the_slot_of_prepared_speech() -> None:
    """It has no more text after two seconds, as others who hold a slot without any."""
    async with preparing(slots=1) as it:
        await it.prepare(TEXT)
        await asyncio.sleep(1.5)
        other = it.node.node.service.open(SpeechOptions())
        other.write("Other. ")
        other.end()
        async with asyncio.timeout(1.8), other:
            assert [payload async for payload in other]
        await it.pipeline.turn(TEXT)
        assert it.pipeline.words == TEXT.split()
        assert it.outcomes == ["dropped"]
