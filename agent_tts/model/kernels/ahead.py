"""Kernels compiled by many processes at once into triton's cache on the disk, where whoever launches them finds them.

Nothing here touches a GPU: no driver is asked, and a kernel can be compiled for one that is elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import Synchronized
from traceback import print_exc
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia

from agent_tts.model.kernels.launch import Capability
from agent_tts.model.kernels.rehearsal import Launch
from agent_tts.processes import die_with

Progress = Callable[[int, int], None]  # kernels done, of how many

_DONE, _FAILED = b".", b"!"


class CompileTarget:
    """A driver that knows for which GPU triton is to compile, and nothing else."""

    def __init__(self, capability: Capability) -> None:
        major, minor = capability
        self._target = GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all(launches: Sequence[Launch], capability: Capability, workers: int, progress: Progress) -> int:
    """Has the kernels compiled for a GPU; how many could not be. On Linux; the caller has no threads.

    A kernel that cannot be compiled, or a worker that dies, leaves the others alone. The workers end with the caller.
    """
    triton.runtime.driver.set_active(CompileTarget(capability))
    forking = multiprocessing.get_context("fork")  # what has been imported and taken down is there at once
    following = forking.Value("i", 0)
    heard, told = os.pipe()
    processes = [
        forking.Process(target=_work, args=(os.getpid(), launches, following, told))
        for _ in range(min(workers, len(launches)))
    ]
    for process in processes:
        process.start()
    os.close(told)
    done = compiled = 0
    while said := os.read(heard, 1 << 12):
        done, compiled = done + len(said), compiled + said.count(_DONE)
        progress(done, len(launches))
    os.close(heard)
    for process in processes:
        process.join()
    return len(launches) - compiled


def _work(parent: int, launches: Sequence[Launch], following: Synchronized[int], told: int) -> None:
    """A worker: takes the next launch that nobody has taken, as long as there is one."""
    die_with(parent)
    while True:
        with following.get_lock():
            index = following.value
            following.value += 1
        if index >= len(launches):
            return
        try:
            _launcher(launches[index].compile())
        except Exception:  # noqa: BLE001 - of a compiler, and whatever it is, it is said and the next one has its turn
            print(f"cannot compile {launches[index].kernel.__name__}:", file=sys.stderr)
            print_exc()
            os.write(told, _FAILED)
        else:
            os.write(told, _DONE)


def _launcher(kernel: Any) -> None:
    """Up to triton 3.6, launching a kernel takes a C module for its signature, which is compiled and kept as well."""
    if hasattr(nvidia, "make_launcher"):
        nvidia.CudaLauncher(kernel.src, kernel.metadata)
