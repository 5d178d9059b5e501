"""AudioSeal's released weights: `generator_streaming.pth` and `detector_streaming.pth`, as torch.save writes them.

Only tensors and the configuration beside them are read (`weights_only`): a file cannot run code.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from agent_tts.model.entries import CheckpointError
from agent_tts.model.watermark import Detector, Watermark
from agent_tts.model.weights import Loadable

M = TypeVar("M", bound=Loadable)

GENERATOR, DETECTOR = "generator_streaming.pth", "detector_streaming.pth"


def load_watermark(folder: Path, message: int = 0) -> Watermark:
    """The generator in a folder, float32 on the CPU. Raises CheckpointError: it cannot be used."""
    watermark = _filled(Watermark, folder / GENERATOR, "encoder.model.")
    watermark.message = message
    return watermark


def load_detector(folder: Path) -> Detector:
    """The detector in a folder, float32 on the CPU. Raises CheckpointError: it cannot be used."""
    return _filled(Detector, folder / DETECTOR, "detector.0.model.")


def _filled(kind: type[M], path: Path, encoder: str) -> M:
    tensors = _without_norm(_read(path))
    try:
        filters = len(tensors[f"{encoder}0.conv.conv.weight"])
        convs = (tensors.get(f"{encoder}{number}.conv.conv.weight") for number in range(3, 40, 3))
        ratios = [conv.shape[-1] // 2 for conv in convs if conv is not None and conv.shape[-1] % 2 == 0]
        dimension = len(tensors[f"{encoder}{3 * len(ratios) + 3}.conv.conv.weight"])
        model = kind(filters, ratios, dimension)
        ours = {name: tensors.pop(model.checkpoint_name(name)) for name in model.state_dict()}
        model.load_state_dict(ours)
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path.name}: not the weights of AudioSeal 0.2's streaming models: {error}") from error
    if tensors:
        raise CheckpointError(f"{path.name}: {len(tensors)} tensors that are not known here, {min(tensors)} first")
    return model.eval().requires_grad_(False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path.name}: missing from {path.parent.name}")
    try:
        with torch.serialization.safe_globals(_configuration()):
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
        found = found["best_state"]["model"] if "best_state" in found else found.get("model", found)
        # The convolutions of newer files lie one module deeper.
        return {name.replace(".inner_conv.", "."): tensor.float() for name, tensor in found.items()}
    except Exception as error:  # a damaged file may raise any error
        hint = "" if find_spec("omegaconf") else "; pip install 'agent-tts[watermark]' reads its configuration"
        raise CheckpointError(f"{path.name}: cannot be read: {type(error).__name__}: {error}{hint}") from error


def _configuration() -> list[Any]:
    """The classes of the configuration that may stand beside the weights; none where omegaconf is not installed."""
    try:
        from omegaconf import DictConfig, ListConfig, nodes
        from omegaconf.base import ContainerMetadata, Metadata
    except ImportError:
        return []
    values = (nodes.AnyNode, nodes.StringNode, nodes.IntegerNode, nodes.FloatNode, nodes.BooleanNode)
    plain = (collections.defaultdict, dict, list, int, str, float, bool, Any)
    return [DictConfig, ListConfig, ContainerMetadata, Metadata, *values, *plain]


def _without_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of convolutions as one tensor each: in a file they may be a direction and a length for each channel."""
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.replace(".parametrizations.weight.original0", ".weight_g")
        name = name.replace(".parametrizations.weight.original1", ".weight_v")
        plain[name] = tensor
    for name in [name for name in plain if name.endswith(".weight_g")]:
        base = name.removesuffix("_g")
        length, direction = plain.pop(name), plain.pop(f"{base}_v")
        plain[base] = torch._weight_norm(direction, length, 0)
    return plain
