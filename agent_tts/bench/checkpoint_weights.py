"""Random weights, written tensor by tensor: memory stays small whatever the size of the checkpoint.

Scales keep activations of order one through every layer, so that each part of the model is heard in the output. Norms
and biases differ from their neutral values, so that leaving one out is seen.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

Shape = tuple[int, ...]

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_CHUNK = 1 << 24  # elements that are in memory at a time


def write_random(path: Path, shapes: Mapping[str, Shape], dtype: torch.dtype, seed: int) -> None:
    """Writes a safetensors file. A tensor depends on the seed, its name and its shape alone.

    Args:
        shapes: name -> shape, in the order of the file.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            for values in _draw(name, shape, seed):
                file.write(values.to(dtype).view(torch.uint8).numpy().tobytes())


def _draw(name: str, shape: Shape, seed: int) -> Iterator[Tensor]:
    """The elements of a tensor in order, in pieces."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    mean, deviation = distribution(name, shape)
    left = math.prod(shape)
    while left > 0:
        count = min(left, _CHUNK)
        left -= count
        yield torch.empty(count).normal_(mean, deviation, generator=generator)


def distribution(name: str, shape: Shape) -> tuple[float, float]:
    """Mean and standard deviation, by what the tensor is for."""
    match name.rpartition(".")[2]:
        case "initialized":
            return 1.0, 0.0
        case "cluster_usage":
            return 1.0, 0.1
        case "embedding_sum" | "embed_sum":  # a frame is the sum of sixteen
            return 0.0, 0.25
        case "alpha" | "beta":  # exponents
            return 0.0, 0.2
        case "scale" | "gamma":
            return 0.5, 0.1
        case "bias":
            return 0.0, 0.05
    if len(shape) == 1:  # a norm's weight
        return 1.0, 0.1
    if "embedding" in name:  # an input is the sum of seventeen of them
        return 0.0, 0.25
    inputs, gain = math.prod(shape[1:]), 1.0
    if name.startswith("decoder.upsample.") and name.endswith(
        ".0.conv.weight"
    ):  # transposed: [inputs, outputs, kernel]
        inputs = shape[0]
    elif name.startswith("decoder.decoder."):
        if name.endswith(".block.1.conv.weight"):  # transposed, and two taps make a sample
            inputs = 2 * shape[0]
        elif ".conv2." in name:  # the end of a residual unit
            gain = 0.3
        elif shape[0] == 1:  # the waveform: within -1 and 1 nearly always
            gain = 0.1
    return 0.0, gain / math.sqrt(inputs)
