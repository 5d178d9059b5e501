"""Kernels compiled ahead, for a GPU that is not here: every kernel of the steps, each once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="it is what compiles")
if sys.platform != "linux":
    pytest.skip("kernels are compiled ahead on Linux", allow_module_level=True)

from agent_tts.bench.checkpoint import SIZES, write_configuration
from agent_tts.bench.node import children_of
from agent_tts.cli.compile import sources
from agent_tts.config.settings import Settings
from agent_tts.engine.qwen3 import compiling
from agent_tts.engine.qwen3.compiling import STAMP, Compilation, Steps, are_compiled, begun_ahead
from agent_tts.model.kernels.ahead import Pointer
from tests.cli.process import invoke, is_running
from tests.engine.qwen3.rehearsed import STEPS
from tests.support import present
from tests.without import without

# Compiling processes have a low priority: beside other tests they take minutes.
pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]
WITHIN_S = 450.0

# The smallest codec that the kernels support: sixteen channels.
SIZE = SIZES["tiny"] | {"codec_widths": {"latent_dim": 48, "codebook_dim": 32, "decoder_dim": 256}}
CODEC_KERNELS = pytest.param("float16", marks=[pytest.mark.slow, pytest.mark.timeout(600)])


@pytest.fixture(scope="module", params=["float32", CODEC_KERNELS])
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """With float16 all kernels, otherwise few."""
    folder = tmp_path_factory.mktemp("config")
    write_configuration(folder, SIZE, "custom_voice")
    steps = replace(STEPS, folder=str(folder), codec_dtype=request.param)
    if request.param == "float16":
        return replace(steps, sizes=(1, 3), adapters=(2, 4))
    return replace(steps, mixed=False, watermark=False)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A triton cache of its own; the compiling processes may use all cores."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "FEWEST_CORES", 1)
        patch.delenv("TRITON_INTERPRET", raising=False)
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        yield folder


@dataclass
class Heard:
    """Records the progress of a compilation."""

    total: int = 0
    done: int = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total


@pytest.fixture(scope="module")
def compiled(steps: Steps) -> tuple[Heard, Heard]:
    """Two engines that need the same kernels at the same time; both are ready."""
    first, second = Heard(), Heard()
    with (
        closing(Compilation([steps], within_s=WITHIN_S)) as one,
        closing(Compilation([steps], within_s=WITHIN_S)) as other,
    ):
        one.wait(first)
        other.wait(second)
    return first, second


def missed(steps: Steps) -> int:
    """The number of kernels that the steps launch on real tensors and the cache lacks."""
    command = [sys.executable, "-m", "tests.engine.qwen3.real_launches", json.dumps([asdict(steps)])]
    return int(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)


def kernels(cache: Path) -> set[Path]:
    return {path for path in cache.iterdir() if path.is_dir()}


def stamps(cache: Path) -> list[Path]:
    return [path for path in cache.glob("agent-tts-*") if path.stat().st_size]


def begun(before: list[int]) -> list[int]:
    """Children of this process that are not among these, which other tests may have left to end."""
    return [child for child in children_of(os.getpid()) if child not in before]


@pytest.mark.slow
def test_real_launches_find_every_kernel_compiled(steps: Steps, cache: Path, compiled: tuple[Heard, Heard]) -> None:
    before = kernels(cache)
    assert missed(steps) == 0
    assert kernels(cache) == before


@pytest.mark.slow
def test_one_of_two_engines_compiles_each_kernel_once(compiled: tuple[Heard, Heard], cache: Path) -> None:
    worked, waited = sorted(compiled, key=lambda heard: -heard.total)
    assert worked.done == worked.total == len(kernels(cache)) > 15
    assert waited.total == 0


@pytest.mark.slow
def test_a_stamp_makes_the_compiling_process_unnecessary(
    steps: Steps, cache: Path, compiled: tuple[Heard, Heard]
) -> None:
    before, heard, others = kernels(cache), Heard(), children_of(os.getpid())
    (stamp,) = stamps(cache)
    with closing(Compilation([steps])) as compilation:
        assert not begun(others)
        compilation.wait(heard)
    assert heard.total == 0
    stamp.unlink()
    with closing(Compilation([steps])) as compilation:
        compilation.wait(heard)
    assert heard.done == heard.total == len(before)
    assert kernels(cache) == before
    assert stamps(cache) == [stamp]


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": (1, 2)},
        {"max_model_len": 65},
        {"paged": False},
        {"architecture": "sm_89"},
        {"dtype": "float16"},
        {"fp8_cache": True},
    ],
)
def test_other_steps_have_another_stamp(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    steps.stamp.write_text("all are compiled")
    others = children_of(os.getpid())
    with closing(Compilation([steps])):
        assert are_compiled([steps])
    assert not begun(others)
    assert replace(steps, **change).stamp != steps.stamp


def test_a_checkpoint_with_other_voices_has_the_same_stamp(steps: Steps, tmp_path: Path) -> None:
    write_configuration(tmp_path, SIZE, "voice_design")
    assert replace(steps, folder=str(tmp_path)).stamp == steps.stamp


@pytest.mark.slow
def test_the_command_compiles_for_each_architecture_and_says_what_it_took(
    steps: Steps, cache: Path, compiled: tuple[Heard, Heard]
) -> None:
    """Its kernels are those that a node launches with these settings, whatever memory its GPU has."""
    settings = ("--slots", "1", "--set", f"qwen3.codec_dtype={steps.codec_dtype}", "--set", "qwen3.max_model_len=64")
    given = ("compile", "--arch", "sm_90", "--model", steps.folder, "--folder", str(cache), *settings)
    marked = ("--set", "watermark=audioseal") if steps.watermark else ()
    first, second = invoke(*given, *marked), invoke(*given, *marked)
    assert first.returncode == second.returncode == 0, first.stderr
    assert b"sm_90: " in first.stdout
    assert b"all kernels were there" in second.stdout
    assert missed(replace(steps, sizes=(1,), paged=False)) == 0


@pytest.mark.parametrize(
    ("models", "size", "found"),
    [
        ((), None, ([], ["1.7B", "0.6B"])),
        ((), "0.6B", ([], ["0.6B"])),
        (("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "Qwen/Qwen3-TTS-12Hz-1.7B-Base@main"), None, ([], ["1.7B"])),
        (("/", "Qwen/Qwen3-TTS-12Hz-0.6B-Base"), None, ([Path("/")], ["0.6B"])),
        (("/",), None, ([Path("/")], [])),
        (("/",), "1.7B", ([], ["1.7B"])),
        (("somebody/finetuned",), None, ([], ["1.7B", "0.6B"])),
    ],
)
def test_kernels_are_those_of_the_models_that_a_node_speaks_with(
    models: tuple[str, ...], size: str | None, found: tuple[list[Path], list[str]]
) -> None:
    assert sources(Settings.model_validate({"qwen3": {"models": models}}), size) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--arch", "sm_75"), "GPUs from sm_80 on"),
        (("--arch", "sm_90", "--size", "3B"), "must be of 1.7B, 0.6B"),
        (("--arch", "sm_90", "--model", "/"), "config.json: missing"),
        (("--arch", "sm_90", "--set", "qwen3.dtype=float32"), "nothing to compile"),
        (("--arch", "sm_86", "--set", "qwen3.weights=fp8"), "qwen3: fp8 needs a GPU from sm_89 on, not sm_86"),
    ],
)
def test_the_command_refuses_what_it_cannot_compile(given: tuple[str, ...], said: str) -> None:
    result = invoke("compile", *given)
    assert result.returncode == 2
    assert said in result.stderr.decode()


@pytest.mark.slow
def test_a_process_begun_ahead_gets_the_first_steps_and_ends_without_any(
    steps: Steps, cache: Path, compiled: tuple[Heard, Heard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache has the kernels, but no stamp says so."""
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(f"{STAMP}*"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "NVIDIA", tmp_path)
    others = children_of(os.getpid())
    with begun_ahead():
        (process,) = begun(others)
        with closing(Compilation([steps])) as compilation:
            assert begun(others) == [process]
            assert not are_compiled([steps])
            assert compilation.wait(Heard()) is None
            assert are_compiled([steps])
    assert len(stamps(tmp_path)) == 1
    with begun_ahead():
        assert not begun(others)
    stamps(tmp_path)[0].unlink()
    with begun_ahead():
        assert begun(others)
    assert not begun(others)


def test_what_stands_in_for_torchs_compiler_imports_it_for_another_use(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = compiling._NoCompiler("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", stand_in)
    assert stand_in.disable(print) is print
    assert sys.modules["colorsys"] is stand_in
    assert stand_in.ONE_THIRD == 1 / 3
    assert sys.modules["colorsys"] is not stand_in


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("interpreted kernels cannot be compiled", marks=pytest.mark.slow),
        "a library is not there",
    ],
)
def test_a_failed_compilation_is_told_and_left_to_the_launch(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if "interpreted" in broken:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    else:
        monkeypatch.setenv("PYTHONPATH", without(tmp_path, "torch")["PYTHONPATH"])
    with closing(Compilation([steps])) as compilation:
        why = compilation.wait(Heard())
    assert why == "not all are compiled, exit code 1"
    assert not stamps(tmp_path)


@pytest.mark.slow
def test_a_compilation_beyond_its_deadline_is_ended_with_its_workers(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    others = children_of(os.getpid())
    with closing(Compilation([steps])) as compilation:
        (process,) = begun(others)
        while not (workers := children_of(process)):
            time.sleep(0.01)
        assert len(list(Path(f"/proc/{process}/task").iterdir())) == 1  # one thread: it can fork
        monkeypatch.setattr(compilation, "_deadline", time.monotonic() + 0.1)
        why = present(compilation.wait(Heard()))
    assert "not all are compiled after" in why
    soon = time.monotonic() + 20  # much less than the compilation takes
    while (left := [worker for worker in workers if is_running(worker)]) and time.monotonic() < soon:
        time.sleep(0.01)
    assert not left
    assert not stamps(tmp_path)


@pytest.mark.slow
def test_a_rehearsal_finds_every_variant_and_none_twice(tmp_path: Path) -> None:
    """The talker's first layer differs from the others. Linear layers of the codec differ by their steps in a ring.
    Nothing imports torch's compiler.
    """
    released = SIZES["1.7B"]
    write_configuration(tmp_path, released | {"talker": released["talker"] | {"num_hidden_layers": 5}}, "custom_voice")
    command = [sys.executable, "-m", "tests.engine.qwen3.rehearsed", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(command, capture_output=True, check=True, timeout=100, env=environment)
    found = json.loads(result.stdout)
    assert not found["compiler"]
    assert found["layers"] == [True, False]  # three find what all find, one does not
    assert found["steps without a ring"] == [1]
    assert {1, 2, 4} < {*found["steps in a ring"]}


def test_alignment_follows_from_the_offset_of_a_tensor() -> None:
    whole = torch.empty(64, dtype=torch.bfloat16, device="meta")
    aligned = [Pointer.of(whole[start:]).data_ptr() % 16 == 0 for start in (0, 1, 8, 11)]
    assert aligned == [True, False, True, False]
