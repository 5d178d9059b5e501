"""SIGHUP to a node in processes of its own: keys, limits and the certificate change, and no connection is cut."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.certificates import make_certificate
from tests.node_process import RunningProcess, running_process
from tests.serve.processes.test_careless_operator import write
from tests.wire import wire

pytestmark = [pytest.mark.node, pytest.mark.real_time]

TEXT = "Somebody speaks while the settings change."
SETTLE_S = 20.0  # for all fronts to use new settings, on a busy machine


async def reload(node: RunningProcess, file: Path, **settings: object) -> str:
    """Change the file; the line that tells what came of it."""
    write(file, **settings)
    return await node.reload()


def client(trusting: ssl.SSLContext, **options: Any) -> httpx.Client:
    return httpx.Client(verify=trusting, timeout=SETTLE_S, **options)


def status(node: RunningProcess, trusting: ssl.SSLContext, key: str) -> int:
    """That of a request with this key, over a new connection; 0 if it does not come about."""
    try:
        with client(trusting, headers={"authorization": f"Bearer {key}"}) as http:
            return http.get(f"{node.url}/v1/audio/voices").status_code
    except httpx.ConnectError:
        return 0


async def become(node: RunningProcess, trusting: ssl.SSLContext, key: str, expected: int) -> None:
    """Wait until many new connections in a row, of all fronts, have this answer."""
    async with asyncio.timeout(SETTLE_S):
        while {await asyncio.to_thread(status, node, trusting, key) for _ in range(8)} != {expected}:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("fronts", [pytest.param(1, marks=pytest.mark.slow), 2], indirect=True)
async def test_settings_change_and_no_connection_is_cut(tmp_path: Path, fronts: int) -> None:
    """Keys, limits, the lexicon and the certificate; a bad file changes nothing. Two signals end the node at once."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = make_certificate(tmp_path / "old"), make_certificate(tmp_path / "new")
    trusting = old.client()
    file, words = tmp_path / "node.yaml", tmp_path / "words.yaml"
    words.write_text("nothing: here")
    unchanged: dict[str, Any] = {"lexicon_file": str(words), "tls": old.settings}
    write(file, **unchanged, auth={"api_keys": ["one", "two"]})
    with running_process(tmp_path, "--config", str(file)) as node:
        assert len([name for name in node.pids() if name.startswith("front")]) == fronts

        def seconds() -> float:
            """Of a word, said over a new connection."""
            with client(trusting, headers={"authorization": "Bearer three"}) as http:
                said = http.post(f"{node.url}/v1/audio/speech", json={"input": "word", "response_format": "pcm"})
                return len(said.content) / 48_000

        async with wire(node.ws_url, ssl=trusting, additional_headers={"X-API-Key": "one"}) as peer:
            await peer.say("before", TEXT, lead_ms=200)
            await peer.until_audio("before")

            line = await reload(node, file, **unchanged, auth={"api_keys": ["two", "three"]})
            assert line.endswith("changed: auth.api_keys")
            await become(node, trusting, "one", 401)
            await become(node, trusting, "three", 200)
            await become(node, trusting, "two", 200)

            # Seen by the length of what is said: a word becomes twenty.
            short = seconds()
            words.write_text(f"word: {' '.join(['word'] * 20)}")
            line = await reload(node, file, **unchanged, auth={"api_keys": ["two", "three"]})
            assert line.endswith("changed: nothing")
            async with asyncio.timeout(SETTLE_S):
                while min([await asyncio.to_thread(seconds) for _ in range(6)]) < 3 * short:
                    await asyncio.sleep(0.05)

            mixed = {"cert": str(new.cert), "key": str(old.key)}
            for wrong, said in (
                ({"limits": {"no_such_limit": 1}}, "no_such_limit"),
                ({"tls": mixed}, "does not belong to the certificate"),
            ):
                line = await reload(node, file, **unchanged | {"auth": {"api_keys": ["one"]}} | wrong)
                assert "the settings stay as they are" in line
                assert said in line
                assert status(node, trusting, "three") == 200

            # The same files with other contents, as certbot leaves them.
            old.cert.write_bytes(new.cert.read_bytes())
            old.key.write_bytes(new.key.read_bytes())
            limits = {"text_message_chars": 9}
            line = await reload(node, file, **unchanged, auth={"api_keys": ["four"]}, limits=limits, slots=3)
            assert "needs a restart: slots" in line
            await become(node, new.client(), "four", 200)
            assert status(node, trusting, "four") == 0

            # The session of a removed key goes on, with limits of its own.
            assert (await peer.until("context.done", "before"))["reason"] == "end"
            await peer.say("after", TEXT, lead_ms=None)
            assert (await peer.until("context.done", "after"))["reason"] == "end"
        assert "'four'" not in node.log
        async with wire(node.ws_url, ssl=new.client(), additional_headers={"X-API-Key": "four"}) as peer:
            await peer.say("t", "more than nine")
            assert (await peer.until("error", "t"))["code"] == "text_too_long"
            await peer.send("context.open", context_id="v")
            await peer.until("context.started", "v")
            node.process.send_signal(signal.SIGTERM)
            await peer.until("session.draining")
            node.process.send_signal(signal.SIGTERM)
            await peer.close_code()
        assert await asyncio.to_thread(node.process.wait, SETTLE_S) == 128 + signal.SIGTERM
