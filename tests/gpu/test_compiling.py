"""The first start on a GPU: all kernels are compiled ahead, so capturing the steps compiles none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tts.bench.checkpoint import write

pytestmark = pytest.mark.gpu

# Starts an engine and prints the files that its steps added to triton's cache.
PROGRAM = """
import os, sys
from pathlib import Path
import torch
from agent_tts.engine.qwen3.compiling import Compilation
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices

cache, before, wait = Path(os.environ["TRITON_CACHE_DIR"]), set(), Compilation.wait

def counted(compilation, progress):
    wait(compilation, progress)
    before.update(cache.iterdir())

Compilation.wait = counted
folder, paged, weights = sys.argv[1], sys.argv[2] == "paged", sys.argv[3]
models = (Checkpoint(source=folder),)
share = (4 << 30) / torch.cuda.mem_get_info()[1]  # of any card: too little for all positions of 32 slots
qwen3 = Qwen3(models=models, max_model_len=1_536, memory=share if paged else 0.85, weights=weights, kv_cache=weights)
engine = Qwen3Engine(Settings(qwen3=qwen3, voices=Voices(folder=folder + "/voices")), 32)
assert any(model.blocks for model in engine._models) == paged
engine.close()
print(len(before), *(file.name for kernel in set(cache.iterdir()) - before for file in kernel.iterdir()))
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("memory", "weights"), [("contiguous", "bfloat16"), ("paged", "fp8")])
def test_a_first_start_finds_all_its_kernels_compiled(tmp_path: Path, memory: str, weights: str) -> None:
    write(tmp_path / "0.6B", size="0.6B")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "0.6B"), memory, weights]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380)
    print(done.stderr)
    compiled, *added = done.stdout.split()
    assert int(compiled) > 50
    assert [name for name in added if not name.startswith("cuda_utils")] == []  # triton's own link to the driver
