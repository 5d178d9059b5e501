"""The smallest pipeline, started as a user starts it."""

from __future__ import annotations

import asyncio
import sys
import wave
from pathlib import Path

import pytest

from tests.support import dominant_hz, running_node

SCRIPT = Path(__file__).parents[3] / "pipelines" / "say.py"


async def run(*arguments: str, text: bytes = b"") -> tuple[int | None, bytes, str]:
    """(exit code, stdout, stderr)."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", str(SCRIPT), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate(text)
    return process.returncode, out, err.decode()


async def test_a_text_is_written_to_a_file_without_a_node(tmp_path: Path) -> None:
    code, _, err = await run("Hello there.", "-o", str(tmp_path / "hello.wav"))
    assert code == 0, err
    with wave.open(str(tmp_path / "hello.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert 0.4 < file.getnframes() / 24_000 < 3


async def test_a_node_speaks_standard_input_to_standard_output() -> None:
    async with running_node() as node:
        arguments = ("-", "-o", "-", "--url", node.url, "--voice", "tone-660")
        code, out, err = await run(*arguments, text=b"A line.\nAnother one.\n")
        assert code == 0, err
        assert dominant_hz(out) == pytest.approx(660, abs=5)


async def test_an_error_is_the_last_line_of_output(tmp_path: Path) -> None:
    async with running_node() as node:
        code, _, err = await run("Hello.", "-o", str(tmp_path / "x.wav"), "--url", node.url, "--voice", "nobody")
    assert code == 1
    assert "no such voice" in err
