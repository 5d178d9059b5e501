from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent_tts.config.settings import Settings
from agent_tts.ipc.engine_process import engine_processes, engine_settings


def qwen3(engines: int | None = None, **values: Any) -> Settings:
    return Settings.model_validate({"engine": "qwen3", "engines": engines, "qwen3": values})


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        (qwen3(), ["auto"]),
        (qwen3(device="cuda"), ["cuda:0"]),
        (qwen3(device="cuda:0,cuda:1"), ["cuda:0", "cuda:1"]),
        (qwen3(device="cuda , cuda:3"), ["cuda:0", "cuda:3"]),
        (qwen3(1, device="cuda:0,cuda:1"), ["cuda:0"]),
        (qwen3(3, device="cuda:0,cuda:1"), ["cuda:0", "cuda:1", "cuda:0"]),
        (qwen3(2), ["auto", "auto"]),
    ],
)
def test_engines_take_devices_in_turn(settings: Settings, devices: list[str]) -> None:
    assert [each.qwen3.device for each in engine_settings(settings)] == devices


def test_engines_of_one_device_share_its_memory() -> None:
    """One process must leave memory for the others."""
    shares = [each.qwen3.memory for each in engine_settings(qwen3(3, device="cuda,cuda:1,cuda:0", memory=0.8))]
    assert shares == [0.4, 0.8, 0.4]


def test_other_engines_have_no_devices() -> None:
    """Devices of a model that is not in use start no process."""
    settings = Settings.model_validate({"engine": "tone", "qwen3": {"device": "cuda:0,cuda:1"}})
    assert engine_settings(settings) == [settings]
    assert len(engine_settings(Settings(engine="tone", engines=3))) == 3


def test_several_engines_have_different_names_in_the_log() -> None:
    names = [make.keywords.get("name") for make in engine_processes(Settings(engine="tone", engines=2))]
    assert names == ["engine 0", "engine 1"]
    assert engine_processes(Settings(engine="tone"))[0].keywords == {}


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "auto,cuda:0", "cuda:0,", "cuda:0;cuda:1", "cpu cpu"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(ValidationError):
        qwen3(device=device)
