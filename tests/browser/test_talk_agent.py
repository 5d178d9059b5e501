"""The Talk view with the real agent: a microphone that speaks, an interrupted answer, and its context."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.agent.llm_server import LlmServer, running_llm
from tests.agent.node import RunningAgent, running_agent
from tests.measure.chromium import Page, chromium
from tests.support import until

pytestmark = pytest.mark.real_time

RATE = 24_000
# When the microphone plays the first and the second sentence, in seconds after it is opened.
ASKS_S, INTERRUPTS_S, ENDS_S = 1.0, 7.0, 25.0
QUICK: dict[str, Any] = {"turn_silence_s": 0.6, "resume_after_s": 0.8}
LONG = (
    "Winter nights are long and cold, and so people have always told each other stories by the fire. Some of these "
    "stories are very old. They tell of ships, of kings, and of a bird that could speak every language of the world. "
    "Nobody knows who told them first, and nobody needs to know, as long as somebody tells them again."
)
NEAR_WORDS = 2
TURNS = 6
SILENT_MS = 200  # from the key to silence


async def microphone(agent: RunningAgent, path: Path) -> None:
    """Write the microphone's audio: a sentence, and a second one during the answer."""
    sound = np.zeros(int(ENDS_S * RATE), np.int16)
    for at_s, text in ((ASKS_S, "My train leaves at seven."), (INTERRUPTS_S, "Please open the window.")):
        speech = np.frombuffer(await agent.speech(text), "<i2")
        sound[int(at_s * RATE) :][: len(speech)] = speech
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(sound.tobytes())


# Echo cancellation is off: this microphone never picks up the loudspeaker, and a canceller that has not adapted yet
# attenuates the voice.
WITHOUT_ECHO = """
  const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = ({ audio }) => open({ audio: { ...audio, echoCancellation: false } });
"""


@asynccontextmanager
async def talk(path: Path, *answers: str) -> AsyncIterator[tuple[Page, RunningAgent, LlmServer]]:
    """The page of a real agent, in a browser with that microphone."""
    async with running_llm(*answers, token_s=0.02) as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        await microphone(agent, path)
        flags = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={path}%noloop")
        async with chromium(*flags) as browser, browser.page() as page:
            await page.allow("microphone", "granted")
            await page.call("Page.addScriptToEvaluateOnNewDocument", source=WITHOUT_ECHO)
            await page.open(agent.url + "/#talk")
            await page.until("document.querySelector('#talk-voice').value && !document.querySelector('#talk').hidden")
            yield page, agent, llm
            assert page.errors == []
        await until(lambda: agent.calls == 0)


async def test_an_answer_is_heard_interrupted_and_kept_in_the_context(tmp_path: Path) -> None:
    """The page shows what the agent recognised, wrote and spoke, and both agree on what was heard."""
    async with talk(tmp_path / "microphone.wav", LONG, "It is open.") as (page, _, llm):
        await page.js(
            "document.querySelector('#agent-voice').addEventListener('volumechange', () => window.hushed = true)"
        )
        await page.click("#call")
        turns = "[...document.querySelectorAll('#conversation li')].map((li) => li.querySelector('.words').innerText)"
        await page.until(f"({turns})[0] === 'my train leaves at seven'")
        await page.until("document.querySelectorAll('#conversation [data-is=now]').length === 1")
        await page.until("agentTts.call.heardMs !== null")
        stages = "[...document.querySelectorAll('#waterfall > div')].map((row) => row.dataset.stage).sort()"
        assert await page.js(stages) == ["audio_first", "heard", "llm_first_token", "transcript", "turn_end"]

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


@pytest.mark.alone
async def test_typed_turns_leave_nothing_behind(tmp_path: Path) -> None:
    """Each turn interrupts the answer before it, is silent within 200 ms, and has its answer below it."""
    answers = [f"{LONG} That was story number {number}." for number in range(TURNS)]
    async with talk(tmp_path / "microphone.wav", *answers) as (page, agent, llm):
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
