"""The README's examples run, and the files and targets it names exist."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import av
import httpx
import numpy as np
import pytest
from pipecat.processors.filters.identity_filter import IdentityFilter

from agent_tts.agent import stt
from agent_tts.bench.checkpoint import SIZES, codec_shapes, model_shapes, write_configuration
from agent_tts.model.config import ModelConfig
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
async def test_the_python_example_writes_a_file_that_can_be_played(tmp_path: Path) -> None:
    async with running_node(engine="espeak") as running:
        program = block("python", "connect(").replace("http://127.0.0.1:8100", running.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        async with asyncio.timeout(20):
            assert await process.wait() == 0
    with av.open(str(tmp_path / "hello.wav")) as file:  # a player opens it
        (stream,) = file.streams.audio
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(stream)])
        assert (stream.rate, stream.channels) == (24_000, 1)
    assert len(samples) > 12_000
    assert np.abs(samples).max() > 3_000


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


@pytest.mark.slow
def test_the_sounds_say_what_is_written() -> None:
    """Made by `python -m tests.measure.sounds`: the interrupted one has the words that were heard, and no more."""
    (heard,) = re.findall(r'`heard: "([^"]+)"`', README)
    texts = {name: re.sub("<[^>]+>", "", text) for name, (_, text) in sounds.SAID.items()}
    for name, text in {**texts, "interrupted": heard}.items():
        with av.open(str(sounds.FOLDER / f"{name}.mp3")) as file:
            samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        assert hearing().wer(text, np.rint(samples * 32_767).astype(np.int16), 24_000) <= 0.1
    assert sounds.INTERRUPTED.startswith(heard)
    assert len(heard) < len(sounds.INTERRUPTED) - 12


def test_the_sounds_are_small() -> None:
    for name in (*sounds.SAID, "interrupted"):
        assert (sounds.FOLDER / f"{name}.mp3").stat().st_size < 60_000
        assert f"(web/sounds/{name}.mp3)" in README


def test_named_files_and_targets_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`?make ([a-z]+)`", README)) <= targets


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_each_figure_has_a_source_and_a_date() -> None:
    """Ours are those of the page of figures; a row says "the same" where the one above it has the source."""
    ours, *others = rows("How fast")
    page = (ROOT / "web/docs/performance.md").read_text()
    rates, figures = [cell.split(", ") for cell in ours[1:3]]
    for rate, figure in zip(rates, figures, strict=True):
        (row,) = re.findall(rf"^\| {rate} requests? a second \(.*$", page, re.M)
        assert row.split("|")[3].strip() == f"{figure} ms"
    assert "2026-11-26, 71a4ea20" in page
    for *_, source in [ours, *others]:
        assert source == "the same" or re.search(r"\]\([^)]+\), 2026-\d\d-\d\d$", source), source
    assert others[0][3] != "the same"


def test_sizes_and_times_are_those_of_the_code() -> None:
    """A model's weights have 16 bits, its codec's 32."""
    size = SIZES["1.7B"]
    with TemporaryDirectory() as folder:
        write_configuration(Path(folder), size, "custom_voice")
        config = ModelConfig.read(Path(folder))
    weights = 2 * numbers(model_shapes(config)) + 4 * numbers(codec_shapes(config, size))
    assert f"{weights / 1e9:.1f} GB for each 1.7B model" in README
    models = (ROOT / "configs/gpu.yaml").read_text().count("\n    - source:")
    assert "`make serve-qwen` has " + {3: "three"}[models] in README
    assert f"{stt._SIZES['base']} MB for `base.en`" in README
    (took,) = re.findall(r"`make test` (\d+ to \d+ min)", (ROOT / "CONTRIBUTING.md").read_text())
    assert f"{took}utes on 2 cores" in README


def numbers(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def test_the_license_is_at_the_root() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license-files"] == ["LICENSE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
