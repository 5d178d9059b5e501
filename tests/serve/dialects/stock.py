"""Stock clients of the dialects, unmodified but for the URL, in the voice that the recogniser recognises best."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import httpx
import pytest
from cartesia import AsyncCartesia
from deepgram import AsyncDeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from elevenlabs.client import ElevenLabs
from livekit.agents import tokenize, tts
from livekit.plugins import baseten as livekit_baseten
from livekit.plugins import cartesia as livekit_cartesia
from livekit.plugins import deepgram as livekit_deepgram
from livekit.plugins import elevenlabs as livekit_elevenlabs
from livekit.plugins import openai as livekit_openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
from pipecat.services.deepgram.tts import DeepgramHttpTTSService, DeepgramTTSService
from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TextAggregationMode

from agent_tts.integrations.pipecat.service import AgentTTSService
from tests.serve.dialects.hearing import VOICE
from tests.support import NOT_KEPT, RunningNode, running_node

# Of modules with Deepgram's SDK: it uses names that this release of websockets deprecates.
DEEPGRAM = pytest.mark.filterwarnings("ignore:websockets:DeprecationWarning")

SENTENCE, TOKEN = TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN

# Raw audio as Cartesia's clients ask for it.
RAW: Any = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}

# Names under which clients that choose among their vendor's voices get the recogniser's.
AURA, FLUX, MARIN = "aura-2-thalia-en", "flux-haley-en", "marin"


class Stock:
    """Makes clients of a node. The caller closes a TTS of LiveKit's and Cartesia's SDK."""

    def __init__(
        self, node: RunningNode, key: str, session: aiohttp.ClientSession, http: Any, openai_http: Any
    ) -> None:
        self.node, self.key, self.session, self.http, self._openai_http = node, key, session, http, openai_http
        self.url, self.ws = node.url, node.url.replace("http", "ws", 1)

    def pipecat(self, kind: type[Any], settings: dict[str, Any] | None = None, **options: Any) -> Any:
        """A service of Pipecat's, of this class; `settings` are its class's."""
        requests = {"base_url": self.url, "aiohttp_session": self.session}
        places: dict[Any, tuple[dict[str, Any], str]] = {
            AgentTTSService: ({"url": self.url}, VOICE),
            CartesiaTTSService: ({"url": f"{self.ws}/tts/websocket"}, VOICE),
            CartesiaHttpTTSService: ({"base_url": self.url}, VOICE),
            ElevenLabsTTSService: ({"url": self.ws}, VOICE),
            ElevenLabsHttpTTSService: (requests, VOICE),
            ElevenLabsDialogueTTSService: ({"url": self.ws}, VOICE),
            DeepgramFluxTTSService: ({"url": f"{self.ws}/v2/speak"}, FLUX),
            DeepgramTTSService: ({"base_url": self.ws}, AURA),
            DeepgramHttpTTSService: (requests, AURA),
            OpenAITTSService: ({"base_url": f"{self.url}/v1", "http_client": self._openai_http}, MARIN),
        }
        where, voice = places[kind]
        chosen = kind.Settings(**{"voice": voice} | (settings or {}))
        return kind(**{"api_key": self.key, "settings": chosen} | where | options)

    def livekit(self, kind: type[Any], **options: Any) -> Any:
        """A TTS of LiveKit's, of this class."""
        own: dict[str, Any] = {"api_key": self.key, "http_session": self.session}
        if kind is livekit_baseten.TTS:
            own |= {"model_endpoint": f"{self.ws}/v1/audio/speech/stream", "voice": VOICE}
            return kind(**own | options)
        places: dict[Any, tuple[str, dict[str, str]]] = {
            livekit_cartesia.TTS: ("", {"voice": VOICE}),
            livekit_elevenlabs.TTS: ("/v1", {"voice_id": VOICE}),
            livekit_deepgram.TTS: ("/v1/speak", {"model": AURA}),
            livekit_deepgram.TTSv2: ("/v2/speak", {"model": FLUX}),
            livekit_openai.TTS: ("/v1", {"voice": MARIN}),
        }
        path, voice = places[kind]
        if kind is livekit_openai.TTS:
            del own["http_session"]
        return kind(**own | {"base_url": self.url + path} | voice | options)

    def cartesia(self) -> AsyncCartesia:
        return AsyncCartesia(api_key=self.key, base_url=self.url, websocket_base_url=self.ws)

    def deepgram(self) -> AsyncDeepgramClient:
        where = DeepgramClientEnvironment(base=self.url, production=self.ws, agent=self.ws, agent_rest=self.url)
        return AsyncDeepgramClient(api_key=self.key, environment=where, httpx_client=self.http)

    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(api_key=self.key, base_url=f"{self.url}/v1", max_retries=0, http_client=self._openai_http)


@asynccontextmanager
async def stock_clients(key: str = "none", **values: Any) -> AsyncIterator[Stock]:
    """Clients of a node with espeak-ng's voices. `values` are settings."""
    aliases = dict.fromkeys((AURA, FLUX, MARIN), VOICE)
    async with (
        running_node(**{"engine": "espeak", "voice_aliases": aliases} | values) as node,
        aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(force_close=True)) as session,
        httpx.AsyncClient(trust_env=False, timeout=20, limits=NOT_KEPT) as http,
        DefaultAsyncHttpxClient(trust_env=False, limits=NOT_KEPT) as openai_http,
    ):
        yield Stock(node, key, session, http, openai_http)


@contextmanager
def elevenlabs_of(node: RunningNode) -> Iterator[ElevenLabs]:
    """ElevenLabs' own SDK, which waits in the thread that uses it."""
    with httpx.Client(trust_env=False, limits=NOT_KEPT) as client:
        yield ElevenLabs(api_key="none", base_url=node.url, httpx_client=client)


# Services of Pipecat's: class, mode, and whether they are told the times of words.
PIPECAT: dict[str, tuple[type[Any], TextAggregationMode, bool]] = {
    "cartesia, pipecat, sentences": (CartesiaTTSService, SENTENCE, True),
    "cartesia, pipecat, tokens": (CartesiaTTSService, TOKEN, True),
    "cartesia, pipecat, http": (CartesiaHttpTTSService, SENTENCE, False),
    "elevenlabs, pipecat, sentences": (ElevenLabsTTSService, SENTENCE, True),
    "elevenlabs, pipecat, tokens": (ElevenLabsTTSService, TOKEN, True),
    "elevenlabs, pipecat, http": (ElevenLabsHttpTTSService, SENTENCE, True),
    "dialogue, pipecat": (ElevenLabsDialogueTTSService, SENTENCE, True),
    "flux, pipecat, sentences": (DeepgramFluxTTSService, SENTENCE, False),
    "flux, pipecat, tokens": (DeepgramFluxTTSService, TOKEN, False),
    "aura, pipecat, sentences": (DeepgramTTSService, SENTENCE, False),
    "aura, pipecat, tokens": (DeepgramTTSService, TOKEN, False),
    "aura, pipecat, http": (DeepgramHttpTTSService, SENTENCE, False),
    "openai, pipecat": (OpenAITTSService, SENTENCE, False),
}

# Classes of LiveKit's: class, options, and whether they are told the times of words.
LIVEKIT: dict[str, tuple[type[Any], dict[str, Any], bool]] = {
    "baseten, livekit": (livekit_baseten.TTS, {"model": "qwen3-tts", "word_timestamps": True}, True),
    "cartesia, livekit": (livekit_cartesia.TTS, {}, True),
    "elevenlabs, livekit": (livekit_elevenlabs.TTS, {"encoding": "pcm_24000", "enable_ssml_parsing": True}, True),
    "dialogue, livekit": (livekit_elevenlabs.TTS, {"model": "eleven_v4_turbo", "encoding": "pcm_24000"}, True),
    "flux, livekit": (livekit_deepgram.TTSv2, {}, False),
    "aura, livekit": (livekit_deepgram.TTS, {}, False),
    "openai, livekit": (livekit_openai.TTS, {"response_format": "pcm", "instructions": "cheerful"}, False),
}


def streaming(speaker: Any) -> Any:
    """A TTS of LiveKit's as a session uses it: in sentences where it cannot take tokens."""
    if speaker.capabilities.streaming:
        return speaker
    return tts.StreamAdapter(tts=speaker, sentence_tokenizer=tokenize.blingfire.SentenceTokenizer())
