"""What is expected of an engine before it is started is what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agent_tts.config.settings import Settings
from agent_tts.engine.qwen3.expected import expected
from agent_tts.engine.qwen3.model import create_models
from agent_tts.errors import SettingsError
from tests.engine.qwen3.released import hollow

HAS_GPU = torch.cuda.is_available() or torch.backends.mps.is_available()


def settings(**section: object) -> Settings:
    return Settings.model_validate({"engine": "qwen3", "qwen3": {"device": "cpu", **section}})


@pytest.mark.skipif(HAS_GPU, reason="a device that is not there")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there(device: str) -> None:
    refused(settings(models=[str(hollow("0.6B"))], device=device))


def test_no_model() -> None:
    refused(settings(models=[]))


@pytest.mark.parametrize("content", ["{}", "[", '{"tts_model_type": "other"}'])
def test_a_damaged_model(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    refused(settings(models=[str(tmp_path)]))


def test_one_of_several_devices_that_is_not_there() -> None:
    found = expected(0, 0, 0, settings(models=[str(hollow("0.6B"))], device="cpu,cuda:99").qwen3)
    assert "cuda:99 is not there" in found["error"]


def test_what_fits_the_cpu_is_told() -> None:
    assert expected(0, 0, 2, settings(models=[str(hollow("0.6B"))]).qwen3)["slots"] == 2


def refused(node: Settings) -> None:
    with pytest.raises(SettingsError) as caught:
        create_models(node, 4)
    assert expected(0, 0, 0, node.qwen3) == {"error": str(caught.value)}
