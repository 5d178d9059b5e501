"""The doctor's findings about folders and GPUs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent_tts.config.hub import QWEN3, Absent
from agent_tts.config.settings import Settings
from agent_tts.doctor import gpu, machine
from agent_tts.doctor.finding import Verdict, good
from tests.engine.qwen3.released import write_hollow

SMI = "NVIDIA H200, 580.159, 142771, 143771, 1000\n"


def qwen(*models: object, folder: Path | None = None) -> Settings:
    voices = {} if folder is None else {"folder": str(folder)}
    return Settings.model_validate({"engine": "qwen3", "qwen3": {"models": models}, "voices": voices})


def test_a_missing_folder_is_judged_by_its_nearest_parent(tmp_path: Path) -> None:
    (voices,) = machine.disk(qwen(folder=tmp_path / "new" / "voices"))
    assert voices.found.startswith(str(tmp_path / "new" / "voices"))


def test_the_folder_is_the_nodes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of voices at an address it is that of their copies; what is not absolute is refused, as by the node."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (copies,) = machine.disk(Settings(voices={"folder": f"file://{tmp_path}/shared"}))
    assert copies.found.startswith(f"{tmp_path}/agent-tts/voice-copies/")
    (relative,) = machine.disk(Settings(voices={"folder": "voices"}))
    assert relative.verdict is Verdict.BAD


def test_a_full_or_read_only_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = qwen(folder=tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    (full,) = machine.disk(settings)
    monkeypatch.setattr(os, "access", lambda *_: False)
    (locked,) = machine.disk(settings)
    assert (full.verdict, locked.verdict) == (Verdict.NOTE, Verdict.BAD)
    assert "voices.folder" in full.advice


@pytest.mark.slow
def test_a_missing_gpu_is_noted_only_for_a_neural_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    (plain,) = gpu.gpu(Settings())
    neural, torch, models = gpu.gpu(qwen("./a/b"))
    assert (plain.verdict, neural.verdict, torch.verdict) == (Verdict.GOOD, Verdict.NOTE, Verdict.GOOD)
    assert "the engine vox, which is experimental" in (neural.advice or "")
    assert (models.verdict, "neither a folder here nor a hub id" in models.found) == (Verdict.BAD, True)


@pytest.mark.slow
def test_models_are_compared_with_gpu_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi is a script here, so the test needs no GPU. A refusal has the engine's own words.

    See tests/engine/qwen3/test_expected.py for all that an engine refuses.
    """
    monkeypatch.setattr(gpu, "_torch", lambda *, wants_gpu: good("torch", f"for a GPU: {wants_gpu}"))
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '{SMI}'\n".replace("\n'", "\\n'"))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    write_hollow(tmp_path / "1.7B", "1.7B")
    found = list(gpu.gpu(qwen(str(tmp_path / "1.7B"))))
    assert found[0].found == "0: NVIDIA H200, 1000 of 143771 MiB free, driver 580.159"
    assert found[1].found == "for a GPU: True"
    assert (found[-1].verdict, found[-1].advice) == (Verdict.BAD, "free the device, or use a smaller model")
    assert "of 1.0 GiB that are free" in found[-1].found
    monkeypatch.setattr(gpu, "_lines", lambda _: ['{"slots": 34, "streams": 34, "most": 36}'])
    (fits,) = gpu._models(qwen(str(tmp_path / "1.7B")), 7_500, 8_188)
    assert fits.verdict is Verdict.GOOD
    assert fits.found.startswith("34 slots; memory for 34 streams at once, for 36 with more slots (computed")


def test_what_has_to_be_downloaded_is_told_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Absent("some/model", None, "0" * 40, {"model.safetensors": 4_519_000_000}, QWEN3)
    monkeypatch.setattr(gpu, "look_for_models", lambda _: [(None, absent)])
    (finding,) = gpu._models(qwen("some/model"), 0, 0)
    assert (finding.verdict, finding.found) == (Verdict.NOTE, "not on this disk: some/model")
    assert finding.advice == "the first start downloads 4.52 GB"
