"""Stock clients with their own markup on, on a real node: what is heard and told is what the plain text gives."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from cartesia import AsyncCartesia
from deepgram import AsyncDeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Flush, SpeakV1Text
from deepgram.speak.v2.types import (
    SpeakV2Flush,
    SpeakV2Interrupt,
    SpeakV2InterruptPlaybackOffset,
    SpeakV2Speak,
    SpeakV2SpeechInterrupted,
    SpeakV2SpeechMetadata,
)
from elevenlabs.client import ElevenLabs
from livekit.agents import tokenize, tts
from livekit.agents.tts._provider_format import strip_all_markup
from livekit.plugins import cartesia as livekit_cartesia
from livekit.plugins import deepgram as livekit_deepgram
from livekit.plugins import elevenlabs as livekit_elevenlabs
from livekit.plugins import openai as livekit_openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TextAggregationMode, TTSService

from agent_tts.client.moving import connect
from agent_tts.integrations.livekit.tts import TTS
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.messages import Audio, Words
from tests.integrations.pipecat.pipeline import running
from tests.recogniser import recognise
from tests.serve.dialects import livekit_run, pipecat_run
from tests.serve.dialects.hearing import FIRST, SECOND, VOICE, halves
from tests.support import RunningNode, running_node, until

pytestmark = [pytest.mark.node, pytest.mark.filterwarnings("ignore:websockets:DeprecationWarning")]

PLAIN = f"{FIRST} {SECOND}"
SENTENCE, TOKEN = TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN

# The audio at 24 kHz, and the words that were told with their times; None where the protocol tells none.
Heard = tuple[bytes, list[str] | None]
Speaker = Callable[[RunningNode, str], Awaitable[Heard]]


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    """All audio comes at once."""
    names = {"aura-2-thalia-en": VOICE, "flux-haley-en": VOICE, "marin": VOICE}
    async with running_node(engine="espeak", lead_ms=60_000, voice_aliases=names) as running_:
        yield running_


def ws(node: RunningNode) -> str:
    return node.url.replace("http", "ws", 1)


# ---------------------------------------------------------------- the clients


def said(context: LLMContext) -> list[str]:
    """The assistant's messages in the LLM's context."""
    return [str(message["content"]) for message in context.get_messages() if isinstance(message, dict)]


async def piped(service: TTSService, text: str, *, tells_words: bool) -> Heard:
    """What a Pipecat service speaks of an LLM's tokens, and the words that it is told.

    The words of its frames are no measure: it puts back the markup that it finds in the LLM's text.
    """
    told: list[str] = []
    add = service.add_word_timestamps

    async def keep(words: list[tuple[str, float]], *args: Any, **kwargs: Any) -> None:
        told.extend(word for word, _ in words)
        await add(words, *args, **kwargs)

    service.add_word_timestamps = keep  # type: ignore[method-assign,assignment]
    async with running([service]) as pipeline:
        await pipeline.turn(*pipecat_run.tokens(text))
        assert not pipeline.errors
        return pipeline.pcm(), told if tells_words else None


def pipecat_cartesia(mode: TextAggregationMode) -> Speaker:
    async def speak(node: RunningNode, text: str) -> Heard:
        settings = CartesiaTTSService.Settings(voice=VOICE)
        service = CartesiaTTSService(
            api_key="none", url=f"{ws(node)}/tts/websocket", settings=settings, text_aggregation_mode=mode
        )
        return await piped(service, text, tells_words=True)

    return speak


async def pipecat_cartesia_http(node: RunningNode, text: str) -> Heard:
    settings = CartesiaHttpTTSService.Settings(voice=VOICE)
    service = CartesiaHttpTTSService(api_key="none", base_url=node.url, settings=settings)
    return await piped(service, text, tells_words=False)


def pipecat_elevenlabs(mode: TextAggregationMode) -> Speaker:
    async def speak(node: RunningNode, text: str) -> Heard:
        settings = ElevenLabsTTSService.Settings(voice=VOICE)
        service = ElevenLabsTTSService(api_key="none", url=ws(node), settings=settings, text_aggregation_mode=mode)
        return await piped(service, text, tells_words=True)

    return speak


async def pipecat_elevenlabs_http(node: RunningNode, text: str) -> Heard:
    async with livekit_run.http_session() as session:
        service = ElevenLabsHttpTTSService(
            api_key="none",
            base_url=node.url,
            aiohttp_session=session,
            settings=ElevenLabsHttpTTSService.Settings(voice=VOICE),
        )
        return await piped(service, text, tells_words=True)


def pipecat_flux(mode: TextAggregationMode) -> Speaker:
    async def speak(node: RunningNode, text: str) -> Heard:
        settings = DeepgramFluxTTSService.Settings(voice="flux-haley-en")
        service = DeepgramFluxTTSService(
            api_key="none", url=f"{ws(node)}/v2/speak", settings=settings, text_aggregation_mode=mode
        )
        return await piped(service, text, tells_words=False)

    return speak


def pipecat_aura(mode: TextAggregationMode) -> Speaker:
    async def speak(node: RunningNode, text: str) -> Heard:
        settings = DeepgramTTSService.Settings(voice="aura-2-thalia-en")
        service = DeepgramTTSService(api_key="none", base_url=ws(node), settings=settings, text_aggregation_mode=mode)
        return await piped(service, text, tells_words=False)

    return speak


async def pipecat_aura_http(node: RunningNode, text: str) -> Heard:
    async with livekit_run.http_session() as session:
        service = DeepgramHttpTTSService(
            api_key="none",
            base_url=node.url,
            aiohttp_session=session,
            settings=DeepgramHttpTTSService.Settings(voice="aura-2-thalia-en"),
        )
        return await piped(service, text, tells_words=False)


async def pipecat_openai(node: RunningNode, text: str) -> Heard:
    async with DefaultAsyncHttpxClient(trust_env=False) as http_client:
        settings = OpenAITTSService.Settings(voice="marin")
        service = OpenAITTSService(
            api_key="none", base_url=f"{node.url}/v1", http_client=http_client, settings=settings
        )
        return await piped(service, text, tells_words=False)


def pipecat_ours(mode: TextAggregationMode) -> Speaker:
    async def speak(node: RunningNode, text: str) -> Heard:
        settings = AgentTTSService.Settings(voice=VOICE)
        return await piped(
            AgentTTSService(url=node.url, settings=settings, text_aggregation_mode=mode), text, tells_words=True
        )

    return speak


async def lively(speaker: tts.TTS[Any], text: str, *, tells_words: bool = False) -> Heard:
    """What a class of LiveKit speaks of an LLM's tokens, lowered to its markup as an expressive session does.

    Its classes put the text that they sent back into the words that they are told; its transcripts strip that.
    """
    async with speaker:
        lowered = speaker.markup.convert(speaker.markup.normalize(text))
        events = await livekit_run.say(speaker, lowered)
    told = strip_all_markup(" ".join(livekit_run.words(events))).split()
    return livekit_run.pcm(events), told if tells_words else None


async def livekit_of_cartesia(node: RunningNode, text: str) -> Heard:
    async with livekit_run.http_session() as session:
        speaker = livekit_cartesia.TTS(api_key="none", base_url=node.url, voice=VOICE, http_session=session)
        return await lively(speaker, text, tells_words=True)


async def livekit_of_elevenlabs(node: RunningNode, text: str) -> Heard:
    async with livekit_run.http_session() as session:
        speaker = livekit_elevenlabs.TTS(
            api_key="none",
            base_url=f"{node.url}/v1",
            voice_id=VOICE,
            encoding="pcm_24000",
            enable_ssml_parsing=True,
            http_session=session,
        )
        return await lively(speaker, text, tells_words=True)


async def livekit_of_flux(node: RunningNode, text: str) -> Heard:
    async with livekit_run.http_session() as session:
        url = f"{node.url}/v2/speak"
        return await lively(
            livekit_deepgram.TTSv2(api_key="none", base_url=url, model="flux-haley-en", http_session=session), text
        )


async def livekit_of_aura(node: RunningNode, text: str) -> Heard:
    async with livekit_run.http_session() as session:
        url = f"{node.url}/v1/speak"
        return await lively(
            livekit_deepgram.TTS(api_key="none", base_url=url, model="aura-2-thalia-en", http_session=session), text
        )


async def livekit_of_openai(node: RunningNode, text: str) -> Heard:
    speaker = livekit_openai.TTS(
        api_key="none", base_url=f"{node.url}/v1", voice="marin", response_format="pcm", instructions="cheerful"
    )
    sentences = tokenize.blingfire.SentenceTokenizer()
    async with speaker:
        return await lively(tts.StreamAdapter(tts=speaker, sentence_tokenizer=sentences), text)


async def livekit_ours(node: RunningNode, text: str) -> Heard:
    return await lively(TTS(node.url, voice=VOICE), text, tells_words=True)


async def sdk_of_cartesia(node: RunningNode, text: str) -> Heard:
    output: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
    async with AsyncCartesia(api_key="none", websocket_base_url=ws(node)) as client:
        async with client.tts.websocket_connect() as connection:
            context = connection.context(voice=VOICE, add_timestamps=True, output_format=output)
            for token in pipecat_run.tokens(text):
                await context.push(token)
            await context.no_more_inputs()
            events: list[Any] = [event async for event in context.receive()]
    words = [word for event in events if event.type == "timestamps" for word in event.word_timestamps.words]
    return b"".join(event.audio for event in events if event.type == "chunk"), words


async def sdk_of_cartesia_http(node: RunningNode, text: str) -> Heard:
    output: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
    async with AsyncCartesia(api_key="none", base_url=node.url) as client:
        answer = await client.tts.generate(model_id="sonic-3", transcript=text, voice=VOICE, output_format=output)
        return await answer.read(), None


async def sdk_of_elevenlabs(node: RunningNode, text: str) -> Heard:
    with httpx.Client(trust_env=False) as http_client:
        client = ElevenLabs(api_key="none", base_url=node.url, httpx_client=http_client).text_to_speech
        told = await asyncio.to_thread(client.convert_with_timestamps, VOICE, text=text, output_format="pcm_24000")
    assert told.alignment is not None
    return base64.b64decode(told.audio_base_64), "".join(told.alignment.characters).split()


def _deepgram(node: RunningNode, http_client: httpx.AsyncClient) -> AsyncDeepgramClient:
    url = ws(node)
    environment = DeepgramClientEnvironment(base=node.url, production=url, agent=url, agent_rest=node.url)
    return AsyncDeepgramClient(api_key="none", environment=environment, httpx_client=http_client)


async def sdk_of_flux(node: RunningNode, text: str) -> Heard:
    audio = b""
    async with httpx.AsyncClient(trust_env=False) as http_client:
        speech = _deepgram(node, http_client).speak.v2
        async with speech.connect(model="flux-haley-en", sample_rate=24_000) as connection:
            for token in pipecat_run.tokens(text):
                await connection.send_speak(SpeakV2Speak(text=token))
            await connection.send_flush(SpeakV2Flush())
            async for message in connection:
                if isinstance(message, bytes):
                    audio += message
                elif isinstance(message, SpeakV2SpeechMetadata):
                    break
    return audio, None


async def sdk_of_aura(node: RunningNode, text: str) -> Heard:
    audio = b""
    async with httpx.AsyncClient(trust_env=False) as http_client:
        speech = _deepgram(node, http_client).speak.v1
        async with speech.connect(model="aura-2-thalia-en", encoding="linear16", sample_rate=24_000) as connection:
            for token in pipecat_run.tokens(text):
                await connection.send_text(SpeakV1Text(text=token))
            await connection.send_flush(SpeakV1Flush(type="Flush"))
            while True:
                message = await connection.recv()
                if isinstance(message, bytes):
                    audio += message
                elif message.type == "Flushed":
                    return audio, None


async def sdk_of_openai(node: RunningNode, text: str) -> Heard:
    async with AsyncOpenAI(api_key="none", base_url=f"{node.url}/v1", max_retries=0) as client:
        speech = client.audio.speech.with_streaming_response
        asked: dict[str, Any] = {"model": "gpt-4o-mini-tts", "voice": "marin", "instructions": "cheerful"}
        async with speech.create(input=text, response_format="pcm", **asked) as answer:
            return b"".join([piece async for piece in answer.iter_bytes()]), None


async def client_ours(node: RunningNode, text: str) -> Heard:
    audio, words = b"", dict[int, str]()
    async with connect(node.url) as connection:
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
    "cartesia, pipecat, sentences": pipecat_cartesia(SENTENCE),
    "cartesia, pipecat, tokens": pipecat_cartesia(TOKEN),
    "cartesia, pipecat, http": pipecat_cartesia_http,
    "cartesia, livekit": livekit_of_cartesia,
    "cartesia, sdk": sdk_of_cartesia,
    "cartesia, sdk, http": sdk_of_cartesia_http,
    "elevenlabs, pipecat, sentences": pipecat_elevenlabs(SENTENCE),
    "elevenlabs, pipecat, tokens": pipecat_elevenlabs(TOKEN),
    "elevenlabs, pipecat, http": pipecat_elevenlabs_http,
    "elevenlabs, livekit": livekit_of_elevenlabs,
    "elevenlabs, sdk": sdk_of_elevenlabs,
    "flux, pipecat, sentences": pipecat_flux(SENTENCE),
    "flux, pipecat, tokens": pipecat_flux(TOKEN),
    "flux, livekit": livekit_of_flux,
    "flux, sdk": sdk_of_flux,
    "aura, pipecat, sentences": pipecat_aura(SENTENCE),
    "aura, pipecat, tokens": pipecat_aura(TOKEN),
    "aura, pipecat, http": pipecat_aura_http,
    "aura, livekit": livekit_of_aura,
    "aura, sdk": sdk_of_aura,
    "openai, pipecat": pipecat_openai,
    "openai, livekit": livekit_of_openai,
    "openai, sdk": sdk_of_openai,
    "ours, pipecat, sentences": pipecat_ours(SENTENCE),
    "ours, pipecat, tokens": pipecat_ours(TOKEN),
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
# What an LLM writes that LiveKit has taught its markup.
EXPRESSIVE = (
    '<expr type="expression" label="excited"/> The weather is nice today. <expr type="sound" label="laugh"/> '
    '<expr type="expression" label="calm"/> Please open the <expr type="prosody" label="emphasis">window</expr>.'
)
# Silence that may be more or less, s: LiveKit may cut a text with markup into other requests.
SAME_S = 0.15


async def differences(node: RunningNode, clients: dict[str, Speaker], text_of: Callable[[str], str]) -> dict[str, str]:
    """How the marked texts of clients are heard otherwise than the plain one. Equal audio is recognised once."""
    plain = await asyncio.gather(*(speak(node, PLAIN) for speak in clients.values()))
    marked = await asyncio.gather(*(speak(node, text_of(name)) for name, speak in clients.items()))
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


async def test_the_markup_of_each_dialect(node: RunningNode) -> None:
    clients = {name: speak for name, speak in CLIENTS.items() if name != "cartesia, livekit"}
    assert await differences(node, clients, lambda name: MARKED[name.partition(",")[0]]) == {}


async def test_the_expressive_markup_of_livekit(node: RunningNode) -> None:
    """Its class for Cartesia lowers it; to others a language model may write it, too."""
    clients = {name: speak for name, speak in CLIENTS.items() if "livekit" in name}
    assert await differences(node, clients, lambda _: EXPRESSIVE) == {}


async def test_a_reply_of_markup_alone_is_no_failure(node: RunningNode) -> None:
    """LiveKit raises on a reply without audio, and tries again."""
    for pcm, _ in await asyncio.gather(
        *(speak(node, "[sighs]") for name, speak in CLIENTS.items() if "livekit" in name)
    ):
        assert pcm
        assert not any(pcm)


SPOKEN_AS = {"weather": "ˈwɛðɚ", "window": "ˈwɪndoʊ"}


async def test_the_pronunciations_of_pipecat(node: RunningNode) -> None:
    """Each class writes them in its vendor's markup; the LLM's context keeps the words."""
    url = ws(node)

    def ways(kind: type[TTSService]) -> Any:
        return [("*", kind.pronunciation_transform_ipa(SPOKEN_AS))]

    services: dict[str, TTSService] = {
        "<<w|": CartesiaTTSService(
            api_key="none",
            url=f"{url}/tts/websocket",
            settings=CartesiaTTSService.Settings(voice=VOICE),
            text_transforms=ways(CartesiaTTSService),
        ),
        "<phoneme": ElevenLabsTTSService(
            api_key="none",
            url=url,
            settings=ElevenLabsTTSService.Settings(voice=VOICE, model="eleven_flash_v2"),
            enable_ssml_parsing=True,
            text_transforms=ways(ElevenLabsTTSService),
        ),
        '\\{"word"': DeepgramTTSService(
            api_key="none",
            base_url=url,
            settings=DeepgramTTSService.Settings(voice="aura-2-thalia-en"),
            text_transforms=ways(DeepgramTTSService),
        ),
        '<phoneme alphabet="ipa" ph="ˈ': AgentTTSService(
            url=node.url,
            settings=AgentTTSService.Settings(voice=VOICE),
            text_aggregation_mode=SENTENCE,
            text_transforms=ways(AgentTTSService),
        ),
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


async def test_an_interruption_tells_flux_the_heard_text_without_markup(node: RunningNode) -> None:
    async with httpx.AsyncClient(trust_env=False) as http_client:
        async with _deepgram(node, http_client).speak.v2.connect(
            model="flux-haley-en", sample_rate=24_000
        ) as connection:
            await connection.send_speak(SpeakV2Speak(text=f"{MARKED['flux']} {MARKED['ours']}"))
            await connection.send_flush(SpeakV2Flush())
            async for message in connection:
                if isinstance(message, bytes):
                    offset = SpeakV2InterruptPlaybackOffset(value=1_000)
                    await connection.send_interrupt(SpeakV2Interrupt(playback_offset=offset))
                    break
            async for message in connection:
                if isinstance(message, SpeakV2SpeechInterrupted):
                    break
    assert isinstance(message, SpeakV2SpeechInterrupted)
    assert message.text_spoken
    assert f"{message.text_spoken}{message.text_remaining}".split() == f"{PLAIN} {PLAIN}".split()
