"""The Pipecat service with a real node, over a WebSocket and in the same process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal

import pytest
from pipecat.frames.frames import (
    AggregatedTextFrame,
    DataFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    ManuallySwitchServiceFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
from pipecat.pipeline.service_switcher import ServiceSwitcher, ServiceSwitcherStrategyFailover
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator, LLMContextAggregatorPair
from pipecat.services.tts_service import TextAggregationMode
from pipecat.tests.utils import run_test
from pipecat.transcriptions.language import Language

from agent_tts.client.connection import NodeConnection
from agent_tts.errors import SettingsError
from agent_tts.integrations.pipecat import service as service_module
from agent_tts.integrations.pipecat.node_client import WebSocketNodeClient
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.options import SpeechOptions
from tests.integrations.pipecat.pipeline import Loudspeaker, Running, running, said
from tests.support import RunningNode, dominant_hz, running_node, running_node_with_process, typed, until
from tests.two_nodes import TEXT as SENTENCE
from tests.two_nodes import two_nodes_in_this_loop

Way = Literal["socket", "local"]

TEXT = "One two three four five six seven eight nine ten. "
TOKENS = ("On", "e", " two", " three.", " Four", " five six")
FIRST_WORD_S = 0.007  # espeak's first word, after its first sample
WORDS = ["One", "two", "three.", "Four", "five", "six"]


@pytest.fixture(params=["socket", "local"])
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(tone={"scripted_faults": True}) as running_:
        yield running_


def service(node: RunningNode, way: Way, mode: TextAggregationMode = TextAggregationMode.TOKEN, **settings: Any) -> Any:
    """The service on a node, with these settings."""
    at: dict[str, Any] = {"url": node.url} if way == "socket" else {"speech": node.node.service}
    return AgentTTSService(**at, text_aggregation_mode=mode, settings=AgentTTSService.Settings(**settings))


# ---------------------------------------------------------------- a turn


async def test_a_turn_has_its_frames_in_order(node: RunningNode, way: Way) -> None:
    turn = [LLMFullResponseStartFrame(), *map(LLMTextFrame, TOKENS), LLMFullResponseEndFrame()]
    params = PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    down, up = await run_test(service(node, way), frames_to_send=turn, pipeline_params=params, start_timeout=10)
    kinds = (LLMFullResponseStartFrame, TTSStartedFrame, TTSTextFrame, TTSAudioRawFrame, TTSStoppedFrame)
    order = [kind for frame in down for kind in (*kinds, LLMFullResponseEndFrame) if isinstance(frame, kind)]
    assert [kind for kind, _ in itertools.groupby(order)][:2] == [LLMFullResponseStartFrame, TTSStartedFrame]
    assert order[-2:] == [TTSStoppedFrame, LLMFullResponseEndFrame]
    assert order.count(TTSStartedFrame) == order.count(TTSStoppedFrame) == 1
    assert [frame.text for frame in down if isinstance(frame, TTSTextFrame)] == WORDS
    pcm = b"".join(frame.audio for frame in down if isinstance(frame, TTSAudioRawFrame))
    assert dominant_hz(pcm) == pytest.approx(440, abs=5)
    assert len(pcm) / 48 == pytest.approx(60 * len("".join(WORDS)), abs=2)
    data = [each for frame in down if isinstance(frame, MetricsFrame) for each in frame.data]
    assert [each.value for each in data if isinstance(each, TTSUsageMetricsData)] == [len("".join(TOKENS))]
    assert any(0 < each.value < 5 for each in data if isinstance(each, TTFBMetricsData))
    assert not up


async def test_words_arrive_with_their_audio(way: Way) -> None:
    """The espeak engine knows the time of each word."""
    async with running_node(engine="espeak") as node, running([service(node, way)]) as pipeline:
        await pipeline.turn("Eleven elephants ", "eloquently elaborate everything. Yes")
        assert pipeline.words == ["Eleven", "elephants", "eloquently", "elaborate", "everything.", "Yes"]
        first, handed_on_s = pipeline.down(TTSTextFrame)[0].pts or 0, 0.0
        for frame in pipeline.down(DataFrame):
            if isinstance(frame, TTSAudioRawFrame):
                handed_on_s += frame.num_frames / frame.sample_rate
            elif isinstance(frame, TTSTextFrame):
                starts_s = ((frame.pts or 0) - first) / 1e9 + FIRST_WORD_S
                assert handed_on_s - 0.001 <= starts_s < handed_on_s + 0.1


@pytest.mark.parametrize("sample_rate", [8_000, 22_050, 24_000, 48_000])
async def test_audio_has_the_sample_rate_of_the_pipeline(node: RunningNode, way: Way, sample_rate: int) -> None:
    async with running([service(node, way)], sample_rate=sample_rate) as pipeline:
        await pipeline.turn(TEXT)
        assert {frame.sample_rate for frame in pipeline.down(TTSAudioRawFrame)} == {sample_rate}
        assert dominant_hz(pipeline.pcm(), sample_rate) == pytest.approx(440, abs=5)


async def test_an_unsupported_sample_rate_is_reported_at_the_start(node: RunningNode, way: Way) -> None:
    async with running([service(node, way)], sample_rate=11_025) as pipeline:
        assert "8000, 16000, 22050, 24000, 32000, 44100 or 48000" in pipeline.errors[0]


async def test_sentences_are_split_into_words(node: RunningNode, way: Way) -> None:
    async with running([service(node, way, TextAggregationMode.SENTENCE)]) as pipeline:
        await pipeline.begin()
        await pipeline.send(*(AggregatedTextFrame(text, "sentence") for text in ("One two.", "Three four.", "Five.")))
        await pipeline.finish()
        assert pipeline.words == ["One", "two.", "Three", "four.", "Five."]
        assert len({frame.pts for frame in pipeline.down(TTSTextFrame)}) == 5
        assert len(pipeline.contexts) == 1


async def test_the_end_of_the_pipeline_waits_for_written_text(node: RunningNode, way: Way) -> None:
    async with running([service(node, way)]) as pipeline:
        await pipeline.begin("One two", " three")
    assert pipeline.words == ["One", "two", "three"]


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_the_slot_is_taken_before_the_first_word_and_freed_without_one(
    node: RunningNode, way: Way, is_interrupted: bool
) -> None:
    async with running([service(node, way)]) as pipeline:
        await pipeline.begin()
        await until(lambda: node.node.service.speaking == 1)
        await (pipeline.interrupt() if is_interrupted else pipeline.end())
        await until(lambda: node.node.service.speaking == 0)
        assert not pipeline.down(TTSStartedFrame)
        await pipeline.turn("Clean.")
        assert pipeline.words == ["Clean."]
        assert not pipeline.errors


async def test_a_pause_of_the_llm_loses_no_word(node: RunningNode, way: Way) -> None:
    """The pause is longer than Pipecat's timeout of an audio context, 3 s."""
    async with running([service(node, way)]) as pipeline:
        await pipeline.begin("One two", " three")
        await asyncio.sleep(3.5)
        await pipeline.send(*map(LLMTextFrame, [" four", ". Five"]))
        await pipeline.finish()
        assert pipeline.words == ["One", "two", "three", "four.", "Five"]
        assert len(pipeline.down(TTSStartedFrame)) == 1
        assert not pipeline.errors


async def test_a_turn_continues_after_the_node_ended_its_idle_context(way: Way) -> None:
    async with running_node(limits={"text_idle_s": 0.3}) as node, running([service(node, way)]) as pipeline:
        await pipeline.begin("One two ")
        await until(lambda: bool(pipeline.down(TTSAudioRawFrame)))
        await until(lambda: node.node.service.speaking == 0)
        await pipeline.send(LLMTextFrame("three four."))
        await pipeline.finish()
        assert pipeline.words == ["One", "two", "three", "four."]
        assert len(pipeline.down(TTSStartedFrame)) == 1
        times = [frame.pts or 0 for frame in pipeline.down(TTSTextFrame)]
        assert times == sorted(times)
        assert not pipeline.errors


async def test_a_speak_frame_is_a_turn_of_its_own(node: RunningNode, way: Way) -> None:
    async with running([service(node, way)]) as pipeline:
        await pipeline.begin("One two", " three")
        await pipeline.send(TTSSpeakFrame("Please wait."))
        await pipeline.send(LLMTextFrame(" four"))
        await pipeline.finish()
        assert len(pipeline.contexts) == 2
        assert sorted(pipeline.words) == sorted(["One", "two", "three", "four", "Please", "wait."])
        assert not pipeline.errors


# ---------------------------------------------------------------- barge-in


async def test_an_interruption_drops_late_audio_and_the_next_turn_is_unaffected(node: RunningNode, way: Way) -> None:
    tts = service(node, way, voice="tone-660")
    async with running([tts]) as pipeline:
        await pipeline.begin(TEXT * 5)
        await until(lambda: bool(pipeline.down(TTSAudioRawFrame)))
        (first,) = pipeline.contexts
        await pipeline.interrupt()
        heard = pipeline.pcm(first)
        await until(lambda: node.node.service.speaking == 0)
        await pipeline.send(TTSUpdateSettingsFrame(delta=AgentTTSService.Settings(voice="tone-220")))
        await pipeline.turn("Next turn.")
        assert pipeline.pcm(first) == heard
        assert dominant_hz(pipeline.pcm(pipeline.contexts[1])) == pytest.approx(220, abs=5)
        assert pipeline.words[-2:] == ["Next", "turn."]
        assert not pipeline.errors


async def test_the_llms_context_holds_what_was_heard(way: Way) -> None:
    context = LLMContext()
    user, assistant = LLMContextAggregatorPair(context)
    async with running_node(engine="espeak") as node:
        loudspeaker = Loudspeaker()
        async with running([user, service(node, way), loudspeaker], after=[assistant]) as pipeline:
            await pipeline.begin(
                "The first sentence is short. The second one is much longer than that, and", " goes on."
            )
            await pipeline.end()
            await until(lambda: len(loudspeaker.played) > 2 * 24_000 * 2, 10)
            await pipeline.interrupt()
            heard_s = len(loudspeaker.played) / 48_000
            await until(lambda: bool(said(context)))
            (interrupted,) = said(context)
            spoken = pipeline.down(TTSTextFrame)
            await pipeline.turn("All of this.")
            await until(lambda: said(context) == [interrupted, "All of this."], 10)
    assert interrupted.split() == [frame.text for frame in spoken]
    assert "The first sentence is short. The" in interrupted
    assert not interrupted.endswith("goes on.")
    first = spoken[0].pts or 0
    behind_s = heard_s - ((spoken[-1].pts or 0) - first) / 1e9
    assert -0.3 < behind_s < 0.8


async def test_unspaced_script_is_heard_by_the_character(node: RunningNode, way: Way) -> None:
    context = LLMContext()
    async with running([service(node, way)], after=[LLMAssistantAggregator(context)]) as pipeline:
        await pipeline.begin("你好，", "世界。我有", "三个苹果，也有很多很多别的东西要告诉你。")
        await pipeline.end()
        await until(lambda: "我" in pipeline.words)
        await pipeline.interrupt()
        await until(lambda: said(context) == ["".join(pipeline.words)])
        assert "".join(pipeline.words).startswith("你好，世界。我")
        assert "".join(pipeline.words)[-1] != "。"


# ---------------------------------------------------------------- settings


async def test_settings_apply_from_the_next_turn(node: RunningNode, way: Way) -> None:
    async with running([service(node, way, voice="tone-440", language=Language.EN_GB)]) as pipeline:
        await pipeline.turn(TEXT)
        delta = AgentTTSService.Settings(voice="tone-880", speed=2.0, pitch=0.5, language=Language.DE_AT, seed=7)
        await pipeline.send(TTSUpdateSettingsFrame(delta=delta))
        await pipeline.turn(TEXT)
        first, second = map(pipeline.pcm, pipeline.contexts)
        assert dominant_hz(second) == pytest.approx(440, abs=5)
        assert len(second) == pytest.approx(len(first) / 2, rel=0.02)
        assert not pipeline.errors


async def test_a_refused_setting_is_reported_at_once_and_can_be_corrected(node: RunningNode, way: Way) -> None:
    tts = service(node, way, voice="tone-441x")
    async with running([tts]) as pipeline:
        await until(lambda: bool(pipeline.errors))
        assert "unknown_voice" in pipeline.errors[0]
        assert not tts.is_usable
        await pipeline.turn("Unheard.")
        assert not pipeline.pcm()
        await pipeline.send(TTSUpdateSettingsFrame(delta=AgentTTSService.Settings(voice="tone-660")))
        await pipeline.turn(TEXT)
        assert dominant_hz(pipeline.pcm()) == pytest.approx(660, abs=5)
        assert len(pipeline.errors) == 1


@pytest.mark.parametrize("language", [Language.DE, Language.DE_AT, Language.EN_US, Language.CMN_CN, Language.ZH_TW])
async def test_pipecats_languages_are_known_to_a_node(node: RunningNode, language: Language) -> None:
    code = AgentTTSService(speech=node.node.service).language_to_service_language(language)
    assert node.node.service.resolve(SpeechOptions(language=code)).options.language in ("de", "en", "zh")


def test_an_invalid_url_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="host:port"):
        AgentTTSService(url="ftp://h")


# ---------------------------------------------------------------- faults


async def test_a_fault_of_the_node_affects_one_turn_and_reports_no_unheard_word(node: RunningNode, way: Way) -> None:
    context = LLMContext()
    async with running(
        [service(node, way, instructions="fault:raise@5")], after=[LLMAssistantAggregator(context)]
    ) as pipeline:
        await pipeline.turn("One two three four five six seven.", " Eight nine ten.")
        assert ["internal" in error for error in pipeline.errors] == [True]
        assert len(pipeline.pcm()) == 5 * 3_840
        assert pipeline.words == ["One", "two", "three"]  # which begins after 360 of 400 ms
        await pipeline.send(TTSUpdateSettingsFrame(delta=AgentTTSService.Settings(instructions=None)))
        await speaks_again(pipeline)
        await until(lambda: said(context) == ["One two three", "Clean again."])


@pytest.mark.parametrize(
    "tokens",
    [
        ["你好", "，世", "界。", "我用", "iPhone", "手机。"],
        ["我用 ", "iPhone", " 手机。", "很好。"],
        ["สวัส", "ดี", "ครับ ", "ไป", "ไหม"],
        ["Hello ", "你好", "，my good", " friend", "！"],
    ],
    ids=lambda tokens: tokens[0],
)
async def test_the_context_has_the_spaces_of_the_text(node: RunningNode, way: Way, tokens: list[str]) -> None:
    """Mutation: words of scripts without spaces come one by one and are not joined."""
    context = LLMContext()
    async with running([service(node, way)], after=[LLMAssistantAggregator(context)]) as pipeline:
        await pipeline.turn(*tokens)
        await until(lambda: bool(said(context)))
        assert said(context) == ["".join(tokens)]
        assert len(pipeline.words) >= 4


async def test_a_turn_beyond_the_nodes_limit_is_an_error(way: Way) -> None:
    async with running_node(limits={"max_frames": 10}) as node, running([service(node, way)]) as pipeline:
        await pipeline.turn(TEXT)
        assert "limits.max_frames" in pipeline.errors[0]
        assert len(pipeline.pcm()) == 10 * 3_840
        assert "ten." not in pipeline.words


async def test_a_lost_engine_affects_one_turn() -> None:
    async with (
        running_node_with_process(tone={"scripted_faults": True}) as node,
        running([tts := service(node, "socket", instructions="fault:exit@5")]) as pipeline,
    ):
        await pipeline.turn("One two three four five six seven.", " Eight nine ten.")
        assert "engine_lost" in pipeline.errors[0]
        await until(lambda: node.node.service.ready, 20)
        await until(lambda: tts.is_usable, 10)
        await pipeline.send(TTSUpdateSettingsFrame(delta=AgentTTSService.Settings(instructions=None)))
        await speaks_again(pipeline)


async def test_a_lost_connection_affects_one_turn(node: RunningNode) -> None:
    tts = service(node, "socket")
    async with running([tts]) as pipeline:
        await pipeline.begin(TEXT * 5)
        await until(lambda: bool(pipeline.down(TTSAudioRawFrame)))
        cut(tts)
        await until(lambda: bool(pipeline.errors))
        assert "connection_lost" in pipeline.errors[0]
        await until(lambda: tts.is_usable)
        played = pipeline.pcm()
        await pipeline.send(LLMTextFrame("the rest of a turn that was lost"))
        await pipeline.end()
        await until(lambda: bool(pipeline.down(TTSStoppedFrame)))
        assert pipeline.pcm() == played
        await speaks_again(pipeline)
        assert len(pipeline.errors) == 1


async def test_a_connection_lost_between_turns_affects_none(node: RunningNode) -> None:
    tts = service(node, "socket")
    async with running([tts]) as pipeline:
        await pipeline.turn("One.")
        cut(tts)
        await asyncio.sleep(0.1)
        await pipeline.turn("Two.")
        assert pipeline.words == ["One.", "Two."]
        assert not pipeline.errors


async def test_a_turn_goes_on_when_its_node_is_lost() -> None:
    """Each word is told and heard once, the listener waits for 500 ms at most, and nobody is told of an error."""
    async with two_nodes_in_this_loop() as balanced:
        tts, loudspeaker = AgentTTSService(url=balanced.url, moves=True), Loudspeaker()
        context = LLMContext()
        async with running([tts], after=[loudspeaker, LLMAssistantAggregator(context)]) as pipeline:
            await pipeline.turn(SENTENCE)
            await until(lambda: len(loudspeaker.played) >= len(pipeline.pcm()), 10)
            loudspeaker.rest()
            half = 1.5 * len(loudspeaker.played)
            turn = asyncio.create_task(pipeline.turn(SENTENCE))
            await until(lambda: len(loudspeaker.played) > half, 10)
            balanced.lose()
            await turn
            await until(lambda: len(loudspeaker.played) >= len(pipeline.pcm()), 10)
            assert loudspeaker.paused_s <= 0.5
            whole, resumed = (len(pipeline.pcm(each)) for each in pipeline.contexts)
            assert -0.4 * 48_000 < resumed - whole < 3_840  # of 5 s: no word is missing or there twice
            assert pipeline.words == [*SENTENCE.split(), *SENTENCE.split()]
            assert said(context) == [SENTENCE, SENTENCE]
            assert not pipeline.errors


async def test_a_draining_node_finishes_its_speech_while_another_turn_begins(node: RunningNode) -> None:
    tts = service(node, "socket")
    async with running([tts]) as pipeline:
        await pipeline.send(TTSSpeakFrame(TEXT))
        await until(lambda: bool(pipeline.pcm()))
        for session in list(node.node.sessions):
            session.drain()
        await asyncio.sleep(0.1)
        await pipeline.send(TTSSpeakFrame("Goodbye."))
        await until(lambda: len(pipeline.down(TTSStoppedFrame)) == 2, 10)
        assert pipeline.words == [*TEXT.split(), "Goodbye."]
        assert not pipeline.errors


async def test_an_application_gets_connection_events(node: RunningNode) -> None:
    tts = service(node, "socket")
    heard: list[str] = []
    for event in ("on_connected", "on_disconnected", "on_connection_error"):
        tts.add_event_handler(event, partial(note, heard, event))
    async with running([tts]) as pipeline:
        await pipeline.begin(TEXT)
        await until(lambda: bool(pipeline.pcm()))
        cut(tts)
        await until(lambda: len(heard) == 3)
        await pipeline.end()
    assert heard == ["on_connected", "on_connection_error", "on_connected", "on_disconnected"]


async def note(heard: list[str], event: str, *_: object) -> None:
    heard.append(event)


async def speaks_again(pipeline: Running) -> None:
    """The next turn is unaffected."""
    heard = len(pipeline.words)
    await pipeline.turn("Clean again.")
    assert pipeline.words[heard:] == ["Clean", "again."]


def cut(tts: AgentTTSService) -> None:
    """Break the network connection."""
    link = typed(WebSocketNodeClient, tts._client)
    typed(NodeConnection, link._node)._websocket.transport.abort()


async def test_a_node_that_starts_later_is_found() -> None:
    async with running_node() as there:
        port = int(there.url.rpartition(":")[2])
    tts = AgentTTSService(url=f"127.0.0.1:{port}")
    async with running([tts]) as pipeline:
        assert "no node answers" in pipeline.errors[0]
        assert not tts.is_usable
        async with running_node(port=port):
            await until(lambda: tts.is_usable, 20)
            await pipeline.turn("Here.")
            assert pipeline.words == ["Here."]


async def test_a_turn_without_a_node_ends_without_waiting() -> None:
    async with running_node() as there:
        url = there.url
    async with running([AgentTTSService(url=url)]) as pipeline:
        await pipeline.turn("Unheard.")
        assert not pipeline.pcm()


# ---------------------------------------------------------------- failover


def switcher(*services: Any) -> ServiceSwitcher[ServiceSwitcherStrategyFailover]:
    return ServiceSwitcher(list(services), ServiceSwitcherStrategyFailover)


async def test_a_full_node_is_replaced_and_used_again_later(way: Way) -> None:
    """The rest of the turn is spoken by the other service, as one turn."""
    async with running_node(slots=1, queue=0) as full, running_node() as other:
        taken = full.node.service.open(SpeechOptions())
        first, second = service(full, way), service(other, way, voice="tone-880")
        async with running([switcher(first, second)]) as pipeline:
            await pipeline.begin()
            await until(lambda: not first.is_usable)
            await pipeline.send(*map(LLMTextFrame, ["The", " rest of", " the turn."]))
            await pipeline.finish()
            await pipeline.turn("Another turn.")
            assert dominant_hz(pipeline.pcm()) == pytest.approx(880, abs=5)
            assert pipeline.words == ["The", "rest", "of", "the", "turn.", "Another", "turn."]
            assert len(pipeline.contexts) == 2
            assert not pipeline.errors  # the switcher has handled the error
            await until(lambda: first.is_usable)
        await taken.cancel()


async def test_a_full_node_without_a_fallback_is_retried_by_the_next_turn(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_retry_s", lambda _: 60.0)
    async with running_node(slots=1, queue=0) as node:
        taken = node.node.service.open(SpeechOptions())
        async with running([service(node, way)]) as pipeline:
            await pipeline.turn("Refused.")
            assert "at_capacity" in pipeline.errors[0]
            assert not pipeline.pcm()
            await taken.cancel()
            await pipeline.turn("Taken.")
            assert pipeline.pcm()
            assert pipeline.words == ["Taken."]


async def test_a_broken_connection_is_replaced_and_used_again_later(node: RunningNode) -> None:
    async with running_node() as other:
        first, second = service(node, "socket"), service(other, "socket", voice="tone-880")
        both = switcher(first, second)
        async with running([both]) as pipeline:
            await pipeline.begin(TEXT * 5)
            await until(lambda: bool(pipeline.pcm()))
            cut(first)
            await until(lambda: both.strategy.active_service is second)
            await pipeline.finish()
            await pipeline.turn("Another turn.")
            assert dominant_hz(pipeline.pcm(pipeline.contexts[-1])) == pytest.approx(880, abs=5)
            await until(lambda: first.is_usable)
            await pipeline.send(ManuallySwitchServiceFrame(service=first))
            heard = len(pipeline.words)
            await pipeline.turn("The first again.")
            assert dominant_hz(pipeline.pcm(pipeline.contexts[-1])) == pytest.approx(440, abs=5)
            assert pipeline.words[heard:] == ["The", "first", "again."]
            assert len(pipeline.contexts) == 3
