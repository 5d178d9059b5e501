"""Honest players, which are no attack: they read what they play, in bursts, and none is cut. And those that stop.

They play at 1.0 and 0.9 of real time with back-pressure, by the OpenAI SDK and by `websockets` as it is installed, with
receive windows of 64 KB to 4 MB, on all transports of speech. Beside them are readers at half speed with small windows,
which are served, and clients that read nothing, which are cut in time. Deadlines are shorter than a node's defaults.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httpx
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.attack.harness import Broken, Target, attack

WRITE_S, LOST_S, PING_S = 1.0, 1.0, 1.0
SETTINGS = {
    "slots": 64,
    "voice_aliases": '{"*": "tone-440"}',
    "lead_ms": 60_000,  # as other vendors send: at once
    "limits__sessions_per_key": 64,
    "timeouts__write_s": WRITE_S,
    "timeouts__tcp_user_s": LOST_S,
    "timeouts__ping_s": PING_S,
}
DEFAULT_TIMES = {name: value for name, value in SETTINGS.items() if not name.startswith("timeouts")}
WORD_S = 0.24  # the tone engine's time for `word `
PCM_BYTES_PER_S = 48_000
SMALL, MIDDLE, LARGE = 32 << 10, 512 << 10, 2 << 20  # SO_RCVBUF; Linux doubles it
SLOWEST = 0.9  # promised
STALL_S = 3.0  # of this machine
POLL_S = 0.5


def text_of(seconds: float) -> str:
    """A text that the tone engine speaks in this time, at least."""
    return "word " * math.ceil(seconds / WORD_S)


class Playing:
    """A player that takes the next piece when it has played what it got. `speed` 0 takes one piece and no more."""

    def __init__(self, speed: float, bytes_per_s: float = PCM_BYTES_PER_S) -> None:
        self._rate = speed * bytes_per_s
        self._started_at: float | None = None
        self.heard = 0

    async def play(self, size: int) -> None:
        now = time.monotonic()
        if self._started_at is None:
            self._started_at = now
        self.heard += size
        if not self._rate:
            await asyncio.sleep(math.inf)
        await asyncio.sleep(max(0.0, self._started_at + self.heard / self._rate - now))


# ---------------------------------------------------------------- HTTP, by the OpenAI SDK


async def by_sdk(target: Target, text: str, playing: Playing, window: int, **options: Any) -> None:
    limit = httpx.Timeout(10, read=120)
    transport = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, window)])
    async with (
        httpx.AsyncClient(transport=transport, timeout=limit) as http,
        AsyncOpenAI(api_key=target.key, base_url=f"{target.url}/v1", http_client=http, max_retries=0) as client,
        client.audio.speech.with_streaming_response.create(
            input=text, model="tts-1", voice="tone", response_format="pcm", **options
        ) as response,
    ):
        async for piece in response.iter_bytes(4_096):
            await playing.play(len(piece))


async def by_events(target: Target, text: str, playing: Playing, window: int) -> None:
    """A byte of audio is 4/3 of base64, and a little more around it."""
    await by_sdk(target, text, playing, window, stream_format="sse")


# ---------------------------------------------------------------- WebSockets, by `websockets` with its default queue


Message = dict[str, Any]


async def by_socket(
    path: str,
    messages: Callable[[str], list[Message]],
    field: str,
    last: object,
    target: Target,
    text: str,
    playing: Playing,
    window: int,
) -> None:
    """Play until a field of a message says that it is the last. Audio is in binary messages, or in base64 in JSON."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", target.port))
    url = f"ws://127.0.0.1:{target.port}{path}"
    options: dict[str, Any] = {"additional_headers": {**target.headers, "xi-api-key": target.key}}
    if window > SMALL:  # `websockets` gives up when its ping's pong comes after 20 s of audio
        options["ping_interval"] = None
    if path == NATIVE:
        options["subprotocols"] = ["agent_tts.v1"]
    async with connect(url, sock=plain, proxy=None, close_timeout=1, **options) as opened:
        for message in messages(text):
            await opened.send(json.dumps(message))
        async for answer in opened:
            if isinstance(answer, bytes):
                await playing.play(len(answer))
                continue
            told = json.loads(answer)
            if told.get("type") in ("error", "Error") or told.get("error"):
                raise Broken(f"an error: {answer[:200]}")
            if audio := told.get("audio") or told.get("data"):
                await playing.play(len(base64.b64decode(audio)))
            if told.get(field) == last:
                return
        raise Broken("closed before the end")


def native(text: str, lead_ms: int | None = None) -> list[Message]:
    opens = {"type": "context.open", "context_id": "a", "lead_ms": lead_ms}
    return [opens, {"type": "text.append", "context_id": "a", "text": text}, {"type": "context.end", "context_id": "a"}]


def cartesia(text: str) -> list[Message]:
    audio_format = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
    voice = {"mode": "id", "id": "tone"}
    return [
        {"model_id": "sonic-2", "transcript": text, "voice": voice, "output_format": audio_format, "context_id": "a"}
    ]


def deepgram(text: str) -> list[Message]:
    pieces = (text[start : start + 2_000] for start in range(0, len(text), 2_000))
    return [*({"type": "Speak", "text": piece} for piece in pieces), {"type": "Flush"}]


def elevenlabs(text: str) -> list[Message]:
    return [{"text": piece} for piece in (" ", text, "")]


def elevenlabs_contexts(text: str) -> list[Message]:
    return [{"context_id": "a", **message} for message in ({"text": text}, {"flush": True}, {"close_context": True})]


def vllm_omni(text: str) -> list[Message]:
    config = {"type": "session.config", "voice": "tone", "response_format": "pcm", "stream_audio": True}
    return [config, {"type": "input.text", "text": text}, {"type": "input.done"}]


NATIVE, ELEVENLABS = "/v1/tts/stream", "/v1/text-to-speech/tone/{}?output_format=pcm_24000&auto_mode=true"
AURA = "/v1/speak?model=tone&encoding=linear16&sample_rate=24000&container=none"
SOCKETS: dict[str, tuple[str, Callable[[str], list[Message]], str, object]] = {
    "native": (NATIVE, native, "type", "context.done"),
    "native, lead 10 s": (NATIVE, partial(native, lead_ms=10_000), "type", "context.done"),
    "cartesia": ("/tts/websocket?cartesia_version=2024-11-13", cartesia, "done", True),
    "aura": (AURA, deepgram, "type", "Flushed"),
    "flux": ("/v2/speak?model=tone&sample_rate=24000", deepgram, "type", "SpeechMetadata"),
    "elevenlabs": (ELEVENLABS.format("stream-input"), elevenlabs, "isFinal", True),
    "elevenlabs contexts": (ELEVENLABS.format("multi-stream-input"), elevenlabs_contexts, "isFinal", True),
    "vllm-omni": ("/v1/audio/speech/stream", vllm_omni, "type", "session.done"),
}
Way = Callable[[Target, str, Playing, int], Coroutine[Any, Any, None]]
WAYS: dict[str, Way] = {"sdk": by_sdk, "sdk events": by_events}
WAYS |= {name: partial(by_socket, *each) for name, each in SOCKETS.items()}

# The bytes that an SDK's player of events gets for a second of audio.
EVENT_BYTES_PER_S = 12.5 * (3_840 * 4 / 3 + 50)


def rate_of(name: str) -> float:
    return EVENT_BYTES_PER_S if name == "sdk events" else PCM_BYTES_PER_S


async def plays(target: Target, name: str, seconds: float, speed: float, window: int) -> None:
    """Play a whole text."""
    playing = Playing(speed, rate_of(name))
    began = time.monotonic()
    try:
        await WAYS[name](target, text_of(seconds), playing, window)
    except (httpx.HTTPError, ConnectionClosed, OSError) as error:
        after_s = time.monotonic() - began
        raise Broken(f"{name} at {speed:g}x, window {window >> 10} KiB: {error!r} after {after_s:.1f} s") from error
    heard_s = playing.heard / rate_of(name)
    if heard_s < 0.98 * seconds:
        raise Broken(f"{name} at {speed:g}x, window {window >> 10} KiB: {heard_s:.1f} s of {seconds:.1f} s arrived")


async def all_play(target: Target, seconds: float, players: list[tuple[str, float, int]]) -> str:
    """Play a text of this length by every (way, speed, window) at the same time."""
    ends = await asyncio.gather(
        *(plays(target, name, seconds, speed, window) for name, speed, window in players), return_exceptions=True
    )
    if broken := [str(end) for end in ends if end is not None]:
        raise Broken("; ".join(broken))
    return f"{len(players)} played {seconds:g} s"


async def stops(target: Target, name: str, seconds: float, window: int) -> float:
    """Read one piece, then nothing; returns when the node had cut it, in seconds."""
    before = await slow_consumers(target)
    reading = asyncio.create_task(WAYS[name](target, text_of(seconds), Playing(0.0), window))
    began = time.monotonic()
    try:
        # What it may have taken: its window, and what its library reads ahead.
        taken_s = (2 * window + 2 * 65_536) / rate_of(name)
        promised_s = taken_s / SLOWEST + WRITE_S + STALL_S
        while await slow_consumers(target) == before:
            if time.monotonic() - began > promised_s:
                raise Broken(f"{name} that reads nothing, window {window >> 10} KiB: not cut after {promised_s:.1f} s")
            if reading.done():
                raise Broken(f"{name} that reads nothing has ended: {reading.exception()!r}")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - began
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def slow_consumers(target: Target) -> float:
    """How many clients the node has cut because they did not read."""
    async with httpx.AsyncClient(headers=target.headers) as client:
        while (answer := await client.get(f"{target.url}/metrics")).status_code != 200:
            await asyncio.sleep(POLL_S)  # too many at once
    found = [
        line for line in answer.text.splitlines() if line.startswith('agent_tts_refused_total{code="slow_consumer"}')
    ]
    return float(found[0].split()[1]) if found else 0.0


@attack("honest players", settings=SETTINGS)
async def honest(target: Target) -> str:
    seconds = target.scaled(45, 4)
    players = [(name, speed, SMALL) for name in WAYS for speed in (1.0, SLOWEST)]
    if target.short:
        players = [(name, SLOWEST, SMALL) for name in WAYS]
    else:
        players += [(name, 1.0, MIDDLE) for name in ("sdk", "native")]
    return await all_play(target, seconds, players)


@attack("players at half speed", settings=DEFAULT_TIMES)
async def half(target: Target) -> str:
    """Slower than promised: each is served to its end, or its connection is cut; none ends early in good order."""
    names, seconds = ("sdk", "native") if target.short else tuple(WAYS), target.scaled(45, 3)
    ends = await asyncio.gather(*(plays(target, name, seconds, 0.5, SMALL) for name in names), return_exceptions=True)
    cut = [end for end in ends if isinstance(end, Broken) and end.__cause__ is not None]
    if other := [str(end) for end in ends if end is not None and end not in cut]:
        raise Broken("; ".join(other))
    return f"{ends.count(None)} served to the end of {seconds:g} s, {len(cut)} cut"


@attack("players with large windows", settings=SETTINGS)
async def large_windows(target: Target) -> str:
    """They open their windows seldom: one of 4 MB takes 87 s of audio at once."""
    speed, window = (2.0, 4 * SMALL) if target.short else (1.0, LARGE)
    players = [(name, speed * share, window) for name in ("sdk", "native") for share in (1.0, SLOWEST)]
    return await all_play(target, target.scaled(190, 10), players)


# As by default, a client that reads nothing is noticed before it owes a pong, which nothing counts.
@attack("clients that stop reading", settings=SETTINGS | {"timeouts__ping_s": 5 * WRITE_S})
async def stopped(target: Target) -> str:
    longest = 0.0
    for name in ("sdk", "native") if target.short else WAYS:
        longest = max(longest, await stops(target, name, 60, SMALL // 4))
    return f"cut after at most {longest:.1f} s"
