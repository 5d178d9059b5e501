"""What a start leaves for later: graphs of some sizes, and the compilation of their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent_tts.config.settings import Checkpoint, Qwen3, Settings
from agent_tts.engine.qwen3 import model as module
from agent_tts.engine.qwen3.compiling import Steps
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import FrameGraphs
from agent_tts.model.config import ModelType
from tests.model import tiny


@pytest.fixture(scope="module")
def engine() -> Iterator[Qwen3Engine]:
    folder = str(tiny.checkpoint("custom_voice"))
    qwen3 = Qwen3(models=(Checkpoint(source=folder),), device="cpu", max_model_len=64)
    made = Qwen3Engine(Settings(qwen3=qwen3), 2)
    yield made
    made.close()


class Graphs:
    """Stands in for those of a GPU."""

    def __init__(self) -> None:
        self.wanted = [(2, False), (4, False)]

    def capture_next(self) -> None:
        del self.wanted[0]


class Compilation:
    """Stands in for a process that compiles."""

    compiled = False
    closed = False

    def __init__(self, steps: object) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def compiling(engine: Qwen3Engine, monkeypatch: pytest.MonkeyPatch) -> list[Compilation]:
    """The compilations that are begun for an engine whose model wants two graphs."""
    begun: list[Compilation] = []

    def begin(steps: object) -> Compilation:
        begun.append(Compilation(steps))
        return begun[-1]

    monkeypatch.setattr(module, "Compilation", begin)
    (model,) = engine._models
    monkeypatch.setattr(model, "_compilation", None)
    monkeypatch.setattr(model.runner, "graphs", Graphs())
    return begun


def test_the_other_graphs_are_captured_when_their_kernels_are_compiled(
    engine: Qwen3Engine, compiling: list[Compilation]
) -> None:
    assert engine.has_spare_work
    engine.do_spare_work()
    (compilation,) = compiling
    assert not engine.has_spare_work  # nor when the compilation has failed
    compilation.compiled = True
    captured = 0
    while engine.has_spare_work:
        engine.do_spare_work()
        captured += 1
    assert captured == 2
    assert len(compiling) == 1


def test_an_engine_ends_its_compilation(engine: Qwen3Engine, compiling: list[Compilation]) -> None:
    engine.do_spare_work()
    for model in engine._models:
        model.close()
    assert compiling[0].closed


@pytest.mark.parametrize(
    ("only_largest", "at_once", "later"),
    [
        (True, [(4, True), (4, False), (0, True)], [(1, False), (1, True), (2, False), (2, True)]),
        (False, [(4, True), (4, False), (2, True), (2, False), (1, True), (1, False), (0, True)], []),
    ],
)
def test_the_largest_graph_is_captured_first(only_largest: bool, at_once: list[object], later: list[object]) -> None:
    captured: list[object] = []
    graphs: Any = SimpleNamespace(_sizes=(1, 2, 4), _mixed=True, _prompts=object(), wanted=[])
    graphs.capture_next = lambda: captured.append(graphs.wanted.pop(0))
    FrameGraphs._capture(graphs, only_largest, lambda done, total: None)
    assert captured == at_once
    assert graphs.wanted == later


class Begun(Exception):
    """Ends a load where its graphs are captured."""


@pytest.mark.parametrize(
    ("compiled", "model_type", "expected"),
    [
        (False, "custom_voice", ((24,), False, True)),
        (False, "base", ((24,), True, True)),
        (True, "custom_voice", ((1, 8, 24), True, False)),
    ],
)
def test_a_first_start_waits_for_the_kernels_of_the_largest_batch_alone(
    compiled: bool, model_type: ModelType, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    qwen3 = Qwen3(models=(Checkpoint(source=str(tiny.checkpoint(model_type))),), max_model_len=64)
    (model,) = module.open_models(qwen3, torch.device("cpu"), 2)
    steps = Steps(
        "", "bfloat16", "float16", 64, paged=False, sizes=(1, 8, 24), mixed=True, watermark=False, adapters=(0, 0),
        fp8_weights=False, fp8_cache=False, architecture="sm_90",
    )  # fmt: skip
    waited_for: list[Steps] = []

    class Waiting(Compilation):
        compiled = True  # once it was waited for

        def __init__(self, steps: Sequence[Steps]) -> None:
            waited_for.extend(steps)

        def wait(self, progress: object) -> None:
            pass

    def capture(*_: object, only_largest: object, **__: object) -> None:
        raise Begun(waited_for[0].sizes, waited_for[0].references, only_largest)

    monkeypatch.setattr(model, "_steps", lambda: [steps])
    monkeypatch.setattr(module, "are_compiled", lambda steps: compiled)
    monkeypatch.setattr(module, "Compilation", Waiting)
    monkeypatch.setattr(module, "FrameGraphs", capture)
    with pytest.raises(Begun) as begun:
        model.load()
    assert begun.value.args == expected
