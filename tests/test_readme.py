"""The README's examples run, and the files and targets it names exist."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import httpx
import numpy as np
import pytest
from pipecat.processors.filters.identity_filter import IdentityFilter

from tests.integrations.pipecat.pipeline import running
from tests.measure import sounds
from tests.recogniser import hearing
from tests.support import running_node, until

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def block(language: str, containing: str) -> str:
    """The one fenced block of a language that contains these words."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.S) if containing in text]
    return str(found)


@pytest.mark.node
@pytest.mark.real_time
async def test_the_python_example() -> None:
    async with running_node(engine="espeak") as running:
        program = block("python", "connect(").replace("http://127.0.0.1:8100", running.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(20):
            told, _ = await process.communicate()
    sizes = [int(line.split()[0]) for line in told.splitlines()]
    assert process.returncode == 0
    assert sizes[:3] == [3_840] * 3
    assert sum(sizes) > 24_000


@pytest.mark.node
async def test_the_curl_example() -> None:
    body = re.search(r"-d '(\{.*?\})'", README)
    assert body is not None
    async with running_node(engine="espeak") as running, httpx.AsyncClient(trust_env=False) as client:
        reply = await client.post(running.url + "/v1/audio/speech", json=json.loads(body[1]))
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "audio/mpeg"


@pytest.mark.node
async def test_the_bot_speaks_what_its_language_model_writes() -> None:
    scope: dict[str, Any] = {}
    transport = SimpleNamespace(input=IdentityFilter, output=IdentityFilter)
    async with running_node() as node:
        exec(block("python", "def bot(").replace("http://127.0.0.1:8100", node.url), scope)
        bot = scope["bot"](transport, transport.input(), transport.input())
        async with running([bot]) as pipeline:
            await pipeline.begin("Hello", " there.")
            await pipeline.end()
            await until(lambda: len(pipeline.pcm()) > 10_000, 10)


def test_the_readme_takes_two_minutes_to_read() -> None:
    assert len(README.splitlines()) <= 160


def test_the_sounds_are_small_and_say_what_is_written() -> None:
    """Made by `python -m tests.measure.sounds`: the interrupted one has the words that were heard, and no more."""
    (heard,) = re.findall(r'`heard: "([^"]+)"`', README)
    for name, text in {"named": sounds.NAMED, "interrupted": heard}.items():
        path = sounds.FOLDER / f"{name}.mp3"
        assert path.stat().st_size < 60_000
        assert f"(web/sounds/{name}.mp3)" in README
        with av.open(str(path)) as file:
            samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        assert hearing().wer(text, np.rint(samples * 32_767).astype(np.int16), 24_000) <= 0.1
    assert sounds.INTERRUPTED.startswith(heard)
    assert len(heard) < len(sounds.INTERRUPTED) - 12


def test_named_files_and_targets_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`?make ([a-z]+)`", README)) <= targets
