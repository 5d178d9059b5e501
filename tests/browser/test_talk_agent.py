"""The Talk view with the real agent: a microphone that speaks, an interrupted answer, and its context."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.agent.llm_server import LlmServer, running_llm
from tests.agent.node import RunningAgent, running_agent
from tests.agent.test_spoken import LONG as STORY
from tests.agent.test_spoken import NEAR_WORDS, QUICK
from tests.browser.speaking import say, speaking_page
from tests.measure.chromium import DevTools, Page
from tests.support import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time]

LONG = f"{STORY} Nobody knows who told them first, and nobody needs to know, as long as somebody tells them again."
TURNS = 6
SILENT_MS = 200  # from the key to silence


@asynccontextmanager
async def talk(browser: DevTools, *answers: str) -> AsyncIterator[tuple[Page, RunningAgent, LlmServer]]:
    """The page of a real agent, in a tab whose microphone speaks."""
    async with running_llm(*answers, token_s=0.02) as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        async with speaking_page(browser) as page:
            await page.open(agent.url + "/#talk")
            await page.until("document.querySelector('#talk-voice').value && !document.querySelector('#talk').hidden")
            yield page, agent, llm
            assert page.errors == []
        await until(lambda: agent.calls == 0)


@pytest.mark.slow
async def test_an_answer_is_heard_interrupted_and_kept_in_the_context(browser: DevTools) -> None:
    """The page shows what the agent recognised, wrote and spoke, and both agree on what was heard."""
    async with talk(browser, LONG, "It is open.") as (page, agent, llm):
        await page.js(
            "document.querySelector('#agent-voice').addEventListener('volumechange', () => window.hushed = true)"
        )
        await page.click("#call")
        await page.until("agentTts.call.state === 'talking'")
        await say(page, agent, "My train leaves at seven.")
        turns = "[...document.querySelectorAll('#conversation li')].map((li) => li.querySelector('.words').innerText)"
        await page.until(f"({turns})[0] === 'my train leaves at seven'")
        await page.until("document.querySelectorAll('#conversation [data-is=now]').length === 1")
        await page.until("agentTts.call.heardMs !== null")
        stages = "[...document.querySelectorAll('#waterfall > div')].map((row) => row.dataset.stage).sort()"
        assert await page.js(stages) == ["audio_first", "heard", "llm_first_token", "transcript", "turn_end"]

        words = "document.querySelector('[data-who=agent] [data-is=heard]').textContent.trim().split(' ')"
        await page.until(f"{words}.length > 5")
        await say(page, agent, "Please open the window.")
        await page.until("agentTts.call.silenceMs !== null")
        await page.until("document.querySelector('#conversation s')")
        await page.until(f"({turns}).at(-1) === 'It is open.' && !document.querySelector('[aria-busy=true]')")
        said = ["my train leaves at seven", LONG, "please open the window", "It is open."]
        assert await page.js(turns) == said
        assert await page.js("agentTts.call.notices") == []

        heard = await page.js("document.querySelector('[data-who=agent] [data-is=heard]').textContent")
        asked, answered, interrupted = llm.history()
        assert (asked, interrupted) == (("user", said[0]), ("user", said[2]))
        assert 0 < len(heard.split()) < len(LONG.split())
        assert abs(len(answered[1].split()) - len(heard.split())) <= NEAR_WORDS
        # What was still in the browser's buffer was not heard; its length depends on this machine.
        assert await page.js("hushed")
        await page.click("#call")


@pytest.mark.slow
async def test_typed_turns_leave_nothing_behind(browser: DevTools) -> None:
    """Each turn interrupts the answer before it, is silent within 200 ms, and has its answer below it."""
    answers = [f"{LONG} That was story number {number}." for number in range(TURNS)]
    async with talk(browser, *answers) as (page, agent, llm):
        agents = "[...document.querySelectorAll('[data-who=agent]')]"
        silences = []
        for number in range(TURNS):
            await page.js("document.querySelector('#talk-text').focus()")
            await page.call("Input.insertText", text=f"Question {number}")
            await page.press("Enter")
            silences.append(await page.js("agentTts.call.silenceMs"))
            await page.until(f"{agents}.length === {number + 1} && {agents}.at(-1).querySelector('[data-is=now]')")
        who = "[...document.querySelectorAll('#conversation li')].map((li) => li.dataset.who)"
        assert await page.js(who) == ["user", "agent"] * TURNS
        assert len(llm.requests) == TURNS
        await page.until("agentTts.call.heardMs !== null")
        assert all(0 < ms < SILENT_MS for ms in silences if ms is not None)
        assert len(silences) - silences.count(None) >= 2  # an answer may be interrupted before it is heard
        assert await page.js(f"{agents}.filter((li) => li.querySelector('s')).length") == TURNS - 1
        assert await page.js("agentTts.call.notices") == []
        await page.click("#call")
        await until(lambda: agent.calls == 0)
        assert agent.node.node.service.speaking == 0
