"""Spoken conversations with a simulated microphone: turns, barge-in, echo, and sounds without words."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from typing import Any

import pytest

from agent_tts.agent.stt import SpeechToText, _loaded
from agent_tts.config.settings import AgentStt
from agent_tts.messages import RequestEvent, Word, Words
from agent_tts.options import SpeechOptions
from agent_tts.speech.utterance import Listener, Utterance
from tests.agent.caller import calling
from tests.agent.hearing import GrammarSpeechToText
from tests.agent.llm_server import running_llm, stream
from tests.agent.node import RunningAgent, running_agent
from tests.agent.people import says
from tests.recogniser import TINY_EN
from tests.support import until

LONG = (
    "Winter nights are long and cold, and so people have always told each other stories by the fire. Some of these "
    "stories are very old. They tell of ships, of kings, and of a bird that could speak every language of the world."
)
QUICK: dict[str, Any] = {"turn_silence_s": 0.6, "resume_after_s": 0.8}
NEAR_WORDS = 2
TURNS = 4
SLOW_S = 6.0
SILENCE_S = 0.45  # three times the expected value: everything in these tests shares one event loop


async def test_a_spoken_turn_is_recognised_and_answered() -> None:
    async with running_llm("At eight.") as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        question = await agent.speech("My train leaves at seven.")
        async with calling(agent.url) as caller:
            await caller.say(question)
            said = await caller.message("user-transcription")
            assert said["data"]["text"] == "my train leaves at seven"
            assert said["data"]["final"] is True
            await caller.loud()
            marks = (await caller.own("turn"))["marks"]
            assert 0 < marks["transcript"] <= marks["llm_first_token"] <= marks["audio_first"] < 8_000
            assert 0 < marks["turn_end"] <= marks["llm_first_token"]
            await caller.message("bot-stopped-speaking")
    assert llm.history() == [("user", "my train leaves at seven")]


async def test_words_interrupt_and_the_context_holds_the_heard_part() -> None:
    """Silence follows soon after the voice is detected, and the context keeps only words that were played.

    The expected number of words follows from the engine's word times and the received audio.

    Mutations: `Playout._hold` returns at once; `BargeIn` does not wait for the commit; words are released a second
    after their audio.
    """
    async with running_llm(LONG, "Fine.") as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        stop = await agent.speech("Please open the window.")
        spoken = times_of_words(agent)
        async with calling(agent.url) as caller:
            await caller.ask("Tell me a story.")
            await asyncio.sleep(3.0)
            spoke_at = time.monotonic()
            caller.microphone.put(stop)
            await caller.message("user-started-speaking", spoke_at)
            noticed_at = caller.at("user-started-speaking", spoke_at)
            cut = await caller.own("interrupted", spoke_at)
            cut_at = caller.own_at("interrupted", spoke_at)
            silent_at, played_ms = caller.last_sound(before=cut_at), caller.played_ms(before=cut_at)
            assert silent_at - noticed_at < SILENCE_S + caller.delay_s()
            await caller.loud(since=silent_at + 0.2)  # the next answer
            await caller.message("bot-stopped-speaking", silent_at + 0.3)
    heard = llm.history()[1][1]
    assert [role for role, _ in llm.history()] == ["user", "assistant", "user"]
    assert llm.history()[2][1] == "please open the window"
    assert LONG.startswith(heard)
    assert cut["heard"] == heard
    assert cut["unheard"]
    assert LONG.endswith(cut["unheard"])
    begun = [word for word in spoken[1] if word.start_ms < played_ms]
    assert 5 < len(begun) < len(LONG.split())
    assert abs(len(heard.split()) - len(begun)) <= NEAR_WORDS


def times_of_words(agent: RunningAgent) -> defaultdict[int, list[Word]]:
    """Word times from the engine, by the number of the utterance, from 1."""
    found: defaultdict[int, list[Word]] = defaultdict(list)
    service = agent.node.node.service
    open_, count = service.open, itertools.count(1)

    def opened(options: SpeechOptions, owner: int = 0, listener: Listener | None = None) -> Utterance:
        speech = open_(options, owner, listener)
        deliver, number = speech.deliver, next(count)

        def delivered(event: RequestEvent) -> None:
            if isinstance(event, Words):
                found[number] += event.words
            deliver(event)

        speech.deliver = delivered
        return speech

    service.open = opened  # pyrefly: ignore[bad-assignment]
    return found


@pytest.mark.slow
async def test_sounds_without_words_only_hold_the_answer() -> None:
    """The answer resumes where it stopped: every word is heard and is in the context.

    Mutation: `VADUserTurnStartStrategy()` with its interruptions.
    """
    text = "The library closes on sunday, and it opens again on tuesday in the morning at nine."
    async with running_llm(text, "Fine.") as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        laughter = await agent.speech("Ha ha ha.")
        async with calling(agent.url) as caller:
            await caller.ask("When does it close?")
            await asyncio.sleep(1.0)
            laughed_at = time.monotonic()
            caller.microphone.put(laughter)
            await caller.message("user-started-speaking", laughed_at)
            held_at = caller.at("user-started-speaking", laughed_at)
            await caller.own("resumed", laughed_at)
            resumed_at = time.monotonic()
            assert caller.last_sound(before=resumed_at) - held_at < SILENCE_S + caller.delay_s()
            await caller.loud(since=resumed_at)
            await caller.message("bot-stopped-speaking", resumed_at)
            assert not caller.ours("interrupted")
            caller.type("Thank you.")
            await until(lambda: len(llm.requests) == 2)
    assert llm.history()[1] == ("assistant", text)


@pytest.mark.slow  # `test_turn_end.py` has what it waits for, by the frames that the recogniser tells
@pytest.mark.parametrize("words", ["Please open the window.", "Ha ha ha."])
async def test_nothing_resumes_before_a_slow_recogniser_is_done(words: str) -> None:
    """Recognition that takes three times `resume_after_s`: the voice stays silent, and the words end the turn at once.

    Mutations: `TurnEnd` does not wait for `RecognisingFrame`; the turn has Pipecat's 5 s.
    """
    async with (
        running_llm(LONG, "Fine.") as llm,
        running_agent(llm.url, whisper=GrammarSpeechToText(SLOW_S), **QUICK) as agent,
    ):
        said = await agent.speech(words)
        async with calling(agent.url) as caller:
            await caller.ask("Tell me a story.")
            await asyncio.sleep(1.5)
            spoke_at = time.monotonic()
            await caller.say(said)
            ended_at = time.monotonic()
            kind = "resumed" if words == "Ha ha ha." else "interrupted"
            await caller.own(kind, spoke_at)
            assert caller.own_at(kind, spoke_at) - ended_at == pytest.approx(SLOW_S, abs=0.8)
            assert not caller.ours("interrupted" if kind == "resumed" else "resumed")
            assert caller.last_sound(before=ended_at + SLOW_S - 0.5) < ended_at + SILENCE_S
            if kind == "interrupted":
                await until(lambda: len(llm.requests) == 2)
                assert time.monotonic() - caller.own_at(kind, spoke_at) < 0.4


@pytest.mark.slow
async def test_a_listener_does_not_interrupt_and_stop_does() -> None:
    """By real recognition: the answer goes on after "Yeah", which is in no context, and ends at "Stop".

    Mutation: `BargeIn` does not ask `is_backchannel`.
    """
    stt = AgentStt(model=TINY_EN, device="cpu", compute_type="int8")
    whisper = SpeechToText(stt)
    whisper._model = _loaded(stt)
    async with running_llm(LONG, "Fine.") as llm, running_agent(llm.url, whisper=whisper) as agent:
        async with calling(agent.url) as caller:
            await caller.ask("Tell me a story.")
            await asyncio.sleep(1.0)
            spoke_at = time.monotonic()
            await caller.say(says("Yeah."))
            await caller.own("resumed", spoke_at)
            assert not caller.ours("interrupted")
            await asyncio.sleep(0.5)
            await caller.say(says("Stop."))
            await caller.own("interrupted")
            await until(lambda: len(llm.requests) == 2)
    assert [text.strip() for role, text in llm.history() if role == "user"] == ["Tell me a story.", "Stop."]


async def test_a_user_who_goes_on_cancels_a_request_that_nobody_has_heard() -> None:
    """Mutation: `OneMessageContext` is Pipecat's context; a server that checks roles refuses it."""
    late = stream(4.0, {"content": "Wrong."})
    async with running_llm(late, "At eight.") as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        async with calling(agent.url) as caller:
            await caller.say(says("My train leaves at seven."))
            await until(lambda: len(llm.requests) == 1)
            await caller.say(says("Please open the window."))
            await until(lambda: len(llm.requests) == 2)
            await caller.message("bot-stopped-speaking")
            assert "".join(said["data"]["text"] for said in caller.of("bot-tts-text")) == "Ateight."
    assert llm.history() == [("user", "my train leaves at seven please open the window")]


async def test_the_start_of_an_answer_cannot_be_interrupted() -> None:
    """Echo that is not cancelled yet does not count as a voice.

    Mutation: `EchoGuard` does not change the audio.
    """
    async with running_llm(LONG) as llm, running_agent(llm.url, hears=True, echo_guard_s=3.0, **QUICK) as agent:
        echo = await agent.speech("Please open the window.")
        async with calling(agent.url) as caller:
            caller.type("Tell me a story.")
            await caller.message("bot-started-speaking")
            await caller.say(echo)
            await asyncio.sleep(1.0)
            assert not caller.of("user-started-speaking")
            assert not caller.ours("interrupted")


@pytest.mark.slow
async def test_turns_leave_nothing_behind() -> None:
    """Spoken and typed turns, interrupted or not. The leak gate checks the ended node, this test the running one."""
    async with (
        running_llm(LONG, "One.", "Two.") as llm,
        running_agent(llm.url, hears=True, echo_guard_s=0, **QUICK) as agent,
    ):
        spoken = await agent.speech("My train leaves at seven.")
        async with calling(agent.url) as caller:
            for turn in range(TURNS):
                began = time.monotonic()
                if turn % 3 == 0:
                    await caller.say(spoken)
                else:
                    caller.type(f"Turn {turn}")
                await caller.own("turn", began)
                answered_at = time.monotonic()
                if turn % 2:
                    await caller.message("bot-stopped-speaking", answered_at)
            await caller.message("bot-stopped-speaking", answered_at)  # pyrefly: ignore[unbound-name]
        await until(lambda: agent.calls == 0)
        assert not agent.server.calls._peers
        await until(lambda: agent.node.node.service.speaking == 0)
        assert await agent.metric("agent_tts_agent_turns_total") == TURNS
    assert len(llm.requests) == TURNS
