"""Compiles kernels in many processes at once into triton's cache on the disk, where their first launch finds them.

Nothing here needs a GPU. Which kernels a step needs is found out by running it on the meta device: triton compiles a
variant for each combination of types, alignment of pointers, integers that are 1 or divisible by 16, constants and
options, and all of that is in the arguments.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from traceback import print_exc
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia

from agent_tts.model.kernels.architectures import TENSOR_MEMORY, Architecture
from agent_tts.model.kernels.launch import Arguments, with_fewer_stages
from agent_tts.system.in_child import die_with

Progress = Callable[[int, int], None]  # kernels done, of how many

_DONE, _FAILED = b".", b"!"

ALIGNED = 16  # bytes for pointers; a divisor for integers


@dataclass(frozen=True, slots=True)
class Pointer:
    """Stands for a tensor in the arguments of a kernel that is only compiled."""

    dtype: torch.dtype
    aligned: bool

    @staticmethod
    def of(tensor: Tensor) -> Pointer:
        """Of a tensor without memory. Allocations are aligned, so its offset within one decides."""
        return Pointer(tensor.dtype, int(tensor.storage_offset()) * tensor.element_size() % ALIGNED == 0)

    def data_ptr(self) -> int:
        """For triton: an address with the right alignment."""
        return 0 if self.aligned else 1


@dataclass(frozen=True, slots=True)
class Launch:
    """A variant of a kernel."""

    kernel: Any  # of triton.jit
    arguments: Arguments  # with a `Pointer` for each tensor

    def compile(self, architecture: Architecture) -> Any:
        """Compiles what `launch` would run, for triton's current target, from or into the cache on the disk.

        Raises:
            RuntimeError: no variant of it fits.
        """
        arguments = self.arguments
        while True:
            compiled = self.kernel.warmup(grid=(1,), **arguments)
            shared, tensor = compiled.metadata.shared, getattr(compiled.metadata, "tmem_size", None) or 0
            if shared <= architecture.shared and tensor <= TENSOR_MEMORY:
                return compiled
            why = f"{shared} bytes of shared memory of {architecture.shared}, {tensor} columns of tensor memory"
            arguments = with_fewer_stages(self.kernel, arguments, why)


class Rehearsal:
    """Collects the launches of steps on the meta device."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        # One for each variant, in the order of their first launch.
        self.launches: dict[Hashable, Launch] = {}

    def launched(self, kernel: Any, arguments: Arguments) -> None:
        """Adds a launch, unless its variant is known."""
        given = {name: Pointer.of(value) if isinstance(value, Tensor) else value for name, value in arguments.items()}
        params = {param.name: param for param in kernel.params}
        kinds = tuple((name, _kind(params.get(name), value)) for name, value in sorted(given.items()))
        self.launches.setdefault((kernel, kinds), Launch(kernel, given))


def _kind(param: Any, value: object) -> Hashable:
    """What triton specializes a kernel on in an argument; `param` is None for an option."""
    if param is None or param.is_constexpr or isinstance(value, bool | Pointer):
        return value
    if isinstance(value, int) and not param.do_not_specialize:
        return value == 1, value % ALIGNED == 0, value.bit_length() > 31
    return type(value).__name__


def prepare() -> None:
    """Have torch import what it needs on the meta device, before the steps to rehearse are known."""
    meta = torch.empty(1, 1, device="meta")
    F.linear(meta, meta, meta[0])


class CompileTarget:
    """A driver of triton that only tells the GPU to compile for."""

    def __init__(self, architecture: Architecture) -> None:
        capability = architecture.capability
        self._target = GPUTarget("cuda", capability, 32) if capability else GPUTarget("hip", architecture.name, 64)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all(launches: Sequence[Launch], architecture: Architecture, workers: int, progress: Progress) -> int:
    """Compiles kernels for a GPU; gives how many could not be. On Linux; the caller must have no threads.

    A kernel that cannot be compiled, or a worker that dies, does not stop the others. The workers end with the caller.
    """
    triton.runtime.driver.set_active(CompileTarget(architecture))
    forking = multiprocessing.get_context("fork")  # workers inherit imports and launches
    following = forking.Value("i", 0)
    heard, told = os.pipe()
    processes = [
        forking.Process(target=_work, args=(os.getpid(), launches, architecture, following, told))
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


def _work(
    parent: int, launches: Sequence[Launch], architecture: Architecture, following: Synchronized[int], told: int
) -> None:
    """A worker: takes one launch after the other from the shared counter."""
    die_with(parent)
    while True:
        with following.get_lock():
            index = following.value
            following.value += 1
        if index >= len(launches):
            return
        try:
            _launcher(launches[index].compile(architecture))
        except Exception:  # noqa: BLE001 - any error of the compiler is printed
            print(f"cannot compile {launches[index].kernel.__name__}:", file=sys.stderr)
            print_exc()
            os.write(told, _FAILED)
        else:
            os.write(told, _DONE)


def _launcher(kernel: Any) -> None:
    """Up to triton 3.6, a launch needs a C module for the kernel's signature, which is compiled and cached too.

    It is linked with the GPU's driver; where there is none, as where an image is built, the node compiles it.
    """
    if kernel.metadata.target.backend == "cuda" and hasattr(nvidia, "make_launcher"):
        with suppress(AssertionError):
            nvidia.CudaLauncher(kernel.src, kernel.metadata)
