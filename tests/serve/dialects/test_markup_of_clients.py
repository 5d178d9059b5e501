"""Stock clients with their own markup on, on a real node: what is heard and told is what the plain text gives."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from deepgram.speak.v1.types import SpeakV1Flush, SpeakV1Text
from deepgram.speak.v2.types import SpeakV2Flush, SpeakV2Speak, SpeakV2SpeechMetadata
from elevenlabs import DialogueInput as ElevenLabsInput
from livekit.agents import tts
from livekit.agents.tts._provider_format import strip_all_markup
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.tts_service import TTSService

from agent_tts.client.moving import connect
from agent_tts.integrations.livekit.tts import TTS
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.messages import Audio, Words
from tests.integrations.pipecat.pipeline import running, said
from tests.recogniser import recognise
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, SECOND, VOICE, halves
from tests.serve.dialects.stock import (
    AURA,
    DEEPGRAM,
    FLUX,
    LIVEKIT,
    MARIN,
    PIPECAT,
    RAW,
    SENTENCE,
    TOKEN,
    Stock,
    elevenlabs_of,
    stock_clients,
    streaming,
)
from tests.support import present, recorded, until

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module"), DEEPGRAM]

PLAIN = f"{FIRST} {SECOND}"

# The audio at 24 kHz, and the words that were told with their times; None where the protocol tells none.
Heard = tuple[bytes, list[str] | None]
Speaker = Callable[[Stock, str], Awaitable[Heard]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stock() -> AsyncIterator[Stock]:
    """All audio comes at once."""
    async with stock_clients(lead_ms=60_000) as made:
        yield made


# ---------------------------------------------------------------- the clients


async def pipecat(kind: type[Any], mode: Any, tells_words: bool, stock: Stock, text: str) -> Heard:
    """What a Pipecat service speaks of an LLM's tokens, and the words that it is told.

    The words of its frames are no measure: it puts back the markup that it finds in the LLM's text.
    """
    service = stock.pipecat(kind, text_aggregation_mode=mode)
    with pytest.MonkeyPatch.context() as patch:
        told = recorded(patch, service, "add_word_timestamps", lambda words, *_, **__: words)
        async with running([service]) as pipeline:
            await pipeline.turn(*pipecat_run.tokens(text))
            assert not pipeline.errors
            return pipeline.pcm(), [word for words in told for word, _ in words] if tells_words else None


async def lively(speaker: tts.TTS[Any], text: str, *, tells_words: bool) -> Heard:
    """What a class of LiveKit speaks of an LLM's tokens, lowered to its markup as an expressive session does.

    Its classes put the text that they sent back into the words that they are told; its transcripts strip that.
    """
    async with speaker:
        lowered = speaker.markup.convert(speaker.markup.normalize(text))
        events = await livekit_run.say(speaker, lowered)
    told = strip_all_markup(" ".join(livekit_run.words(events))).split()
    return livekit_run.pcm(events), told if tells_words else None


async def livekit(kind: type[Any], options: dict[str, Any], tells_words: bool, stock: Stock, text: str) -> Heard:
    async with stock.livekit(kind, **options) as speaker:
        return await lively(streaming(speaker), text, tells_words=tells_words)


async def livekit_ours(stock: Stock, text: str) -> Heard:
    return await lively(TTS(stock.url, voice=VOICE), text, tells_words=True)


async def sdk_of_cartesia(stock: Stock, text: str) -> Heard:
    async with stock.cartesia() as client, client.tts.websocket_connect() as connection:
        context = connection.context(voice=VOICE, add_timestamps=True, output_format=RAW)
        for token in pipecat_run.tokens(text):
            await context.push(token)
        await context.no_more_inputs()
        events: list[Any] = [event async for event in context.receive()]
    words = [word for event in events if event.type == "timestamps" for word in event.word_timestamps.words]
    return b"".join(event.audio for event in events if event.type == "chunk"), words


async def sdk_of_cartesia_http(stock: Stock, text: str) -> Heard:
    async with stock.cartesia() as client:
        answer = await client.tts.generate(model_id="sonic-3", transcript=text, voice=VOICE, output_format=RAW)
        return await answer.read(), None


async def sdk_of_elevenlabs(stock: Stock, text: str) -> Heard:
    with elevenlabs_of(stock.node) as client:
        convert = client.text_to_speech.convert_with_timestamps
        told = await asyncio.to_thread(convert, VOICE, text=text, output_format="pcm_24000")
    return base64.b64decode(told.audio_base_64), "".join(present(told.alignment).characters).split()


async def sdk_of_dialogue(stock: Stock, text: str) -> Heard:
    lines = [ElevenLabsInput(text=text, voice_id=VOICE)]
    with elevenlabs_of(stock.node) as client:
        convert = client.text_to_dialogue.convert_with_timestamps
        told = await asyncio.to_thread(convert, inputs=lines, output_format="pcm_24000")
    return base64.b64decode(told.audio_base_64), "".join(present(told.alignment).characters).split()


async def sdk_of_flux(stock: Stock, text: str) -> Heard:
    audio = b""
    async with stock.deepgram().speak.v2.connect(model=FLUX, sample_rate=24_000) as connection:
        for token in pipecat_run.tokens(text):
            await connection.send_speak(SpeakV2Speak(text=token))
        await connection.send_flush(SpeakV2Flush())
        async for message in connection:
            if isinstance(message, bytes):
                audio += message
            elif isinstance(message, SpeakV2SpeechMetadata):
                break
    return audio, None


async def sdk_of_aura(stock: Stock, text: str) -> Heard:
    audio = b""
    speech = stock.deepgram().speak.v1
    async with speech.connect(model=AURA, encoding="linear16", sample_rate=24_000) as connection:
        for token in pipecat_run.tokens(text):
            await connection.send_text(SpeakV1Text(text=token))
        await connection.send_flush(SpeakV1Flush(type="Flush"))
        while isinstance(message := await connection.recv(), bytes) or message.type != "Flushed":
            audio += message if isinstance(message, bytes) else b""
    return audio, None


async def sdk_of_openai(stock: Stock, text: str) -> Heard:
    speech = stock.openai().audio.speech.with_streaming_response
    asked: dict[str, Any] = {"model": "gpt-4o-mini-tts", "voice": MARIN, "instructions": "cheerful"}
    async with speech.create(input=text, response_format="pcm", **asked) as answer:
        return b"".join([piece async for piece in answer.iter_bytes()]), None


async def client_ours(stock: Stock, text: str) -> Heard:
    audio, words = b"", dict[int, str]()
    async with connect(stock.url) as connection:
        speech = await connection.open(voice=VOICE)
        for token in pipecat_run.tokens(text):
            speech.write(token)
        speech.end()
        async for event in speech.events():
            match event:
                case Audio(payload=payload):
                    audio += payload
                case Words(words=told):
                    words |= {word.char_start: word.word for word in told}
    return audio, [words[at] for at in sorted(words)]


CLIENTS: dict[str, Speaker] = {
    **{name: partial(pipecat, *how) for name, how in PIPECAT.items()},
    **{name: partial(livekit, *how) for name, how in LIVEKIT.items()},
    "cartesia, sdk": sdk_of_cartesia,
    "cartesia, sdk, http": sdk_of_cartesia_http,
    "elevenlabs, sdk": sdk_of_elevenlabs,
    "dialogue, sdk": sdk_of_dialogue,
    "flux, sdk": sdk_of_flux,
    "aura, sdk": sdk_of_aura,
    "openai, sdk": sdk_of_openai,
    "ours, pipecat, sentences": partial(pipecat, AgentTTSService, SENTENCE, True),
    "ours, pipecat, tokens": partial(pipecat, AgentTTSService, TOKEN, True),
    "ours, livekit": livekit_ours,
    "ours, client": client_ours,
}


# ---------------------------------------------------------------- the tests

# What a text of each dialect's clients looks like that is heard as `PLAIN`. The first word of a client's name chooses.
MARKED = {
    "cartesia": '<emotion value="excited" /> The weather is <volume ratio="1.0" />nice today. '
    '<speed ratio="1.0"/>[laughter] Please <emotion value="sad">open the window.',
    "elevenlabs": "[excited] The weather is nice today. [laughs harder] Please open [strong French accent] the window.",
    "flux": 'The \\{"word": "weather", "pronounce": "ˈwɛðɚ"\\} is nice today. Please open the window.',
    "aura": 'The \\{"word": "weather", "pronounce": "ˈwɛðɚ"\\} is nice today. Please open the window.',
    "openai": '<think>Be kind</think> The <emphasis level="strong">weather</emphasis> is nice today. '
    "[laughs] Please open the window.",
    "ours": '<speak><p>The <emphasis level="strong">weather</emphasis> is nice today. <sub alias="please">Please</sub> '
    'open the <mark name="end"/>window.</p></speak>',
}
MARKED["baseten"] = MARKED["dialogue"] = MARKED["elevenlabs"]
# What an LLM writes that LiveKit has taught its markup.
EXPRESSIVE = (
    '<expr type="expression" label="excited"/> The weather is nice today. <expr type="sound" label="laugh"/> '
    '<expr type="expression" label="calm"/> Please open the <expr type="prosody" label="emphasis">window</expr>.'
)
# Silence that may be more or less, s: LiveKit may cut a text with markup into other requests.
SAME_S = 0.15


async def differences(stock: Stock, clients: dict[str, Speaker], text_of: Callable[[str], str]) -> dict[str, str]:
    """How the marked texts of clients are heard otherwise than the plain one. Equal audio is recognised once."""
    plain = await asyncio.gather(*(speak(stock, PLAIN) for speak in clients.values()))
    marked = await asyncio.gather(*(speak(stock, text_of(name)) for name, speak in clients.items()))
    sounds = list(dict.fromkeys(pcm for pcm, _ in marked))
    recognised = dict(zip(sounds, await asyncio.gather(*map(sentences_of, sounds)), strict=True))
    wrong = {}
    for name, (pcm, words), (other, told) in zip(clients, plain, marked, strict=True):
        if abs(len(pcm) - len(other)) > SAME_S * 48_000:
            wrong[name] = f"{len(other) / 48_000} s for {len(pcm) / 48_000} s"
        elif recognised[other] != [FIRST, SECOND]:
            wrong[name] = f"sounds like {recognised[other]}"
        elif words != told or words not in (None, PLAIN.split()):
            wrong[name] = f"{told} for {words}"
    return wrong


async def sentences_of(pcm: bytes) -> list[str]:
    """The two recognised sentences."""
    said = [recognise(part) for part in halves(pcm)]
    return [f"{sentence.capitalize()}." for sentence in said]


async def test_the_markup_of_each_dialect(stock: Stock) -> None:
    clients = {name: speak for name, speak in CLIENTS.items() if name != "cartesia, livekit"}
    assert await differences(stock, clients, lambda name: MARKED[name.partition(",")[0]]) == {}


async def test_the_expressive_markup_of_livekit(stock: Stock) -> None:
    """Its class for Cartesia lowers it; to others a language model may write it, too."""
    clients = {name: speak for name, speak in CLIENTS.items() if "livekit" in name}
    assert await differences(stock, clients, lambda _: EXPRESSIVE) == {}


async def test_a_reply_of_markup_alone_is_no_failure(stock: Stock) -> None:
    """LiveKit raises on a reply without audio, and tries again."""
    for pcm, _ in await asyncio.gather(
        *(speak(stock, "[sighs]") for name, speak in CLIENTS.items() if "livekit" in name)
    ):
        assert pcm
        assert not any(pcm)


SPOKEN_AS = {"weather": "ˈwɛðɚ", "window": "ˈwɪndoʊ"}


async def test_the_pronunciations_of_pipecat(stock: Stock) -> None:
    """Each class writes them in its vendor's markup; the LLM's context keeps the words."""

    def service(kind: type[Any], settings: dict[str, Any] | None = None, **options: Any) -> Any:
        ways = [("*", kind.pronunciation_transform_ipa(SPOKEN_AS))]
        return stock.pipecat(kind, settings, text_transforms=ways, text_aggregation_mode=SENTENCE, **options)

    services: dict[str, TTSService] = {
        "<<w|": service(CartesiaTTSService),
        "<phoneme": service(ElevenLabsTTSService, {"model": "eleven_flash_v2"}, enable_ssml_parsing=True),
        '\\{"word"': service(DeepgramTTSService),
        '<phoneme alphabet="ipa" ph="ˈ': service(AgentTTSService),
    }

    async def spoken(markup: str, service: TTSService) -> tuple[bytes, list[str]]:
        sent: list[str] = []

        async def on_tts_request(_: object, context_id: str, text: str) -> None:
            sent.append(text)

        service.add_event_handler("on_tts_request", on_tts_request)
        context = LLMContext()
        async with running([service], after=[LLMAssistantAggregator(context)]) as pipeline:
            await pipeline.turn(*pipecat_run.tokens(PLAIN))
            await until(lambda: bool(said(context)))
            assert markup in "".join(sent)
            return pipeline.pcm(), said(context)

    for pcm, kept in await asyncio.gather(*(spoken(markup, service) for markup, service in services.items())):
        assert kept == [PLAIN]
        assert await sentences_of(pcm) == [FIRST, SECOND]
