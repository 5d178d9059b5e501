"""The process that has a model's kernels compiled: `python -m agent_tts.engine.qwen3.compile_child PARENT STAMP STEPS`.

STEPS is a `compiling.Steps` as JSON. The process runs the steps on the meta device, without weights or GPU, and its
workers compile the kernels that the steps launch. On stdout: a line "done total" after each kernel. STAMP is written
when all are compiled; of several processes with the same stamp one works, and the others wait for it.

It has a low priority, because the engine may be speaking, and ends with that engine.
"""

from __future__ import annotations

import fcntl
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tts.engine.qwen3.compiling import Steps
from agent_tts.processes import die_with, take_stdout

if TYPE_CHECKING:
    from agent_tts.model.kernels.ahead import Launch

NICE = 10
MOST_WORKERS = 32  # some 200 MB of memory each


def rehearse(steps: Steps) -> list[Launch]:
    """All kernels that the steps launch, each variant once."""
    import torch

    from agent_tts.model.codec import Codec
    from agent_tts.model.config import ModelConfig
    from agent_tts.model.frame import PROMPT_ENTRIES, FrameModel, PromptEntries
    from agent_tts.model.kernels.ahead import Rehearsal
    from agent_tts.model.kernels.launch import unmade
    from agent_tts.model.speech import SpeechModel, put_kernels
    from agent_tts.model.weights import build, hollow

    config = ModelConfig.read(Path(steps.folder))
    model = SpeechModel(build(FrameModel, config), build(Codec, config.codec))
    hollow(model.frame, getattr(torch, steps.dtype))
    hollow(model.codec, getattr(torch, steps.codec_dtype))
    put_kernels(model)
    rows = max(steps.sizes)
    state = model.init_state(rows, steps.max_model_len, rows if steps.paged else None)
    run, who = (torch.empty(rows, dtype=dtype, device="meta") for dtype in (torch.bool, torch.int64))
    numbers = partial(torch.empty, dtype=torch.int64, device="meta")
    packed = numbers(PromptEntries.size(PROMPT_ENTRIES, config.talker.num_code_groups))
    vectors = state.frame.feedback.new_empty(PROMPT_ENTRIES, config.talker.hidden_size)
    prompts = PromptEntries.of(packed, vectors)
    rehearsal = Rehearsal(steps.capability)
    with unmade(rehearsal):
        for size in steps.sizes:
            model.step(state, run[:size], who[:size])
            if steps.mixed:
                model.step(state, run[:size], who[:size], model.frame.embed(prompts))
        model.frame.prefill(state.frame, prompts, None)
        # References of clones are decoded in a batch of one.
        model.decode(state.codec, numbers(1, config.talker.num_code_groups), run[:1], who[:1])
    return list(rehearsal.launches.values())


def workers() -> int:
    """How many processes compile: one core is left to the engine, which reads its weights."""
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))


def tell(out: int, done: int, total: int) -> None:
    """Report progress to the engine."""
    os.write(out, b"%d %d\n" % (done, total))


def main() -> int:
    """Run the process. stdout is taken before any library is imported that might print."""
    out = take_stdout()
    parent, stamp, steps = sys.argv[1:]
    die_with(int(parent))
    os.nice(NICE)
    Path(stamp).parent.mkdir(parents=True, exist_ok=True)
    with open(stamp, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if file.read():
            return 0
        from agent_tts.model.kernels.ahead import compile_all

        wanted = Steps.from_json(steps)
        if compile_all(rehearse(wanted), wanted.capability, workers(), partial(tell, out)):
            return 1
        file.write(b"done\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
