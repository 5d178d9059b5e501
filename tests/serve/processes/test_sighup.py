"""SIGHUP to a node in processes of its own: keys, limits and the certificate change, and no connection is cut."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path

import httpx
import pytest
import yaml

from tests.certificates import make_certificate
from tests.node_process import RunningProcess, running_process
from tests.support import until
from tests.wire import wire

pytestmark = [pytest.mark.node, pytest.mark.real_time, pytest.mark.usefixtures("fronts")]

TEXT = "Somebody speaks while the settings change."
SETTLE_S = 20.0  # for all fronts to use new settings, on a busy machine


def write(file: Path, settings: dict[str, object]) -> None:
    file.write_text(yaml.safe_dump(settings))


async def reload(node: RunningProcess, file: Path, **settings: object) -> str:
    """Write the file, send SIGHUP, and wait for the line that tells what came of it."""
    said = node.log.count("SIGHUP")
    write(file, settings)
    node.process.send_signal(signal.SIGHUP)
    await until(lambda: node.log.count("SIGHUP") > said, SETTLE_S)
    return node.log.splitlines()[-1]


def status(node: RunningProcess, key: str) -> int:
    """That of a request with this key, over a new connection."""
    return httpx.get(f"{node.url}/v1/audio/voices", headers={"authorization": f"Bearer {key}"}).status_code


async def become(node: RunningProcess, key: str, expected: int) -> None:
    """Wait until many new connections in a row, of all fronts, have this answer."""
    async with asyncio.timeout(SETTLE_S):
        while {await asyncio.to_thread(status, node, key) for _ in range(16)} != {expected}:
            await asyncio.sleep(0.05)


async def test_keys_and_limits_change_and_a_bad_file_changes_nothing(tmp_path: Path, fronts: int) -> None:
    file = tmp_path / "node.yaml"
    write(file, {"auth": {"api_keys": ["one", "two"]}})
    with running_process(tmp_path, "--config", str(file)) as node:
        assert len([name for name in node.pids() if name.startswith("front")]) == fronts
        async with wire(node.ws_url, additional_headers={"X-API-Key": "one"}) as peer:
            await peer.say("before", TEXT, lead_ms=200)
            await peer.until_audio("before")

            line = await reload(node, file, auth={"api_keys": ["two", "three"]})
            assert line.endswith("changed: auth.api_keys")
            await become(node, "one", 401)
            await become(node, "three", 200)
            await become(node, "two", 200)

            line = await reload(node, file, auth={"api_keys": ["one"]}, limits={"no_such_limit": 1})
            assert "the settings stay as they are" in line
            assert "no_such_limit" in line
            assert status(node, "three") == 200

            line = await reload(node, file, auth={"api_keys": ["four"]}, limits={"text_message_chars": 9}, slots=3)
            assert "needs a restart: slots" in line
            await become(node, "four", 200)

            # The session of a removed key goes on, with limits of its own.
            assert (await peer.until("context.done", "before"))["reason"] == "end"
            await peer.say("after", TEXT, lead_ms=None)
            assert (await peer.until("context.done", "after"))["reason"] == "end"
        assert "'four'" not in node.log
        async with wire(node.ws_url, additional_headers={"X-API-Key": "four"}) as peer:
            await peer.say("t", "more than nine")
            assert (await peer.until("error", "t"))["code"] == "text_too_long"


async def test_the_lexicon_changes_on_all_fronts(tmp_path: Path) -> None:
    """Seen by the length of what is said: a word becomes twenty."""
    file, words = tmp_path / "node.yaml", tmp_path / "words.yaml"
    words.write_text("nothing: here")
    write(file, {"lexicon_file": str(words)})
    with running_process(tmp_path, "--config", str(file)) as node:

        def seconds() -> float:
            """Of a word, said over a new connection."""
            said = httpx.post(f"{node.url}/v1/audio/speech", json={"input": "word", "response_format": "pcm"})
            return len(said.content) / 48_000

        short = seconds()
        words.write_text(f"word: {' '.join(['word'] * 20)}")
        line = await reload(node, file, lexicon_file=str(words))
        assert line.endswith("changed: nothing")
        async with asyncio.timeout(SETTLE_S):
            while min([await asyncio.to_thread(seconds) for _ in range(8)]) < 3 * short:
                await asyncio.sleep(0.05)


async def test_a_new_certificate_is_used_for_new_handshakes(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = make_certificate(tmp_path / "old"), make_certificate(tmp_path / "new")
    file = tmp_path / "node.yaml"
    write(file, {"tls": old.settings})
    with running_process(tmp_path, "--config", str(file)) as node:
        async with wire(node.ws_url, ssl=old.client()) as peer:
            await peer.say("t", TEXT, lead_ms=200)
            await peer.until_audio("t")

            line = await reload(node, file, tls={"cert": str(new.cert), "key": str(old.key)})
            assert "the settings stay as they are" in line
            assert "does not belong to the certificate" in line

            # The same files with other contents, as certbot leaves them.
            old_client = old.client()
            old.cert.write_bytes(new.cert.read_bytes())
            old.key.write_bytes(new.key.read_bytes())
            await reload(node, file, tls=old.settings)
            async with asyncio.timeout(SETTLE_S):
                used = 0
                while used < 16:
                    used = used + 1 if await answers(node, new.client()) else 0
            assert not await answers(node, old_client)
            assert (await peer.until("context.done", "t"))["reason"] == "end"


async def answers(node: RunningProcess, trusting: ssl.SSLContext) -> bool:
    async with httpx.AsyncClient(verify=trusting) as client:
        try:
            return (await client.get(f"{node.url}/health")).status_code == 200
        except httpx.ConnectError:
            return False
