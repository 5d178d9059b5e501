"""Fillers: when one is said, and whole calls in which it is told as what it is and stays out of the context."""

from __future__ import annotations

import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from pipecat.frames.frames import (
    Frame,
    FunctionCallResultFrame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSSpeakFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.tests.utils import SleepFrame, run_test

from agent_tts.agent.fillers import Fillers
from agent_tts.agent.wording import FILLERS, phrase
from agent_tts.config.settings import AgentLlm
from tests.agent.caller import Caller, calling
from tests.agent.llm_server import call, running_llm, stream
from tests.agent.node import running_agent, with_a_clock
from tests.support import until

ANSWER = "The library closes on sunday."
SLOW = stream(1.5, {"content": ANSWER})
BEGINS, ENDS = LLMFullResponseStartFrame, LLMFullResponseEndFrame
WORD, SPACE = lambda: LLMTextFrame("Yes."), lambda: LLMTextFrame(" ")
CALLS = lambda: FunctionCallsStartedFrame([])  # noqa: E731
VOICE, TURN_ENDS, INTERRUPTS = VADUserStartedSpeakingFrame, UserStoppedSpeakingFrame, InterruptionFrame


def result(*, answers: bool | None = None) -> Frame:
    given = None if answers is None else FunctionCallResultProperties(run_llm=answers)
    return FunctionCallResultFrame("open", "1", {}, "done", properties=given)


# ------------------------------------------------------------ when


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        # Frame makers, and pauses in seconds; how often a filler is said after 1 s.
        ([BEGINS, 0.9, WORD, 2.0, ENDS], 0),
        ([BEGINS, 1.1, WORD, 2.0, ENDS], 1),
        ([BEGINS, 0.9, SPACE, 0.2, WORD, ENDS], 1),
        ([BEGINS, 5.0, WORD, 2.0, WORD, ENDS], 1),
        ([BEGINS, 0.9, ENDS, 2.0], 0),  # no answer
        ([BEGINS, 0.4, CALLS, ENDS, 0.4, result, BEGINS, 0.4, WORD, ENDS], 1),
        ([BEGINS, 1.5, CALLS, ENDS, 1.5, result, BEGINS, 1.5, CALLS, ENDS, 1.5, result, BEGINS, 1.5, WORD, ENDS], 1),
        ([BEGINS, WORD, CALLS, ENDS, 2.0, result, BEGINS, 2.0, WORD, ENDS], 0),  # "Let me look."
        ([BEGINS, CALLS, ENDS, lambda: result(answers=False), 2.0], 0),
        ([BEGINS, CALLS, ENDS, lambda: result(answers=True), BEGINS, 2.0, WORD, ENDS], 1),
        ([BEGINS, 1.1, WORD, ENDS, TURN_ENDS, BEGINS, 1.1, WORD, ENDS], 2),
        ([BEGINS, 0.5, INTERRUPTS, 2.0, BEGINS, 0.5, WORD, ENDS], 0),
        ([BEGINS, 1.1, INTERRUPTS, BEGINS, 1.1, WORD, ENDS], 2),
        ([BEGINS, 0.5, VOICE, 3.0, INTERRUPTS, TURN_ENDS, BEGINS, 0.5, WORD, ENDS], 0),
        ([BEGINS, 0.5, VOICE, 1.0, TURN_ENDS, 0.9, WORD, ENDS], 0),  # a cough
        ([BEGINS, 0.5, VOICE, 1.0, TURN_ENDS, 1.1, WORD, ENDS], 1),
        ([BEGINS, 1.1, VOICE, 1.0, TURN_ENDS, 2.0, WORD, ENDS], 1),
        ([BEGINS, WORD, VOICE, 1.0, TURN_ENDS, 2.0, ENDS], 0),
        ([TURN_ENDS, 5.0], 0),
    ],
)
async def test_a_filler_is_said_once_where_the_first_word_takes_longer(happens: list[Any], said: int) -> None:
    frames = [SleepFrame(each) if isinstance(each, float) else each() for each in happens]
    spaced = [one for frame in frames for one in (frame, SleepFrame(0.01))]  # system frames would pass the others
    down, _ = await run_test(Fillers(lambda: "Hm.", 1.0), frames_to_send=spaced)
    fillers = [frame for frame in down if isinstance(frame, TTSSpeakFrame)]
    assert [(frame.text, frame.append_to_context) for frame in fillers] == [("Hm.", False)] * said
    if said == 1:
        before = takewhile(lambda frame: not isinstance(frame, TTSSpeakFrame), down)
        assert not any(isinstance(frame, LLMTextFrame) and frame.text.strip() for frame in before)


async def test_an_empty_filler_is_not_said_and_fillers_are_off_by_default() -> None:
    assert AgentLlm().filler_s is None
    down, _ = await run_test(Fillers(str, 1.0), frames_to_send=[BEGINS(), SleepFrame(2.0), ENDS()])
    assert not any(isinstance(frame, TTSSpeakFrame) for frame in down)


def test_a_filler_is_in_the_voices_language() -> None:
    assert phrase(FILLERS, {}, ("ja-JP",)) == FILLERS["ja"]
    assert phrase(FILLERS, {"sv": "Ett ögonblick."}, ("sv",)) == "Ett ögonblick."


# ------------------------------------------------------------ in a call


def fillers(caller: Caller) -> list[str]:
    told = (message["data"] for message in caller.of("bot-output"))
    return [data["text"] for data in told if data["output_type"] == "filler" and data["spoken_status"] == "new"]


async def spoken(caller: Caller, word: str) -> None:
    await until(lambda: any(word in message["data"]["text"] for message in caller.of("bot-tts-text")), 30)


async def test_a_filler_is_heard_in_the_voices_language_and_is_no_part_of_the_answer() -> None:
    """Mutations: `TTSSpeakFrame` enters the context; `Playout` takes its sound or its words for the answer's."""
    async with (
        running_llm(SLOW, "Yes.") as llm,
        running_agent({"base_url": llm.url, "filler_s": 0.3}, voice="de") as agent,
    ):
        async with calling(agent.url) as caller:
            assert await caller.ask("When does the library close?") < caller.at("bot-llm-started") + 1.2
            await spoken(caller, "sunday")
            assert fillers(caller) == [FILLERS["de"]]
            assert caller.ours("turn")[0]["marks"]["audio_first"] >= 1_500
            typed_at = time.monotonic()
            caller.type("Really?")
            cut = await caller.own("interrupted", typed_at)
            assert ANSWER.startswith(cut["heard"])
            await spoken(caller, "Yes")
            assert len(fillers(caller)) == 1
    assert llm.history()[0] == ("user", "When does the library close?")
    assert ANSWER.startswith(llm.history()[1][1])


@pytest.mark.slow
async def test_words_interrupt_a_filler() -> None:
    long = "One moment please, " + "and another one, " * 20 + "until I know."
    answers = stream(20.0, {"content": ANSWER}), "Fine."
    async with running_llm(*answers) as llm:
        settings = {"base_url": llm.url, "filler_s": 0.3, "fillers": {"en": long}}
        async with running_agent(settings, hears=True, turn_silence_s=0.6, resume_after_s=0.8) as agent:
            window = await agent.speech("Please open the window.")
            async with calling(agent.url) as caller:
                caller.type("When does the library close?")
                await spoken(caller, "please")
                assert fillers(caller) == [long]
                await caller.say(window)
                assert (await caller.own("interrupted"))["heard"] == ""
                await spoken(caller, "Fine.")
                words = [message["data"]["text"] for message in caller.of("bot-tts-text")]
    assert len(words) < 30
    assert words[-1] == "Fine."
    assert llm.history() == [("user", "When does the library close? please open the window")]


@pytest.mark.slow
async def test_a_slow_model_with_a_slow_function_has_one_filler(tmp_path: Path) -> None:
    file = with_a_clock(tmp_path, takes_s=1.0)
    calls = stream(0.6, call(0, "clock", "{}", "a"), finish="tool_calls")
    async with running_llm(calls, stream(0.6, {"content": "It is ten."})) as llm:
        settings = {"base_url": llm.url, "filler_s": 0.4}
        async with running_agent(settings, pipeline=file) as agent, calling(agent.url) as caller:
            caller.type("What time is it?")
            await spoken(caller, "ten.")
            assert fillers(caller) == [FILLERS["en"]]
    assert [(message["role"], message.get("content")) for message in llm.requests[1][1:]] == [
        ("user", "What time is it?"),
        ("assistant", None),
        ("tool", '"ten"'),
    ]
