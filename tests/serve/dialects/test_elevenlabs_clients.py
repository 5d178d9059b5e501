"""ElevenLabs' clients, unmodified but for the URL, on a real node."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from elevenlabs import DialogueInput, VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.realtime_tts import RealtimeTextToSpeechClient
from livekit.agents import APIStatusError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import elevenlabs as livekit_elevenlabs
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService

from tests.integrations.pipecat.pipeline import running
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, NEXT, SECOND, VOICE, check_spoken, halves
from tests.serve.dialects.stock import Stock, elevenlabs_of, stock_clients
from tests.support import present, recorded

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

FAST = VoiceSettings(speed=1.2)


@pytest.fixture
def sdk_client(stock: Stock) -> Iterator[ElevenLabs]:
    with elevenlabs_of(stock.node) as client:
        yield client


@pytest.fixture
def sdk(stock: Stock, sdk_client: ElevenLabs) -> RealtimeTextToSpeechClient:
    speech = sdk_client.text_to_speech
    # The SDK insists on TLS, which a proxy ends in front of the node.
    speech._ws_base_url = stock.ws
    return speech


@pytest.mark.parametrize("kind", [ElevenLabsTTSService, ElevenLabsDialogueTTSService])
async def test_pipecat_gets_the_times_of_words(stock: Stock, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipecat adds up the messages' times: times from the context's start fail. Its class for dialogues, too."""
    service = stock.pipecat(kind)
    told = recorded(monkeypatch, service, "add_word_timestamps", lambda words, *_, **__: words)
    async with running([service]) as pipeline:
        await pipeline.turn(*pipecat_run.tokens(f"{FIRST} {SECOND}"))
        await _check_times([at for words in told for _, at in words], pipeline.pcm())


@pytest.mark.parametrize("model", ["eleven_flash_v2_5", "eleven_v4_turbo"])
async def test_livekit_gets_the_times_of_words(stock: Stock, model: str) -> None:
    """LiveKit takes times as the context's: times from the previous message fail. Of dialogues they are the audio's."""
    async with stock.livekit(livekit_elevenlabs.TTS, encoding="pcm_24000", model=model) as speaker:
        events = await livekit_run.say(speaker, f"{FIRST} {SECOND}")
    told = [word for event in events for word in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ())]
    await _check_times([word.start_time for word in told], livekit_run.pcm(events))


async def _check_times(starts_s: list[float], pcm: bytes) -> None:
    """Check the words of both sentences: the second begins after the pause."""
    words = f"{FIRST} {SECOND}".split()
    assert len(starts_s) == len(words)
    assert starts_s == sorted(starts_s)
    first, _ = halves(pcm)
    pause_s = len(first) / 48_000
    begin = len(FIRST.split())
    assert starts_s[begin - 1] < pause_s < starts_s[begin] + 0.25
    assert starts_s[begin] - pause_s < 0.3


async def test_voices_are_listed(stock: Stock, sdk_client: ElevenLabs) -> None:
    async with stock.livekit(livekit_elevenlabs.TTS) as speaker:
        voices = await speaker.list_voices()
    assert VOICE.partition("+")[0] in {voice.id for voice in voices}
    listed = await asyncio.to_thread(sdk_client.voices.get_all)
    assert [voice.voice_id for voice in listed.voices] == [voice.id for voice in voices]


async def test_livekit_gets_the_error() -> None:
    """LiveKit waits for ever if the connection closes before it is used."""
    async with stock_clients(auth={"api_keys": ["right"]}) as stock:
        for key, voice, status in (("wrong", VOICE, 401), ("right", "nobody", 1008)):
            async with stock.livekit(livekit_elevenlabs.TTS, api_key=key, voice_id=voice) as speaker:
                with pytest.raises(APIStatusError) as caught:
                    await livekit_run.say(speaker, FIRST)
                assert caught.value.status_code == status


async def test_livekit_gets_the_error_of_a_dialogue(stock: Stock) -> None:
    """Its connection serves the next reply."""
    async with stock.livekit(livekit_elevenlabs.TTS, model="eleven_v4", voice_id="nobody") as speaker:
        with pytest.raises(APIStatusError) as caught:
            await livekit_run.say(speaker, FIRST)
        assert "unknown_voice" in str(caught.value.__cause__)
        with pytest.raises(APIStatusError) as caught:
            await livekit_run.synthesized(speaker, FIRST)
        assert caught.value.status_code == 400


async def test_dialogues_of_its_own_sdk(sdk_client: ElevenLabs) -> None:
    """Two voices in one file, each where it is told; in each way of the SDK, the same audio."""
    dialogue = sdk_client.text_to_dialogue
    texts, voices = (FIRST, SECOND), (VOICE, "en-us+m3")
    lines = [DialogueInput(text=text, voice_id=voice) for text, voice in zip(texts, voices, strict=True)]
    asked: dict[str, Any] = {"inputs": lines, "model_id": "eleven_v3", "output_format": "pcm_24000"}
    pcm = await asyncio.to_thread(lambda: b"".join(dialogue.convert(**asked)))
    assert pcm == await asyncio.to_thread(lambda: b"".join(dialogue.stream(**asked)))
    whole = await asyncio.to_thread(dialogue.convert_with_timestamps, **asked)
    parts = await asyncio.to_thread(lambda: list(dialogue.stream_with_timestamps(**asked)))
    assert base64.b64decode(whole.audio_base_64) == pcm
    assert b"".join(base64.b64decode(part.audio_base_64) for part in parts) == pcm
    alignment = present(whole.alignment)
    characters = alignment.characters
    assert "".join(characters) == f"{FIRST} {SECOND} "
    assert [each for part in parts if part.alignment for each in part.alignment.characters] == characters
    assert sorted(alignment.character_start_times_seconds) == alignment.character_start_times_seconds
    first, second = whole.voice_segments
    assert (first.voice_id, second.voice_id) == voices
    assert (first.dialogue_input_index, second.dialogue_input_index) == (0, 1)
    for segment, text in zip((first, second), texts, strict=True):
        said = characters[segment.character_start_index : segment.character_end_index]
        assert "".join(said) == f"{text} "
    seam = round(second.start_time_seconds * 24_000) * 2
    check_spoken(pcm[: round(first.end_time_seconds * 24_000) * 2], FIRST)
    assert 0 < seam < len(pcm)
    told = [segment.dialogue_input_index for part in parts for segment in part.voice_segments]
    assert set(told) == {0, 1}
    assert told == sorted(told)


async def test_its_own_sdk(sdk: RealtimeTextToSpeechClient) -> None:
    pcm = await asyncio.to_thread(lambda: b"".join(sdk.convert(VOICE, text=FIRST, output_format="pcm_16000")))
    check_spoken(pcm, FIRST, rate=16_000)
    assert pcm == await asyncio.to_thread(lambda: b"".join(sdk.stream(VOICE, text=FIRST, output_format="pcm_16000")))
    whole = await asyncio.to_thread(
        sdk.convert_with_timestamps, VOICE, text=FIRST, output_format="pcm_24000", voice_settings=FAST
    )
    parts = await asyncio.to_thread(
        lambda: list(sdk.stream_with_timestamps(VOICE, text=FIRST, output_format="pcm_24000", voice_settings=FAST))
    )
    assert len(parts) > 3
    assert b"".join(base64.b64decode(part.audio_base_64) for part in parts) == base64.b64decode(whole.audio_base_64)
    told = [part.alignment for part in parts if part.alignment is not None]
    alignment = present(whole.alignment)
    assert "".join(alignment.characters) == f"{FIRST} "
    for times in ("characters", "character_start_times_seconds", "character_end_times_seconds"):
        assert [each for part in told for each in getattr(part, times)] == getattr(alignment, times)
    audio_s = len(base64.b64decode(whole.audio_base_64)) / 48_000
    assert alignment.character_end_times_seconds[-1] == pytest.approx(audio_s, abs=0.2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of `websockets`
async def test_its_own_sdk_streams_text_while_it_receives_audio(sdk: RealtimeTextToSpeechClient) -> None:
    def speak() -> bytes:
        return b"".join(sdk.convert_realtime(VOICE, text=iter(pipecat_run.tokens(FIRST)), output_format="pcm_24000"))

    check_spoken(await asyncio.to_thread(speak), FIRST)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_errors_reach_its_own_sdk(sdk: RealtimeTextToSpeechClient) -> None:
    with pytest.raises(ApiError) as caught:
        await asyncio.to_thread(lambda: b"".join(sdk.convert("nobody", text=FIRST)))
    assert caught.value.status_code == 400
    assert caught.value.body["detail"]["status"] == "unknown_voice"
    with pytest.raises(ApiError) as caught:
        await asyncio.to_thread(lambda: b"".join(sdk.convert_realtime("nobody", text=iter([FIRST, NEXT]))))
    assert caught.value.status_code == 1008
