"""Opens the checkpoints of the settings, and checks that they fit the memory before any of it is taken."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from loguru import logger

from agent_tts.config.settings import Qwen3
from agent_tts.engine.qwen3.model import Qwen3Model
from agent_tts.errors import SettingsError
from agent_tts.model.entries import CheckpointError
from agent_tts.model.layers import BLOCK_SIZE
from agent_tts.model.speech import can_fuse

GIB = 1 << 30
USUAL_SHARE = Qwen3().memory  # of the free memory; graphs and libraries take the rest
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def create_models(settings: Qwen3, slots: int) -> list[Qwen3Model]:
    """The models of the settings, in their order; those with `load: start` are loaded.

    Raises:
        SettingsError: none is named, a checkpoint cannot be used, or the device is not there or too small.
    """
    if not settings.models:
        raise SettingsError("qwen3.models: the engine qwen3 needs a model: --model FOLDER, or a hub id")
    logger.info("opening {}", settings.device)
    device = _device(settings.device)
    limit_threads(device)
    use(device)
    dtype = _dtype(settings.dtype, device)
    models: list[Qwen3Model] = []
    for checkpoint in settings.models:
        folder = Path(checkpoint.source).expanduser()
        try:
            model = Qwen3Model(
                folder,
                _name(folder, models),
                device=device,
                dtype=dtype,
                codec_dtype=_codec_dtype(settings.codec_dtype, device, dtype),
                rows=slots,
                max_model_len=settings.max_model_len,
                graphs=settings.cuda_graphs,
                one_size=settings.reproducible,
            )
        except CheckpointError as error:
            raise SettingsError(f"qwen3.models: {folder.name}: {error}") from error
        models.append(model)
    plan_memory(models, device, slots, settings.memory)
    for checkpoint, model in zip(settings.models, models, strict=True):
        if checkpoint.load == "start":
            model.load()
    return models


def limit_threads(device: torch.device) -> None:
    """Leave a core to the front: threads that wait for a busy core at every layer are slower than one thread."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if device.type == "cuda" else max(1, (os.cpu_count() or 1) - 1))


def use(device: torch.device) -> None:
    """Make `device` the current device of this thread; convolutions in float32 do not use TF32."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False


def plan_memory(models: Sequence[Qwen3Model], device: torch.device, slots: int, share: float) -> None:
    """Log the memory of the models. Where it does not suffice for max_model_len in every slot, slots share blocks.

    Raises:
        SettingsError: it is more than is free; the message says what to change.
    """
    free, total = memory(device) or (math.inf, math.inf)
    # A share of the free memory, bounded by a share of all memory, which the engines of one device split.
    budget = min(max(share, USUAL_SHARE) * free, share * total)
    fixed = sum(model.weight_bytes + model.codec_bytes for model in models)
    caches = sum(model.cache_bytes for model in models)
    if fixed + caches > budget:
        left = budget - fixed
        for model in models:
            model.blocks = int(left / len(models) / model.block_bytes)
            if model.blocks * BLOCK_SIZE < 2 * model.max_model_len:
                raise SettingsError(
                    f"the models need {(fixed + caches) / GIB:.1f} GiB on {device}, and {free / GIB:.1f} GiB are free: "
                    f"fewer slots (now {slots}), fewer qwen3.max_model_len, fewer qwen3.models or a smaller one"
                )
    for model in models:
        weights, codec, cache = (n / GIB for n in (model.weight_bytes, model.codec_bytes, model.cache_bytes))
        logger.info(
            "{}: {:.2f} GiB of weights, {:.2f} of codec state, {:.2f} of cache ({}) for {} slots on {}",
            *(model.name, weights, codec, cache, "shared" if model.blocks else "of each slot", slots, device),
        )


def memory(device: torch.device) -> tuple[int, int] | None:
    """Free and total memory of a device, in bytes; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    except OSError:
        return None
    kib = {name: int(value) for name, value, *_ in lines}
    return kib["MemAvailable:"] * 1024, kib["MemTotal:"] * 1024


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cuda:0" if name == "cuda" else name)  # kernels and graphs want a number
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"qwen3.device: {name} is not there: PyTorch sees no CUDA device; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"qwen3.device: {name} is not there: this machine has {torch.cuda.device_count()}")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return DTYPES[name]


def _codec_dtype(name: str, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the codec. float16: its signal-to-noise ratio is 20 dB better than that of bfloat16."""
    if name == "auto":
        return torch.float16 if can_fuse(device, dtype) else torch.float32
    return DTYPES[name]


def _name(folder: Path, taken: Iterable[Qwen3Model]) -> str:
    """The model's name for clients: that of its folder, or of the repository in the hub's cache. Unique."""
    repository = next((part for part in folder.parts if part.startswith("models--")), None)
    name = repository.rpartition("--")[2] if repository else folder.resolve().name
    names = {model.name for model in taken}
    number = next(n for n in range(1, 1_000) if (name if n == 1 else f"{name}-{n}") not in names)
    return name if number == 1 else f"{name}-{number}"
