"""The package as a wheel, in an environment of its own: it has all that a node serves, and speaks."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import venv
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.node_process import RunningProcess
from tests.without import NATURAL, without

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[2]
PACKAGES = sysconfig.get_path("purelib")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of an environment that has the wheel, and what it depends on, but not this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "env"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True, capture_output=True, timeout=60)
    return folder / "env" / "bin"


def environment() -> dict[str, str]:
    """Its packages come from the tests' environment, but not what is installed there by reference to a folder."""
    return {**os.environ, "PYTHONPATH": PACKAGES, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.slow
def test_it_is_the_wheel_that_speaks(installed: Path, tmp_path: Path) -> None:
    where: list[str | Path] = [installed / "python", "-c", "import agent_tts; print(agent_tts.__file__)"]
    found = subprocess.run(where, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert found.stdout.startswith(str(installed.parent)), found.stderr
    say: list[str | Path] = [installed / "agent-tts", "say", "Hello there.", "-o", "out.wav"]
    said = subprocess.run(say, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    with wave.open(str(tmp_path / "out.wav")) as audio:
        assert 0.3 < audio.getnframes() / audio.getframerate() < 3


@contextmanager
def node(installed: Path, folder: Path, **variables: str) -> Iterator[RunningProcess]:
    with (folder / "log").open("wb") as log:
        serve: list[str | Path] = [installed / "agent-tts", "serve", "--port", "0", "--config", "cpu"]
        process = subprocess.Popen(
            serve, env=environment() | variables, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield RunningProcess(process, folder / "log")
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_a_node_of_it_has_the_page_the_docs_the_named_configurations_and_the_natural_voice(
    installed: Path, tmp_path: Path
) -> None:
    """With the extra `voice`."""
    with node(installed, tmp_path) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        assert "[voice]" not in running.log
        assert client.get("/v1/audio/voices").json()["default"] == "heart"
        parts = re.findall(r'(?:src|href)="([^"#:]+)"', client.get("/").text)
        assert any(part.endswith("app.js") for part in parts)
        for path in {*parts, "/docs/", "/docs/protocol.md", "/ready"}:
            assert client.get(path).status_code == 200, path
        speech = client.post("/v1/audio/speech", json={"input": "Hello.", "voice": "alloy"})
        assert speech.status_code == 200, speech.text
        assert len(speech.content) > 3_000


@pytest.mark.slow
def test_the_base_alone_speaks_by_espeak_and_says_how_to_get_the_natural_voice(installed: Path, tmp_path: Path) -> None:
    """Nothing of the base may import what is not in it: a process that does fails here."""
    required = [line for line in importlib.metadata.requires("agent-tts") or () if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("hibari", "onnxruntime"))]
    hidden = without(tmp_path, *NATURAL, path=PACKAGES)
    with node(installed, tmp_path, **hidden) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        assert "pip install '.[voice]'" in running.log
        assert client.get("/v1/audio/voices").json()["default"] == "en-us"
        speech = client.post("/v1/audio/speech", json={"input": "Hello.", "voice": "alloy"})
        assert (speech.status_code, len(speech.content) > 3_000) == (200, True)
