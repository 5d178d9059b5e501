"""Kernels compiled before their first launch, on all cores: while the weights are read, or by `agent-tts compile`.

Triton compiles a kernel at its first launch, one after the other: minutes for the steps of all sizes. Here a child
process, `python -m agent_tts.engine.qwen3.compiling PARENT`, compiles them into triton's cache on the disk, where the
first launch finds them. For each `Steps` a file in that cache, its stamp, is written when all are compiled: then no
process is started, and of several processes with the same stamp one works, and the others wait for it.

The child prepares itself, and then reads a line: a list of `Steps` of one GPU, as JSON. It runs the steps on the
meta device, without weights or GPU, and its workers compile the kernels that the steps launch. On its stdout: a line
"done total" after each kernel. It has a low priority, because the engine may be speaking, and ends with that engine.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

from loguru import logger

from agent_tts import model as model_package
from agent_tts.system.in_child import die_with, take_stdout, without_collections
from agent_tts.system.processes import LineProcess

if TYPE_CHECKING:
    from agent_tts.model.config import ModelConfig
    from agent_tts.model.kernels.ahead import Launch, Rehearsal

Progress = Callable[[int, int], None]  # kernels compiled, of how many

TIMEOUT_S = 150.0  # from its start; the engine compiles the rest itself, within its own start timeout
TOLD_S = 1.0  # between two reports of progress, at least
FEWEST_CORES = 3  # with fewer, compiling ahead would only slow the engine down
STAMP = "agent-tts-"  # in front of the names of stamps
PLACES = ("TRITON_CACHE_DIR", "TRITON_HOME")  # where kernels are kept: no part of them
NVIDIA = Path("/dev/nvidiactl")  # where there is a GPU whose kernels can be compiled
NICE = 10  # of the process
MOST_WORKERS = 32  # some 200 MB of memory each
LAYERS: int = 3  # of a stack that are rehearsed: the first, the last, and one for all between, which launch the same


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
    fp8_weights: bool
    fp8_cache: bool
    adapters: tuple[int, int]  # at once, and their largest rank
    architecture: str  # of the GPU: a key of `kernels.architectures`, or another name

    @staticmethod
    def all_from_json(text: str) -> list[Steps]:
        return [
            Steps(**values | {name: tuple(values[name]) for name in ("sizes", "adapters")})
            for values in json.loads(text)
        ]

    @property
    def stamp(self) -> Path:
        """The file that says that its kernels are compiled.

        Named by the GPU, and a digest of all that the kernels depend on. Raises `CheckpointError`.
        """
        import torch
        import triton

        from agent_tts.model.config import ModelConfig

        # Checkpoints differ in their voices and types, which are no part of a kernel.
        config = ModelConfig.read(Path(self.folder))
        talker = replace(config.talker, codec_language_id={}, spk_id={}, spk_is_dialect={})
        settings = {n: value for n, value in os.environ.items() if n.startswith("TRITON_") and n not in PLACES}
        software = torch.__version__, triton.__version__, sys.version, sorted(settings.items())
        digest = hashlib.sha256(repr((software, talker, config.codec, replace(self, folder=""))).encode())
        for path in sorted(Path(model_package.__file__).parent.rglob("*.py")):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return cache_folder() / f"{STAMP}{self.architecture}-{digest.hexdigest()[:32]}"


class Compilation:
    """Compiles the kernels of steps for one GPU, if any, in the background, until `close`.

    Args:
        within_s: the longest that `wait` waits, from now on.
        always: also with so few cores that it slows an engine down.
    """

    def __init__(self, steps: Sequence[Steps], *, within_s: float = TIMEOUT_S, always: bool = False) -> None:
        # The process that compiles; None where there is nothing to compile, and where it cannot be.
        self._process = None if are_compiled(steps) else _started(steps, always=always)
        self._within_s = within_s
        self._deadline = time.monotonic() + within_s

    def wait(self, progress: Progress) -> str | None:
        """Wait until all kernels are compiled. If not all are, returns why: their first launches compile the others."""
        if self._process is None:
            return None
        told = 0.0
        try:
            for line in self._process.latest_lines(self._deadline):
                done, total = map(int, line.split())
                if done == total or time.monotonic() > told + TOLD_S:
                    progress(done, total)
                    told = time.monotonic()
        except TimeoutError:
            return f"not all are compiled after {self._within_s:.0f} s"
        code = self._process.reap()
        return None if code == 0 else f"not all are compiled, exit code {code}"

    def close(self) -> None:
        """Kill the process with its workers, unless it has ended."""
        if self._process is not None:
            self._process.close()


# The process that waits for its steps, with its libraries; none or one.
_ahead: list[LineProcess] = []


@contextmanager
def begun_ahead() -> Iterator[None]:
    """In this block the first `Compilation` has its process at once, on a machine that has never compiled."""
    if _has_cores() and NVIDIA.exists() and not any(cache_folder().glob(f"{STAMP}*")):
        _ahead.extend(filter(None, [_process()]))
    try:
        yield
    finally:
        while _ahead:
            _ahead.pop().close()


def _started(steps: Sequence[Steps], *, always: bool) -> LineProcess | None:
    """None on another system than Linux, and with too few cores."""
    if not (_has_cores() or (always and sys.platform == "linux")):
        return None
    if process := _ahead.pop() if _ahead else _process():
        process.send(json.dumps([asdict(one) for one in steps]))
    return process


def _has_cores() -> bool:
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) >= FEWEST_CORES


def _process() -> LineProcess | None:
    try:
        return LineProcess("agent_tts.engine.qwen3.compiling", str(os.getpid()))
    except OSError as error:
        logger.warning("kernels are compiled when first used, one by one: {}", error)
        return None


def are_compiled(steps: Sequence[Steps]) -> bool:
    return all(one.stamp.exists() and one.stamp.stat().st_size for one in steps)


def cache_folder() -> Path:
    """Triton's cache, by triton's own rules."""
    named = os.environ.get("TRITON_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton/cache"


# ---------------------------------------------------------------- the child


def rehearse(several: Sequence[Steps]) -> list[Launch]:
    """All kernels that steps of one GPU launch, each variant once."""
    from agent_tts.model.kernels.ahead import Rehearsal
    from agent_tts.model.kernels.architectures import architecture

    rehearsal = Rehearsal(architecture(several[0].architecture))
    for steps in several:
        _rehearse(steps, rehearsal)
    return list(rehearsal.launches.values())


def _rehearse(steps: Steps, rehearsal: Rehearsal) -> None:
    import torch

    from agent_tts.model.adapters import AdapterBank
    from agent_tts.model.codec import Codec
    from agent_tts.model.config import ModelConfig
    from agent_tts.model.frame import PROMPT_ENTRIES, FrameModel, PromptEntries
    from agent_tts.model.kernels.launch import unmade
    from agent_tts.model.quantised import EightBits
    from agent_tts.model.speech import SpeechModel, put_kernels
    from agent_tts.model.watermark import Watermark
    from agent_tts.model.weights import build, hollow

    config = _shortened(ModelConfig.read(Path(steps.folder)))
    watermark = build(Watermark) if steps.watermark else None
    model = SpeechModel(build(FrameModel, config), build(Codec, config.codec), watermark)
    hollow(model.frame, getattr(torch, steps.dtype))
    for part in filter(None, (model.codec, watermark)):
        hollow(part, getattr(torch, steps.codec_dtype))
    rows = max(steps.sizes)
    adapters = AdapterBank(model.frame, rows, *steps.adapters) if steps.adapters[0] else None
    with unmade(rehearsal):  # what is laid out depends on the GPU
        put_kernels(model, adapters, EightBits(steps.fp8_weights, steps.fp8_cache))
    state = model.init_state(rows, steps.max_model_len, rows if steps.paged else None)
    run, who = (torch.empty(rows, dtype=dtype, device="meta") for dtype in (torch.bool, torch.int64))
    numbers = partial(torch.empty, dtype=torch.int64, device="meta")
    packed = numbers(PromptEntries.size(PROMPT_ENTRIES, config.talker.num_code_groups))
    vectors = state.frame.feedback.new_empty(PROMPT_ENTRIES, config.talker.hidden_size)
    prompts = PromptEntries.of(packed, vectors)
    codes = numbers(rows, config.talker.num_code_groups)
    with unmade(rehearsal):
        # Those that take the longest first, so that no worker ends late: of large batches, and of the codec.
        for size in reversed(steps.sizes):
            model.decode(state.codec, codes[:size], run[:size], who[:size])
            model.step(state, run[:size], who[:size])
            if steps.mixed:
                model.step(state, run[:size], who[:size], model.frame.embed(prompts))
        model.frame.prefill(state.frame, prompts, None)
        model.decode(state.codec, codes[:1], run[:1], who[:1])  # references of clones


def _shortened(config: ModelConfig) -> ModelConfig:
    """With so many layers as launch every kernel."""
    talker, codec, predictor = config.talker, config.codec, config.talker.code_predictor
    predictor = replace(predictor, num_hidden_layers=min(LAYERS, predictor.num_hidden_layers))
    talker = replace(talker, num_hidden_layers=min(LAYERS, talker.num_hidden_layers), code_predictor=predictor)
    return replace(config, talker=talker, codec=replace(codec, num_hidden_layers=min(LAYERS, codec.num_hidden_layers)))


def leave_out_compiler() -> None:
    """Keep torch's compiler, 900 modules, out of this process, in which torch is not imported yet."""
    sys.modules["torch._dynamo"] = _NoCompiler("torch._dynamo")


class _NoCompiler(ModuleType):
    """What torch needs of its compiler on the meta device: to be left alone by it. Another use imports it."""

    @staticmethod
    def disable(function: Callable[..., object], *_: object, **__: object) -> Callable[..., object]:
        return function

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # for `inspect`, which looks at all modules
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def main() -> int:
    """Run the child. stdout is taken before any library is imported that might print."""
    import fcntl  # not on Windows

    out = take_stdout()
    die_with(int(sys.argv[1]))
    os.nice(NICE)
    leave_out_compiler()
    with without_collections():
        from agent_tts.model.kernels.ahead import compile_all, prepare
        from agent_tts.model.kernels.architectures import architecture
        from agent_tts.model.speech import prepare_kernels

        prepare_kernels()
        prepare()
    if not (given := sys.stdin.readline()):
        return 0
    cache_folder().mkdir(parents=True, exist_ok=True)
    wanted = {steps.stamp: steps for steps in Steps.all_from_json(given)}
    with ExitStack() as stack:
        unwritten: dict[IO[bytes], Steps] = {}
        for stamp, steps in sorted(wanted.items(), key=itemgetter(0)):  # in one order: nobody waits for one that waits
            file: IO[bytes] = stack.enter_context(open(stamp, "a+b"))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if not file.read():
                unwritten[file] = steps
        if not unwritten:
            return 0

        def tell(done: int, total: int) -> None:
            os.write(out, b"%d %d\n" % (done, total))

        launches = rehearse(list(unwritten.values()))
        # One core is left to the engine, which reads its weights.
        workers = max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))
        if compile_all(launches, architecture(next(iter(wanted.values())).architecture), workers, tell):
            return 1
        for file in unwritten:
            file.write(b"done\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
