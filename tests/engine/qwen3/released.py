"""Checkpoints of the released sizes without weights: files with a header and a hole, which take no room on the disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from agent_tts.bench.checkpoint import SIZES, codec_shapes, model_shapes, write_configuration, write_tokenizer
from agent_tts.model.entries import Shape
from agent_tts.model.weights import CODEC, MODEL
from tests.model.tiny import kept


def write_hollow(folder: Path, size: str) -> None:
    """Like `bench.checkpoint.write`; what reads no weights cannot tell the difference."""
    config = write_configuration(folder, SIZES[size], "custom_voice")
    write_tokenizer(folder)
    _write(folder / MODEL, model_shapes(config), "BF16", 2)
    _write(folder / CODEC, codec_shapes(config, SIZES[size]), "F32", 4)


def hollow(size: str) -> Path:
    """Such a checkpoint; tests must not write to it."""
    return kept(f"hollow-{size}", lambda folder: write_hollow(folder, size))


def _write(path: Path, shapes: Mapping[str, Shape], dtype: str, width: int) -> None:
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    said = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        file.truncate(file.tell() + end)
