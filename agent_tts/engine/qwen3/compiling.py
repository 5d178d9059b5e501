"""Kernels compiled before their first launch, on all cores, while the weights are read.

Triton compiles a kernel when it is first launched, one after the other: minutes for the steps of all sizes. Here a
process of its own has them compiled into triton's cache on the disk (see `compile_child`), so that each first launch
finds its kernel there. A stamp in that cache says that all are there: then nothing is started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, cast

from loguru import logger

from agent_tts import model as model_package

Progress = Callable[[int, int], None]  # kernels compiled, of how many

TIMEOUT_S = 150.0  # from its start; then the engine compiles for itself, while it may still start
REAP_S = 5.0  # for a process that has closed its stdout, or is killed, to be gone
TOLD_S = 1.0  # at least, from one report of progress to the next
FEWEST_CORES = 3  # with fewer it would only be in the way


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a model: all that decides which kernels they are made of, beside the versions of the software."""

    folder: str  # of the checkpoint
    dtype: str  # torch's name of it
    codec_dtype: str
    max_model_len: int
    paged: bool
    sizes: tuple[int, ...]  # batches
    mixed: bool  # a batch may have prompts beside its frames
    capability: tuple[int, int]  # of the GPU

    @staticmethod
    def from_json(text: str) -> Steps:
        """What `to_json` gave."""
        values = json.loads(text)
        return Steps(**values | {name: tuple(values[name]) for name in ("sizes", "capability")})

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))


class Compilation:
    """The process that compiles; without one there is nothing to do."""

    def __init__(self, process: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._deadline = time.monotonic() + TIMEOUT_S

    def wait(self, progress: Progress) -> None:
        """Until all is compiled. If that fails or takes too long, it is logged: then each first launch compiles."""
        if self._process is None:
            return
        if not self._follow(cast(IO[bytes], self._process.stdout), progress):
            logger.warning("kernels: not all are compiled after {:.0f} s; the rest is when first used", TIMEOUT_S)
        elif code := self._reap():
            logger.warning("kernels: not all are compiled, exit code {}; the rest is when first used", code)

    def _follow(self, stdout: IO[bytes], progress: Progress) -> bool:
        """Whether the process came to its end in time."""
        unread, told = b"", 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, self._deadline - time.monotonic())):
                chunk = os.read(stdout.fileno(), 1 << 12)
                if not chunk:
                    return True
                *lines, unread = (unread + chunk).split(b"\n")
                if not lines:
                    continue
                done, total = map(int, lines[-1].split())
                if done == total or time.monotonic() > told + TOLD_S:
                    progress(done, total)
                    told = time.monotonic()
        return False

    def close(self) -> None:
        """Ends it, if it has not ended, with its workers."""
        if self._process is not None:
            self._process.kill()
            self._reap()
            cast(IO[bytes], self._process.stdout).close()

    def _reap(self) -> int | None:
        """The exit code of a process that is ending; None if it cannot be ended."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(REAP_S)
        return None


@contextlib.contextmanager
def compiling(steps: Steps | None) -> Iterator[Compilation]:
    """Has the kernels of steps, if they are made of any, compiled in the background; given up at the end."""
    compilation = Compilation(_start(steps) if steps else None)
    try:
        yield compilation
    finally:
        compilation.close()


def _start(steps: Steps) -> subprocess.Popen[bytes] | None:
    """None if all are there, or where it cannot be: the child is for Linux."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < FEWEST_CORES:
        return None
    stamp = _cache() / f"agent-tts-{_key(steps)}"
    if stamp.exists() and stamp.stat().st_size:
        return None
    # -P: no module of the current directory may take the place of one of ours.
    command = [sys.executable, "-P", "-m", "agent_tts.engine.qwen3.compile_child", str(os.getpid()), str(stamp)]
    try:
        return subprocess.Popen([*command, steps.to_json()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        logger.warning("kernels are compiled when first used, one by one: {}", error)
        return None


def _cache() -> Path:
    """Triton's, by its rules."""
    named = os.environ.get("TRITON_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton/cache"


def _key(steps: Steps) -> str:
    """Another one whenever another kernel may be wanted, or triton may give another result."""
    import torch
    import triton

    folder, settings = Path(steps.folder), {n: value for n, value in os.environ.items() if n.startswith("TRITON_")}
    known = (torch.__version__, triton.__version__, sys.version, sorted(settings.items()), replace(steps, folder=""))
    digest = hashlib.sha256(repr(known).encode())
    sources = sorted(Path(model_package.__file__).parent.rglob("*.py"))
    for path in (folder / "config.json", folder / "speech_tokenizer/config.json", *sources):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]
