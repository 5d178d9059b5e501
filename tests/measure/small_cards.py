"""A node's engine within 8, 16 and 24 GB of a larger GPU: `python -m tests.measure.small_cards [GB...]`.

For each size a process: PyTorch may take no more than that, and the plan is told of no more. It speaks in all slots at
once, and prints the plan, the most that PyTorch has reserved, and what the GPU lost in all, in GiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch

from agent_tts import messages
from agent_tts.bench.checkpoint import write
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.loop import EngineLoop, policy
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.memory import GIB
from agent_tts.engine.scheduler import Scheduler
from agent_tts.model.device import Cuda
from agent_tts.options import EngineOptions

STEPS = 400


def run(gigabytes: int, folder: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(gigabytes * GIB / total)
    told = round((gigabytes - 0.6) * GIB), gigabytes * GIB
    with patch.object(Cuda, "memory", lambda self: told):
        settings = Settings(
            qwen3=Qwen3(models=(Checkpoint(source=str(folder)),)), voices=Voices(folder=str(folder / "voices"))
        )
        engine = Qwen3Engine(settings, 64)
    loop = EngineLoop(engine, Scheduler(policy(settings, engine.info.slots, engine.batch_sizes)))
    for stream in range(engine.info.slots):
        loop.submit(messages.Open(stream, EngineOptions(language="en")))
        loop.submit(messages.Append(stream, "Every slot speaks at once, for as long as it likes. " * 4))
        loop.submit(messages.End(stream))
    heard = sum(isinstance(one, messages.Audio) for _ in range(STEPS) for one in loop.step())
    reserved = torch.cuda.max_memory_reserved() / GIB
    lost = (free - torch.cuda.mem_get_info()[0]) / GIB
    found = {"card": gigabytes, "slots": engine.info.slots, "heard": heard, "reserved": reserved, "lost": lost}
    print(json.dumps(found))
    engine.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--within"]:
        run(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as made:
            write(Path(made) / "1.7B", size="1.7B")
            for gigabytes in sys.argv[1:] or ["8", "16", "24"]:
                command = [sys.executable, "-m", "tests.measure.small_cards", "--within", gigabytes, f"{made}/1.7B"]
                subprocess.run(command, check=False, timeout=150)
