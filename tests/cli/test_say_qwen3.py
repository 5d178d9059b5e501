"""`agent-tts say` with the neural engine, from the shell to the file."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from tests.cli.process import invoke
from tests.engine.qwen3.test_engine import FRAMES, TEXT, assert_same, theirs
from tests.model import oracle, tiny


@pytest.mark.slow
def test_the_file_equals_upstreams_audio(tmp_path: Path) -> None:
    """Greedy decoding in float32 on the CPU."""
    folder, path = tiny.checkpoint("custom_voice"), tmp_path / "out.wav"
    expected = theirs(oracle.load(folder), "generate_custom_voice", speaker="ryan", language="English")
    result = invoke(
        *("say", TEXT, "--no-clean", "--engine", "qwen3", "--model", str(folder), "--voice", "ryan"),
        *("--language", "english", "--seed", "0", "--temperature", "0", "--max-frames", str(FRAMES)),
        *("--device", "cpu", "--dtype", "float32", "-o", str(path)),
    )
    assert result.returncode == 0, result.stderr
    with wave.open(str(path)) as file:
        assert file.getparams()[:3] == (1, 2, 24_000)
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert_same(pcm.astype(np.float32) / np.float32(32_767), expected)
