"""What a first start has done before anyone is served: the kernels of all sizes, and a graph of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from agent_tts.bench.checkpoint import write
from agent_tts.config.settings import Checkpoint, Qwen3
from agent_tts.engine.qwen3 import model as module
from agent_tts.engine.qwen3.compiling import Steps
from agent_tts.engine.qwen3.graphs import FrameGraphs
from tests.engine.qwen3.rehearsed import STEPS


class Begun(Exception):
    """Ends a load where its graphs are captured."""


def test_all_graphs_are_captured_at_once_the_largest_first() -> None:
    captured: list[object] = []
    told: list[tuple[int, int]] = []
    graphs: Any = SimpleNamespace(_sizes=(1, 4), _mixed=True, _prompts=object())
    graphs._capture_one = lambda size, *, prompts: captured.append((size, prompts))
    FrameGraphs._capture(graphs, lambda done, count: told.append((done, count)))
    assert captured == [(4, True), (4, False), (1, True), (1, False), (0, True)]
    assert told == [(done, 5) for done in range(1, 6)]


def test_the_kernels_of_all_sizes_are_waited_for_before_the_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "tiny", size="tiny")
    qwen3 = Qwen3(models=(Checkpoint(source=str(tmp_path / "tiny")),), max_model_len=64)
    (model,) = module.open_models(qwen3, torch.device("cpu"), 2)
    steps = replace(STEPS, paged=False, sizes=(1, 8, 24), watermark=False)
    waited_for: list[Steps] = []

    def compilation(steps: Sequence[Steps]) -> Any:
        return SimpleNamespace(wait=lambda progress: waited_for.extend(steps), close=lambda: None)

    monkeypatch.setattr(model, "_steps", lambda: [steps])
    monkeypatch.setattr(module, "Compilation", compilation)
    monkeypatch.setattr(module, "FrameGraphs", mock.Mock(side_effect=Begun))
    with pytest.raises(Begun):
        model.load()
    assert waited_for == [steps]
