"""The one door of bodies: what is long is parsed where nobody waits, and so is what reads dictionaries."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from filelock import FileLock

import agent_tts
from agent_tts.errors import InvalidRequest
from agent_tts.serve.access.guard import Client
from agent_tts.serve.access.ledger import MAX_LONG_BODIES
from agent_tts.serve.dialects import elevenlabs_dictionaries
from agent_tts.serve.dictionaries import Dictionaries, Version
from agent_tts.serve.routes import http, multipart
from agent_tts.serve.routes.http import PARSED_AT_ONCE
from agent_tts.system.records import JsonRecords
from agent_tts.voices import detection
from tests.support import RunningNode, running_node, taken, threads_of, until

VOICE = "tone-660"
PACKAGE = Path(agent_tts.__file__).parent


@pytest.mark.node
async def test_a_long_body_is_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    json_calls, form_calls = threads_of(monkeypatch, http, "check_body"), threads_of(monkeypatch, multipart, "parse")
    looks = threads_of(monkeypatch, detection, "has_mark")
    async with running_node() as node, node.http() as client:
        for size in (10, PARSED_AT_ONCE + 1):
            answer = await client.post("/v1/audio/speech", json={"input": "Hi.", "unknown": "x" * size})
            assert answer.status_code == 400
            clip = {"audio_sample": b"\r\n--Y" * (size // 5)}
            answer = await client.post("/v1/audio/detect", data={"other": "1"}, files=clip)
            assert answer.status_code == 400
        assert (await client.post("/v1/audio/detect", files=clip)).status_code == 200
    assert json_calls == [True, False]
    assert form_calls == [True, False, False]
    assert looks == [False]


@pytest.mark.node
async def test_dictionaries_are_read_and_compiled_in_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By every route and by both WebSockets that name one: a megabyte of transcriptions takes a second."""
    calls = [threads_of(monkeypatch, Dictionaries, name) for name in ("all", "lexicon", "add", "change")]
    calls += [threads_of(monkeypatch, JsonRecords, name) for name in ("by_id", "delete")]
    calls += [threads_of(monkeypatch, Version, "of"), threads_of(monkeypatch, elevenlabs_dictionaries, "read_pls")]
    settings = {"dictionaries": {"folder": str(tmp_path)}}
    async with running_node(**settings) as node, node.http() as client:
        rules = [{"type": "alias", "string_to_replace": "UN", "alias": "you en"}]
        items, every = [{"text": "UN", "alias": "you en"}], "/v1/pronunciation-dictionaries"
        made = (await client.post(f"{every}/add-from-rules", json={"name": "a", "rules": rules})).json()
        ours, theirs = f"{every}/{made['id']}", f"/pronunciation-dicts/{made['id']}"
        locators = [{"pronunciation_dictionary_id": made["id"]}]
        pls = "<lexicon><lexeme><grapheme>a</grapheme><alias>b</alias></lexeme></lexicon>"
        form = await client.post(f"{every}/add-from-file", data={"name": "a"}, files={"file": ("a.pls", pls)})
        assert form.status_code == 200, form.text
        for way, path, body in (
            ("GET", every, None),
            ("GET", ours, None),
            ("GET", f"{ours}/{made['version_id']}/download", None),
            ("POST", f"{ours}/remove-rules", {"rule_strings": ["UN"]}),
            ("POST", f"{ours}/set-rules", {"rules": rules}),
            ("POST", f"{ours}/add-rules", {"rules": rules}),
            ("POST", "/pronunciation-dicts/", {"name": "a", "items": items}),
            ("GET", "/pronunciation-dicts/", None),
            ("GET", theirs, None),
            ("PATCH", theirs, {"name": "b", "items": items}),
            ("POST", f"/v1/text-to-speech/{VOICE}", {"text": "Hi.", "pronunciation_dictionary_locators": locators}),
        ):
            answer = await client.request(way, path, json=body)
            assert answer.status_code == 200, (path, answer.text)
        await _speak_on_sockets(node, made["id"], locators)
        assert (await client.delete(theirs)).status_code == 204
        assert (await client.delete(theirs)).status_code == 404
    assert all(calls)
    assert not any(chain(*calls))


async def _speak_on_sockets(node: RunningNode, dictionary_id: str, locators: list[dict[str, str]]) -> None:
    async with aiohttp.ClientSession(trust_env=False) as session:
        async with session.ws_connect(f"{node.url}/tts/websocket") as socket:
            await socket.send_json({"context_id": "a", "transcript": "UN.", "pronunciation_dict_id": dictionary_id})
            assert (await socket.receive_json())["type"] == "chunk"
        async with session.ws_connect(f"{node.url}/v1/text-to-speech/{VOICE}/multi-stream-input") as socket:
            first = {"context_id": "a", "text": "UN. ", "pronunciation_dictionary_locators": locators, "flush": True}
            await socket.send_str(json.dumps(first))
            assert (await socket.receive_json())["audio"]
            # A context begins after another has named others; and the field's name is written otherwise.
            await socket.send_json(first | {"context_id": "b", "text": " ", "flush": False})
            others = {"pronunciation_dictionary_locators": 2 * locators}
            await socket.send_json(first | others | {"context_id": "c"})
            await socket.send_json({"context_id": "b", "text": "UN. ", "flush": True})
            named = json.dumps(first | {"context_id": "d", "pronunciation_dictionary_locators": 3 * locators})
            await socket.send_str(named.replace("locators", "locator\\u0073"))
            told: dict[str, str | None] = {}
            while {"b", "c", "d"} - told.keys():
                answer = await socket.receive_json()
                told.setdefault(answer["contextId"], answer.get("error"))
            assert told | {"a": None} == {"a": None, "b": None, "c": None, "d": "unknown_dictionary"}


@pytest.mark.node
async def test_changes_that_wait_for_another_process_hold_nobody_else(tmp_path: Path) -> None:
    """Threads are few: those that wait for a lock leave some to bodies and to readers. Guards `Node.storing`."""
    async with running_node(dictionaries={"folder": str(tmp_path)}) as node, node.http() as client:
        rules = [{"type": "alias", "string_to_replace": "UN", "alias": "you en"}]
        path = "/v1/pronunciation-dictionaries"
        made = (await client.post(f"{path}/add-from-rules", json={"name": "a", "rules": rules})).json()["id"]
        with FileLock(tmp_path / ".lock"):
            deletions = [asyncio.create_task(client.delete(f"/pronunciation-dicts/{made}")) for _ in range(40)]
            await asyncio.sleep(0.2)
            assert (await client.get(f"{path}/{made}")).status_code == 200
            long = await client.post("/v1/audio/speech", json={"input": "Hi.", "unknown": "x" * PARSED_AT_ONCE})
            assert long.status_code == 400
            assert not any(deletion.done() for deletion in deletions)
        answers = await asyncio.gather(*deletions)
        assert sorted(answer.status_code for answer in answers) == [204] + 39 * [404]


@pytest.mark.node
async def test_dictionaries_that_are_read_late_hold_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long bodies are parsed one at a time, and not behind those that wait for a folder. Guards `Node.reading`."""
    answered = threading.Event()
    monkeypatch.setattr(Dictionaries, "all", lambda _: [] if answered.wait(30) else None)
    async with running_node() as node, node.http() as client:
        readers = [asyncio.create_task(client.get("/v1/pronunciation-dictionaries")) for _ in range(4)]
        await asyncio.sleep(0.2)
        try:
            long = await client.post("/v1/audio/speech", json={"input": "Hi.", "unknown": "x" * PARSED_AT_ONCE})
            assert (long.status_code, any(reader.done() for reader in readers)) == (400, False)
        finally:
            answered.set()
        assert {answer.status_code for answer in await asyncio.gather(*readers)} == {200}


@pytest.mark.node
async def test_long_bodies_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compute together take the interpreter from the event loop one after the other."""
    now, most = 0, 0

    def parse(*_: Any, **__: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.05)
        now -= 1
        raise InvalidRequest("no")

    monkeypatch.setattr(http, "check_body", parse)
    async with running_node() as node, node.http() as client:
        body = {"input": "x" * PARSED_AT_ONCE}
        answers = await asyncio.gather(*(client.post("/v1/audio/speech", json=body) for _ in range(4)))
    assert ({answer.status_code for answer in answers}, most) == ({400}, 1)


@pytest.mark.node
async def test_long_bodies_have_places_until_they_are_parsed(tmp_path: Path) -> None:
    """Each is kept in memory: 200 lexicons at once took 650 MB, and others' long bodies waited behind them."""
    async with running_node(dictionaries={"folder": str(tmp_path)}) as node, node.http() as client:
        path, limits = "/v1/pronunciation-dictionaries/add-from-rules", node.node.settings.limits
        rules = [{"type": "alias", "string_to_replace": f"w{n}", "alias": "x" * 200} for n in range(400)]
        long, short = {"name": "a", "rules": rules}, {"name": "a", "rules": rules[:2]}
        assert len(json.dumps(long)) > limits.message_bytes
        _, left = await asyncio.open_connection("127.0.0.1", int(node.url.rpartition(":")[2]))
        left.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n".encode())
        left.write(json.dumps(long).encode())
        await until(lambda: taken(node, "long bodies") == 1)
        with ExitStack() as held:
            for _ in range(MAX_LONG_BODIES - 1):
                held.enter_context(await node.node.guard.place("long bodies", Client(None)))
            refused = await client.post(path, json=long)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert (await client.post(path, json=short)).status_code == 200
            left.transport.abort()
            await until(lambda: taken(node, "long bodies") == MAX_LONG_BODIES - 1)
            assert (await client.post(path, json=long)).status_code == 200
        assert taken(node, "long bodies") == 0
