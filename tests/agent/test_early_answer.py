"""Answers that are prepared while a turn may be over: what is asked, what is held back, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from pipecat.audio.turn.base_turn_analyzer import EndOfTurnState
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from prometheus_client import CollectorRegistry

from agent_tts.agent.completions import ChatCompletions
from agent_tts.agent.detectors import TurnDetector
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.one_message import OneMessageContext
from agent_tts.agent.playout import Playout
from agent_tts.agent.turns import AgentMetrics, Turns
from agent_tts.config.settings import AgentLlm
from agent_tts.integrations.pipecat.service import AgentTTSService
from tests.agent.caller import calling
from tests.agent.llm_server import MODEL, LlmServer, Scripted, call, running_llm, status, stream
from tests.agent.node import running_agent
from tests.agent.people import says
from tests.agent.pipelines import Seen
from tests.agent.test_turn_end import SILENCE_S, Said, heard, talk
from tests.support import RunningNode, running_node, typed

WHOLE = "A table for four."
early_talk = partial(talk, hears_end=False, early=2)


def asked(after: Seen) -> list[tuple[bool, str]]:
    """Whether the language model was asked early, and the end of the conversation."""
    contexts = [frame for _, frame in after.of(LLMContextFrame)]
    return [(frame.speculation, frame.context.get_messages()[-1]["content"]) for frame in contexts]


async def test_a_turn_that_may_be_over_is_answered_early_and_once() -> None:
    said, after, context = await early_talk(lambda said: said.say(WHOLE))
    [(at, _)] = after.of(LLMContextFrame)
    assert at - said.ended_at == pytest.approx(0.5, abs=0.05)
    assert asked(after) == [(True, WHOLE)]
    assert context.get_messages() == [{"role": "user", "content": WHOLE}]
    assert not after.of(EagerEndOfTurnCancelFrame)


@pytest.mark.parametrize(
    ("words", "hears_end", "early", "last"),
    [
        (WHOLE, True, 2, "Hello."),  # the turn is over
        (WHOLE, False, 0, "Hello."),
        ("I would like a table for", False, 2, "Hello."),
        ("Four.", False, 2, "For how many?"),
    ],
)
async def test_an_answer_is_not_prepared_where_none_is_due_or_it_is_off(
    words: str, hears_end: bool, early: int, last: str
) -> None:
    _, after, _ = await talk(lambda said: said.say(words), hears_end=hears_end, early=early, asked=last)
    assert asked(after) == [(False, words)]


@pytest.mark.parametrize(("early", "times"), [(1, 1), (2, 2), (8, 5)])
async def test_a_user_who_goes_on_withdraws_the_answer_and_there_are_so_many_a_turn(early: int, times: int) -> None:
    """Each request is withdrawn before the next."""

    async def script(said: Said) -> None:
        for number in range(5):
            await said.say(f"Number {number}.")
            await asyncio.sleep(0.5)

    _, after, context = await early_talk(script, early=early)
    words = [" ".join(f"Number {number}." for number in range(count + 1)) for count in range(5)]
    wanted = [(True, each) for each in words[:times]]
    if times < 5:
        wanted.append((False, words[-1]))
    assert asked(after) == wanted
    turns = [type(frame) for _, frame in after.frames if isinstance(frame, LLMContextFrame | EagerEndOfTurnCancelFrame)]
    assert turns[: 2 * min(times, 4)] == [LLMContextFrame, EagerEndOfTurnCancelFrame] * min(times, 4)
    assert context.get_messages() == [{"role": "user", "content": words[-1]}]


async def test_late_words_withdraw_the_answer() -> None:
    """A recogniser that does not tell that it still works."""

    async def script(said: Said) -> None:
        said.tells = False
        await said.voice()
        await said.worker.queue_frame(heard("A table"))
        await asyncio.sleep(0.3)
        await said.worker.queue_frame(heard("for four."))

    _, after, _ = await early_talk(script)
    assert asked(after) == [(True, "A table"), (True, WHOLE)]
    assert len(after.of(EagerEndOfTurnCancelFrame)) == 1


async def test_a_cough_withdraws_the_answer_and_does_not_ask_twice_at_once() -> None:
    async def script(said: Said) -> None:
        await said.say(WHOLE)
        await said.voice()
        await said.recognised()

    _, after, _ = await early_talk(script)
    assert asked(after) == [(True, WHOLE), (True, WHOLE)]
    assert len(after.of(EagerEndOfTurnCancelFrame)) == 1


async def test_after_the_users_own_words_nothing_is_prepared() -> None:
    """Servers that check roles refuse two messages of the user in a row."""

    async def script(said: Said) -> None:
        await said.say("Hello.")
        await asyncio.sleep(SILENCE_S)
        await said.say(WHOLE)

    _, after, _ = await early_talk(script)
    assert asked(after) == [(True, "Hello."), (False, f"Hello. {WHOLE}")]


@pytest.mark.parametrize(
    ("frame", "pause_s"),
    [(InterruptionFrame, 0.3), (EagerEndOfTurnCancelFrame, 0.3), (EagerEndOfTurnCancelFrame, SILENCE_S)],
)
async def test_what_ended_the_request_leaves_no_turn_unanswered(frame: type, pause_s: float) -> None:
    """Typed text, or the language model, while the turn may be over or as it ends. Mutation: `_prepared` stays."""

    async def script(said: Said) -> None:
        await said.say(WHOLE)
        await asyncio.sleep(pause_s)
        await said.worker.queue_frame(frame(), FrameDirection.DOWNSTREAM)

    _, after, _ = await early_talk(script)
    assert asked(after) == [(True, WHOLE), (False, WHOLE)]


# ------------------------------------------------------------ with a server


class Told(BaseObserver):
    """Errors that a page would get."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    async def on_push_frame(self, data: Any) -> None:
        if isinstance(data.frame, ErrorFrame):
            self.errors.append(data.frame.error)


class Served:
    """A conversation with a scripted server."""

    def __init__(self, server: LlmServer, llm: ChatCompletions) -> None:
        self.server = server
        self.llm = llm
        self.told = Told()
        self.registry = CollectorRegistry()
        self.marks: list[dict[str, Any]] = []
        self.metrics = AgentMetrics(self.registry)
        self.turns = Turns("call", self.metrics, self.marks.append)
        self.speech: list[FrameProcessor] = []

    def speaks(self, node: RunningNode) -> None:
        """Have answers spoken, early ones while they are held back."""
        tts = AgentTTSService(speech=node.node.service, metrics=node.node.metrics)
        tts.on_prepared = lambda outcome, seconds: self.metrics.early_speech.labels(outcome).inc(seconds)
        self.llm.tts = tts
        self.speech = [tts, Playout(self.turns, tts)]

    async def talk(self, script: Any) -> tuple[Said, Seen, OneMessageContext]:
        observers: list[BaseObserver] = [self.told, self.turns]
        return await early_talk(
            script, llm=self.llm, speech=self.speech, observers=observers, asked="Hello.", rest_s=30
        )

    def count(self, outcome: str, of: str = "answers") -> float:
        return self.registry.get_sample_value(f"agent_tts_agent_early_{of}_total", {"outcome": outcome}) or 0.0


@asynccontextmanager
async def served(*answers: Scripted) -> AsyncIterator[Served]:
    async with running_llm(*answers) as server:
        model = LanguageModel(AgentLlm(base_url=server.url, model=MODEL, look_s=30))
        llm = typed(ChatCompletions, await model.service())
        llm.apology = lambda: "Sorry."
        yield Served(server, llm)


def written(after: Seen) -> str:
    return "".join(str(frame.text) for _, frame in after.of(LLMTextFrame))


def contents_of(context: OneMessageContext) -> list[Any]:
    messages: list[Any] = context.get_messages()
    return [message["content"] for message in messages]


SLOW = stream(1.0, {"content": "For "}, 0.2, {"content": "four."})


async def test_an_early_answer_is_spoken_as_the_turn_ends_and_not_before() -> None:
    """The server takes 1 s, the rest of the silence 1.5 s. Mutation: the turn's end asks again."""
    async with served(SLOW) as it:
        said, after, context = await it.talk(lambda said: said.say(WHOLE))
        [(ended_at, _)] = after.of(UserStoppedSpeakingFrame)
        assert ended_at - said.ended_at == pytest.approx(SILENCE_S, abs=0.05)
        assert written(after) == "For four."
        assert all(0 <= at - ended_at < 0.05 for at, _ in after.of(LLMTextFrame))
        assert len(it.server.requests) == 1
        assert (it.count("spoken"), it.count("dropped")) == (1, 0)
    assert contents_of(context) == ["Hello.", WHOLE, "For four."]


async def test_nothing_of_a_dropped_answer_is_said_or_kept() -> None:
    """The user goes on when the answer is half written."""

    async def script(said: Said) -> None:
        await said.say(WHOLE)
        await asyncio.sleep(0.6)
        await said.say("No, for five.")

    async with served(SLOW, "For five.") as it:
        _, after, context = await it.talk(script)
        assert written(after) == "For five."
        assert len(after.of(LLMFullResponseStartFrame)) == 1
        assert it.server.history()[-1] == ("user", f"{WHOLE} No, for five.")
        assert (it.count("spoken"), it.count("dropped")) == (1, 1)
    contents = contents_of(context)
    assert contents == ["Hello.", f"{WHOLE} No, for five.", "For five."]


async def test_a_function_runs_once_when_the_turn_has_ended() -> None:
    calls = stream({"content": "I look."} | call(0, "open", "{}", "a"), finish="tool_calls")
    ran: list[str] = []
    async with served(calls, calls, "Done.") as it:

        async def run(params: FunctionCallParams) -> None:
            ran.append(params.function_name)
            await params.result_callback("open")

        it.llm.register_function("open", run)
        _, after, _ = await it.talk(lambda said: said.say(WHOLE))
        assert ran == ["open"]
        assert written(after) == "I look.Done."
        assert len(it.server.requests) == 3
        assert (it.count("spoken"), it.count("dropped")) == (0, 1)


async def test_a_fault_of_an_early_request_is_neither_told_nor_heard() -> None:
    async with served(status(401), "For four.") as it:
        _, after, _ = await it.talk(lambda said: said.say(WHOLE))
        assert written(after) == "For four."
        assert it.told.errors == []
    async with served(status(401)) as it:
        _, after, _ = await it.talk(lambda said: said.say(WHOLE))
        assert written(after) == "Sorry."
        assert len(set(it.told.errors)) == 1
        assert len(it.server.requests) == 2


async def test_the_marks_of_an_early_answer_follow_the_turns_end() -> None:
    async with served(SLOW) as it:
        await it.talk(lambda said: said.say(WHOLE))
        marks = it.turns.marks
    assert marks["turn_end"] == pytest.approx(SILENCE_S * 1_000, abs=50)
    assert 0 <= marks["llm_first_token"] - marks["turn_end"] < 50


async def test_speech_is_prepared_of_what_is_held_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: the next answer begins with the text of a dropped one; text that is not held back is prepared."""
    tts, done = AgentTTSService(), list[object]()
    monkeypatch.setattr(tts, "prepare", lambda text, is_whole: done.append((text, is_whole)))
    monkeypatch.setattr(tts, "drop_prepared", lambda: done.append("dropped"))
    async with served() as it:
        it.llm.tts = tts

        async def push(*frames: Frame) -> list[object]:
            done.clear()
            for frame in frames:
                await it.llm.push_frame(frame)
            return done

        it.llm._speculation_gate.begin_speculation(True)
        assert await push(LLMFullResponseStartFrame(), LLMTextFrame(" One "), LLMTextFrame("two.")) == [
            *("dropped", ("One ", False), ("One two.", False)),
        ]
        assert await push(EagerEndOfTurnCancelFrame(), LLMTextFrame(" Three.")) == ["dropped"]
        it.llm._speculation_gate.begin_speculation(True)
        assert await push(LLMFullResponseStartFrame(), LLMTextFrame("Four."), LLMFullResponseEndFrame()) == [
            *("dropped", ("Four.", False), ("Four.", True)),
        ]
        assert await push(UserStoppedSpeakingFrame(), LLMTextFrame(" Five.")) == []
        it.llm._speculation_gate.begin_speculation(False)
        assert await push(LLMFullResponseStartFrame(), LLMTextFrame("Six.")) == ["dropped"]


async def test_the_speech_of_an_early_answer_waits_for_the_turns_end() -> None:
    """Mutations: `push_frame` prepares nothing; it drops with each frame."""
    slow = stream({"content": "A table "}, {"content": "for four is free "}, 4.0, {"content": "at eight."})
    async with running_node() as node, served(slow) as it:
        it.speaks(node)
        _, after, context = await it.talk(lambda said: said.say(WHOLE))
        [(ended_at, _)] = after.of(UserStoppedSpeakingFrame)
        sounds = after.of(TTSAudioRawFrame)
        assert 0 <= sounds[0][0] - ended_at < 0.1
        assert it.count("spoken", "speech_seconds") > 1
        assert it.count("dropped", "speech_seconds") == 0
        assert it.marks[0]["marks"]["audio_first"] >= it.marks[0]["marks"]["llm_first_token"] >= SILENCE_S * 1_000 - 50
        assert sum(len(frame.audio) for _, frame in sounds) / 48_000 > 1.5
    assert contents_of(context) == ["Hello.", WHOLE, "A table for four is free at eight."]


@pytest.mark.parametrize("frame", [None, InterruptionFrame])
async def test_the_speech_of_a_dropped_answer_is_stopped_counted_and_in_no_context(frame: type | None) -> None:
    """The user goes on, or typed text interrupts. Mutation: `push_frame` does not drop what is prepared."""

    async def script(said: Said) -> None:
        await said.say(WHOLE)
        await asyncio.sleep(0.9)
        assert node.node.service.speaking == 1
        if frame is not None:
            await said.worker.queue_frame(frame(), FrameDirection.DOWNSTREAM)
        await said.say("No, for five.")
        assert it.count("dropped", "speech_seconds") > 0.3

    async with running_node() as node, served("Wrong words.", "For five, at eight.") as it:
        it.speaks(node)
        _, after, context = await it.talk(script)
        assert node.node.service.speaking == 0
        assert [frame.text for _, frame in after.of(TTSTextFrame)] == ["For", "five,", "at", "eight."]
        assert it.marks[0]["turn"] == 1
        metrics = node.node.metrics.registry
        cancelled = {"carrier": "pipecat", "reason": "cancelled"}
        assert metrics.get_sample_value("agent_tts_contexts_total", cancelled) == 1
    assert contents_of(context) == ["Hello.", f"{WHOLE} No, for five.", "For five, at eight."]


async def test_a_call_has_its_early_answers_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `Calls` does not have them spoken."""
    monkeypatch.setattr(TurnDetector, "_process_speech_segment", lambda *_: (EndOfTurnState.INCOMPLETE, None))
    async with running_llm("At eight.") as llm, running_agent(llm.url, hears=True, turn_silence_s=1.5) as agent:
        async with calling(agent.url) as caller:
            await caller.say(says("My train leaves at seven."))
            await caller.message("bot-stopped-speaking")
            assert "".join(said["data"]["text"] for said in caller.of("bot-tts-text")) == "Ateight."
            assert await agent.metric("agent_tts_agent_early_speech_seconds_total") > 0.3
