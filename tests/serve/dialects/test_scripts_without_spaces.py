"""Vendors' clients, unmodified but for the URL, with texts without spaces: words in time, on every path."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from deepgram.speak.v2.types import (
    SpeakV2Interrupt,
    SpeakV2InterruptPlaybackOffset,
    SpeakV2Speak,
    SpeakV2SpeechInterrupted,
)
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import cartesia as livekit_cartesia
from livekit.plugins import elevenlabs as livekit_elevenlabs
from pipecat.frames.frames import TTSTextFrame
from pipecat.services.cartesia.tts import CartesiaTTSService

from agent_tts.client.moving import connect
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.livekit import TTS
from agent_tts.text.words import words
from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run
from tests.serve.dialects.hearing import VOICE
from tests.serve.dialects.stock import DEEPGRAM, FLUX, RAW, Stock, elevenlabs_of
from tests.support import present, until

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

TEXTS = {
    "zh": "今天天气很好，我们一起去公园散步。",
    "ja": "今日はとてもいい天気ですね。散歩に行きましょう。",
    "th": "สวัสดีครับวันนี้อากาศดีมาก",
    "my": "မင်္ဂလာပါနေကောင်းလား",
}

every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
# For several classes of one library: a script of characters, and one of clusters.
two_texts = pytest.mark.parametrize("text", [TEXTS["zh"], TEXTS["my"]], ids=["zh", "my"])


def check(text: str, told: Sequence[str], starts_s: Sequence[float], audio_s: float) -> None:
    """All of the text, in words of a character or a cluster, whose times go through the audio."""
    assert "".join(told).replace(" ", "") == text
    assert len(told) >= 8
    assert sorted(starts_s) == list(starts_s)
    assert starts_s[0] < 0.4
    assert 0.6 * audio_s < starts_s[-1] < audio_s
    assert all(after - before < 0.3 * audio_s for before, after in itertools.pairwise(starts_s))


@every_text
async def test_cartesias_sdk(stock: Stock, text: str) -> None:
    request: dict[str, Any] = {"model_id": "sonic-3", "voice": {"id": VOICE}}
    async with stock.cartesia() as client, client.tts.websocket_connect() as connection:
        context = connection.context(voice=VOICE, output_format=RAW, add_timestamps=True)
        for place in range(0, len(text), 3):
            await context.push(text[place : place + 3], continue_=place + 3 < len(text))
        events = [event async for event in context.receive()]
        stream = await client.tts.generate_sse(transcript=text, output_format=RAW, add_timestamps=True, **request)
        for each in events, [event async for event in stream]:
            told = [present(event.word_timestamps) for event in each if event.type == "timestamps"]
            audio = b"".join(event.audio for event in each if event.type == "chunk" and event.audio)
            check(text, [w for t in told for w in t.words], [at for t in told for at in t.start], len(audio) / 48_000)


@every_text
@DEEPGRAM
async def test_deepgrams_sdk(stock: Stock, text: str) -> None:
    """Flux tells as text what was heard of it, in words of a character or a cluster. Mutation: words at white space."""
    long, played_ms = f"{text} " * 3, 1_200  # phrases of Thai and Burmese have spaces between them
    async with stock.deepgram().speak.v2.connect(model=FLUX, sample_rate=24_000) as connection:
        messages = aiter(connection)
        await connection.send_speak(SpeakV2Speak(text=long))
        await until(lambda: stock.node.node.service.speaking == 1)
        await asyncio.sleep(played_ms / 1_000)
        offset = SpeakV2InterruptPlaybackOffset(value=played_ms)
        await connection.send_interrupt(SpeakV2Interrupt(playback_offset=offset))
        async with asyncio.timeout(20):
            while not isinstance(told := await anext(messages), SpeakV2SpeechInterrupted):
                pass
    assert f"{told.text_spoken}{told.text_remaining}" == long
    heard = [word for _, word in words(told.text_spoken or "")]
    assert 2 <= len(heard) <= 20
    assert heard == [word for _, word in words(long)][: len(heard)]


@every_text
async def test_elevenlabs_sdk(stock: Stock, text: str) -> None:
    with elevenlabs_of(stock.node) as client:
        whole = await asyncio.to_thread(
            client.text_to_speech.convert_with_timestamps, VOICE, text=text, output_format="pcm_24000"
        )
    audio_s = len(base64.b64decode(whole.audio_base_64)) / 48_000
    alignment = present(whole.alignment)
    assert "".join(alignment.characters).rstrip() == text
    starts = alignment.character_start_times_seconds
    assert sorted(starts) == starts
    assert 0.3 * audio_s < starts[len(text) // 2] < 0.7 * audio_s
    assert 0.8 * audio_s < alignment.character_end_times_seconds[-1] <= audio_s + 0.1


@two_texts
@pytest.mark.parametrize("kind", [CartesiaTTSService, AgentTTSService])
async def test_pipecats_services(stock: Stock, kind: type[Any], text: str) -> None:
    """That for ElevenLabs makes words of characters by itself, at white space alone."""
    async with running([stock.pipecat(kind)]) as pipeline:
        await pipeline.turn(*(text[place : place + 3] for place in range(0, len(text), 3)))
        frames = pipeline.down(TTSTextFrame)
        told, audio_s = [frame.text for frame in frames], len(pipeline.pcm()) / 48_000
        starts = [(frame.pts or 0) / 1e9 for frame in frames]
    assert "".join(told).replace(" ", "") == text
    assert len(told) >= 8
    assert starts == sorted(starts)
    assert 0.5 * audio_s < starts[-1] - starts[0] < audio_s


@two_texts
@pytest.mark.parametrize("kind", [livekit_cartesia.TTS, livekit_elevenlabs.TTS, TTS])
async def test_livekits_classes(stock: Stock, kind: type[Any], text: str) -> None:
    options = {"encoding": "pcm_24000"} if kind is livekit_elevenlabs.TTS else {}
    speaker = TTS(url=stock.url, voice=VOICE) if kind is TTS else stock.livekit(kind, **options)
    async with speaker:
        events = await livekit_run.say(speaker, text)
    told = [word for event in events for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())]
    audio_s = len(livekit_run.pcm(events)) / 48_000
    assert "".join(map(str, told)).replace(" ", "") == text
    starts = [word.start_time for word in told]
    if len(told) > 1:  # LiveKit's own tokens of Burmese are whole sentences
        assert 0.5 * audio_s < starts[-1] - starts[0] < audio_s


@every_text
async def test_the_clients_of_the_node(stock: Stock, text: str) -> None:
    async with connect(stock.url) as connection:
        speech = await connection.open(voice=VOICE)
        for place in range(0, len(text), 3):
            speech.write(text[place : place + 3])
        speech.end()
        audio_s = len(b"".join([pcm async for pcm in speech])) / 48_000
    assert [word.word for word in speech.words] == [word for _, word in words(text)]
    check(text, [word.word for word in speech.words], [word.start_ms / 1_000 for word in speech.words], audio_s)
