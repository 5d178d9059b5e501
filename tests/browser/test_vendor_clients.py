"""Clients of other projects in a browser, unmodified: conversations with the node's agent, and speech."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.agent.llm_server import running_llm
from tests.agent.node import RunningAgent, running_agent
from tests.agent.test_spoken import QUICK
from tests.browser.speaking import say, speaking_page
from tests.browser.test_talk_agent import LONG
from tests.certificates import make_certificate
from tests.measure.chromium import DevTools, Page, chromium
from tests.support import running_node, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.real_time]

PACKAGES = Path(sys.prefix) / "npm" / "node_modules"  # see the Makefile
CLIENTS = Path(__file__).parent / "clients"
UMBRELLA = "She bought a yellow umbrella."


async def bundle(name: str) -> str:
    """A program in one piece with the packages that it imports."""
    process = await asyncio.create_subprocess_exec(
        PACKAGES / ".bin" / "esbuild",
        CLIENTS / f"{name}.mjs",
        "--bundle",
        "--format=iife",
        env=os.environ | {"NODE_PATH": str(PACKAGES)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        code, _ = await process.communicate()
    assert process.returncode == 0
    return code.decode()


@asynccontextmanager
async def running_client(name: str, browser: DevTools, agent: RunningAgent) -> AsyncIterator[Page]:
    """A tab of the agent's origin that has run the program, and whose microphone speaks."""
    async with speaking_page(browser) as page:
        await page.open(agent.url + "/health")
        await page.js(await bundle(name))
        yield page
    await until(lambda: agent.calls == 0)


async def test_pipecats_client_calls_the_agent(browser: DevTools) -> None:
    """Its offer has video, which is not taken. It names the voice, speaks, types, and is hung up on by nobody."""
    async with running_llm(UMBRELLA, token_s=0.02) as llm, running_agent(llm.url, hears=True, **QUICK) as agent:
        async with running_client("pipecat", browser, agent) as page:
            ready = await page.js("call({ voice: 'en-us', instructions: null })")
            assert ready["version"].startswith("2.")
            await say(page, agent, "My train leaves at seven.")
            await page.until("told.user.length && told.answers === 1")
            assert await page.js("told.user[0]") == "my train leaves at seven"
            assert (await page.js("told.bot")).split() == UMBRELLA.split()
            assert await page.js("told.track.kind === 'audio' && !told.track.muted")
            await page.js("told.bot = '', client.sendText('What did she buy?')")
            await page.until("told.answers === 2")
            assert (await page.js("told.bot")).split() == UMBRELLA.split()
            assert ("user", "What did she buy?") in llm.history()
            answer = await page.js("client.transport.pc.currentRemoteDescription.sdp")
            ports = [line.split()[:2] for line in answer.splitlines() if line.startswith("m=")]
            assert [kind for kind, port in ports if port == "0"] == ["m=video"]
            assert await page.js("told.errors") == []
            assert agent.calls == 1
            await page.js("client.disconnect()")
            assert (await page.js("told.states"))[-1] == "disconnected"


async def test_pipecats_client_is_told_at_once_why_it_may_not_call(browser: DevTools) -> None:
    async with running_agent(calls=1) as agent, running_client("pipecat", browser, agent) as page:
        refusal = await page.js("call({ voice: 'nobody' }).then(() => 'taken', (error) => error.message)")
        assert refusal == "WebRTC offer rejected with status 400"
        assert json.dumps(page.requests).count("/api/agent/offer") == 1


RATE = 24_000
# When the microphone plays the first and the second sentence, in seconds after it is opened.
ASKS_S, INTERRUPTS_S, ENDS_S = 1.0, 7.0, 25.0


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
async def recorded_client(name: str, agent: RunningAgent, folder: Path) -> AsyncIterator[Page]:
    """A tab of the agent's origin that has run the program, and a microphone that asks and interrupts."""
    await microphone(agent, folder / "microphone.wav")
    path = folder / "microphone.wav"
    flags = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={path}%noloop",
    )
    async with chromium(*flags) as browser, browser.page() as page:
        await page.allow("microphone", "granted")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=WITHOUT_ECHO)
        await page.open(agent.url + "/health")
        await page.js(await bundle(name))
        yield page
    await until(lambda: agent.calls == 0)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="function")  # it has a browser of its own
async def test_openais_client_calls_with_a_client_secret_and_is_interrupted(tmp_path: Path) -> None:
    """Over WebRTC the node has the sound: it says what was played, and keeps only the heard words.

    Mutation: `Conversation.hushed` keeps all words.
    """
    async with (
        running_llm(LONG, "It is open.", token_s=0.02) as llm,
        running_agent(llm.url, hears=True) as agent,
    ):
        async with AsyncOpenAI(base_url=f"{agent.url}/v1", api_key="none") as client:
            transcribed = {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}
            made = await client.realtime.client_secrets.create(
                session={"type": "realtime", "instructions": "Be brief."} | transcribed
            )
        secret = json.dumps(made.value)
        async with recorded_client("openai", agent, tmp_path) as page:
            await page.js(f"call({secret}, {{ type: 'realtime', output_modalities: ['audio'] }})")
            of = "told.events.filter((event) => event.type === '{}')"
            await page.until(f"{of.format('output_audio_buffer.stopped')}.length")
            events: list[dict[str, Any]] = await page.js("told.events")
            kinds = [event["type"] for event in events]
            assert "response.output_audio.delta" not in kinds
            assert "error" not in kinds
            heard = [e["transcript"] for e in events if e["type"].endswith("input_audio_transcription.completed")]
            assert heard == ["my train leaves at seven", "please open the window"]
            order = ("output_audio_buffer.started", "output_audio_buffer.cleared", "conversation.item.truncated")
            first = [kinds.index(kind) for kind in (*order, "output_audio_buffer.stopped")]
            assert first == sorted(first)
            cut, answered = (event["response"] for event in events if event["type"] == "response.done")
            assert (cut["status"], answered["status"]) == ("cancelled", "completed")
            assert 0 < int(answered["metadata"]["llm_first_token_ms"]) < int(answered["metadata"]["audio_first_ms"])
            (truncated,) = (event for event in events if event["type"] == "conversation.item.truncated")
            words = [
                e for e in events if e["type"].endswith("transcript.delta") and e["item_id"] == truncated["item_id"]
            ]
            said = "".join(e["delta"] for e in words if e["start_time"] * 1_000 < truncated["audio_end_ms"])
            assert llm.history() == [("user", heard[0]), ("assistant", said), ("user", heard[1])]
            assert 0 < len(said.split()) < len(LONG.split())
            assert llm.requests[0][0] == {"role": "system", "content": "Be brief."}
            assert await page.js("told.track.kind === 'audio' && !told.track.muted")
            await page.js("hangUp()")
            await until(lambda: agent.calls == 0)
            assert await page.js("call('ek_wrong').catch((error) => error.cause.status)") == 401


KEY = "k" * 32
RAW = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24_000}
JSON = {"content-type": "application/json"}
# What the SDKs of vendors send in a browser: path, headers, body.
SENT: list[tuple[str, dict[str, str], dict[str, Any] | None]] = [
    (
        "/tts/bytes",
        {"x-api-key": KEY, "cartesia-version": "2026-03-01", **JSON},
        {"transcript": "Hi", "output_format": RAW, "voice": {"mode": "id", "id": "alloy"}, "model_id": "sonic-3"},
    ),
    ("/v1/text-to-speech/alloy/stream", {"xi-api-key": KEY, "x-fern-language": "JavaScript", **JSON}, {"text": "Hi"}),
    ("/v1/speak", {"authorization": f"token {KEY}", "x-client-info": "deepgram-js", **JSON}, {"text": "Hi"}),
    ("/v1/audio/speech/", {"authorization": f"Bearer {KEY}", "openai-beta": "x", **JSON}, {"input": "Hi"}),
    ("/v1/models", {"authorization": f"Bearer {KEY}", "traceparent": "00-0-0-00"}, None),
]


async def test_sdks_in_a_page_of_an_allowed_origin_speak_and_read_the_headers(browser: DevTools) -> None:
    """Each request of OpenAI's SDK has eight headers of its own, for which the browser asks first.

    Fails if a preflight allows a list of headers, or if the answer exposes none.
    """
    async with running_node() as page_of, running_node() as stranger:
        auth = {"api_keys": [KEY], "allowed_origins": [page_of.url]}
        async with running_node(auth=auth, slots=1, queue=0) as node, browser.page() as page:
            await page.open(page_of.url + "/health")
            await page.js(await bundle("speech"))
            url, key = json.dumps(node.url), json.dumps(KEY)
            body = {"model": "gpt-4o-mini-tts-2025-12-15", "voice": "nova", "input": "Hello there.", "speed": None}
            spoken = await page.js(f"speak({url}, {key}, {json.dumps(body)})")
            assert spoken["size"] > 1_000
            assert spoken["headers"]["x-voice"].startswith("tone-")
            assert spoken["headers"]["ai-disclosure"] == "mode=machine-generated"
            assert await page.js(f"retrieve({url}, {key}, 'openai/tts-1-hd-1106')") == "openai/tts-1-hd-1106"
            for path, headers, sent in SENT:
                asked = ", ".join(map(json.dumps, (node.url + path, headers, sent)))
                assert await page.js(f"ask({asked})") == 200, path
            async with AsyncOpenAI(base_url=f"{node.url}/v1", api_key=KEY) as client:
                long: Any = {"model": "tts-1", "voice": "alloy", "input": "word " * 3_900, "response_format": "pcm"}
                async with client.audio.speech.with_streaming_response.create(**long):
                    full = await page.js(f"speak({url}, {key}, {json.dumps(body)})")
            assert (full["status"], full["code"]) == (503, "at_capacity")
            assert int(full["headers"]["retry-after"]) >= 1
            await page.open(stranger.url + "/health")
            await page.js(await bundle("speech"))
            assert "status" not in await page.js(f"speak({url}, {key}, {json.dumps(body)})")
            for path, headers, sent in SENT:
                asked = ", ".join(map(json.dumps, (node.url + path, headers, sent)))
                assert await page.js(f"ask({asked})") == "blocked", path


# Client, how it speaks, and what it tells beside the sound.
SPOKEN: list[tuple[str, str, dict[str, Any]]] = [
    ("cartesia", "cartesiaBytes", {}),
    ("cartesia", "cartesiaSocket", {"words": ["Hello", "there."]}),
    ("cartesiaToken", "cartesiaSocket", {"words": ["Hello", "there."]}),
    ("deepgram", "deepgramBytes", {}),
    ("deepgram", "deepgramSocket", {"events": ["Metadata", "Flushed"], "protocol": "token"}),
    ("elevenlabs", "elevenlabsStream", {}),
    ("elevenlabs", "elevenlabsTimes", {"text": "Hello there. "}),
    ("elevenlabs", "elevenlabsDialogue", {}),
]


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="function")  # it has a browser of its own
async def test_the_vendors_own_sdks_speak_in_a_page_of_an_allowed_origin(tmp_path: Path) -> None:
    """Over HTTP and by WebSockets, for which a browser sends no headers: the key is in the query or a subprotocol.

    Cartesia's opens WebSockets over TLS alone.
    """
    tls = make_certificate(tmp_path).settings
    async with (
        running_node() as page_of,
        chromium("--ignore-certificate-errors") as browser,
        browser.page() as page,
    ):
        auth = {"api_keys": [KEY], "allowed_origins": [page_of.url]}
        async with running_node(auth=auth, tls=tls) as node:
            await page.open(page_of.url + "/health")
            await page.js(await bundle("vendors"))
            for client, way, told in SPOKEN:
                spoken = await page.js(f"vendor({', '.join(map(json.dumps, (client, way, node.url, KEY)))})")
                assert spoken.pop("size") > 24_000, way
                assert spoken == told, way
                wrong = await page.js(f"refused({', '.join(map(json.dumps, (client, way, node.url, 'x' * 32)))})")
                assert wrong == ("no status" if way.endswith("Socket") else 401), way
            await until(lambda: not node.node.sessions)
