"""Typed conversations: a turn, its times, its context, and the built-in responder."""

from __future__ import annotations

import re
import time

from tests.agent.caller import calling
from tests.agent.llm_server import running_llm
from tests.agent.node import running_agent
from tests.support import logged, until


async def test_a_typed_turn_is_spoken_and_its_times_are_reported() -> None:
    """Words arrive as they are played, and the next LLM request holds the heard text."""
    async with running_llm("The library closes on sunday.", "Yes.") as llm, running_agent(llm.url) as agent:
        async with calling(agent.url) as caller:
            caller.type("When does the library close?")
            await caller.loud()
            marks = (await caller.own("turn"))["marks"]
            assert marks["user_stopped"] == 0
            assert marks["turn_end"] is None
            assert marks["transcript"] is None
            assert 0 <= marks["llm_first_token"] <= marks["audio_first"] < 5_000
            await caller.message("bot-stopped-speaking")
            typed_at = time.monotonic()
            caller.type("Really?")
            await caller.message("bot-stopped-speaking", typed_at)
    assert llm.history() == [
        ("user", "When does the library close?"),
        ("assistant", "The library closes on sunday."),
        ("user", "Really?"),
    ]


async def test_the_log_and_the_metrics_identify_the_speech_of_a_turn() -> None:
    """One log line joins the call, its turn, the context and the engine's request."""
    with logged("INFO", filter="agent_tts.agent.turns") as said:
        async with running_llm("Yes.") as llm, running_agent(llm.url) as agent:
            async with calling(agent.url) as caller:
                caller.type("Hello?")
                await caller.message("bot-stopped-speaking")
                await until(lambda: bool(said))
            await until(lambda: agent.calls == 0)
            finished = agent.node.node.metrics.registry.get_sample_value
            assert finished("agent_tts_contexts_total", {"carrier": "pipecat", "reason": "end"}) == 1
    assert re.match(r"agent: call [0-9a-f]{8} turn 1 context \S+ stream 0/[1-9][0-9]*: answered; ", said[0])


async def test_a_message_too_long_to_be_typed_ends_its_call() -> None:
    async with running_agent() as agent, calling(agent.url) as other, calling(agent.url) as caller:
        caller.type("x" * 6_000)
        await caller.message("bot-llm-stopped")
        caller.type("x" * 9_000)
        await until(lambda: agent.calls == 1)
        other.type("Hello.")
        await other.message("bot-llm-stopped")
