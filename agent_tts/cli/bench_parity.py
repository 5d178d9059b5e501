"""A run of `agent-tts bench parity`: from options to models, and to a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agent_tts.bench import report
from agent_tts.bench.parity import Distance, Subject, distances
from agent_tts.bench.parity_eager import Eager
from agent_tts.bench.parity_request import Request
from agent_tts.bench.parity_upstream import Upstream
from agent_tts.config.hub import local_folder
from agent_tts.errors import SettingsError
from agent_tts.model.acceleration import can_fuse
from agent_tts.model.config import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REFERENCES = ("float32", "upstream")
COLUMNS = ("part", "max error", "relative", "SNR dB", "KL nats", "same code")


def run_parity(
    model: str,
    device: str,
    dtype: str,
    frames: int,
    reference: str,
    json: Path | None,
) -> None:
    """Compares, prints, and writes down.

    Raises:
        SettingsError: the options make no sense here, or the checkpoint cannot be used.
    """
    if json is not None:
        report.check_output("--json", json)
    _check("--dtype", dtype, DTYPES)
    _check("--reference", reference, REFERENCES)
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    _check("--device", device, ["cpu", *(["cuda"] if cuda else []), *cuda])
    folder = local_folder(model)
    config = ModelConfig.read(folder)
    request = Request.of(config)
    codes = Eager.load(folder, "cpu", torch.float32).draw(request, frames)
    float32 = partial(Eager.load, folder, "cpu", torch.float32)
    truth = partial(Upstream, folder) if reference == "upstream" else float32
    # The yardstick comes with every run: what rounding alone does to upstream's order of operations.
    names = dict.fromkeys((dtype, "bfloat16"))
    tested: dict[str, Callable[[], Subject]] = {
        f"eager, {name}, {device}": partial(Eager.load, folder, device, DTYPES[name]) for name in names
    }
    if can_fuse(torch.device(device), DTYPES[dtype]):
        tested = {f"fused, {dtype}, {device}": partial(Eager.load_fused, folder, device)} | tested
    torch.backends.cudnn.allow_tf32 = False  # float32 is float32
    found = distances(request, codes, truth, tested)
    for name, parts in found.items():
        report.table(f"{name}: against {reference}, {frames} frames", COLUMNS, list(map(_row, parts)))
    if json is not None:
        about = {"model": folder.name, "type": config.tts_model_type, "reference": reference, "frames": frames}
        report.write_json(json, report.document("parity", about, _runs(found)))


def _check(option: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise SettingsError(f"{option} {value}: must be one of {', '.join(allowed)}")


def _row(distance: Distance) -> tuple[object, ...]:
    agreement = None if distance.agreement is None else f"{distance.agreement:.2%}"
    kl = None if distance.kl is None else f"{distance.kl:.2e}"
    errors = (f"{distance.max_error:.2e}", f"{distance.relative_error:.2e}")
    return (distance.part, *errors, f"{distance.snr_db:.1f}", kl, agreement)


def _runs(found: dict[str, list[Distance]]) -> Sequence[dict[str, Any]]:
    """As JSON has it: there is no number for infinity, so that is a string."""
    return [{"tested": name, "parts": [_finite(asdict(part)) for part in parts]} for name, parts in found.items()]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
