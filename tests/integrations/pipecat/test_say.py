"""The smallest pipeline, started as a user starts it, and in this process."""

from __future__ import annotations

import asyncio
import runpy
import sys
import wave
from pathlib import Path
from typing import Any

import pytest

from tests.support import dominant_hz, running_node

SCRIPT = Path(__file__).parents[3] / "pipelines" / "say.py"


@pytest.fixture
def say() -> Any:
    return runpy.run_path(str(SCRIPT))["say"]


@pytest.mark.slow
async def test_a_text_is_written_to_a_file_without_a_node(say: Any, tmp_path: Path) -> None:
    assert await say("Hello there.", str(tmp_path / "hello.wav"), None, None) is None
    with wave.open(str(tmp_path / "hello.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert 0.4 < file.getnframes() / 24_000 < 3


async def test_an_error_is_told(say: Any, tmp_path: Path) -> None:
    async with running_node() as node:
        assert "no such voice" in await say("Hello.", str(tmp_path / "x.wav"), node.url, "nobody")


async def test_a_node_speaks_standard_input_to_standard_output() -> None:
    async with running_node() as node:
        arguments = ("-", "-o", "-", "--url", node.url, "--voice", "tone-660")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", str(SCRIPT), *arguments), stdin=pipe, stdout=pipe, stderr=pipe
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate(b"A line.\nAnother one.\n")
    assert process.returncode == 0, err
    assert dominant_hz(out) == pytest.approx(660, abs=5)
