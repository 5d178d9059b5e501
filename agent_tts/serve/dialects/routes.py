"""The paths of the dialects."""

from __future__ import annotations

from fastapi import APIRouter

from agent_tts.serve.dialects import (
    cartesia_dictionaries,
    cartesia_http,
    deepgram_http,
    elevenlabs_dictionaries,
    elevenlabs_http,
    platforms_http,
)
from agent_tts.serve.dialects.cartesia import CartesiaAdapter
from agent_tts.serve.dialects.deepgram import AuraAdapter, FluxAdapter
from agent_tts.serve.dialects.elevenlabs import MultiStreamAdapter, StreamAdapter
from agent_tts.serve.dialects.jambonz import JambonzAdapter
from agent_tts.serve.dialects.vllm_omni import VllmOmniAdapter
from agent_tts.serve.transports.websocket import Dialect

# The HTTP routes of all dialects. Their node is `app.state.node`.
routes = APIRouter()
for dialect in (
    cartesia_http,
    cartesia_dictionaries,
    deepgram_http,
    elevenlabs_http,
    elevenlabs_dictionaries,
    platforms_http,
):
    routes.routes += dialect.routes.routes

# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {
    "/tts/websocket": Dialect(
        "cartesia",
        lambda client, node: CartesiaAdapter(node.settings.limits, node.dictionaries),
        key_query="api_key",
    ),
    "/v1/speak": Dialect(
        "aura",
        lambda client, node: AuraAdapter(client.query_params, node.settings.voice_aliases),
        denies=True,
        denial_header="dg-error",
    ),
    "/v2/speak": Dialect(
        "flux",
        lambda client, node: FluxAdapter(client.query_params, node.settings.voice_aliases),
        denies=True,
        denial_header="dg-error",
    ),
    elevenlabs_http.PATH + "/stream-input": Dialect(
        "elevenlabs",
        lambda client, node: StreamAdapter(
            client.path_params["voice_id"], client.query_params, node.settings.limits, node.dictionaries
        ),
        key_query="authorization",
        denies=True,
    ),
    elevenlabs_http.PATH + "/multi-stream-input": Dialect(
        "elevenlabs",
        lambda client, node: MultiStreamAdapter(
            client.path_params["voice_id"], client.query_params, node.settings.limits, node.dictionaries
        ),
        key_query="authorization",
        denies=True,
    ),
    "/v1/jambonz": Dialect("jambonz", lambda client, _: JambonzAdapter(client.query_params), denies=True),
    "/v1/audio/speech/stream": Dialect("vllm_omni", lambda _, node: VllmOmniAdapter(node.settings.lead_ms)),
}
