"""The JavaScript client in Node, and its types."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from agent_tts.config.loading import data_folder
from agent_tts.protocol.v1 import HEADER
from tests.client.test_connection import serving
from tests.support import running_node, until
from tests.tools import needs
from tests.two_nodes import TEXT, two_nodes_in_this_loop

WEB = data_folder("web")
HERE = Path(__file__).parent / "javascript"
PACKAGES = Path(sys.prefix) / "npm" / "node_modules"  # see the Makefile
TSC = PACKAGES / ".bin" / "tsc"
LIMIT_S = 60.0
LIB = "es2024,dom,dom.iterable,dom.asynciterable"
STRICT = ("--strict", "--target", "es2024", "--module", "esnext", "--moduleResolution", "bundler", "--lib", LIB)
WORKLET = "player_worklet.js"  # its globals are not those of a page

needs_node = needs("node")
needs_types = needs("TypeScript", TSC)


def tsc(*arguments: str | Path) -> str:
    """What the compiler says."""
    done = subprocess.run([TSC, *STRICT, *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout + done.stderr


@needs_types
def test_the_pages_modules_and_programs_that_use_the_client_have_right_types() -> None:
    modules = [path for path in WEB.glob("*.js") if path.name != WORKLET]
    assert tsc("--noEmit", "--allowJs", "--checkJs", *modules, HERE / "usage.ts") == ""


@needs_types
def test_the_declarations_are_those_of_the_client(tmp_path: Path) -> None:
    """After a change: tsc --allowJs --declaration --emitDeclarationOnly --outDir web web/client.js, and its options."""
    made = tsc("--allowJs", "--declaration", "--emitDeclarationOnly", "--outDir", tmp_path, WEB / "client.js")
    assert made == ""
    assert (tmp_path / "client.d.ts").read_text() == (WEB / "client.d.ts").read_text()


async def ran(script: str, *arguments: str) -> Any:
    """What a script of Node found."""
    flags = ["--experimental-websocket"] if version().startswith("v20.") else []
    return json.loads(await told(*flags, str(HERE / script), *arguments))


@functools.cache
def version() -> str:
    return subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


async def told(*arguments: str) -> str:
    """What Node prints."""
    process = await asyncio.create_subprocess_exec("node", *arguments, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


WS = pytest.param((str(PACKAGES / "ws"),), id="ws", marks=needs("ws", PACKAGES / "ws"))


@needs_node
@pytest.mark.real_time
@pytest.mark.parametrize("socket", [pytest.param((), id="global"), WS])
async def test_a_conversation_in_node(socket: tuple[str, ...]) -> None:
    key = "correct-horse-battery-staple"
    async with running_node(engine="espeak", auth={"api_keys": [key]}) as node:
        found = await ran("talk.mjs", node.url, key, *socket)
        assert found["whole"]["words"] == ["Hello", "there,", "🎉", "you."]
        assert found["whole"]["samples"] > 12_000
        assert found["whole"]["reason"] == "end"
        assert found["whole"]["kinds"][-1] == "context.done"
        assert found["cut"]["reason"] == "cancelled"
        assert "One two three four five six".startswith(found["cut"]["heard"].strip())
        assert found["cut"]["heard"].strip()
        assert found["refused"] == [True, "unknown_voice"]
        assert (found["lost"], found["unreachable"]) == ("closed", "unreachable")


@needs_node
@pytest.mark.real_time
@pytest.mark.parametrize("socket", [pytest.param((), id="global"), WS])
@pytest.mark.parametrize("opens", [False, True], ids=["no handshake", "no greeting"])
async def test_an_abort_ends_connecting_at_once(opens: bool, socket: tuple[str, ...]) -> None:
    """With the signal's reason, whatever the node is silent about."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def mute(connection: ServerConnection) -> None:
        await connection.wait_closed()

    server = await (
        serve(mute, "127.0.0.1", 0, subprotocols=[Subprotocol("agent_tts.v1")])
        if opens
        else asyncio.start_server(silent, "127.0.0.1", 0)
    )
    try:
        port = next(iter(server.sockets)).getsockname()[1]
        assert await ran("refused.mjs", f"http://127.0.0.1:{port}", "abort", *socket) is True
    finally:
        server.close()
        await server.wait_closed()


@needs_node
@pytest.mark.real_time
async def test_a_refused_context_is_cancelled_and_forgotten() -> None:
    """Text already sent may have opened it again: nobody would hear that."""
    async with running_node() as node:
        found = await ran("refused.mjs", node.url, "refuse")
        assert found == {"done": True, "cancelled": True, "left": 0, "closed": ["close"]}
        await until(lambda: node.node.service.speaking == 0)


@needs_node
@pytest.mark.real_time
async def test_a_sentence_goes_on_when_its_node_is_killed() -> None:
    """The sound follows without a hole, each word is said once, and the listener waits for 500 ms at most."""
    async with two_nodes_in_this_loop() as balanced:
        stands_for_it = await asyncio.create_subprocess_exec("sleep", str(LIMIT_S))
        talking = asyncio.create_task(ran("moving.mjs", balanced.url, str(stands_for_it.pid)))
        assert await stands_for_it.wait() == -9
        balanced.lose()
        found = await talking
    whole, resumed, cut = found["whole"], found["resumed"], found["cut"]
    for heard in (whole, resumed):
        assert [heard["words"][place] for place in sorted(heard["words"], key=int)] == TEXT.split()
        assert (heard["gaps"], heard["flushed"], heard["done"]["reason"]) == (0, ["f1"], "end")
    starts = [resumed["starts"][place] for place in sorted(resumed["starts"], key=int)]
    assert starts == sorted(starts)
    assert resumed["done"]["audio_ms"] == resumed["samples"] // 24
    assert -0.4 * 24_000 < resumed["samples"] - whole["samples"] < 1_920  # of 5 s: no word is missing or there twice
    assert resumed["waitedMs"] <= 500
    assert (cut["reason"], cut["played_ms"]) == ("cancelled", 2_600)
    assert cut["heard_text"] + cut["unheard_text"] == TEXT
    assert cut["heard_text"].startswith("One two three four five")  # more than the second node's part


@needs_node
@pytest.mark.real_time
async def test_no_part_of_a_word_is_heard_twice() -> None:
    """The reader has only whole words, so that a loss makes a text no longer, and shorter by pauses alone.

    Estimates within a unit are off by 65 ms at most; a word takes 120 ms or more.
    """
    async with running_node() as node:
        whole, *others = await ran("moving.mjs", node.url, "cut")
        assert all(-160 <= other - whole <= 90 for other in others), (whole, others)


@needs_node
async def test_the_next_turn_is_on_the_node_that_was_asked_for() -> None:
    """What is spoken meanwhile ends where it is; the old connection is closed behind it."""
    async with running_node() as second, running_node(public_url=second.url) as first:
        talking = asyncio.create_task(ran("moving.mjs", first.url, "asked"))
        await until(lambda: first.node.service.speaking == 1, LIMIT_S)
        for session in list(first.node.sessions):
            session.drain()
        await until(lambda: bool(second.node.sessions))
        assert await talking == ["end", "end"]
        await until(lambda: not (first.node.sessions or second.node.sessions))


BROKEN: dict[str, list[str | bytes]] = {
    "no JSON": ["nonsense"],
    "no message": ["7"],
    "no words": ['{"type": "words", "context_id": "turn-1", "kind": "aligned", "words": [null]}'],
    "no header": [b"\x01\x01"],
    "another version": [HEADER.pack(2, 1, 0, 1, 0)],
    "half a sample": [HEADER.pack(1, 1, 0, 1, 0) + b"\0\0\0"],
    "newer": ['{"type": "applause"}', HEADER.pack(1, 9, 0, 1, 0), '{"type": "context.done", "context_id": "turn-1"}'],
    "mute": [],
    "slow": [],
}


@needs_node
@pytest.mark.real_time
@pytest.mark.parametrize("socket", [pytest.param(("",), id="global"), WS])
async def test_a_server_that_is_silent_or_speaks_otherwise_is_left(socket: tuple[str, ...]) -> None:
    """With an error that says why, in 3.5 s. What a newer node says is ignored, one that answers pings is not left."""
    left: list[str] = []

    async def answer(connection: ServerConnection) -> None:
        await connection.send('{"type": "session.created"}')
        name = ""
        async for message in connection:
            said = json.loads(message)
            if said["type"] == "text.append":
                name = said["text"]
                await connection.send('{"type": "context.started", "context_id": "turn-1", "context_no": 1}')
                for frame in BROKEN[name]:
                    await connection.send(frame)
            elif said["type"] == "ping" and name == "slow":
                await connection.send(json.dumps({"type": "pong", "t": said["t"]}))
                if (pings := pings_of.setdefault(connection.id, 0) + 1) == 3:  # longer than a mute one is waited for
                    await connection.send('{"type": "context.done", "context_id": "turn-1"}')
                pings_of[connection.id] = pings
        left.append(name)

    pings_of: dict[Any, int] = {}
    async with serving(answer) as address:
        found = await ran("broken.mjs", f"http://{address}", *socket, *BROKEN)
        malformed = ["malformed", "malformed", True]
        others = {"newer": "spoken", "slow": "spoken", "mute": ["unreachable", "unreachable", True]}
        assert dict(zip(BROKEN, found, strict=True)) == dict.fromkeys(BROKEN, malformed) | others
        await until(lambda: set(left) == BROKEN.keys())
