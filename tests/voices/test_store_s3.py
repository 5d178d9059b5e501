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
from tests.support import present

pytestmark = [pytest.mark.node, pytest.mark.real_time]

FOLDER = "s3://bucket/voices"
# Machines that add the same voice at the same time, and one that does so when it is told; each has copies of its own.
MACHINES = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from agent_tts.errors import VoiceExists
from agent_tts.voices.library import StoredVoice, VoiceLibrary
from agent_tts.voices.store import VoiceStore

def add(prompt):
    library = VoiceLibrary(Path(sys.argv[1], prompt), 9, VoiceStore("{FOLDER}"))
    try:
        return library.add(StoredVoice(name="bob", kind="designed", prompt=prompt), {{}}).prompt
    except VoiceExists:
        return "refused"

with ThreadPoolExecutor() as machines:
    print(*machines.map(add, ("w0", "w1")), flush=True)
print(add(sys.stdin.readline().strip()), flush=True)
"""


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """An S3 server with the bucket, which is S3 to all processes that are started."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    # One attempt: a store that is gone is otherwise asked for 12 s.
    keys = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    for name, value in {"ENDPOINT_URL": url, **keys}.items():
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


@pytest.fixture
def machines(s3: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", MACHINES, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


@pytest.mark.slow
async def test_a_node_has_the_voices_of_a_bucket(
    s3: subprocess.Popen[bytes], machines: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Those that other machines have added, of whom one has a name; what it deletes is gone for them."""
    told = present(machines.stdout)
    first = told.readline().split()
    assert sorted(first) in (["refused", "w0"], ["refused", "w1"])
    flags, folder = ("--set", f"voices.folder={FOLDER}", "--fronts", "1"), str(tmp_path / "node")
    with running_process(tmp_path, *flags, env=os.environ | {"XDG_DATA_HOME": folder}) as node:
        async with httpx.AsyncClient(base_url=f"{node.url}/v1/audio/voices", trust_env=False, timeout=30) as http:
            assert (await http.get("/bob")).json()["prompt"] in first  # it has it when it is ready
            assert (await http.delete("/bob")).status_code == 200
            assert (await http.get("/bob")).status_code == 404
            print("again", file=machines.stdin, flush=True)
            assert told.readline() == "again\n"
            async with asyncio.timeout(20):
                while (await http.get("/bob")).status_code == 404:
                    await asyncio.sleep(0.05)
            s3.kill()
            s3.wait()
            refused = await http.delete("/bob")
            assert refused.status_code == 503
            assert "voices.folder" in refused.json()["error"]["message"]
            assert (await http.get("/bob")).json()["prompt"] == "again"
