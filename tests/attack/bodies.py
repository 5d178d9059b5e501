"""The largest legal body of every route, and of every message that opens a socket's context.

The routes are those of the application: one that has no body here fails its attack, and a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from agent_tts.bench.node import MeasuredNode, own_node
from agent_tts.bench.statistics import background, together
from agent_tts.config.settings import Settings
from agent_tts.protocol.validation import MAX_FIELDS
from agent_tts.serve.app import create_app, extension_of
from agent_tts.serve.dialects.elevenlabs_messages import MAX_INPUTS
from agent_tts.serve.dictionaries import MAX_RULES, RULES_BYTES
from agent_tts.serve.fronts import AGENT
from agent_tts.text.pls import NAMESPACE
from agent_tts.voices.library import StoredVoice, VoiceLibrary
from tests.attack.harness import Broken, Node, Target, attack
from tests.attack.stalls import SLOTS, connected, opened, text_frame, told

LIMITS = Settings().limits
TEXT = ("é 12.5 " * LIMITS.text_context_chars)[: LIMITS.text_context_chars]
MESSAGE_TEXT = TEXT[: LIMITS.text_message_chars]
WHOLE_CHARS = 6_000  # whose audio, at 60 ms each, may be sent when it is complete
SPEAKER = "tone-660"  # an engine's own voice
VOICE = "walker"  # a designed voice of the node's library
LEXICON = {f"{number}é".rjust(30, "é"): {"alias": "é" * 8} for number in range(9_000)}
BOUNDARY = "b0undary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
JSON, PLS = "application/json", "application/pls+xml"
ANSWER_S, ANSWER_SHORT_S = 240.0, 30.0  # for the first bytes of an answer: a signed file is sent when it is made
LASTING_S, LASTING_SHORT_S = 1.0, 0.1  # that an answer of audio is read

Body = tuple[str, bytes]  # its type, and its bytes


def filled(size: int, fields: Mapping[str, Any], name: str, values: Iterator[tuple[Any, Any]]) -> bytes:
    """A JSON object with as many values in its field `name`, a mapping or a list, as `size` bytes hold."""
    found: dict[Any, Any] = {}
    as_list = isinstance(fields.get(name), list)
    left = size - len(json.dumps({**fields, name: found}, ensure_ascii=False).encode())
    for key, value in values:
        left -= len(json.dumps(value if as_list else {key: value}, ensure_ascii=False).encode()) + 2
        if left < 0:
            break
        found[key] = value
    return json.dumps({**fields, name: [*found.values()] if as_list else found}, ensure_ascii=False).encode()


def form(**parts: str | bytes) -> bytes:
    """A body of `FORM`; bytes are a file."""
    body = b""
    for name, value in parts.items():
        file = '; filename="f"' if isinstance(value, bytes) else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def pls(size: int) -> bytes:
    """A lexicon of so many bytes."""
    head = f'<lexicon version="1.0" xmlns="{NAMESPACE}" alphabet="ipa" xml:lang="en">'
    lexemes: list[str] = []
    left = size - len(head) - 10
    for number in itertools.count():
        lexeme = f"<lexeme><grapheme>w{number}</grapheme><alias>{'x' * 200}</alias></lexeme>"
        if (left := left - len(lexeme)) < 0 or number == MAX_RULES:
            return f"{head}{''.join(lexemes)}</lexicon>".encode()
        lexemes.append(lexeme)
    raise AssertionError


def rules(number: int) -> dict[str, Any]:
    """A rule of ElevenLabs."""
    return {"type": "alias", "string_to_replace": f"w{number}", "alias": "é" * 250}


def as_json(body: Any, *, escaped: bool = False) -> Callable[[], Body]:
    return lambda: (JSON, json.dumps(body, ensure_ascii=escaped).encode())


def spoken(field: str, **fields: Any) -> Callable[[], Body]:
    return as_json({field: TEXT, **fields})


def dialogue(chars: int | None = None) -> Callable[[], Body]:
    """As many lines as there may be, of so many characters in all; None: of as many as a context may have."""
    size = (len(TEXT) if chars is None else chars) // MAX_INPUTS
    return as_json({"inputs": [{"text": TEXT[n * size :][:size], "voice_id": None} for n in range(MAX_INPUTS)]})


def listed(field: str, rule: Callable[[int], Any], **fields: Any) -> Callable[[], Body]:
    entries = ((number, rule(number)) for number in range(MAX_RULES))
    return lambda: (JSON, filled(RULES_BYTES, {**fields, field: []}, field, entries))


def speech() -> Body:
    return JSON, filled(LIMITS.message_bytes, {"input": TEXT}, "lexicon", islice(LEXICON.items(), MAX_FIELDS))


def clip(field: str, **fields: str) -> Callable[[], Body]:
    """A form with the largest clip, which is full of beginnings of boundaries."""
    return lambda: (FORM, form(**fields, **{field: b"\r\n--b0undar" * ((Settings().voices.clip_bytes - 10_000) // 11)}))


SDP = "v=0\r\n" + "a=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\n" * 1_400
OFFER = {"type": "offer", "sdp": SDP[:60_000]}
CANDIDATE = {"candidate": "c" * 200, "sdp_mid": "0", "sdp_mline_index": 0}
REALTIME = {"instructions": "é " * 15_000}


def empty() -> Body:
    return "", b""


CARTESIA = {"model_id": "sonic-3", "voice": {"mode": "id", "id": SPEAKER}}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
ELEVENLABS = "/v1/text-to-speech/{voice_id}"
DIALOGUE = "/v1/text-to-dialogue"
RULES_PATH = "/v1/pronunciation-dictionaries"

BODIES: dict[tuple[str, str], Callable[[], Body]] = {
    ("POST", "/v1/audio/speech"): speech,
    ("POST", "/v1/tokens"): empty,
    ("POST", "/v1/audio/voices"): clip("audio_sample", name="new", consent="it is mine"),
    ("POST", "/v1/audio/voice_consents"): clip("recording", name="n", language="en"),
    ("POST", "/v1/audio/voice_consents/{consent_id}"): as_json({"name": "é" * 200}, escaped=True),
    ("PUT", "/v1/audio/voices/{name}/lexicon"): as_json(LEXICON),
    ("POST", "/v1/audio/detect"): clip("audio_sample"),
    ("POST", "/v1/rtc/offer"): as_json(OFFER),
    ("POST", "/tts/bytes"): spoken("transcript", **CARTESIA, output_format=RAW),
    ("POST", "/tts/sse"): spoken("transcript", **CARTESIA, output_format=RAW),
    ("POST", "/pronunciation-dicts"): listed("items", lambda n: {"text": f"w{n}", "alias": "é" * 250}, name="n"),
    ("PATCH", "/pronunciation-dicts/{dictionary_id}"): listed(
        "items", lambda number: {"text": f"w{number}", "alias": "é" * 250}, name="n" * 256
    ),
    ("POST", "/v1/speak"): spoken("text"),
    ("POST", "/v2/speak"): spoken("text"),
    ("POST", ELEVENLABS): spoken("text"),
    ("POST", f"{ELEVENLABS}/stream"): spoken("text"),
    ("POST", f"{ELEVENLABS}/with-timestamps"): as_json({"text": TEXT[:WHOLE_CHARS]}, escaped=True),
    ("POST", f"{ELEVENLABS}/stream/with-timestamps"): spoken("text"),
    ("POST", DIALOGUE): dialogue(),
    ("POST", f"{DIALOGUE}/stream"): dialogue(),
    ("POST", f"{DIALOGUE}/with-timestamps"): dialogue(WHOLE_CHARS),
    ("POST", f"{DIALOGUE}/stream/with-timestamps"): dialogue(),
    ("POST", f"{RULES_PATH}/add-from-rules"): listed("rules", rules, name="n"),
    ("POST", f"{RULES_PATH}/add-from-file"): lambda: (FORM, form(name="n", file=pls(4_000_000))),
    ("PATCH", f"{RULES_PATH}/{{dictionary_id}}"): as_json({"name": "n" * 256}),
    ("POST", f"{RULES_PATH}/{{dictionary_id}}/set-rules"): listed("rules", rules),
    ("POST", f"{RULES_PATH}/{{dictionary_id}}/add-rules"): listed("rules", rules),
    ("POST", f"{RULES_PATH}/{{dictionary_id}}/remove-rules"): listed("rule_strings", "w{}".format),
    ("POST", "/v1/vapi"): as_json(
        {"message": {"type": "voice-request", "text": TEXT, "call": ["x" * 100] * 1_500}}, escaped=True
    ),
    ("POST", "/v1/jambonz"): spoken("text"),
    ("POST", "/v1/realtime/client_secrets"): as_json({"session": REALTIME}),
    ("POST", "/v1/realtime/calls"): lambda: (
        FORM,
        form(sdp=SDP[:16_000], session=json.dumps({"instructions": "x" * 16_000})),
    ),
    ("POST", "/api/agent/offer"): as_json(OFFER),
    ("PATCH", "/api/agent/offer"): as_json({"pc_id": "x", "candidates": [CANDIDATE] * 64}),
}


def padded(**message: Any) -> str:
    """A message of nearly `message_bytes`, whose rest is in a field that says how it is spoken."""
    size = LIMITS.message_bytes - 1_000
    return filled(size, message, "lexicon", islice(LEXICON.items(), MAX_FIELDS)).decode()


def text_of(field: str = "text", **message: Any) -> str:
    return json.dumps({field: MESSAGE_TEXT, **message}, ensure_ascii=False)


def dialogue_message() -> str:
    size = len(MESSAGE_TEXT) // MAX_INPUTS
    lines = [{"text": MESSAGE_TEXT[:size], "voice_id": None, "new_turn": True}] * MAX_INPUTS
    return json.dumps({"context_id": "x", "voices": [None], "inputs": lines}, ensure_ascii=False)


# What each socket is sent over and over.
MESSAGES: dict[str, Callable[[], str]] = {
    "/v1/tts/stream": lambda: padded(type="context.open", context_id="x"),
    "/tts/websocket": lambda: text_of("transcript", **CARTESIA, output_format=RAW, context_id="x"),
    "/v1/speak": lambda: text_of(type="Speak"),
    "/v2/speak": lambda: text_of(type="Speak"),
    f"{ELEVENLABS}/stream-input": text_of,
    f"{ELEVENLABS}/multi-stream-input": lambda: text_of(context_id="x"),
    f"{DIALOGUE}/stream-input": dialogue_message,
    f"{DIALOGUE}/multi-stream-input": dialogue_message,
    "/v1/jambonz": lambda: text_of("tokens", type="stream"),
    "/v1/audio/speech/stream": lambda: text_of(type="input.text"),
    "/v1/realtime": lambda: json.dumps({"type": "session.update", "session": REALTIME}),
}


@cache
def routes() -> tuple[list[tuple[str, str]], list[str]]:
    """The methods and paths of a node with the agent, and the paths of its sockets."""
    settings = Settings(engine="tone")
    app = create_app(settings, extension=extension_of(settings, AGENT))
    requests: list[tuple[str, str]] = []
    sockets: list[str] = []

    def walk(found: list[Any]) -> None:
        for route in found:
            if (router := getattr(route, "original_router", None)) is not None:
                walk(router.routes)
            elif (methods := getattr(route, "methods", None)) is not None:
                requests.extend((method, route.path) for method in sorted(methods - {"HEAD"}))
            elif type(route).__name__ == "WebSocketRoute":
                sockets.append(route.path)
            else:
                assert type(route).__name__ == "Mount", route  # files of the page

    walk(app.router.routes)
    return requests, sockets


def unknown_routes() -> set[str]:
    """Routes that take a body without one here, and what is here without a route."""
    requests, sockets = routes()
    taking = {each for each in requests if each[0] in ("POST", "PUT", "PATCH")}
    return {" ".join(each) for each in taking ^ BODIES.keys()} | (set(sockets) ^ MESSAGES.keys())


Prepare = Callable[[Path], Mapping[str, object]]
# The folder of each node of `prepared_node`, by the process id of its first process.
FOLDERS: dict[int, Path] = {}


def prepared_node(prepare: Prepare = lambda _: {}, command: str = "serve") -> Node:
    """A node with a folder of its own, where there is one voice; `prepare` puts more into it and returns settings."""

    @asynccontextmanager
    async def node(settings: Mapping[str, object]) -> AsyncIterator[MeasuredNode]:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            voices = folder / "voices"
            library = VoiceLibrary(voices, limit=200)
            await asyncio.to_thread(library.add, StoredVoice(name=VOICE, kind="designed", prompt="calm"), {})
            folders = {"voices__folder": voices, "dictionaries__folder": folder / "dictionaries"}
            more = await asyncio.to_thread(prepare, folder)
            async with own_node(command, **{**settings, **folders, **more}) as own:
                FOLDERS[own.pid] = folder
                yield own

    return node


STORED, AGENT_NODE = prepared_node(), prepared_node(command="agent")


async def sent(
    target: Target,
    method: str,
    path: str,
    kind: str = "",
    body: bytes = b"",
    *,
    whole: bool = False,
    key: str | None = None,
) -> tuple[int, bytes]:
    """The status of a request, and what came of its answer within a moment, or all of it.

    Raises Broken: there was no answer.
    """
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {key or target.key}\r\n"
    head += f"Content-Type: {kind}\r\n" if kind else ""
    head += f"Content-Length: {len(body)}\r\n\r\n"
    found, answer_s = b"", target.scaled(ANSWER_S, ANSWER_SHORT_S)
    async with connected(target) as (reader, writer):
        writer.write(head.encode() + body)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(answer_s):
                found = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(answer_s if whole else target.scaled(LASTING_S, LASTING_SHORT_S)):
                while data := await reader.read(1 << 18):
                    found += data
    if (answered := re.match(rb"HTTP/1.1 (\d+)", found)) is None:
        raise Broken(f"{method} {path} was not answered")
    return int(answered[1]), found.partition(b"\r\n\r\n")[2]


# Bodies that are legal by their form alone: noise is no clip, and no offer is one that this attacker can follow.
ROUNDS_MIB = 80.0  # the first rounds take 49 MiB, the next ones 9 and 7
REFUSED = {
    *("/v1/audio/voices", "/v1/audio/voice_consents", "/v1/audio/voice_consents/{consent_id}", "/v1/audio/detect"),
    *("/v1/rtc/offer", "/v1/realtime/calls", "/api/agent/offer"),
}
STORES = {**SLOTS, "agent__stt__kind": "none", "dictionaries__limit": 16}


async def _forget(target: Target) -> None:
    """Delete all dictionaries."""
    _, page = await sent(target, "GET", "/pronunciation-dicts/?limit=100", whole=True)
    for found in re.findall(rb'"id": ?"([^"]+)"', page):
        await sent(target, "DELETE", f"/pronunciation-dicts/{found.decode()}")


@attack("every route with its largest body", node=AGENT_NODE, settings=STORES, warms=True, max_growth_mib=ROUNDS_MIB)
async def every_route(target: Target) -> str:
    if unknown := unknown_routes():
        raise Broken(f"no body is known for {', '.join(sorted(unknown))}, or it has no route")
    requests, sockets = routes()
    await _forget(target)
    _, added = await sent(
        target, "POST", f"{RULES_PATH}/add-from-rules", *BODIES["POST", f"{RULES_PATH}/add-from-rules"](), whole=True
    )
    kept = json.loads(added[added.index(b"{") : added.rindex(b"}") + 1])
    names = {"name": VOICE, "voice_id": SPEAKER, "dictionary_id": kept["id"], "version_id": kept["version_id"]}
    statuses: Counter[str] = Counter()
    refused: set[str] = set()
    end = asyncio.get_running_loop().time() + target.scaled(30, 0)

    async def walk(mine: list[tuple[str, str]]) -> None:
        for number in itertools.count():
            for method, path in mine:
                place = path
                for name in re.findall(r"{(.+?)}", path):
                    known = "x" * 64 if method == "DELETE" else names.get(name, "x" * 64)
                    place = place.replace(f"{{{name}}}", known)
                status, _ = await sent(target, method, place, *BODIES.get((method, path), empty)())
                statuses[str(status)] += 1
                is_judged = (
                    not number and (method, path) in BODIES and path not in REFUSED
                )  # later, a store may be full
                if status in (400, 413, 422) and is_judged:
                    refused.add(f"{method} {path}: {status}")
                if status >= 500 and status not in (501, 503):
                    raise Broken(f"{method} {path} is answered by {status}")
            if asyncio.get_running_loop().time() >= end:
                return

    await together(walk(requests[first::4]) for first in range(4))
    if refused:
        raise Broken(f"these bodies are not legal: {', '.join(sorted(refused))}")
    messages = 0
    for path in sockets:
        place = path.replace("{voice_id}", SPEAKER) + ("?model=x" if path == "/v1/realtime" else "")
        message = text_frame(MESSAGES[path]())
        with contextlib.suppress(TimeoutError, OSError):
            async with opened(target, place) as socket, background(socket.swallow(), "answers"):
                async with asyncio.timeout(target.scaled(3, 0.05)):
                    while not socket.writer.is_closing():
                        socket.send(message)
                        await socket.writer.drain()
                        await asyncio.sleep(0)
                        messages += 1
    return f"{told(statuses)} on {len(requests)} routes; {messages} messages to {len(sockets)} sockets"
