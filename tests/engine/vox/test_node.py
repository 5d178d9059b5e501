"""A node with the engine vox, in processes of its own, on a real socket."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest

from agent_tts.engine.vox.files import convert
from tests.cli.process import environment
from tests.engine.driver import speak
from tests.engine.vox.test_engine import RYAN, TEXT, engine, sound
from tests.model import tiny
from tests.node_process import running_process
from tests.without import without


@pytest.mark.node
@pytest.mark.real_time
def test_a_node_speaks_by_vox_without_torch(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.behind("custom_voice"), tmp_path / "model")
    convert(folder, "f32", lambda done, total: None)
    flags = ("--engine", "vox", "--model", str(folder), "--set", "vox.type=f32", "--slots", "2")
    with running_process(tmp_path, *flags, env=environment(**without(tmp_path, "torch"))) as node:
        body = {"input": TEXT, "voice": "ryan", "language": "en", "seed": 0, "clean": False, "temperature": 0}
        answer = httpx.post(f"{node.url}/v1/audio/speech", json={**body, "response_format": "pcm"}, timeout=60)
        assert answer.status_code == 200, answer.text
        refused = httpx.post(f"{node.url}/v1/audio/speech", json={**body, "text_mode": "whole"}, timeout=60)
    with engine(tiny.behind("custom_voice")) as made:
        expected = sound(speak(made, TEXT, options=RYAN))
    found = np.frombuffer(answer.content, "<i2") / 32_767
    assert np.abs(found - expected).max() < 1e-4
    assert refused.status_code >= 400
    assert "as it comes" in json.dumps(refused.json())
