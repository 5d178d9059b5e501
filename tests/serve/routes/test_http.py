from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from fastapi import FastAPI
from starlette.requests import Request

from agent_tts.config.settings import Settings
from agent_tts.errors import RequestTimeout
from agent_tts.serve import app as app_module
from agent_tts.serve.openai import SpeechRequest
from agent_tts.serve.routes.http import SLOWEST_UPLOAD, read_body
from agent_tts.speech.audio.files import CONTENT_TYPES, wav_header
from agent_tts.speech.routing import Routing
from tests.serve.processes.test_server import raw, read_all
from tests.speech.audio.test_files import SLACK_MS, decode
from tests.support import (
    NOT_KEPT,
    RunningNode,
    dominant_hz,
    figures,
    running_node,
    running_node_with_process,
    threads_of,
    until,
)

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

KEY = "k" * 32
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
LONG = "word " * 3_900  # 936 s of tone, cut at max_frames: 240 s


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(tone={"scripted_faults": True}) as running:
        await running.node.service.in_thread(int)  # its thread is the module's
        yield running


@asynccontextmanager
async def client(node: RunningNode, **kwargs: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with node.http(timeout=10, limits=NOT_KEPT, **kwargs) as http:
        yield http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(node: RunningNode) -> AsyncIterator[httpx.AsyncClient]:
    async with client(node) as made:
        yield made


async def speak(http: httpx.AsyncClient, text: str = "one two three", **fields: Any) -> httpx.Response:
    return await http.post("/v1/audio/speech", json={"model": "tts-1", "input": text, **fields})


def idle(node: RunningNode) -> bool:
    """Whether no request has left anything behind."""
    sessions = node.node.metrics.registry.get_sample_value("agent_tts_sessions")
    active = node.node.metrics.registry.get_sample_value("agent_tts_contexts_active", {"carrier": "http"})
    return node.node.service.speaking == 0 and sessions == 0 and not active


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, in OpenAI's shape."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


# ---------------------------------------------------------------- speech


async def test_speech_in_every_format(http: httpx.AsyncClient, node: RunningNode) -> None:
    for format, content_type in CONTENT_TYPES.items():
        response = await speak(http, "a" * 20, voice="tone-660", response_format=format)
        assert response.headers["AI-Disclosure"] == "mode=machine-generated"
        assert response.status_code == 200
        assert response.headers["content-type"] == content_type
        assert response.headers["x-voice"] == "tone-660"
        samples, rate = decode(response.content, format)
        assert abs(dominant_hz(samples.astype(np.int16), rate) - 660) < 5
        assert 0 <= len(samples) * 1_000 / rate - 1_200 <= SLACK_MS[format]
    response = await speak(http, voice={"id": "alloy"})
    assert (response.headers["content-type"], response.headers["x-voice"]) == ("audio/mpeg", "tone-220")
    await until(lambda: idle(node))


# A text and its fields, the plain text that is heard, and the bytes of silence beside it.
SAME: list[tuple[str, dict[str, Any], str, int]] = [
    ("an nginx", {"lexicon": {"nginx": {"alias": "engine x"}}}, "an engine x", 0),
    ("$5", {"normalize": True}, "five dollars", 0),
    ("[sad] five dollars", {}, "five dollars", 0),
    ('five <break time="1s"/> dollars', {}, "five dollars", 48_000),
    ("a" * 40, {"speed": 2}, "a" * 20, 0),
]


async def test_options_are_those_of_a_session(http: httpx.AsyncClient, node: RunningNode) -> None:
    for text, fields, plain, longer in SAME:
        said, meant = [
            (await speak(http, each, response_format="pcm", **more)).content
            for each, more in ((text, fields), (plain, {}))
        ]
        assert len(said) == len(meant) + longer, text
    literal = await speak(http, "[sad] five dollars", response_format="pcm", markup="none")
    assert len(literal.content) > len((await speak(http, "five dollars", response_format="pcm")).content)
    assert len({(await speak(http, seed=7, response_format="opus")).content for _ in range(2)}) == 1


# All fields but those whose null has a meaning of its own.
NULLS = SpeechRequest.model_fields.keys() - {"input", "seed", "leading_silence_ms"}


async def test_null_is_absent(http: httpx.AsyncClient, node: RunningNode) -> None:
    """The types of OpenAI's SDKs allow it, and clients in other languages write it for what is not set."""
    plain = await speak(http, seed=1)
    for nulls in (*((name,) for name in NULLS), NULLS):
        response = await http.post(
            "/v1/audio/speech", json={"input": "one two three", "seed": 1, **dict.fromkeys(nulls)}
        )
        assert (response.status_code, response.content) == (200, plain.content), nulls
    timed = {"text": "Hi", "model_id": None, "apply_text_normalization": None, "voice_settings": {"speed": None}}
    assert (await http.post("/v1/text-to-speech/nova", json=timed)).status_code == 200


async def test_audio_is_streamed(http: httpx.AsyncClient, node: RunningNode) -> None:
    """The first bytes arrive while the engine still generates."""
    for format in CONTENT_TYPES:
        body = {"input": LONG, "response_format": format}
        async with http.stream("POST", "/v1/audio/speech", json=body) as response:
            async for _ in response.aiter_raw():
                break
            assert node.node.service.speaking == 1
        await until(lambda: idle(node))


async def test_events_carry_the_same_file(http: httpx.AsyncClient, node: RunningNode) -> None:
    plain = await speak(http, seed=1, response_format="wav")
    events = await speak(http, seed=1, response_format="wav", stream_format="sse")
    assert events.headers["content-type"].startswith("text/event-stream")
    messages = [json.loads(line.removeprefix("data: ")) for line in events.text.split("\n\n") if line]
    assert [message["type"] for message in messages[:-1]] == ["speech.audio.delta"] * (len(messages) - 1)
    assert b"".join(base64.b64decode(message["audio"]) for message in messages[:-1]) == plain.content
    # 13 bytes of text, 11 characters of 60 ms.
    usage = {"input_tokens": 4, "output_tokens": 9, "total_tokens": 13}
    assert messages[-1] == {"type": "speech.audio.done", "usage": usage}


async def test_text_without_sound_is_a_file_of_20_ms(http: httpx.AsyncClient, node: RunningNode) -> None:
    response = await speak(http, "x", instructions="fault:done_at@0", response_format="wav")
    assert response.status_code == 200
    assert len(response.content) == len(wav_header()) + 960


# ---------------------------------------------------------------- refusals


REFUSED: list[tuple[dict[str, Any], int, str, str | None, str]] = [
    ({"input": ""}, 400, "bad_message", "input", "nothing to speak"),
    ({"input": " \n"}, 400, "bad_message", "input", "nothing to speak"),
    ({"input": "x" * 20_001}, 413, "text_too_long", "input", "20000"),
    ({"input": None}, 400, "bad_message", "input", "string"),
    ({"voice": "nobody"}, 400, "unknown_voice", "voice", "/v1/audio/voices"),
    ({"voice": 3}, 400, "bad_message", "voice", "string"),
    ({"model": "whisper-1"}, 404, "model_not_found", "model", "tts-1-hd"),
    ({"model": "tts-1-klingon"}, 404, "model_not_found", "model", "tts-1"),
    ({"language": "klingon"}, 400, "unsupported_language", "language", "language"),
    ({"response_format": "mp4"}, 400, "unsupported_format", "response_format", "flac"),
    ({"stream_format": "ws"}, 400, "bad_message", "stream_format", "sse"),
    ({"lexicon": {"nginx": 5}}, 400, "bad_message", "lexicon", "alias"),
    ({"markup": "ssml"}, 400, "bad_message", "markup", "none"),
    ({"speed": 4.1}, 400, "bad_message", "speed", "4"),
    ({"speed": "fast"}, 400, "bad_message", "speed", "number"),
    ({"respones_format": "mp3"}, 400, "bad_message", None, "did you mean response_format"),
]


async def test_refused_requests(http: httpx.AsyncClient, node: RunningNode) -> None:
    for fields, status, code, param, says in REFUSED:
        response = await http.post("/v1/audio/speech", json={"model": "tts-1", "input": "Hi"} | fields)
        error = error_of(response)
        assert (response.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["type"] == "invalid_request_error"
        assert says in error["message"]
    assert idle(node)


async def test_a_body_must_be_a_json_object(node: RunningNode) -> None:
    async with client(node, headers={"Content-Encoding": "gzip"}) as http:
        for body in (b"", b"{", b"[]", b'"x"', b"\xff", gzip.compress(b'{"input":"x"}')):
            response = await http.post("/v1/audio/speech", content=body)
            assert response.status_code == 400
            assert "JSON" in error_of(response)["message"]


async def test_errors_never_repeat_the_request(http: httpx.AsyncClient, node: RunningNode) -> None:
    secret = "swordfish"
    for fields in ({"voice": secret}, {secret: 1}, {"speed": secret}, {"model": secret}, {"language": secret}):
        response = await http.post("/v1/audio/speech", json={"input": secret, **fields})
        assert response.status_code in (400, 404)
        assert secret not in response.text


async def test_other_errors_have_the_same_shape(http: httpx.AsyncClient, node: RunningNode) -> None:
    for method, path, status, code in (
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/audio/speech", 405, "method_not_allowed"),
        ("GET", "/v1/models/whisper-1", 404, "model_not_found"),
        ("POST", "/v1/audio/voices", 400, "unsupported"),
        ("DELETE", "/v1/audio/voices", 400, "bad_message"),
        ("DELETE", "/v1/audio/voices/alloy", 400, "bad_message"),
        ("DELETE", "/v1/audio/voices/nobody", 404, "not_found"),
    ):
        response = await http.request(method, path)
        assert (response.status_code, error_of(response)["code"]) == (status, code)


async def test_engine_that_fails_before_the_first_frame_is_an_error_status(
    http: httpx.AsyncClient, node: RunningNode
) -> None:
    response = await speak(http, instructions="fault:raise@0")
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    await until(lambda: idle(node))


async def test_a_node_above_its_high_water_mark_asks_for_no_new_callers() -> None:
    """It speaks for those who come nevertheless."""
    async with running_node(slots=4, limits={"ready_share": 0.5}) as node, client(node) as http:
        async with http.stream("POST", "/v1/audio/speech", json={"input": LONG}):
            assert (await http.get("/ready")).status_code == 200
            async with http.stream("POST", "/v1/audio/speech", json={"input": LONG}):
                answer = await http.get("/ready")
                assert (answer.status_code, answer.json()) == (503, {"status": "full"})
                assert (await http.get("/health")).status_code == 200
                assert (await speak(http)).status_code == 200
        await until(lambda: idle(node))
        assert (await http.get("/ready")).json() == {"status": "ok"}


async def test_draining_node_refuses() -> None:
    async with running_node() as node, client(node) as http:
        node.node.service.draining = True
        response = await speak(http)
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/health")).status_code == 200
    assert (response.status_code, error_of(response)["code"]) == (503, "draining")
    refused = node.node.metrics.registry.get_sample_value("agent_tts_refused_total", {"code": "draining"})
    assert refused == 1


# ---------------------------------------------------------------- HTTP/1.0, HEAD, a slash at the end


async def old(node: RunningNode, request: str, body: dict[str, Any] | None = None) -> tuple[bytes, bytes]:
    """Head and rest of the answer to HTTP/1.0, up to the end of the connection; as ApacheBench and old nginx ask."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{request} HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\nContent-Length: {len(content)}\r\n\r\n"
    answer, loop = b"", asyncio.get_running_loop()
    async with raw(node, head.encode() + content) as sock, asyncio.timeout(10):
        while piece := await loop.sock_recv(sock, 65_536):
            answer += piece
    before, _, behind = answer.partition(b"\r\n\r\n")
    return before.lower(), behind


@pytest.mark.parametrize("fields", [{"response_format": name} for name in CONTENT_TYPES] + [{"stream_format": "sse"}])
async def test_http_1_0_gets_no_chunks(http: httpx.AsyncClient, node: RunningNode, fields: dict[str, str]) -> None:
    """The end of the connection is that of the file. Fails if `OldCycle` is not used."""
    body: dict[str, Any] = {"input": "one two three", "seed": 1, **fields}
    head, file = await old(node, "POST /v1/audio/speech", body)
    assert b" 200 " in head
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert file == (await http.post("/v1/audio/speech", json=body)).content


async def test_http_1_0_gets_other_answers_with_their_length(http: httpx.AsyncClient, node: RunningNode) -> None:
    for request, body in (
        ("GET /health", None),
        ("GET /web/icon.svg", None),
        ("POST /v1/audio/speech", {"input": ""}),
        ("GET /nothing", None),
        ("POST /v1/audio/speech", {"input": "x", "instructions": "fault:raise@0"}),
    ):
        head, rest = await old(node, request, body)
        assert f"content-length: {len(rest)}".encode() in head, request
        assert b"transfer-encoding" not in head
    head, rest = await old(node, "HEAD /health")
    assert (b" 200 " in head, rest) == (True, b"")


async def test_http_1_0_notices_a_failure_in_the_middle(node: RunningNode) -> None:
    """A regular end of the connection would be that of a whole file."""
    body = {"input": "a" * 40, "instructions": "fault:raise@5", "response_format": "pcm"}
    with pytest.raises(ConnectionResetError):
        await old(node, "POST /v1/audio/speech", body)
    await until(lambda: idle(node))


READ: tuple[str, ...] = (
    "/health",
    "/ready",
    "/metrics",
    "/v1/models",
    "/v1/models/tts-1",
    "/v1/audio/voices",
    "/v1/audio/voices/alloy",
)
READ += ("/v1/voices", "/pronunciation-dicts", "/v1/pronunciation-dictionaries", "/openapi.json", "/api/agent", "/")
PAGES = ("/docs/", "/docs/index.md", "/docs/page.png", "/web/app.js", "/web/style.css", "/web/icon.svg")


@pytest.mark.parametrize("path", READ + PAGES)
async def test_head_is_get_without_its_body(http: httpx.AsyncClient, node: RunningNode, path: str) -> None:
    """Uptime monitors and `wget --spider` ask so. On one connection: a body would be taken for the next answer."""
    got, head = await http.get(path), await http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    told = {"content-type", "content-encoding", "content-security-policy"}
    assert {name: head.headers.get(name) for name in told} == {name: got.headers.get(name) for name in told}
    if path != "/metrics":  # they have counted the first request
        assert head.headers.get("content-length") == got.headers.get("content-length")
    assert (await http.get("/health")).json()["status"] == "ok"


@pytest.mark.real_time
@pytest.mark.parametrize("path", ["/openapi.json", "/web/client.js", "/v1/audio/voices", "/v1/voices"])
async def test_what_takes_milliseconds_is_made_in_a_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers ask for it, and a library may have a thousand voices."""
    work = ((FastAPI, "openapi"), (gzip, "compress"), (Routing, "voices"))
    threads = [threads_of(monkeypatch, owner, name) for owner, name in work]
    app_module._packed.cache_clear()
    async with running_node() as node, node.http(trust_env=False) as http:
        for calls in threads:
            calls.clear()
        assert (await http.get(path)).status_code == 200
    assert any(threads)
    assert not any(itertools.chain(*threads))


async def test_head_of_what_only_speaks_is_refused(http: httpx.AsyncClient, node: RunningNode) -> None:
    for path in ("/v1/audio/speech", "/v1/text-to-speech/nova", "/tts/bytes", "/v1/tokens"):
        assert (await http.head(path)).status_code == 405
    assert (await http.head("/v1/nothing")).status_code == 404
    assert (await http.head("/v1/models/whisper-1")).status_code == 404


@pytest.mark.parametrize("path", READ)
async def test_a_slash_at_the_end_changes_nothing(http: httpx.AsyncClient, node: RunningNode, path: str) -> None:
    """No redirect: behind TLS it would lead to http://, and a POST would lose its body."""
    got = await http.get(f"{path}//")
    assert (got.status_code, got.headers["content-type"]) == (200, (await http.get(path)).headers["content-type"])


async def test_speech_is_made_at_a_path_with_a_slash_at_its_end(http: httpx.AsyncClient, node: RunningNode) -> None:
    for path, body in (
        ("/v1/audio/speech", {"input": "Hi"}),
        ("/v1/text-to-speech/nova", {"text": "Hi"}),
        ("/v1/text-to-speech/nova/stream", {"text": "Hi"}),
        ("/v1/text-to-speech/nova/with-timestamps", {"text": "Hi"}),
        ("/v1/text-to-speech/nova/stream/with-timestamps", {"text": "Hi"}),
        ("/v1/speak", {"text": "Hi"}),
        ("/v1/jambonz", {"text": "Hi"}),
        ("/v1/tokens", None),
    ):
        plain, slashed = [(await http.post(each, json=body)) for each in (path, f"{path}/")]
        assert (slashed.status_code, slashed.headers["content-type"]) == (200, plain.headers["content-type"]), path


async def test_the_page_is_found_beside_its_files(http: httpx.AsyncClient, node: RunningNode) -> None:
    for path in ("/web", "/web/"):
        moved = await http.get(path)
        assert "//" not in moved.headers["location"]  # a proxy knows the scheme and the host
        assert str(moved.url.join(moved.headers["location"])) == f"{node.url}/"
    assert (await http.get("/docs")).headers["location"] == "docs/"


# ---------------------------------------------------------------- failures in the middle


async def test_failure_in_the_middle_cuts_the_audio(http: httpx.AsyncClient, node: RunningNode) -> None:
    """The client must be able to detect a truncated answer."""
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await speak(http, "a" * 40, instructions="fault:raise@5", response_format="pcm")
    assert (await speak(http)).status_code == 200
    await until(lambda: idle(node))


async def test_failure_in_the_middle_is_an_event(http: httpx.AsyncClient, node: RunningNode) -> None:
    response = await speak(http, "a" * 40, instructions="fault:raise@5", stream_format="sse")
    messages = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert messages[0]["type"] == "speech.audio.delta"
    assert messages[-1]["type"] == "error"
    assert messages[-1]["error"]["type"] == "server_error"
    await until(lambda: idle(node))


# ---------------------------------------------------------------- speech that is cut short


async def test_speech_that_is_cut_short_is_no_complete_file() -> None:
    async with running_node(limits={"max_frames": 20}) as node, client(node) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await speak(http, LONG)
        events = (await speak(http, LONG, stream_format="sse")).text
        assert "speech.audio.done" not in events
        assert json.loads(events.split("data: ")[-1])["error"]["code"] == "text_too_long"


# ---------------------------------------------------------------- clients that leave, or do not read


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_a_disconnect_cancels_the_request(node: RunningNode, stream_format: str) -> None:
    def cancelled() -> float:
        ended = {"carrier": "http", "reason": "cancelled"}
        return node.node.metrics.registry.get_sample_value("agent_tts_contexts_total", ended) or 0

    before = cancelled()
    async with (
        client(node) as http,
        http.stream(
            "POST", "/v1/audio/speech", json={"input": LONG, "stream_format": stream_format, "response_format": "pcm"}
        ) as response,
    ):
        async for _ in response.aiter_raw():
            break
        assert node.node.service.speaking == 1
    await until(lambda: idle(node), 0.5)
    assert cancelled() == before + 1


async def test_a_disconnect_frees_the_place_in_the_queue() -> None:
    async with running_node(slots=1, queue=1) as node, client(node) as http:
        async with http.stream("POST", "/v1/audio/speech", json={"input": LONG}):
            waiting = asyncio.create_task(speak(http))
            await until(lambda: node.node.service.speaking == 2)
            waiting.cancel()
            await until(lambda: node.node.service.speaking == 1)
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await until(lambda: idle(node))


def post(body: bytes, *headers: str) -> bytes:
    """The bytes of a speech request."""
    framed = any(header.startswith(("Content-Length", "Transfer-Encoding")) for header in headers)
    length = () if framed else (f"Content-Length: {len(body)}",)
    head = ["POST /v1/audio/speech HTTP/1.1", "Host: localhost", *length, *headers, "", ""]
    return "\r\n".join(head).encode() + body


async def test_client_that_never_reads_is_cut() -> None:
    """Without the write deadline it would hold its slot for ever."""
    async with running_node(timeouts={"write_s": 0.2}) as node:
        body = json.dumps({"input": LONG, "response_format": "pcm"}).encode()
        async with raw(node, post(body)):
            await until(lambda: node.node.service.speaking == 1)
            await until(lambda: idle(node), 5)
        refused = node.node.metrics.registry.get_sample_value("agent_tts_refused_total", {"code": "slow_consumer"})
        assert refused == 1


# ---------------------------------------------------------------- invalid headers and bodies


@pytest.mark.parametrize(
    ("body", "declared", "status", "said"),
    [(b"", 99_999_999, b"413", b"text_too_long"), (b'{"input":""}garbage', 12, b"400", b"")],
    ids=["over the limit, before it is read", "longer than declared"],
)
async def test_a_body_with_a_wrong_length_is_refused_and_no_other_request(
    node: RunningNode, body: bytes, declared: int, status: bytes, said: bytes
) -> None:
    async with raw(node, post(body, f"Content-Length: {declared}")) as sock:
        answer = await read_all(sock)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert said in answer
    assert b" 200 " not in answer


async def test_chunked_body_over_the_limit_is_refused_while_it_is_read(node: RunningNode) -> None:
    async with raw(node, post(b"", "Transfer-Encoding: chunked")) as sock:
        loop = asyncio.get_running_loop()
        for _ in range(65_536 // 1_024 + 1):
            await loop.sock_sendall(sock, b"400\r\n" + b"x" * 1_024 + b"\r\n")
        answer = await read_all(sock)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_slow_body_is_refused_in_time() -> None:
    async with running_node(timeouts={"handshake_s": 0.3}) as node:
        async with raw(node, post(b'{"input":', "Content-Length: 60")) as sock:
            answer = await read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"timeout"' in answer


async def test_an_upload_has_time_for_what_has_come_of_it() -> None:
    """One byte a second must not hold one of the few uploads for as long as a whole clip may take."""

    async def took_s(piece: bytes, count: int) -> float:
        begun, left = asyncio.get_running_loop().time(), itertools.count(count, -1)

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(1)
            return {"type": "http.request", "body": piece, "more_body": next(left) > 1}

        app = SimpleNamespace(state=SimpleNamespace(node=SimpleNamespace(settings=Settings())))
        request = Request({"type": "http", "method": "POST", "headers": [], "app": app}, receive)
        try:
            await read_body(request, 10 << 20)
        except RequestTimeout:
            return asyncio.get_running_loop().time() - begun
        return 0.0

    assert await took_s(bytes(SLOWEST_UPLOAD), 80) == 0
    assert await took_s(b"x", 80) == pytest.approx(Settings().timeouts.handshake_s, abs=0.1)


async def test_a_disconnect_in_the_middle_of_the_body(http: httpx.AsyncClient, node: RunningNode) -> None:
    async with raw(node, post(b'{"input":', "Content-Length: 60")):
        pass
    assert (await speak(http)).status_code == 200
    await until(lambda: idle(node))


async def test_expect_is_answered_before_the_body(node: RunningNode) -> None:
    body = b'{"input":"x","response_format":"wav"}'
    head = post(b"", f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close")
    async with raw(node, head) as sock:
        loop = asyncio.get_running_loop()
        assert (await loop.sock_recv(sock, 1_000)).startswith(b"HTTP/1.1 100 ")
        await loop.sock_sendall(sock, body)
        assert (await read_all(sock)).startswith(b"HTTP/1.1 200 ")


async def test_range_has_no_meaning_for_speech(node: RunningNode) -> None:
    async with client(node, headers={"Range": "bytes=0-1,2-3," * 1_000}) as http:
        assert (await speak(http, response_format="wav")).status_code == 200


@pytest.mark.parametrize("headers", [["X-Long: " + "x" * 70_000], [f"X-{i}: y" for i in range(10_000)]])
async def test_oversized_headers_are_refused(http: httpx.AsyncClient, node: RunningNode, headers: list[str]) -> None:
    async with raw(node) as sock:
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(sock, post(b'{"input":"x"}', *headers))
        answer = await read_all(sock)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert (await speak(http)).status_code == 200


# ---------------------------------------------------------------- the other routes


async def test_voices_are_listed_with_their_other_names(http: httpx.AsyncClient, node: RunningNode) -> None:
    listed = (await http.get("/v1/audio/voices")).json()
    assert listed["default"] == "tone-440"
    (voice,) = [voice for voice in listed["voices"] if voice["name"] == "tone-220"]
    assert voice["languages"] == ["en"]
    assert "alloy" in voice["aliases"]


async def test_metrics_count_spoken_text() -> None:
    async with running_node() as node, client(node) as http:
        await speak(http, "a" * 20, response_format="pcm")
        samples = await figures(node.url)
    assert samples["agent_tts_audio_seconds_total", (("carrier", "http"),)] == pytest.approx(1.2)
    assert samples["agent_tts_contexts_total", (("carrier", "http"), ("reason", "end"))] == 1
    assert samples["agent_tts_ttfa_seconds_count", (("carrier", "http"),)] == 1


async def test_health_and_ready_follow_the_engine() -> None:
    async with running_node_with_process(tone={"scripted_faults": True}) as node, client(node) as http:
        assert (await http.get("/health")).json() == {"status": "ok", "engines": ["ready"]}
        assert (await http.get("/ready")).json() == {"status": "ok"}
        failed = await speak(http, instructions="fault:exit@0")
        assert (failed.status_code, error_of(failed)["code"]) == (503, "engine_lost")
        assert (await http.get("/ready")).status_code == 503
        await until(lambda: node.node.service.ready, 10)
        assert (await http.get("/health")).status_code == 200
        assert (await speak(http)).status_code == 200


async def test_the_metrics_of_all_keys_are_for_operators() -> None:
    """A key without a name may use all of the node, as before keys had names; a token of any key sees nothing."""
    keys = {"shop": {"key": "shop"}, "desk": {"key": "desk", "operator": True}}
    async with running_node(auth={"api_keys": [KEY], "keys": keys}) as node, client(node) as http:
        for key, operates in {"shop": False, "desk": True, KEY: True}.items():
            headers = {"X-API-Key": key}
            assert (await http.get("/api/operator", headers=headers)).json() == {"operator": operates}
            assert (await http.get("/metrics", headers=headers)).status_code == (200 if operates else 401)
            token = (await http.post("/v1/tokens", headers=headers)).json()["token"]
            assert (await http.get(f"/metrics?token={token}")).status_code == 401
    async with running_node() as node, client(node) as http:
        assert (await http.get("/api/operator")).json() == {"operator": True}
        assert (await http.get("/metrics")).status_code == 200


async def test_another_key_gets_its_share_of_the_slots() -> None:
    """Without an owner in the request, all slots are the first key's."""
    keys = {"slots": 2, "auth": {"api_keys": [KEY, "other"]}}
    other = {"Authorization": "Bearer other"}
    async with (
        running_node(**keys) as node,
        client(node, headers=AUTHORIZED) as http,
        client(node, headers=other) as late,
    ):
        long = {"input": LONG, "response_format": "pcm"}
        async with (
            http.stream("POST", "/v1/audio/speech", json=long) as one,
            http.stream("POST", "/v1/audio/speech", json=long) as two,
        ):
            assert (one.status_code, two.status_code) == (200, 200)
            assert (await speak(late)).status_code == 200
        await until(lambda: idle(node))
