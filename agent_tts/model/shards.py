"""The files of the weights: model.safetensors alone, or the shards that model.safetensors.index.json names.

No torch here: `config.hub` checks checkpoints in processes without it.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent_tts.model.entries import CheckpointError, JsonObject

# A file in the folder of the index.
_SHARD = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


def index_of(path: Path) -> Path:
    """The index that replaces a weights file."""
    return path.with_name(path.name + ".index.json")


def read_index(index: Path) -> dict[str, str]:
    """Name of each tensor -> name of its shard, a file beside the index.

    Raises:
        CheckpointError: the index is not there or not an index, or a shard is not a plain file name.
    """
    shards = JsonObject.load(index.parent, index.name).section("weight_map").entries
    if not shards:
        raise CheckpointError(f"{index.name}: weight_map names no tensors")
    for name, shard in shards.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise CheckpointError(f"{index.name}: {name} is in {shard!r}, not in a .safetensors file beside the index")
    return shards
