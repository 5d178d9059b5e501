"""Measure how far a computation of the model is from a reference. `python -m tests.measure.parity --help`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import torch
import typer

from agent_tts.bench import report
from agent_tts.cli.bench import Json, Outputs
from agent_tts.cli.options import command
from agent_tts.config.hub import local_folder
from agent_tts.errors import SettingsError
from agent_tts.model.config import ModelConfig
from agent_tts.model.speech import why_not_fused
from tests.measure.parity_distance import Distance, Request, Subject, distances
from tests.measure.parity_subjects import Eager, Upstream

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REFERENCES = ("float32", "upstream")
COLUMNS = ("part", "max error", "relative", "SNR dB", "KL nats", "same code")


@command
def main(
    model: Annotated[str, typer.Option(help="A checkpoint folder or a hub id.")],
    device: Annotated[str, typer.Option(help="Of the model that is tested: cpu, cuda or cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the model that is tested: float32 or bfloat16.")] = "bfloat16",
    frames: Annotated[int, typer.Option(min=1, max=1_000, help="80 ms frames that are compared.")] = 32,
    reference: Annotated[
        str, typer.Option(help="float32: our own model on the CPU; upstream: the package qwen-tts.")
    ] = "float32",
    json: Json = None,
) -> None:
    """Distance of logits and sound from a reference, under forced codes.

    Every run includes a yardstick: bfloat16 rounding alone, in upstream's order of operations.
    """
    outputs = Outputs(json=json)
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
    tested: dict[str, Callable[[], Subject]] = {
        f"eager, {name}, {device}": partial(Eager.load, folder, device, DTYPES[name])
        for name in dict.fromkeys((dtype, "bfloat16"))
    }
    if why_not_fused(torch.device(device), DTYPES[dtype]) is None:
        tested = {f"fused, {dtype}, {device}": partial(Eager.load_fused, folder, device)} | tested
    torch.backends.cudnn.allow_tf32 = False  # equal to the subject
    found = distances(request, codes, truth, tested)
    for name, parts in found.items():
        report.table(f"{name}: against {reference}, {frames} frames", COLUMNS, list(map(_row, parts)))
    about = {"model": folder.name, "type": config.tts_model_type, "reference": reference, "frames": frames}
    outputs.write("parity", about, _runs(found))


def _check(option: str, value: str, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise SettingsError(f"{option} {value}: must be one of {', '.join(allowed)}")


def _row(distance: Distance) -> tuple[object, ...]:
    agreement = None if distance.agreement is None else f"{distance.agreement:.2%}"
    kl = None if distance.kl is None else f"{distance.kl:.2e}"
    errors = (f"{distance.max_error:.2e}", f"{distance.relative_error:.2e}")
    return (distance.part, *errors, f"{distance.snr_db:.1f}", kl, agreement)


def _runs(found: dict[str, list[Distance]]) -> list[dict[str, Any]]:
    """JSON has no infinity: it becomes a string."""
    return [{"tested": name, "parts": [_finite(asdict(part)) for part in parts]} for name, parts in found.items()]


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


if __name__ == "__main__":
    typer.run(main)
