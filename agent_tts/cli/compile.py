"""`agent-tts compile`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import MofNCompleteColumn

from agent_tts.cli.options import ConfigFlags
from agent_tts.cli.progress import progress
from agent_tts.config.loading import find_config, load_settings
from agent_tts.config.settings import Settings
from agent_tts.engine.qwen3.compiling import Compilation, Steps, cache_folder
from agent_tts.errors import SettingsError
from agent_tts.model.kernels.architectures import OLDEST, OLDEST_E4M3, of_nvidia
from agent_tts.model.kernels.architectures import architecture as known

RELEASED = ("1.7B", "0.6B")
WITHIN_S = 86_400.0  # a single slow core takes an hour for an architecture
MIB = 1 << 20


def compile_kernels(
    arch: str | None,
    size: str | None,
    folder: Path | None,
    configuration: ConfigFlags,
    settings: dict[str, Any],
) -> int:
    """Compile for each GPU, with a line for each on stdout; the exit code, 1 when kernels could not be compiled.

    Raises SettingsError: an unknown architecture or size, a folder without a configuration, or settings without
    kernels.
    """
    if sys.platform != "linux":
        raise SettingsError("compile: kernels are compiled ahead on Linux alone")
    wanted = load_settings(find_config(configuration.config), settings)
    if folder is not None:
        os.environ["TRITON_CACHE_DIR"] = str(folder.absolute())
    architectures = [_architecture(name.strip()) for name in arch.split(",")] if arch is not None else [_present()]
    failed = False
    with ExitStack() as stack:
        folders, sizes = sources(wanted, size)
        folders += stack.enter_context(_released(sizes))
        for name in architectures:
            steps = [one for model in folders for one in _steps(model, wanted, name)]
            failed |= not _compile(steps, name)
    return 1 if failed else 0


def _compile(steps: Sequence[Steps], name: str) -> bool:
    began, counts, before = time.monotonic(), (0, 0), _cache_bytes()
    with progress(name, None, MofNCompleteColumn()) as show:

        def tell(done: int, total: int) -> None:
            nonlocal counts
            counts = done, total
            show(completed=done, total=total)

        with closing(Compilation(steps, within_s=WITHIN_S, always=True)) as compilation:
            why = compilation.wait(tell)
    added, took_s = (_cache_bytes() - before) / MIB, time.monotonic() - began
    what = f"{counts[1]} kernels" if counts[1] else "all kernels were there"  # pyrefly: ignore[redundant-condition]
    state = f", {why}" if why else ""
    print(f"{name}: {what}{state}, {added:.1f} MiB more, {took_s:.0f} s, in {cache_folder()}", flush=True)
    return why is None


def _steps(folder: Path, settings: Settings, architecture: str) -> list[Steps]:
    """What a node with these settings runs: whether rows share the cache depends on the memory of its GPU."""
    import torch

    from agent_tts.engine.factory import DEFAULT_SLOTS
    from agent_tts.engine.qwen3.graphs import batch_sizes
    from agent_tts.model.config import ModelConfig
    from agent_tts.model.entries import CheckpointError

    qwen3 = settings.qwen3
    if qwen3.dtype == "float32":
        raise SettingsError("qwen3.dtype: float32 has no kernels of its own: there is nothing to compile")
    if "fp8" in (qwen3.weights, qwen3.kv_cache) and (known(architecture).capability or 0) < OLDEST_E4M3:
        raise SettingsError(f"qwen3: fp8 needs a GPU from sm_{OLDEST_E4M3} on, not {architecture}")
    try:
        config = ModelConfig.read(folder)
    except CheckpointError as error:
        raise SettingsError(f"--model {folder}: {error}") from error
    sizes = batch_sizes(settings.slots or DEFAULT_SLOTS, torch.device("cuda"))
    return [
        Steps(
            folder=str(folder.absolute()),
            dtype="bfloat16",
            codec_dtype="float16" if qwen3.codec_dtype == "auto" else qwen3.codec_dtype,
            max_model_len=qwen3.max_model_len,
            paged=paged,
            sizes=sizes[-1:] if qwen3.reproducible else sizes,
            mixed=not qwen3.reproducible,
            watermark=settings.watermark != "none",
            fp8_weights=qwen3.weights == "fp8",
            fp8_cache=qwen3.kv_cache == "fp8",
            adapters=(qwen3.adapters if config.tts_model_type == "base" else 0, qwen3.adapter_rank),
            architecture=architecture,
        )
        for paged in (False, True)
    ]


def _architecture(name: str) -> str:
    """As NVIDIA names it. Raises SettingsError: another name, or too old."""
    found = re.fullmatch(r"sm_(\d+)", name)
    if found is None or int(found[1]) < OLDEST:
        raise SettingsError(
            f"--arch {name}: must be GPUs from sm_{OLDEST} on, with commas between them, like sm_89,sm_90"
        )
    return name


def _present() -> str:
    """Of the GPU of this machine. Raises SettingsError: there is none."""
    import torch

    if not torch.cuda.is_available():
        raise SettingsError("--arch: PyTorch sees no GPU here: name those to compile for, like sm_90")
    if torch.version.hip is not None:
        raise SettingsError("--arch: fused kernels run on GPUs of NVIDIA alone: name those to compile for, like sm_90")
    return of_nvidia(torch.cuda.get_device_capability()).name


def sources(settings: Settings, size: str | None) -> tuple[list[Path], list[str]]:
    """The folders of checkpoints whose kernels are wanted, and the released sizes: a hub id names its own."""
    if size is not None:
        return [], [name.strip() for name in size.split(",")]
    named = [Path(model.source).expanduser() for model in settings.qwen3.models]
    folders = [path for path in named if path.is_dir()]
    sizes = [size for size in RELEASED if any(size in path.name for path in named if path not in folders)]
    return folders, sizes if folders or sizes else [*RELEASED]


@contextmanager
def _released(sizes: Sequence[str]) -> Iterator[list[Path]]:
    """Folders with the configurations of released sizes; removed with the block. Raises SettingsError."""
    from agent_tts.bench.checkpoint import SIZES, write_configuration

    for name in sizes:
        if name not in SIZES:
            raise SettingsError(f"--size {name}: must be of {', '.join(RELEASED)}")
    with TemporaryDirectory(prefix="agent-tts-") as made:
        for name in sizes:
            write_configuration(Path(made) / name, SIZES[name], "custom_voice")
        yield [Path(made) / name for name in sizes]


def _cache_bytes() -> int:
    return sum(path.stat().st_size for path in cache_folder().rglob("*") if path.is_file())
