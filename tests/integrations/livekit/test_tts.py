"""LiveKit's own classes with a real node."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from livekit.agents import (
    APIConnectionError,
    APIConnectOptions,
    APIStatusError,
    APITimeoutError,
    metrics,
    tokenize,
    tts,
)
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT, TimedString
from websockets.asyncio.server import ServerConnection

from agent_tts.client.moving import connect
from agent_tts.errors import SettingsError
from agent_tts.integrations.livekit.tts import TTS
from agent_tts.serve.session import Session
from tests.client.test_connection import GREETING, serving
from tests.support import RunningNode, dominant_hz, running_node, typed, until
from tests.two_nodes import TEXT as SENTENCE
from tests.two_nodes import two_nodes_in_this_loop

TOKENS = ("One", " two three", " fo", "ur, five", " six", " seven.")
TEXT = "".join(TOKENS)

ONCE = APIConnectOptions(max_retry=0)


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node() as running:
        yield running


def reply(speaker: tts.TTS[Any], tokens: Iterable[str], options: APIConnectOptions = ONCE) -> tts.SynthesizeStream:
    """A reply with complete text."""
    stream = speaker.stream(conn_options=options)
    for token in tokens:
        stream.push_text(token)
    stream.end_input()
    return stream


async def spoken(stream: tts.SynthesizeStream | tts.ChunkedStream) -> list[tts.SynthesizedAudio]:
    async with stream, asyncio.timeout(30):
        return [event async for event in stream]


async def say(speaker: tts.TTS[Any], tokens: Iterable[str] = TOKENS) -> list[tts.SynthesizedAudio]:
    return await spoken(reply(speaker, tokens))


def pcm(events: Iterable[tts.SynthesizedAudio]) -> bytes:
    return b"".join(event.frame.data.tobytes() for event in events)


def words(events: Iterable[tts.SynthesizedAudio]) -> list[TimedString]:
    return [word for event in events for word in event.frame.userdata[USERDATA_TIMED_TRANSCRIPT]]


def spans(events: Iterable[tts.SynthesizedAudio]) -> list[tuple[float, float]]:
    """Start and end of each word, in seconds."""
    found = []
    for word in words(events):
        if word.strip():
            assert isinstance(word.start_time, float)
            found.append((word.start_time, typed(float, word.end_time)))
    return found


def failures(speaker: tts.TTS[Any]) -> list[tts.TTSError]:
    """Errors that it reports from now on."""
    found: list[tts.TTSError] = []
    speaker.on("error", found.append)
    return found


# ---------------------------------------------------------------- a reply


async def test_tokens_become_one_segment_of_speech(node: RunningNode) -> None:
    async with TTS(node.url, voice="tone-660") as speaker:
        events = await say(speaker)
    assert dominant_hz(pcm(events)) == pytest.approx(660, abs=5)
    assert {(event.frame.sample_rate, event.frame.num_channels) for event in events} == {(24_000, 1)}
    assert len({(event.request_id, event.segment_id) for event in events}) == 1
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]


async def test_a_token_is_spoken_before_the_next_one_exists(node: RunningNode) -> None:
    async with TTS(node.url) as speaker, speaker.stream(conn_options=ONCE) as stream:
        stream.push_text("One two ")
        first = await anext(stream)
        stream.push_text("three.")
        stream.end_input()
        events = [first] + [event async for event in stream]
    assert "".join(words(events)) == "One two three."


async def test_a_flush_ends_the_segment_of_an_open_input(node: RunningNode) -> None:
    async with TTS(node.url) as speaker, speaker.stream(conn_options=ONCE) as stream:
        stream.push_text(TEXT)
        stream.flush()
        async with asyncio.timeout(20):
            events = [event async for event in stream]
    assert events[-1].is_final
    assert "".join(words(events)) == TEXT


@pytest.mark.parametrize("engine", ["tone", "espeak"])
async def test_words_arrive_with_their_audio(engine: str) -> None:
    text = "Hello there,  how are\nyou? I am fine. "
    async with running_node(engine=engine) as node, TTS(node.url) as speaker:
        assert speaker.capabilities.aligned_transcript
        events = await say(speaker, [text[i : i + 3] for i in range(0, len(text), 3)])
    told = words(events)
    assert "".join(told) == text
    assert [str(word) for word in told[:4]] == ["Hello", " there,", "  how", " are"]
    assert spans(events) == sorted(spans(events))
    if engine == "espeak":  # its times are exact; the tone engine's are estimates
        assert all(now[1] <= later[0] for now, later in pairwise(spans(events)))
    ends_s = 0.0
    for event in events:
        ends_s += event.frame.duration
        for start_s, _ in spans([event]):
            # LiveKit collects up to 0.2 s per frame, and a chunk of the node is 80 ms. Estimates wait for pauses in the
            # audio, and a tone has none.
            assert ends_s - (0.5 if engine == "espeak" else 1.2) < start_s < ends_s + 0.28


async def test_without_timestamps_there_is_no_transcript(node: RunningNode) -> None:
    async with TTS(node.url, timestamps="none") as speaker:
        assert not speaker.capabilities.aligned_transcript
        assert words(await say(speaker)) == []


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
async def test_audio_has_the_chosen_sample_rate(node: RunningNode, rate: Any) -> None:
    async with TTS(node.url, voice="tone-440", sample_rate=rate) as speaker:
        assert speaker.sample_rate == rate
        events = await say(speaker)
    assert {event.frame.sample_rate for event in events} == {rate}
    assert dominant_hz(pcm(events), rate) == pytest.approx(440, abs=5)
    assert "".join(words(events)) == TEXT


async def test_a_long_pause_of_the_llm_loses_no_text() -> None:
    async with running_node(engine="espeak", limits={"text_idle_s": 0.9}) as node, TTS(node.url) as speaker:
        failed = failures(speaker)
        events = await with_a_pause(speaker, asyncio.sleep(2.5))
    assert "".join(words(events)) == "One two, three four."
    assert spans(events) == sorted(spans(events))
    assert spans(events)[-1][1] == pytest.approx(sum(event.frame.duration for event in events), abs=0.4)
    assert len({event.segment_id for event in events}) == 1
    assert failed == []


async def test_a_reply_goes_on_after_it_gave_its_slot_to_others() -> None:
    async with running_node(engine="espeak", slots=1) as node, TTS(node.url) as speaker, connect(node.url) as other:
        failed = failures(speaker)

        async def others() -> None:
            await asyncio.sleep(3)
            async with other.begin() as waiting:
                waiting.write("Somebody else.")
                waiting.end()
                assert [piece async for piece in waiting]

        events = await with_a_pause(speaker, others())
    assert "".join(words(events)) == "One two, three four."
    assert failed == []


async def with_a_pause(speaker: TTS, pause: Awaitable[None]) -> list[tts.SynthesizedAudio]:
    async with speaker.stream(conn_options=ONCE) as stream:
        stream.push_text("One two, ")
        listening = asyncio.create_task(_all(stream))
        await pause
        stream.push_text("three four.")
        stream.end_input()
        return await listening


async def _all(stream: tts.SynthesizeStream) -> list[tts.SynthesizedAudio]:
    async with asyncio.timeout(30):
        return [event async for event in stream]


@pytest.mark.parametrize("tokens", [[" ", "\n "], []])
async def test_a_reply_without_text_takes_no_slot(tokens: list[str]) -> None:
    async with running_node(slots=1, queue=0) as node, connect(node.url) as connection, TTS(node.url) as speaker:
        await connection.open()
        assert await say(speaker, tokens) == []


@pytest.mark.parametrize("way", ["stream", "synthesize"])
async def test_text_without_words_is_not_an_error(way: str) -> None:
    """LiveKit treats a reply without audio as a fault of the service, and the agent's turn would fail."""
    async with running_node(engine="espeak") as node, TTS(node.url) as speaker:
        failed = failures(speaker)
        await (say(speaker, ["🙂"]) if way == "stream" else spoken(speaker.synthesize("🙂", conn_options=ONCE)))
    assert failed == []


# ---------------------------------------------------------------- complete texts


async def test_synthesize_is_faster_than_real_time(node: RunningNode) -> None:
    async with TTS(node.url, voice="tone-880") as speaker:
        began = time.monotonic()
        events = await spoken(speaker.synthesize(TEXT * 8, conn_options=ONCE))
        took_s = time.monotonic() - began
    frames_s = sum(event.frame.duration for event in events)
    assert dominant_hz(pcm(events)) == pytest.approx(880, abs=5)
    assert "".join(words(events)) == TEXT * 8
    assert frames_s > 10
    assert took_s < frames_s / 2


async def test_synthesize_can_be_cancelled(node: RunningNode) -> None:
    async with TTS(node.url) as speaker:
        async with speaker.synthesize("word " * 2_000, conn_options=ONCE) as stream:
            await anext(stream)
            assert node.node.service.speaking == 1
        await until(lambda: node.node.service.speaking == 0)


# ---------------------------------------------------------------- interruption, options, metrics


async def test_an_interruption_stops_only_its_reply(node: RunningNode) -> None:
    measured: list[metrics.TTSMetrics] = []
    async with TTS(node.url) as speaker:
        speaker.on("metrics_collected", measured.append)
        async with speaker.stream(conn_options=ONCE) as other, speaker.stream(conn_options=ONCE) as stream:
            other.push_text("One two three four ")
            stream.push_text("word " * 500)
            await anext(other)
            await anext(stream)
            assert node.node.service.speaking == 2
            await stream.aclose()
            await until(lambda: node.node.service.speaking == 1)
            other.push_text("five.")
            other.end_input()
            assert "".join(words([event async for event in other])).endswith("five.")
        assert len(node.node.sessions) == 1
        await say(speaker)
        assert len(node.node.sessions) == 1
    assert [each.connection_reused for each in measured][-1] is True


async def test_a_reply_goes_on_when_its_node_is_lost() -> None:
    """Each word is told once with its time in the reply, and heard once; the listener waits for 500 ms at most."""
    tokens = SENTENCE.partition(" seven")
    clock = asyncio.get_running_loop().time
    async with two_nodes_in_this_loop() as balanced, TTS(balanced.url, moves=True) as speaker:
        whole = pcm(await say(speaker, tokens))
        heard: list[tts.SynthesizedAudio] = []
        began, played_s, waited_s, lost = 0.0, 0.0, 0.0, ""
        async with reply(speaker, tokens) as stream, asyncio.timeout(30):
            async for event in stream:
                now = clock()
                began = began or now
                waited_s += max(0.0, now - began - played_s - waited_s)  # beyond the end of what was there to play
                played_s += event.frame.duration
                heard.append(event)
                if played_s > 2 and not lost:
                    lost = balanced.lose()
    assert lost
    assert "".join(words(heard)) == SENTENCE
    starts = [start for start, _ in spans(heard)]
    assert starts == sorted(starts)
    assert -0.4 * 48_000 < len(pcm(heard)) - len(whole) < 3_840  # of 5 s: no word is missing or there twice
    assert waited_s <= 0.5


async def test_options_apply_from_the_next_reply(node: RunningNode) -> None:
    async with TTS(node.url, voice="tone-220") as speaker:
        stream = reply(speaker, TOKENS)
        speaker.update_options(voice="tone-880", language="en", speed=1.5)
        assert dominant_hz(pcm(await spoken(stream))) == pytest.approx(220, abs=5)
        assert dominant_hz(pcm(await say(speaker))) == pytest.approx(880, abs=5)
        speaker.update_options(voice=None)
        assert dominant_hz(pcm(await say(speaker))) not in (pytest.approx(220, abs=5), pytest.approx(880, abs=5))


@pytest.mark.parametrize(
    "options", [{"voise": "x"}, {"speed": 99}, {"output": {"encoding": "opus"}}, {"sampling": {"top": 1}}]
)
def test_an_invalid_option_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        TTS(**options)
    speaker = TTS(voice="vivian")
    with pytest.raises(SettingsError):
        speaker.update_options(**options)
    assert speaker._session["voice"] == "vivian"


def test_a_voice_replaces_a_speaker_embedding() -> None:
    speaker = TTS(speaker_embedding=[0.5, 0.25])
    speaker.update_options(voice="vivian")
    assert "speaker_embedding" not in speaker._session


def test_an_invalid_url_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="a node's url is"):
        TTS("ftp://node")


async def test_metrics_report_the_first_byte_and_the_duration(node: RunningNode) -> None:
    measured: list[metrics.TTSMetrics] = []
    async with TTS(node.url) as speaker:
        assert speaker.model == "unknown"
        speaker.on("metrics_collected", measured.append)
        async with speaker.stream(conn_options=ONCE) as stream:
            await asyncio.sleep(0.5)  # the LLM is thinking
            for token in TOKENS:
                stream.push_text(token)
            stream.end_input()
            events = [event async for event in stream]
    (found,) = measured
    assert found.metadata is not None
    assert (found.metadata.model_name, found.metadata.model_provider) == ("tone", "agent-tts")
    assert 0 < found.ttfb < 0.5
    assert found.audio_duration == pytest.approx(sum(event.frame.duration for event in events))
    assert found.characters_count == len(TEXT)
    assert (found.streamed, found.cancelled, found.connection_reused) == (True, False, False)


# ---------------------------------------------------------------- failures


async def test_a_fallback_takes_over_at_capacity(node: RunningNode) -> None:
    async with (
        running_node(slots=1, queue=0) as full,
        connect(full.url) as connection,
        TTS(full.url) as first,
        TTS(node.url, voice="tone-660") as second,
        tts.FallbackAdapter([first, second], max_retry_per_tts=0) as speaker,
    ):
        busy = await connection.open()
        failed = failures(first)
        stream = speaker.stream()
        for token in TOKENS:
            stream.push_text(token)
        stream.end_input()
        events = await spoken(stream)
        await busy.cancel()
    assert dominant_hz(pcm(events)) == pytest.approx(660, abs=5)
    assert "".join(words(events)) == TEXT
    error = typed(APIStatusError, failed[0].error)
    assert (error.status_code, error.retryable) == (503, True)
    assert isinstance(error.body, dict)
    assert error.body["code"] == "at_capacity"
    assert error.body["retry_after_ms"] > 0


async def test_a_reply_refused_for_capacity_is_spoken_whole_on_retry() -> None:
    async with running_node(slots=1, queue=0) as node, connect(node.url) as connection, TTS(node.url) as speaker:
        busy = await connection.open()
        failed = failures(speaker)
        async with speaker.stream(conn_options=APIConnectOptions(max_retry=5, retry_interval=0.2)) as stream:
            stream.push_text("One two ")
            await until(lambda: len(failed) == 2)
            stream.push_text("three.")
            await busy.cancel()
            stream.end_input()
            events = await _all(stream)
    assert "".join(words(events)) == "One two three."
    assert {each.recoverable for each in failed} == {True}


async def test_an_unknown_voice_is_not_retried(node: RunningNode) -> None:
    async with TTS(node.url, voice="nobody") as speaker:
        failed = failures(speaker)
        with pytest.raises(APIStatusError) as caught:
            await spoken(reply(speaker, TOKENS, APIConnectOptions(max_retry=3)))
        assert (caught.value.status_code, caught.value.retryable) == (400, False)
        assert [each.recoverable for each in failed] == [False]
        speaker.update_options(voice="tone-440")
        assert await say(speaker)


async def test_a_wrong_key_is_not_retried() -> None:
    async with running_node(auth={"api_keys": ["sesame"]}) as node:
        async with TTS(node.url, api_key="wrong") as speaker:
            with pytest.raises(APIStatusError) as caught:
                await say(speaker)
            assert (caught.value.status_code, caught.value.retryable) == (401, False)
        async with TTS(node.url, api_key="sesame") as speaker:
            assert await say(speaker)


@pytest.mark.parametrize("way", ["stream", "synthesize"])
async def test_a_missing_node_is_a_connection_error(way: str) -> None:
    async with TTS("http://127.0.0.1:1") as speaker:
        with pytest.raises(APIConnectionError, match="no node answers") as caught:
            await (say(speaker) if way == "stream" else spoken(speaker.synthesize(TEXT, conn_options=ONCE)))
    assert caught.value.retryable


@pytest.mark.parametrize("way", ["stream", "synthesize"])
async def test_a_node_that_never_starts_a_context_times_out(way: str) -> None:
    async def greet_alone(websocket: ServerConnection) -> None:
        limits = {"text_message_chars": 4_000, "text_idle_s": 15.0}
        await websocket.send(json.dumps(GREETING | {"limits": limits}))
        await websocket.wait_closed()

    options = APIConnectOptions(max_retry=0, timeout=0.5)
    async with serving(greet_alone) as address, TTS(f"ws://{address}") as speaker:
        whole = speaker.synthesize(TEXT, conn_options=options) if way == "synthesize" else None
        with pytest.raises(APITimeoutError):
            await spoken(whole or reply(speaker, TOKENS, options))


async def test_a_lost_connection_is_reopened(node: RunningNode) -> None:
    async with TTS(node.url) as speaker:
        async with speaker.stream(conn_options=ONCE) as stream:
            stream.push_text("word " * 200)
            await anext(stream)
            (session,) = node.node.sessions
            assert isinstance(session, Session)
            session.drain()
            session.closing = (1012, "gone")
            with pytest.raises(APIConnectionError):
                await _all(stream)
        assert "".join(words(await say(speaker))) == TEXT


# ---------------------------------------------------------------- lifetime


async def test_closing_stops_every_reply_and_can_be_repeated(node: RunningNode) -> None:
    speaker = TTS(node.url)
    stream, whole = speaker.stream(), speaker.synthesize("word " * 2_000)
    stream.push_text("word " * 500)
    await anext(stream)
    await anext(whole)
    await speaker.aclose()
    await speaker.aclose()
    await until(lambda: not node.node.sessions and node.node.service.speaking == 0)


async def test_it_can_be_used_again_after_closing(node: RunningNode) -> None:
    speaker = TTS(node.url)
    await say(speaker)
    await speaker.aclose()
    assert await say(speaker)
    await speaker.aclose()


def test_the_import_without_livekit_names_the_package_to_install() -> None:
    program = "import sys; sys.modules['livekit'] = None; import agent_tts.livekit"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (
        done.stderr.splitlines()[-1]
        == "ModuleNotFoundError: agent_tts.livekit needs livekit-agents: pip install '.[livekit]' in a checkout"
    )


async def test_the_expressive_mode_of_livekit() -> None:
    """It makes tags that the node performs; here a pause."""
    async with running_node(lead_ms=60_000) as node, TTS(node.url) as speaker:
        assert speaker.markup.llm_instructions() is not None
        adapter = tts.StreamAdapter(tts=speaker, sentence_tokenizer=tokenize.blingfire.SentenceTokenizer())
        plain = await say(adapter, ["One two three four five six. "])
        adapter._set_expressive(True)
        marked = (
            '<expr type="expression" label="calm"/> One two <expr type="break" label="800ms"/>three four five six. '
        )
        seconds = [len(pcm(events)) / 48_000 for events in (plain, await say(adapter, [marked]))]
    assert seconds[1] - seconds[0] == pytest.approx(0.8, abs=0.1)
