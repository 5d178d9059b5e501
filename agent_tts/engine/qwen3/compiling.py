"""Kernels compiled before their first launch, on all cores, while the weights are read.

Triton compiles a kernel at its first launch, one after the other: minutes for the steps of all sizes. Here a child
process, `python -m agent_tts.engine.qwen3.compiling PARENT STAMP STEPS`, compiles them into triton's cache on the disk,
where the first launch finds them. The file STAMP in that cache is written when all are compiled: then no process is
started, and of several processes with the same stamp one works, and the others wait for it.

STEPS is a `Steps` as JSON. The child runs the steps on the meta device, without weights or GPU, and its workers compile
the kernels that the steps launch. On its stdout: a line "done total" after each kernel. It has a low priority, because
the engine may be speaking, and ends with that engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from agent_tts import model as model_package
from agent_tts.in_child import die_with, take_stdout
from agent_tts.processes import LineProcess

if TYPE_CHECKING:
    from agent_tts.model.kernels.ahead import Launch

Progress = Callable[[int, int], None]  # kernels compiled, of how many

TIMEOUT_S = 150.0  # from its start; the engine compiles the rest itself, within its own start timeout
TOLD_S = 1.0  # between two reports of progress, at least
FEWEST_CORES = 3  # with fewer, compiling ahead would only slow the engine down
NICE = 10  # of the process
MOST_WORKERS = 32  # some 200 MB of memory each


@dataclass(frozen=True, slots=True)
class Steps:
    """What decides, with the versions of the software, which kernels the steps of a model are made of."""

    folder: str  # of the checkpoint
    dtype: str  # torch's name of it
    codec_dtype: str
    max_model_len: int
    paged: bool
    sizes: tuple[int, ...]  # batches
    mixed: bool  # a batch may have prompts beside its frames
    watermark: bool  # of the released sizes
    architecture: str  # of the GPU: a key of `kernels.architectures`, or another name

    @staticmethod
    def from_json(text: str) -> Steps:
        values = json.loads(text)
        return Steps(**values | {"sizes": tuple(values["sizes"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Compilation:
    """Compiles the kernels of steps, if any, in the background, until `close`."""

    def __init__(self, steps: Steps | None) -> None:
        # The process that compiles; None where there is nothing to compile.
        self._process = _start(steps) if steps else None
        self._deadline = time.monotonic() + TIMEOUT_S

    def wait(self, progress: Progress) -> None:
        """Wait until all kernels are compiled. A failure or a timeout is logged: then each first launch compiles."""
        if self._process is None:
            return
        told = 0.0
        try:
            for line in self._process.latest_lines(self._deadline):
                done, total = map(int, line.split())
                if done == total or time.monotonic() > told + TOLD_S:
                    progress(done, total)
                    told = time.monotonic()
        except TimeoutError:
            logger.warning("kernels: not all are compiled after {:.0f} s; the rest is when first used", TIMEOUT_S)
        else:
            if code := self._process.reap():
                logger.warning("kernels: not all are compiled, exit code {}; the rest is when first used", code)

    def close(self) -> None:
        """Kill the process with its workers, unless it has ended."""
        if self._process is not None:
            self._process.close()


def _start(steps: Steps) -> LineProcess | None:
    """None if all are compiled, on another system than Linux, and with too few cores."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < FEWEST_CORES:
        return None
    stamp = _cache() / f"agent-tts-{_key(steps)}"
    if stamp.exists() and stamp.stat().st_size:
        return None
    try:
        return LineProcess("agent_tts.engine.qwen3.compiling", str(os.getpid()), str(stamp), steps.to_json())
    except OSError as error:
        logger.warning("kernels are compiled when first used, one by one: {}", error)
        return None


def _cache() -> Path:
    """Triton's cache folder, by triton's own rules."""
    named = os.environ.get("TRITON_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton/cache"


def _key(steps: Steps) -> str:
    """A digest of all that the compiled kernels depend on."""
    import torch
    import triton

    folder, settings = Path(steps.folder), {n: value for n, value in os.environ.items() if n.startswith("TRITON_")}
    known = (torch.__version__, triton.__version__, sys.version, sorted(settings.items()), replace(steps, folder=""))
    digest = hashlib.sha256(repr(known).encode())
    sources = sorted(Path(model_package.__file__).parent.rglob("*.py"))
    for path in (folder / "config.json", folder / "speech_tokenizer/config.json", *sources):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


# ---------------------------------------------------------------- the child


def rehearse(steps: Steps) -> list[Launch]:
    """All kernels that the steps launch, each variant once."""
    import torch

    from agent_tts.model.codec import Codec
    from agent_tts.model.config import ModelConfig
    from agent_tts.model.frame import PROMPT_ENTRIES, FrameModel, PromptEntries
    from agent_tts.model.kernels.ahead import Rehearsal
    from agent_tts.model.kernels.architectures import architecture
    from agent_tts.model.kernels.launch import unmade
    from agent_tts.model.speech import SpeechModel, put_kernels
    from agent_tts.model.watermark import Watermark
    from agent_tts.model.weights import build, hollow

    config = ModelConfig.read(Path(steps.folder))
    watermark = build(Watermark) if steps.watermark else None
    model = SpeechModel(build(FrameModel, config), build(Codec, config.codec), watermark)
    hollow(model.frame, getattr(torch, steps.dtype))
    for part in filter(None, (model.codec, watermark)):
        hollow(part, getattr(torch, steps.codec_dtype))
    put_kernels(model)
    rows = max(steps.sizes)
    state = model.init_state(rows, steps.max_model_len, rows if steps.paged else None)
    run, who = (torch.empty(rows, dtype=dtype, device="meta") for dtype in (torch.bool, torch.int64))
    numbers = partial(torch.empty, dtype=torch.int64, device="meta")
    packed = numbers(PromptEntries.size(PROMPT_ENTRIES, config.talker.num_code_groups))
    vectors = state.frame.feedback.new_empty(PROMPT_ENTRIES, config.talker.hidden_size)
    prompts = PromptEntries.of(packed, vectors)
    rehearsal = Rehearsal(architecture(steps.architecture))
    with unmade(rehearsal):
        for size in steps.sizes:
            model.step(state, run[:size], who[:size])
            if steps.mixed:
                model.step(state, run[:size], who[:size], model.frame.embed(prompts))
        model.frame.prefill(state.frame, prompts, None)
        # References of clones are decoded in a batch of one.
        model.decode(state.codec, numbers(1, config.talker.num_code_groups), run[:1], who[:1])
    return list(rehearsal.launches.values())


def main() -> int:
    """Run the child. stdout is taken before any library is imported that might print."""
    import fcntl  # not on Windows

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
        from agent_tts.model.kernels.architectures import architecture

        def tell(done: int, total: int) -> None:
            os.write(out, b"%d %d\n" % (done, total))

        wanted = Steps.from_json(steps)
        # One core is left to the engine, which reads its weights.
        workers = max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))
        if compile_all(rehearse(wanted), architecture(wanted.architecture), workers, tell):
            return 1
        file.write(b"done\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
