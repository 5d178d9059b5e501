"""The Talk view in a real browser with a microphone, a real node, and a scripted peer as the agent."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from starlette.responses import JSONResponse

from agent_tts.engine_info import Model
from agent_tts.serve.app import PAGE_HEADERS
from agent_tts.speech.engine_handle import EngineClientFactory
from agent_tts.voices import enroll
from tests.browser.conftest import ELSEWHERE, MICROPHONE_HZ, assert_clean, left_as_it_was
from tests.browser.scripted_agent import Agent, Call, agent_of
from tests.browser.test_page import EAR, LONG, readable
from tests.measure.chromium import DevTools, Page
from tests.support import (
    RunningNode,
    app_of,
    app_with,
    dominant_hz,
    running_app,
    running_node,
    settings_of,
    until,
    with_models,
)
from tests.voices.encoder import without_torch

NEAR_HZ = 25
# From the agent's message to silence: its track, the network and the browser's buffer. 150 ms on an idle machine.
SILENT_MS = 1_500

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time]
_shared: list[tuple[Agent, RunningNode]] = []


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def shared() -> AsyncIterator[None]:
    """The node of all tests that need no other, and its agent."""
    app = app_of(settings_of())
    async with agent_of(app) as agent, running_app(app) as node:
        _shared.append((agent, node))
        yield
        _shared.clear()


@asynccontextmanager
async def talking_node(link: EngineClientFactory | None, **settings: Any) -> AsyncIterator[tuple[Agent, RunningNode]]:
    """A new node, or the shared one, with an agent that knows nothing of earlier tests."""
    if link is None and not settings:
        (agent, node) = _shared[0]
        agent.reset()
        async with left_as_it_was(node):
            yield agent, node
            await agent.close()
        return
    made = settings_of(**settings)
    app = app_of(made) if link is None else app_with(made, link)
    async with agent_of(app) as agent, running_app(app) as node:
        yield agent, node


@asynccontextmanager
async def open_talk(
    browser: DevTools,
    *,
    expected: str | None = None,
    about: dict[str, Any] | None = None,
    link: EngineClientFactory | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Page, Agent]]:
    """The Talk view of a node. It must log no complaint (except `expected`) and load nothing from other hosts."""
    async with talking_node(link, **settings) as (agent, node), browser.page() as page:
        agent.about |= about or {}
        await page.allow("microphone", "granted")
        await page.open(node.url + "/#talk")
        await page.js(EAR)
        await page.until("document.querySelector('#talk-voice').value && !document.querySelector('#talk').hidden")
        yield page, agent
        assert_clean(page, node.url, expected)


async def start(page: Page, agent: Agent, number: int = 1) -> Call:
    """Begin a call by voice."""
    await page.click("#call")
    call = await agent.call(number)
    await page.until("agentTts.call.state === 'talking'")
    return call


async def write(page: Page, text: str) -> None:
    """Send a typed turn."""
    await page.click("#talk-text")
    await page.call("Input.insertText", text=text)
    await page.press("Enter")


def ask(call: Call, text: str = "What is the time?") -> None:
    """Send the agent's messages for a user turn."""
    call.say("user-started-speaking")
    call.say("user-transcription", text=text, final=True)
    call.say("user-stopped-speaking")


def answer(call: Call, text: str, hz: float = 880) -> None:
    """Begin to speak an answer."""
    call.say("bot-llm-started")
    call.say("bot-llm-text", text=text)
    call.say("bot-llm-stopped")
    call.say("bot-started-speaking")
    call.voice.hz = hz


async def answered(page: Page, agent: Agent) -> Call:
    """A call in which an answer is heard."""
    call = await start(page, agent)
    answer(call, "One two three.")
    await page.until("ear.loud")
    return call


def shut(call: Call) -> None:
    """Finish the answer."""
    call.voice.hz = 0
    call.say("bot-stopped-speaking")


async def text_of(page: Page, selector: str) -> str:
    return str(await page.js(f"document.querySelector({json.dumps(selector)}).innerText"))


SAID = "[...document.querySelectorAll('#conversation li')].map((li) => li.querySelector('.words').innerText)"
HEARD = "#conversation li:last-child [data-is=heard]"


# ---------------------------------------------------------------- a call


async def test_a_node_without_an_agent_says_in_the_talk_view_what_to_run(browser: DevTools) -> None:
    async with running_node() as node, browser.page() as page:
        await page.open(node.url + "/")
        await page.until("!document.querySelector('#views').inert")
        assert await page.js("document.querySelector('#talk').hidden")
        await page.click("#views [href='#talk']")
        await page.until("document.querySelector('#talk-notices').innerText.includes('agent-tts agent')")
        dead = (
            "[...document.querySelectorAll('#talk :is(button, input)')].filter((part) => part.checkVisibility()).length"
        )
        assert await page.js(dead) == 0
        await page.open(node.url + "/?from-a-link#talk")
        await page.until("document.querySelector('#talk-notices').innerText.includes('agent-tts agent')")
        assert await page.js(dead) == 0
        assert page.errors == []


async def test_a_node_with_an_agent_opens_on_it_until_the_user_prefers_to_speak(browser: DevTools) -> None:
    """On a telephone the conversation and its field are in sight, whatever is missing."""
    missing = {"kind": "none", "name": "base.en", "message": "Whisper is being downloaded: 2 of about 145 MB."}
    builtin = {"kind": "builtin", "name": "x", "message": "No language model answers at http://127.0.0.1:11434/v1."}
    app = app_of(settings_of())
    async with agent_of(app) as agent, running_app(app) as node, browser.page() as page:
        agent.about |= {"stt": missing, "llm": builtin}
        await page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        await page.open(node.url + "/")
        await page.until("document.querySelector('#talk').checkVisibility()")
        await page.until("document.querySelector('#talk-notices').innerText.includes('145 MB')")
        for part in ("#conversation", "#talk-composer"):
            assert await page.js(f"document.querySelector('{part}').getBoundingClientRect().bottom <= innerHeight"), (
                part
            )
        await page.click("#views [href='#speak']")
        await page.open(node.url + "/?again")
        await page.until("!document.querySelector('#views').inert")
        assert await page.js("document.querySelector('#talk').hidden")
        assert page.errors == []


async def test_a_spoken_turn_is_shown_marked_and_measured(browser: DevTools) -> None:
    """The agent receives the microphone, words are marked as they are heard, and the response time is shown."""
    async with open_talk(browser) as (page, agent):
        await page.js(
            "void (window.asked = [], window.real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices),"
            "navigator.mediaDevices.getUserMedia = (wanted) => (asked.push(wanted), real(wanted)))"
        )
        place = "(({x, y}) => [x, y])(document.querySelector('#call').getBoundingClientRect())"
        before = await page.js(place)
        call = await start(page, agent)
        assert await page.js(place) == pytest.approx(before, abs=2)
        assert await page.js("asked") == [
            {"audio": {"echoCancellation": True, "noiseSuppression": True, "autoGainControl": True}}
        ]
        await until(lambda: len(call.heard) >= 100)
        assert dominant_hz(np.concatenate(call.heard[-50:]), 48_000) == pytest.approx(MICROPHONE_HZ, abs=NEAR_HZ)
        await page.until("document.querySelector('#level output').textContent.endsWith('dB')")
        mark = "parseFloat(getComputedStyle(document.querySelector('#level [role=meter]'), '::after').left)"
        width = "document.querySelector('#level [role=meter]').clientWidth"
        assert await page.js(f"{mark} / {width}") == pytest.approx(1 / 3, abs=0.02)  # -40 dB of -60 to 0
        assert call.pings > 0

        call.say("user-started-speaking")
        call.say("user-transcription", text="what is", final=False)
        await page.until("document.querySelector('[data-is=interim]')?.textContent === 'what is'")
        assert await text_of(page, "#phase") == "You are speaking"
        ask(call)
        answer(call, "It is ten past nine.")
        call.tell(
            "turn",
            turn=1,
            marks={"user_stopped": 0, "turn_end": 200, "transcript": 150, "llm_first_token": 210, "audio_first": 220},
        )
        for word in ("It", "is"):
            call.say("bot-tts-text", text=word)
        await page.until("document.querySelector('#conversation [data-is=now]')?.textContent === 'is'")
        assert await text_of(page, "#conversation li:last-child [data-is=coming]") == " ten past nine."
        assert await text_of(page, "#subtitle") == "It is ten past nine."
        await page.until("agentTts.call.heardMs !== null && ear.loud")
        since = await page.js("performance.now()")
        await page.until(f"ear.since({since}).length > 30")
        assert median(await page.js(f"ear.since({since})")) == pytest.approx(880, abs=NEAR_HZ)
        shut(call)
        await page.until(f"document.querySelector('{HEARD}')?.textContent === 'It is ten past nine.'")
        assert await page.js(SAID) == ["What is the time?", "It is ten past nine."]

        await until(lambda: bool(call.of("client-message", "heard")))
        (heard,) = call.of("client-message", "heard")
        assert heard["context"] == 1
        assert 220 <= heard["ms"] < 2_000
        rows = "[...document.querySelectorAll('#waterfall > div')].map((row) => row.dataset.stage)"
        assert await page.js(rows) == ["transcript", "turn_end", "llm_first_token", "audio_first", "heard"]
        assert str(heard["ms"]) in await text_of(page, "#latency-about")
        bars = (
            "[...document.querySelectorAll('#waterfall .track')].map((track) => { const bar = track.firstElementChild;"
            "const [all, part] = [track, bar].map((element) => element.getBoundingClientRect());"
            "return [(part.left - all.left) / all.width, (part.right - all.left) / all.width]; })"
        )
        ends = [0, *(ms / heard["ms"] for ms in (150, 200, 210, 220)), 1]
        for (begin, end), expected in zip(await page.js(bars), itertools.pairwise(ends), strict=True):
            assert (begin, end) == pytest.approx(expected, abs=0.03)
        assert f"{heard['ms']} ms" in await text_of(page, "#conversation li:last-child .note")

        await page.click("#call")
        await until(lambda: call.connection.connectionState == "closed")
        assert await page.js("agentTts.call.state") == "idle"


async def test_an_interruption_silences_the_page_and_cuts_the_turn(browser: DevTools) -> None:
    """The flash shows the milliseconds, unheard text is struck out, and the next turn holds nothing of it."""
    async with open_talk(browser) as (page, agent):
        call = await start(page, agent)
        silences = []
        for number in range(1, 4):
            ask(call)
            answer(call, "One two three four.", hz=660)
            call.say("bot-tts-text", text="One")
            await page.until("ear.loud")
            await asyncio.sleep(0.3)
            call.say("user-started-speaking")
            call.voice.hz = 0
            call.say("bot-interrupted")
            await until(lambda n=number: len(call.of("client-message", "silent")) == n)
            silences.append(call.of("client-message", "silent")[-1]["ms"])
            call.tell("interrupted", turn=number, heard="One two", unheard=" three four.")
            await page.until("document.querySelector('[data-who=agent]:nth-last-child(2) s')")
        assert median(silences) <= SILENT_MS
        assert await page.js("agentTts.call.silenceMs") == pytest.approx(silences[-1], abs=1)
        assert await text_of(page, "#talk-flash") == f"silence in {silences[-1]} ms"
        agents = "document.querySelectorAll('[data-who=agent]')"
        assert await page.js(f"[...{agents}].map((li) => li.querySelector('s').textContent)") == ["three four."] * 3
        assert f"silent after {silences[-1]} ms" in await page.js(f"[...{agents}].at(-1).innerText")

        since = await page.js("performance.now()")
        answer(call, "Fine.", hz=1_320)
        await page.until(f"ear.since({since}).length > 30")
        heard = await page.js(f"ear.since({since})")
        assert median(heard) == pytest.approx(1_320, abs=NEAR_HZ)
        assert [hz for hz in heard if abs(hz - 660) < NEAR_HZ] == []


@pytest.mark.slow
async def test_a_voice_silences_the_page_before_the_agent(browser: DevTools) -> None:
    """Audio in flight is not heard; an agent that continues regardless is heard again."""
    muted = "document.querySelector('#agent-voice').muted"
    async with open_talk(browser) as (page, agent):
        call = await answered(page, agent)
        call.say("user-started-speaking")
        await page.until(muted)
        assert await page.js("ear.heard.at(-1).arriving > ear.LOUD")
        await page.until(f"!{muted} && ear.loud")
        call.say("user-started-speaking")
        await page.until(muted)
        call.voice.hz = 0
        await page.until(f"!{muted} && !ear.loud")


async def test_a_false_interruption_resumes_the_answer(browser: DevTools) -> None:
    async with open_talk(browser) as (page, agent):
        call = await start(page, agent)
        answer(call, "One two three.")
        call.say("bot-tts-text", text="One")
        call.say("user-started-speaking")
        call.say("bot-interrupted")
        await page.until("document.querySelector('#conversation s')")
        call.tell("resumed", turn=1)
        await page.until("!document.querySelector('#conversation s')")
        assert await page.js(SAID) == ["One two three."]


async def test_a_typed_call_needs_no_microphone(browser: DevTools) -> None:
    """Typing begins a call, and the microphone can be turned on during it."""
    async with open_talk(browser) as (page, agent):
        await page.allow("microphone", "prompt")
        await write(page, "Hello there")
        call = await agent.call()
        await until(lambda: bool(call.of("send-text")))
        assert call.of("send-text")[0]["content"] == "Hello there"
        assert call.signals == [
            {"type": "signalling", "message": {"type": "trackStatus", "receiver_index": 0, "enabled": False}}
        ]
        assert await text_of(page, "#call-state") == "In a call, in writing."
        assert await page.js("document.querySelector('#talk-text').value") == ""
        answer(call, "Good day.")
        call.tell("turn", turn=1, marks={"user_stopped": 0, "llm_first_token": 3, "audio_first": 9})
        await page.until("agentTts.call.heardMs !== null")
        assert await page.js(SAID) == ["Hello there", "Good day."]
        shut(call)

        await page.allow("microphone", "granted")
        await page.click("#mute")
        await until(lambda: len(call.heard) >= 100)
        assert call.signals[-1]["message"]["enabled"] is True
        assert dominant_hz(np.concatenate(call.heard[-50:]), 48_000) == pytest.approx(MICROPHONE_HZ, abs=NEAR_HZ)


async def test_typing_interrupts_speech(browser: DevTools) -> None:
    """Text sent while the agent speaks cuts its turn at once; the silence is measured from the key."""
    async with open_talk(browser) as (page, agent):
        call = await answered(page, agent)
        await write(page, "Enough")
        await page.until("document.querySelector('#conversation s')")
        await until(lambda: bool(call.of("send-text")))
        call.say("bot-interrupted")
        answer(call, "Good.", hz=1_320)
        await page.until("ear.since(ear.pressedAt + 300).length > 30")
        # The next answer follows the sound that was on its way, of which nothing is heard.
        assert 0 < await page.js("agentTts.call.silenceMs") < SILENT_MS
        heard = await page.js("ear.since(ear.pressedAt + agentTts.call.silenceMs)")
        assert median(heard) == pytest.approx(1_320, abs=NEAR_HZ)
        assert [hz for hz in heard if abs(hz - 880) < NEAR_HZ] == []
        assert await page.js(SAID) == ["One two three.", "Enough", "Good."]


@pytest.mark.slow
async def test_right_to_left_turns_are_set_from_the_right(browser: DevTools) -> None:
    """Field, both transcripts and the subtitle."""
    async with open_talk(browser) as (page, agent):
        await write(page, "מה השעה?")
        call = await agent.call()
        await until(lambda: bool(call.of("send-text")))
        answer(call, "השעה עשר ועשרה.", hz=0)
        call.say("bot-tts-text", text="השעה")
        await page.until("document.querySelector('#subtitle').innerText.trim() === 'השעה עשר ועשרה.'")
        await page.click("#talk-text")
        await page.call("Input.insertText", text="תודה")
        shown = "[...document.querySelectorAll('#talk-text, #conversation .words, #subtitle')]"
        assert await page.js(f"{shown}.map((said) => getComputedStyle(said).direction)") == ["rtl"] * 4


@pytest.mark.slow
async def test_space_mutes_the_microphone(browser: DevTools) -> None:
    """A muted microphone sends silence; Space in the text is a space."""
    async with open_talk(browser) as (page, agent):
        call = await start(page, agent)
        await until(lambda: len(call.heard) >= 50)
        await page.press(" ")
        await page.until("document.querySelector('#mute').getAttribute('aria-pressed') === 'true'")
        assert await page.js("agentTts.call.state") == "talking"
        await until(lambda: bool(np.abs(np.concatenate(call.heard[-20:])).max() < 100))
        await page.press(" ")
        await until(lambda: bool(np.abs(np.concatenate(call.heard[-20:])).max() > 1_000))
        await page.js("document.querySelector('#talk-text').focus()")
        await page.press(" ")
        assert await text_of(page, "#call-state") == "In a call."


@pytest.mark.slow
async def test_the_voice_can_be_chosen_previewed_and_changed(browser: DevTools) -> None:
    """The offer names it, a change during the call is sent, and a preview plays without a call."""
    async with open_talk(browser) as (page, agent):
        await page.js("void (window.played = 0, HTMLAudioElement.prototype.play = new Proxy("
                      "HTMLAudioElement.prototype.play, {apply: (play, audio) => (played += audio.src.startsWith("
                      "'blob:'), Reflect.apply(play, audio, []))}))")  # fmt: skip
        await page.click("#preview")
        await page.until("played === 1 && document.querySelector('#preview').textContent === 'Stop'")
        await page.click("#preview")
        assert await text_of(page, "#preview") == "Preview"

        await page.click("#talk-voice")
        await page.type("tone-660")
        await page.press("Enter")
        call = await start(page, agent)
        assert call.choice == {"voice": "tone-660"}
        await page.click("#talk-voice")
        await page.type("tone-1320")
        await page.press("Enter")
        await until(lambda: call.of("client-message", "voice") == [{"voice": "tone-1320"}])


@pytest.mark.slow
async def test_only_one_view_sounds_at_a_time(browser: DevTools) -> None:
    """Opening Speak hangs up, opening Talk stops the speech."""
    async with open_talk(browser) as (page, agent):
        call = await start(page, agent)
        await page.click("[href='#speak']")
        await until(lambda: call.connection.connectionState == "closed")
        await page.until("!document.querySelector('#speak').hidden")
        await page.js(f"document.querySelector('#text').value = {json.dumps(LONG)}")
        await page.click("#go")
        await page.until("agentTts.speaking && ear.loud")
        await page.click("[href='#talk']")
        await page.until("!agentTts.speaking && agentTts.call.state === 'idle'")


@pytest.mark.slow
async def test_a_voice_can_be_recorded_and_cloned(
    browser: DevTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with consent, and only with a model that clones. The new voice is chosen, also for the running call."""
    base = Model("base", "cloned", str(tmp_path / "base"), 64)
    monkeypatch.setattr(enroll, "run_module", without_torch)
    library = {"folder": str(tmp_path / "library")}
    async with open_talk(browser, link=with_models(base), voices=library) as (page, agent):
        call = await start(page, agent)
        await page.click("#clone")
        assert await page.js("document.querySelector('#clone-add').disabled")
        await page.click("#record")
        await page.until("document.querySelector('#record-state').textContent.includes('8 s left')")
        await page.click("#record")
        await page.until("!document.querySelector('#clone-add').disabled")
        await page.until("document.querySelector('#recording').readyState > 0")
        await page.js("document.querySelector('#clone-name').focus()")
        await page.type("bob")
        await page.click("#clone-add")
        assert await page.js("document.querySelector('#clone-form').matches(':invalid')")
        await page.click("#consent")
        await page.click("#clone-add")
        await page.until("!document.querySelector('#clone-dialog').open", 60)
        await page.until("document.querySelector('#talk-voice').value === 'bob'")
        await until(lambda: call.of("client-message", "voice") == [{"voice": "bob"}])
        assert await page.js("document.querySelector('#recording').hasAttribute('src')") is False


# ---------------------------------------------------------------- trouble


async def test_a_blocked_microphone_is_reported(browser: DevTools, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is made, and typing still works. Chromium and its shell obey a page's own policy alike."""
    monkeypatch.setitem(PAGE_HEADERS, "Permissions-Policy", "microphone=()")
    async with open_talk(browser, expected="microphone is not allowed") as (page, agent):
        await page.click("#call")
        await page.until("agentTts.call.notices.includes('microphone')")
        assert "not allowed" in await text_of(page, "#talk-notices")
        assert (await page.js("agentTts.call.state"), agent.calls) == ("idle", [])
        await write(page, "Hello")
        await agent.call()
        await page.until("agentTts.call.notices.length === 0")


@pytest.mark.slow
async def test_a_page_without_https_reports_what_it_needs(browser: DevTools) -> None:
    """Without HTTPS the browser gives the page no microphone and no way to play."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    origin = f"http://{ELSEWHERE}:{port}"
    app = app_of(settings_of(port=port, auth={"allowed_origins": [origin]}))
    async with agent_of(app), running_app(app), browser.page() as page:
        await page.open(origin + "/#talk")
        await page.until("agentTts.call.notices.includes('microphone') && !document.querySelector('#talk').hidden")
        told = await text_of(page, "#talk-notices")
        assert "HTTPS, or localhost" in told
        assert await page.js("document.querySelector('#call').disabled && document.querySelector('#send').disabled")
        assert page.errors == []


@pytest.mark.slow
async def test_missing_components_of_the_agent_are_shown(browser: DevTools) -> None:
    """Without speech recognition only typing is offered; the notice names the stand-in for the LLM."""
    about = {
        "stt": {"kind": "none", "name": "", "message": "No weights: `agent-tts agent --whisper FOLDER`."},
        "llm": {"kind": "builtin", "name": "built-in", "message": "No LLM answers at http://localhost:11434."},
    }
    async with open_talk(browser, about=about) as (page, agent):
        assert await page.js("agentTts.call.notices") == ["deaf", "builtin"]
        told = await text_of(page, "#talk-notices")
        assert await text_of(page, ".notice code") == "agent-tts agent --whisper FOLDER"
        assert "11434" in told
        assert await page.js("document.querySelector('#call').disabled")
        assert "no speech recognition" in await text_of(page, "#call-state")
        assert await page.js("document.querySelector('#call').getAttribute('aria-describedby')") == "call-state"
        await write(page, "Hello")
        await agent.call()
        await page.until("agentTts.call.state === 'talking'")
        assert not await page.js("document.querySelector('#mute').checkVisibility()")
        agent.about["stt"] = {"kind": "whisper", "name": "small", "message": None}
        await page.until("document.querySelector('#mute').checkVisibility()")
        assert await page.js("agentTts.call.notices") == ["builtin"]


@pytest.mark.slow
async def test_a_full_agent_is_shown_and_retried(browser: DevTools) -> None:
    """The notice counts down and the call is made once there is room, unless the user has left the view."""
    error = {"error": {"message": "2 calls", "type": "server_error", "param": None, "code": "at_capacity"}}
    async with open_talk(browser, expected="503 (Service Unavailable)") as (page, agent):
        agent.refusal = lambda: JSONResponse(error, 503, {"Retry-After": "1"})
        await page.click("#call")
        await page.until("agentTts.call.notices.includes('at_capacity')")
        assert "at capacity" in await text_of(page, "#talk-notices")
        await page.click("[href='#speak']")
        await page.until("agentTts.call.notices.length === 0")
        await page.click("[href='#talk']")
        await page.until("!document.querySelector('#talk').hidden")
        await page.click("#call")
        await page.until("agentTts.call.notices.includes('at_capacity')")
        agent.refusal = None
        await agent.call()
        await page.until("agentTts.call.state === 'talking' && agentTts.call.notices.length === 0")


# Of a closed connection; Chromium still names what it had.
SPECIFIED = """void ((all) => RTCPeerConnection.prototype.getReceivers = function () {
  return this.signalingState === "closed" ? [] : all.call(this); })(RTCPeerConnection.prototype.getReceivers)"""


@pytest.mark.slow
async def test_a_call_may_end_in_an_interruption(browser: DevTools) -> None:
    """Its figures, which decide when the agent is heard again, are gone then: nothing is thrown."""
    async with open_talk(browser) as (page, agent):
        await page.js(SPECIFIED)
        call = await answered(page, agent)
        await page.js(
            "void (window.over = new Promise((resolve) => { document.querySelector('#agent-voice').onvolumechange ="
            "() => { document.querySelector('#call').click(); setTimeout(resolve, 200); }; }))"
        )
        call.say("user-started-speaking")
        await page.js("over")
        assert await page.js("agentTts.call.state") == "idle"


async def test_a_lost_call_is_shown_and_can_be_repeated(browser: DevTools) -> None:
    """The transcript stays, and the microphone is released."""
    async with open_talk(browser) as (page, agent):
        call = await start(page, agent)
        answer(call, "One two three.")
        await page.until("document.querySelector('#conversation li')")
        await call.connection.close()
        await page.until("agentTts.call.state === 'idle' && agentTts.call.notices.includes('call')")
        assert await page.js("document.querySelectorAll('#conversation s').length") == 1
        await page.click(".notice[data-kind=call] button")
        await agent.call(2)
        await page.until("agentTts.call.state === 'talking' && agentTts.call.notices.length === 0")


async def test_a_call_cancelled_while_connecting_leaves_nothing(browser: DevTools) -> None:
    """The button ends it."""
    async with open_talk(browser) as (page, agent):
        await page.js("navigator.mediaDevices.getUserMedia = () => new Promise((resolve) => (window.late = resolve))")
        await page.click("#call")
        await page.until("agentTts.call.state === 'asking' && window.late")
        await page.click("#call")
        assert await page.js("agentTts.call.state") == "idle"
        track = "window.track = new AudioContext().createMediaStreamDestination().stream"
        await page.js(f"{track}; late(track)")
        await page.until("track.getTracks()[0].readyState === 'ended'")
        assert (await page.js("agentTts.call.state"), agent.calls) == ("idle", [])


async def test_errors_and_notices_of_the_agent_are_shown(browser: DevTools) -> None:
    """And that the node cannot clone; the head of the page names the call's transport."""
    async with open_talk(browser) as (page, agent):
        await page.click("#clone")
        assert await page.js("agentTts.call.notices") == ["clone"]
        assert not await page.js("document.querySelector('#clone-dialog').open")
        await page.click("[data-kind=clone] button")
        assert await text_of(page, "#link-text") == "WebSocket"
        call = await start(page, agent)
        assert await text_of(page, "#link-text") == "WebRTC"
        call.say("error", error="agent_tts at_capacity: all voices are taken", fatal=False)
        call.tell("notice", text="Whisper is being fetched: 40 %.")
        await page.until("agentTts.call.notices.length === 2")
        told = await text_of(page, "#talk-notices")
        assert "all voices are taken" in told
        assert "40 %" in told


# ---------------------------------------------------------------- accessibility


@pytest.mark.slow
async def test_the_keyboard_alone_is_enough_for_a_call(browser: DevTools) -> None:
    """Tab reaches every control with a visible focus; Enter calls and sends."""
    async with open_talk(browser) as (page, agent):
        seen: list[str] = []
        await page.js("document.querySelector('#skip').focus()")
        for _step in range(30):
            await page.press("Tab")
            name = await page.js(
                "['id', 'hash', 'textContent'].map((key) => document.activeElement[key]).find(Boolean)"
            )
            if name in seen or await page.js("document.activeElement === document.body"):
                break
            seen.append(name)
            if name != "talk-text":  # the frame around it shows the focus
                assert await page.js("getComputedStyle(document.activeElement).outlineStyle") != "none", name
        controls = (
            "#speak",
            "#talk",
            "call",
            "subtitles",
            "compact",
            "conversation",
            "talk-text",
            "send",
            "talk-voice",
        )
        assert [name for name in controls if name not in seen] == []
        await page.js("document.querySelector('#call').focus()")
        await page.press("Enter")
        call = await agent.call()
        await page.until("agentTts.call.state === 'talking'")
        await page.js("document.querySelector('#talk-text').focus()")
        await page.type("Hello")
        await page.press("Enter")
        await until(lambda: bool(call.of("send-text")))


async def in_use(page: Page, agent: Agent) -> Call:
    """A call that shows every element of the view."""
    call = await start(page, agent)
    ask(call)
    answer(call, "It is ten past nine, and the harbour is quiet. Shall I wake you before the next boat comes in?")
    for word in ["It", "is", "ten", "past", "nine,", "and", "the", "harbour"]:
        call.say("bot-tts-text", text=word)
    marks = {"user_stopped": 0, "turn_end": 212, "transcript": 148, "llm_first_token": 290, "audio_first": 355}
    call.tell("turn", turn=1, marks=marks)
    await page.until("agentTts.call.heardMs !== null")
    call.voice.hz = 0
    call.say("user-started-speaking")
    call.say("bot-interrupted")
    call.tell("interrupted", turn=1, heard="It is ten past nine, and the harbour",
              unheard=" is quiet. Shall I wake you before the next boat comes in?")  # fmt: skip
    call.say("user-transcription", text="No, let me", final=False)
    await page.until("agentTts.call.silenceMs !== null")
    return call


@pytest.mark.slow
async def test_talk_is_readable(browser: DevTools) -> None:
    """Idle with a notice, in a call with every state of a word and the figures, muted, and compact."""
    about = {"llm": {"kind": "builtin", "name": "built-in", "message": "No LLM answers at " + "http://localhost" * 6}}
    async with open_talk(browser, about=about) as (page, agent):
        await readable(page, "idle")
        call = await in_use(page, agent)
        await readable(page, "interrupted")
        call.say("user-transcription", text="No, let me sleep.", final=True)
        answer(call, "Then good night to you.", hz=0)
        call.say("bot-tts-text", text="Then")
        await page.until("document.querySelector('.words [data-is=now]')")
        await page.press(" ")
        await page.until("document.querySelector('#mute').getAttribute('aria-pressed') === 'true'")
        await readable(page, "muted")
        await page.click("#compact")
        await readable(page, "compact")


@pytest.mark.slow
async def test_compact_view_and_subtitles_are_remembered(browser: DevTools) -> None:
    """The compact view shows the call and the current line; both choices survive a reload."""
    async with open_talk(browser) as (page, agent):
        await page.click("#compact")
        await page.click("#subtitles")
        await page.call("Page.reload")
        await page.until("document.querySelector('#talk')?.hasAttribute('data-compact')")
        await page.until("!document.querySelector('#talk').hidden")
        assert not await page.js("document.querySelector('#subtitle').checkVisibility()")
        await page.click("#subtitles")
        call = await start(page, agent)
        answer(call, "One line is enough here. Another one follows.", hz=0)
        call.say("bot-tts-text", text="One")
        await page.until("document.querySelector('#subtitle').innerText.trim() === 'One line is enough here.'")
        assert not await page.js("document.querySelector('#conversation').checkVisibility()")
