"""The paths of the dialects."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from agent_tts.serve.access.guard import KEY_AFTER_PROTOCOL
from agent_tts.serve.dialects import (
    cartesia_dictionaries,
    cartesia_http,
    deepgram_http,
    elevenlabs_dictionaries,
    elevenlabs_http,
    platforms,
)
from agent_tts.serve.dialects.cartesia import CartesiaAdapter
from agent_tts.serve.dialects.deepgram import AuraAdapter, DeepgramAdapter, FluxAdapter
from agent_tts.serve.dialects.elevenlabs import MultiStreamAdapter, StreamAdapter
from agent_tts.serve.dialects.elevenlabs_dialogue import DialogueAdapter
from agent_tts.serve.dialects.platforms import JambonzAdapter
from agent_tts.serve.dialects.vllm_omni import VllmOmniAdapter
from agent_tts.serve.node import Node
from agent_tts.serve.transports.websocket import Dialect

# The HTTP routes of all dialects. Their node is `app.state.node`.
routes = APIRouter()
for dialect in (
    cartesia_http,
    cartesia_dictionaries,
    deepgram_http,
    elevenlabs_http,
    elevenlabs_dictionaries,
    platforms,
):
    routes.routes += dialect.routes.routes


def _deepgram(name: str, adapter: type[DeepgramAdapter]) -> Dialect:
    def make(client: WebSocket, node: Node) -> DeepgramAdapter:
        return adapter(client.query_params, node.settings.voice_aliases)

    return Dialect(name, make, denies=True, denial_header="dg-error", subprotocols=KEY_AFTER_PROTOCOL)


def _elevenlabs(adapter: type[MultiStreamAdapter]) -> Dialect:
    def make(client: WebSocket, node: Node) -> MultiStreamAdapter:
        voice = client.path_params.get("voice_id")
        return adapter(voice, client.query_params, node.settings.limits, node.dictionaries)

    return Dialect("elevenlabs", make, key_query=("authorization",), denies=True)


# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {
    "/tts/websocket": Dialect(
        "cartesia",
        lambda _, node: CartesiaAdapter(node.settings.limits, node.dictionaries),
        key_query=("api_key", "access_token"),
    ),
    "/v1/speak": _deepgram("aura", AuraAdapter),
    "/v2/speak": _deepgram("flux", FluxAdapter),
    elevenlabs_http.PATH + "/stream-input": _elevenlabs(StreamAdapter),
    elevenlabs_http.PATH + "/multi-stream-input": _elevenlabs(MultiStreamAdapter),
    elevenlabs_http.DIALOGUE + "/stream-input": _elevenlabs(DialogueAdapter),
    elevenlabs_http.DIALOGUE + "/multi-stream-input": _elevenlabs(DialogueAdapter),
    "/v1/jambonz": Dialect("jambonz", lambda client, _: JambonzAdapter(client.query_params), denies=True),
    "/v1/audio/speech/stream": Dialect("vllm_omni", lambda _, node: VllmOmniAdapter(node.settings.lead_ms)),
}
