"""Speech over HTTP in every dialect: refusals in its own shape, whoever finds them, and the node's own settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import getitem
from typing import Any

import httpx
import pytest

from agent_tts.client.moving import connect
from tests.support import running_node

pytestmark = pytest.mark.node

KEY = {"X-API-Key": "right"}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}


Asks = Callable[[object, str], dict[str, Any]]  # the body for a text and a voice

# The paths of each dialect, where {} is the voice; its body; and where an error has its code, if it has one.
WAYS: dict[str, tuple[list[str], Asks, list[str]]] = {
    "openai": (["/v1/audio/speech"], lambda text, voice: {"input": text, "voice": voice}, ["error", "code"]),
    "cartesia": (
        ["/tts/bytes", "/tts/sse"],
        lambda text, voice: {"transcript": text, "voice": voice, "output_format": RAW},
        ["error_code"],
    ),
    "elevenlabs": (
        ["/v1/text-to-speech/{}" + rest for rest in ("", "/stream", "/with-timestamps", "/stream/with-timestamps")],
        lambda text, _: {"text": text},
        ["detail", "status"],
    ),
    "dialogue": (
        ["/v1/text-to-dialogue" + rest for rest in ("", "/stream", "/with-timestamps", "/stream/with-timestamps")],
        lambda text, voice: {"inputs": [{"text": text, "voice_id": voice}]},
        ["detail", "status"],
    ),
    "deepgram": (["/v1/speak?model={}", "/v2/speak?model={}"], lambda text, _: {"text": text}, ["err_code"]),
    "vapi": (["/v1/vapi?voice={}"], lambda text, _: {"message": {"type": "voice-request", "text": text}}, []),
    "jambonz": (["/v1/jambonz"], lambda text, voice: {"text": text, "voice": voice}, []),
}

LINE = {"text": "Hi.", "voice_id": "tone-440"}

# Text, voice, status and code of what every dialect refuses. The last one only the engine refuses: it is full.
COMMON: list[tuple[object, str, int, str]] = [
    (" ", "tone-440", 400, "bad_message"),
    (5, "tone-440", 400, "bad_message"),
    ("secret" * 20, "tone-440", 413, "text_too_long"),
    ("Hello.", "secret", 400, "unknown_voice"),
    ("Hello.", "tone-440", 503, "at_capacity"),
]

# Dialect, more of the query, more of the body, status and code.
OWN: list[tuple[str, dict[str, str], dict[str, Any], int, str | None]] = [
    ("cartesia", {}, {"output_format": {"container": "secret"}}, 400, "unsupported_format"),
    ("cartesia", {}, {"generation_config": {"speed": 9}}, 400, "bad_message"),
    ("elevenlabs", {}, {"voice_settings": {"speed": 9}}, 400, "bad_message"),
    ("elevenlabs", {}, {"model_id": "secret"}, 404, "model_not_found"),
    ("elevenlabs", {"output_format": "mp3"}, {}, 400, "unsupported_format"),
    ("dialogue", {}, {"inputs": []}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": None}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": "secret"}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": [{"text": "Hi."}]}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": [{"text": "Hi.", "voice_id": 5}]}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": [{"text": None, "voice_id": "tone-440"}]}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": [LINE, {"text": "Hi.", "voice_id": "secret"}]}, 400, "unknown_voice"),
    ("dialogue", {}, {"inputs": [LINE] * 101}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": [LINE | {"voice_id": f"tone-{hz}"} for hz in range(200, 211)]}, 400, "bad_message"),
    ("dialogue", {}, {"inputs": [LINE | {"text": "Hello. " * 8}] * 2}, 413, "text_too_long"),
    ("dialogue", {}, {"model_id": "secret"}, 404, "model_not_found"),
    ("dialogue", {"output_format": "mp3"}, {}, 400, "unsupported_format"),
    ("deepgram", {"encoding": "secret"}, {}, 400, "unsupported_format"),
    ("deepgram", {"encoding": "linear16", "sample_rate": "12345"}, {}, 400, "unsupported_format"),
    ("deepgram", {"encoding": "linear16", "container": "ogg"}, {}, 400, "unsupported_format"),
    ("deepgram", {"speed": "secret"}, {}, 400, "bad_message"),
    ("deepgram", {"speed": "9"}, {}, 400, "bad_message"),
    ("deepgram", {"callback": "http://secret"}, {}, 400, "unsupported"),
    ("vapi", {}, {"message": {"type": "end-of-call-report"}}, 400, None),
    ("vapi", {}, {"message": {"type": "voice-request", "text": "Hi.", "sampleRate": 12_345}}, 400, None),
]


async def test_refusals_have_the_shape_of_their_dialect_and_quote_nothing() -> None:
    """`at_capacity` comes while the answer is sent: fails without `error_body` in the request."""
    async with (
        running_node(auth={"api_keys": ["right"]}, limits={"text_context_chars": 100}, slots=1, queue=0) as node,
        connect(node.url, api_key="right") as other,
        node.http(trust_env=False) as client,
    ):
        await other.open()

        async def refused(name: str, path: str, status: int, code: str | None, **request: Any) -> str:
            answer = await client.post(path, **dict[str, Any](headers=KEY) | request)
            told: Any = answer.json()
            place = WAYS[name][2]
            assert answer.status_code == told.get("status_code", status) == status, (path, request)
            assert ("request_id" in told) == (name in ("cartesia", "deepgram"))
            assert "secret" not in answer.text
            found: Any = reduce(getitem, place, told) if place else told["error"] and code
            assert (found.lower() if name == "deepgram" else found) == code, (path, request)
            return answer.text

        for name, (paths, asks, _) in WAYS.items():
            for path in paths:
                for text, voice, status, code in COMMON:
                    await refused(name, path.format(voice), status, code, json=asks(text, voice))
                body, path = asks("Hello.", "tone-440"), path.format("tone-440")
                await refused(name, path, 401, "unauthorized", json=body, headers={"X-API-Key": "wrong"})
                await refused(name, path, 400, "bad_message", content=b"{")
        for name, query, fields, status, own in OWN:
            paths, asks, _ = WAYS[name]
            for path in paths:
                address = str(httpx.URL(path.format("tone-440")).copy_merge_params(query))
                await refused(name, address, status, own, json=asks("Hi.", "tone-440") | fields)
        # Browsers can set headers over HTTP, and proxies log addresses: a key in one is for WebSockets alone.
        paths, asks, _ = WAYS["cartesia"]
        for path in paths:
            address, body = f"{path}?api_key=right", asks("Hi.", "tone-440")
            assert "X-API-Key" in await refused("cartesia", address, 401, "unauthorized", json=body, headers={})


async def test_figures_are_said_in_words_if_the_node_does_so_by_default() -> None:
    """Fails if a route's options do not begin with the node's settings."""
    sizes: list[list[int]] = []
    for normalize in (False, True):
        async with running_node(normalize=normalize) as node, node.http(trust_env=False) as client:
            asked = [
                (path.format("tone-440"), asks("$5", "tone-440")) for paths, asks, _ in WAYS.values() for path in paths
            ]
            answers = [await client.post(path, json=body) for path, body in asked]
            sizes.append([len(answer.raise_for_status().content) for answer in answers])
    assert all(spelled > plain for plain, spelled in zip(*sizes, strict=True))
