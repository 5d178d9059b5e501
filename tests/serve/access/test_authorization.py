"""The authorization matrix: every route with every kind of client. A route without a row fails."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Mount
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent_tts.config.settings import Settings
from agent_tts.serve.app import create_app
from tests.support import RunningNode, present, running_node
from tests.wire import wire

pytestmark = pytest.mark.node

KEY = "correct-horse-battery-staple"
AUTH = {"api_keys": [KEY], "allowed_origins": ["https://app.example"]}
RIGHT = {"Authorization": f"Bearer {KEY}"}
WRONG = {"Authorization": "Bearer wrong"}
BAD_ORIGIN = {"Origin": "https://evil.example"}
GOOD_ORIGIN = {"Origin": "https://app.example"}

OPEN = "open"  # any client
KEYED = "keyed"  # a client with a key
STREAM = "stream"  # a key or a one-time token
NOBODY = "nobody"  # they need an agent

# Who may use what: which clients, which methods, and the path.
ROUTES = """
open   GET              /
open   MOUNT,GET        /web
open   GET              /web/
open   GET              /docs
open   GET              /docs/{name:path}
open   GET              /openapi.json
open   GET              /api/agent
open   GET              /health
open   GET              /ready
keyed  GET              /metrics
keyed  GET              /api/operator
keyed  POST             /v1/audio/speech
keyed  GET,POST,DELETE  /v1/audio/voices
keyed  DELETE,GET       /v1/audio/voices/{name}
keyed  GET,PUT          /v1/audio/voices/{name}/lexicon
keyed  POST,GET         /v1/audio/voice_consents
keyed  GET,POST,DELETE  /v1/audio/voice_consents/{consent_id}
keyed  POST             /v1/audio/detect
keyed  GET              /v1/models
keyed  GET              /v1/models/{model:path}
keyed  POST             /v1/text-to-speech/{voice_id}
keyed  POST             /v1/text-to-speech/{voice_id}/stream
keyed  POST             /v1/text-to-speech/{voice_id}/stream/with-timestamps
keyed  POST             /v1/text-to-speech/{voice_id}/with-timestamps
keyed  POST             /v1/text-to-dialogue
keyed  POST             /v1/text-to-dialogue/stream
keyed  POST             /v1/text-to-dialogue/stream/with-timestamps
keyed  POST             /v1/text-to-dialogue/with-timestamps
keyed  POST             /v1/tokens
keyed  POST             /tts/bytes
keyed  POST             /tts/sse
keyed  POST             /v1/speak
keyed  POST             /v2/speak
keyed  GET              /v1/voices
keyed  POST             /v1/vapi
keyed  POST             /v1/jambonz
keyed  GET,POST         /pronunciation-dicts
keyed  GET,PATCH,DELETE /pronunciation-dicts/{dictionary_id}
keyed  GET              /v1/pronunciation-dictionaries
keyed  POST             /v1/pronunciation-dictionaries/add-from-rules
keyed  POST             /v1/pronunciation-dictionaries/add-from-file
keyed  GET,PATCH        /v1/pronunciation-dictionaries/{dictionary_id}
keyed  GET              /v1/pronunciation-dictionaries/{dictionary_id}/{version_id}/download
keyed  POST             /v1/pronunciation-dictionaries/{dictionary_id}/set-rules
keyed  POST             /v1/pronunciation-dictionaries/{dictionary_id}/add-rules
keyed  POST             /v1/pronunciation-dictionaries/{dictionary_id}/remove-rules
stream POST             /v1/rtc/offer
keyed  GET              /v1/rtc/ice
keyed  DELETE           /v1/rtc/{session_id}
stream WEBSOCKET        /v1/tts/stream
stream WEBSOCKET        /tts/websocket
stream WEBSOCKET        /v1/text-to-speech/{voice_id}/stream-input
stream WEBSOCKET        /v1/text-to-dialogue/stream-input
stream WEBSOCKET        /v1/text-to-dialogue/multi-stream-input
stream WEBSOCKET        /v1/text-to-speech/{voice_id}/multi-stream-input
stream WEBSOCKET        /v1/speak
stream WEBSOCKET        /v1/jambonz
stream WEBSOCKET        /v2/speak
stream WEBSOCKET        /v1/audio/speech/stream
nobody WEBSOCKET        /v1/realtime
nobody POST             /v1/realtime/calls
nobody POST             /v1/realtime/client_secrets
"""
MATRIX = {
    (method, path): who
    for who, methods, path in re.findall(r"^(\w+) +(\S+) +(\S+)$", ROUTES, re.MULTILINE)
    for method in methods.split(",")
}
REFUSED: tuple[dict[str, str], ...] = ({}, WRONG, {**RIGHT, **BAD_ORIGIN})
KEYED_ROUTES = [row for row, who in MATRIX.items() if who in (KEYED, STREAM) and row[0] != "WEBSOCKET"]
OPEN_ROUTES = [row for row, who in MATRIX.items() if who == OPEN]


def rows(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        path = getattr(route, "path", "")
        if isinstance(route, Mount):
            yield "MOUNT", path
        elif (methods := getattr(route, "methods", None)) is None:
            yield "WEBSOCKET", path
        else:
            yield from ((method, path) for method in methods if method != "HEAD")


def test_every_route_has_a_row() -> None:
    app = create_app(Settings(engine="tone"))
    assert set(rows(list(app.routes))) == set(MATRIX)


async def status(http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], query: str = "") -> int:
    path = re.sub(r"{(\w+)(:\w+)?}", r"\1", path)
    body: dict[str, Any] = {} if method == "GET" else {"json": {}}
    response = await http.request(method, path + query, headers=headers, **body)
    assert KEY not in response.text
    if response.status_code == 401 and path.startswith(("/v1/audio", "/v1/models", "/metrics")):
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"] == "Bearer"
    return response.status_code


async def test_keyed_routes() -> None:
    """Fails if `authorized` is removed from any of them."""
    async with running_node(auth=AUTH) as running, running.http() as http:
        client = running.node.guard.authorize({"x-api-key": KEY, "host": "x"}, {})
        for method, path in KEYED_ROUTES:
            where = f"{method} {path}"
            for refused in ({}, WRONG, {"X-API-Key": ""}, {"Cookie": f"key={KEY}"}, {**RIGHT, **BAD_ORIGIN}):
                code = 403 if "Origin" in refused else 401
                assert await status(http, method, path, refused) == code, (where, refused)
            token, _ = running.node.guard.issue_token(client)
            is_taken = await status(http, method, path, {}, f"?token={token}") != 401
            assert is_taken == (MATRIX[method, path] == STREAM), where
            for taken in (RIGHT, {"X-API-Key": KEY}, {**RIGHT, **GOOD_ORIGIN}):
                assert await status(http, method, path, taken) not in (401, 403, 500), (where, taken)


async def test_open_routes() -> None:
    async with running_node(auth=AUTH) as running, running.http() as http:
        for method, path in OPEN_ROUTES:
            path = path.replace("{name:path}", "") + ("/index.html" if method == "MOUNT" else "")
            assert await status(http, "GET", path, {}) in (200, 307), path


async def test_a_node_without_an_agent_says_who_has_realtime_sessions() -> None:
    async with running_node(auth=AUTH) as running, running.http() as http:
        for name in ("calls", "client_secrets"):
            refused = await http.post(f"/v1/realtime/{name}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_protocol")
            assert "`agent-tts agent`" in refused.json()["error"]["message"]
        with pytest.raises(InvalidStatus) as handshake:
            await connect(f"{running.url.replace('http', 'ws', 1)}/v1/realtime?model=x")
        assert b"`agent-tts agent`" in bytes(present(handshake.value.response.body))


async def test_a_page_may_do_by_cors_what_the_routes_are_for() -> None:
    async with running_node(auth=AUTH) as running, running.http() as http:
        for method, path in KEYED_ROUTES:
            asked = GOOD_ORIGIN | {"Access-Control-Request-Method": method}
            assert (await http.options(path, headers=asked)).status_code == 200, (method, path)


SENT = (
    "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version,"
    "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout",
    "authorization,openai-organization,openai-project",
    "cartesia-version,content-type,x-api-key",
    "content-type,xi-api-key,x-fern-language,x-fern-runtime,x-fern-sdk-name,x-fern-sdk-version",
    "authorization,content-type,x-deepgram-session-id",
    "idempotency-key",
    "openai-beta",
    "range",
    "traceparent,tracestate",
    "x-vapi-secret",
    "if-none-match",
)


async def test_a_page_may_send_what_the_sdks_of_vendors_send() -> None:
    """The answer allows what the browser asks for, and only to pages of the origins in the settings."""
    async with running_node(auth=AUTH) as running, running.http() as http:
        for sent in SENT:
            asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": sent}
            taken = await http.options("/v1/audio/speech/", headers=asked | GOOD_ORIGIN)
            assert taken.status_code == 200, sent
            assert taken.headers["access-control-allow-headers"] == sent
            assert taken.headers["access-control-allow-origin"] == GOOD_ORIGIN["Origin"]
            refused = await http.options("/v1/audio/speech", headers=asked | BAD_ORIGIN)
            assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (400, None), sent


async def test_a_page_may_read_every_header() -> None:
    """`*` is all of them, where no cookies are sent: those of refusals and of other vendors, too."""
    auth = AUTH | {"allowed_origins": ["https://App.example/"]}
    async with running_node(auth=auth, engine="tone") as running:
        async with running.http(headers={**RIGHT, **GOOD_ORIGIN}) as http:
            spoken = await http.post("/v1/audio/speech", json={"input": "Hi"})
            refused = await http.post("/v1/audio/speech", json={"input": ""}, headers={"Authorization": "Bearer wrong"})
            for answer in (spoken, refused):
                assert answer.headers["access-control-expose-headers"] == "*"
                assert answer.headers["access-control-allow-origin"] == GOOD_ORIGIN["Origin"]
                assert "access-control-allow-credentials" not in answer.headers
            assert spoken.headers["x-voice"]


async def stream_close_code(running: RunningNode, query: str = "", headers: dict[str, str] | None = None) -> int | None:
    """The code with which the stream is closed at once; None when it greets."""
    async with wire(running.ws_url + query, additional_headers=headers or {}) as peer:
        first = present(await peer.receive())
        if first["type"] == "session.created":
            return None
        assert (first["type"], first["fatal"]) == ("error", True)
        return await peer.close_code()


async def test_the_stream() -> None:
    """The reused token passes if `Guard._redeem` looks up instead of `pop`."""
    async with running_node(auth=AUTH) as running:
        assert await stream_close_code(running, headers={**RIGHT, **GOOD_ORIGIN}) is None
        async with httpx.AsyncClient(trust_env=False, headers=RIGHT) as client:
            issued = (await client.post(running.url + "/v1/tokens")).json()
        token = issued.pop("token")
        assert issued == {"expires_in": 60}
        assert await stream_close_code(running, "?token=wrong") == 1008
        assert await stream_close_code(running, f"?token={token}", GOOD_ORIGIN) is None
        assert await stream_close_code(running, f"?token={token}", GOOD_ORIGIN) == 1008


async def test_the_streams_of_other_vendors() -> None:
    """Refusals in the vendor's form: a close code, or an HTTP status with the same meaning."""

    async def close_code(path: str, headers: dict[str, str]) -> int | None:
        """The code with which it is closed at once; None when it answers a ping."""
        url = running.url.replace("http", "ws", 1) + re.sub(r"{(\w+)}", r"\1", path)
        try:
            socket_ = await connect(url, additional_headers=headers, proxy=None)
        except InvalidStatus as denied:
            if denied.response.status_code not in (401, 403):
                raise
            return 1008
        async with socket_:
            with contextlib.suppress(ConnectionClosed):
                if headers in REFUSED:
                    async for message in socket_:
                        assert KEY not in str(message)
                else:
                    await (await socket_.ping())
            return socket_.close_code

    async with running_node(auth=AUTH, voice_aliases={"*": "tone-440"}) as running:
        for method, path in MATRIX:
            if MATRIX[method, path] == NOBODY or method != "WEBSOCKET":
                continue
            for refused in REFUSED:
                assert await close_code(path, refused) == 1008, (path, refused)
            for taken in (RIGHT, {"Authorization": f"Token {KEY}"}, {"X-API-Key": KEY}, {"xi-api-key": KEY}):
                assert await close_code(path, taken) is None, (path, taken)


async def test_without_keys_only_foreign_origins_are_refused() -> None:
    async with running_node() as running, running.http() as http:
        assert await stream_close_code(running) is None
        assert await stream_close_code(running, headers={"Origin": running.url}) is None
        assert await stream_close_code(running, headers=BAD_ORIGIN) == 1008
        assert await status(http, "GET", "/v1/models", BAD_ORIGIN) == 403
        assert await status(http, "GET", "/v1/models", {"Host": "evil.example"}) == 403
        proxied = {"Host": "localhost", "X-Forwarded-Host": "speech.example", "Origin": "https://speech.example"}
        assert await status(http, "GET", "/v1/models", proxied) == 403
    async with running_node(auth=AUTH) as running, running.http() as http:
        assert await status(http, "GET", "/v1/models", RIGHT | proxied) == 200
        assert await status(http, "GET", "/v1/models", RIGHT | proxied | {"X-Forwarded-Host": "x"}) == 403
    strangers = AUTH | {"trusted_proxies": ["192.0.2.1"]}
    async with running_node(auth=strangers) as running, running.http() as http:
        assert await status(http, "GET", "/v1/models", RIGHT | proxied) == 403
