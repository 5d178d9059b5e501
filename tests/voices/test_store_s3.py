"""A node whose voices are in an S3 bucket, and other machines that have them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.node_process import running_process

pytestmark = [pytest.mark.node, pytest.mark.real_time]

FOLDER = "s3://bucket/voices"
ADD = f"""
import sys
from agent_tts.config.settings import Voices
from agent_tts.voices.library import StoredVoice, VoiceLibrary
VoiceLibrary.of(Voices(folder="{FOLDER}")).add(StoredVoice(name=sys.argv[1], kind="designed", prompt=sys.argv[2]), {{}})
"""


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """An S3 server with the bucket, which is S3 to all processes that are started."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "ENDPOINT_URL": url,
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
        "REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.put(f"{url}/bucket", trust_env=False).raise_for_status()
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.05)
        yield server
    finally:
        server.kill()
        server.wait()


def adding(folder: Path, name: str, prompt: str) -> subprocess.Popen[bytes]:
    """A process of another machine that adds a voice."""
    environment = os.environ | {"XDG_DATA_HOME": str(folder / prompt)}
    return subprocess.Popen([sys.executable, "-c", ADD, name, prompt], env=environment, stderr=subprocess.PIPE)


async def test_a_node_has_the_voices_of_a_bucket(s3: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Those that other machines have added, of whom one has a name; what it deletes is gone for them."""
    writers = [adding(tmp_path, "bob", f"w{number}") for number in range(2)]
    errors = [writer.communicate(timeout=60)[1].decode() for writer in writers]
    assert sorted(writer.returncode for writer in writers) == [0, 1], errors
    assert "VoiceExists" in "".join(errors)
    winner = next(f"w{number}" for number, writer in enumerate(writers) if writer.returncode == 0)
    flags, folder = ("--set", f"voices.folder={FOLDER}", "--fronts", "1"), str(tmp_path / "node")
    with running_process(tmp_path, *flags, env=os.environ | {"XDG_DATA_HOME": folder}) as node:
        async with httpx.AsyncClient(base_url=f"{node.url}/v1/audio/voices", trust_env=False, timeout=30) as http:
            assert (await http.get("/bob")).json()["prompt"] == winner  # it has it when it is ready
            assert (await http.delete("/bob")).status_code == 200
            assert (await http.get("/bob")).status_code == 404
            assert not adding(tmp_path, "bob", "again").communicate(timeout=60)[1]
            async with asyncio.timeout(20):
                while (await http.get("/bob")).status_code == 404:
                    await asyncio.sleep(0.05)
            s3.kill()
            s3.wait()
            refused = await http.delete("/bob")
            assert refused.status_code == 503
            assert "voices.folder" in refused.json()["error"]["message"]
            assert (await http.get("/bob")).json()["prompt"] == "again"
