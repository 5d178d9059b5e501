"""`POST /v1/audio/detect` and `agent-tts detect`: real files of every format, AudioSeal's detector in a process."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

pytest.importorskip("audioseal", reason="writes the weights: a dependency of the tests")

from agent_tts.speech.audio.files import CONTENT_TYPES, FileEncoder
from tests.cli.process import invoke
from tests.model import audioseal_files
from tests.support import app_with, in_this_loop, running_app, running_node, settings_of
from tests.voices.clips import KINDS, encoded, tone

pytestmark = [pytest.mark.node, pytest.mark.real_time]  # children run in real time

RECORDED = encoded(KINDS["flac"], tone())  # no speech of a node


def spoken(format: str) -> bytes:
    encoder = FileEncoder(format)
    return encoder.encode(bytes(96_000)) + encoder.close()


async def asked(http: httpx.AsyncClient, clip: bytes) -> httpx.Response:
    return await http.post("/v1/audio/detect", files={"audio_sample": ("a.bin", clip, "application/octet-stream")})


async def test_files_of_a_node_are_known_by_their_comment() -> None:
    async with running_node() as node, node.http(timeout=60) as http:
        for format in CONTENT_TYPES:
            found = (await asked(http, spoken(format))).json()
            assert found == {"synthetic": format != "pcm", "comment": format != "pcm", "watermark": None}
        assert (await asked(http, RECORDED)).json()["synthetic"] is False
        wrong = await http.post("/v1/audio/detect", files={"other": ("a.wav", RECORDED)})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "audio_sample")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(audioseal_files.write(tmp_path_factory.mktemp("weights")))


@pytest.mark.slow
async def test_a_node_with_a_watermark_looks_for_it(weights: str) -> None:
    """The weights are random, and so is the answer; that a library's detector agrees is tested with the model."""
    settings = settings_of()
    marking = settings.model_copy(
        update={"watermark": "audioseal", "audioseal": settings.audioseal.model_copy(update={"source": weights})}
    )
    async with running_app(app_with(marking, in_this_loop(settings))) as node:
        async with node.http(timeout=60) as http:
            found = (await asked(http, RECORDED)).json()
            assert 0 <= found["watermark"]["share"] <= 1
            assert 0 <= found["watermark"]["message"] < 1 << 16
            refused = await asked(http, b"no audio at all")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio_sample")


def test_the_command_tells_what_it_finds(tmp_path: Path) -> None:
    made = tmp_path / "a.mp3"
    made.write_bytes(spoken("mp3"))
    assert b"synthetic speech" in invoke("detect", str(made)).stdout.splitlines()[-1]
    missing = invoke("detect", str(tmp_path / "c.wav"))
    assert (missing.returncode, b"c.wav: No such file" in missing.stderr) == (2, True)


@pytest.mark.slow
def test_the_command_looks_for_a_watermark(tmp_path: Path, weights: str) -> None:
    other = tmp_path / "b.flac"
    other.write_bytes(RECORDED)
    source = {"AGENT_TTS_AUDIOSEAL__SOURCE": weights}
    result = invoke("detect", str(other), "--watermark", "audioseal", "--json", **source)
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["watermark"]) == {"share", "message"}
