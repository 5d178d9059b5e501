"""Launches of kernels, each of which starts while the one before it still runs.

Programmatic dependent launch (Hopper and newer) hides the start of a kernel and the reading of its weights behind the
previous kernel. Before `wait`, which says why that is safe, a kernel may read only weights, and what was written long
before.

Tiles are those that are the fastest on an H200. A kernel that takes more memory of a block than the GPU has runs with
fewer stages, steps of its sum that are read ahead: the same sums in the same order. All are launched once when a model
is loaded, so that this is found out there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from loguru import logger
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.errors import OutOfResources

from agent_tts.model.kernels.architectures import Architecture, of_nvidia

Arguments = dict[str, Any]  # of a kernel, by name, together with triton's options

_TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])


class LaunchListener(Protocol):
    """Is told of launches, which are then not made."""

    architecture: Architecture  # of the GPU that they are for

    def launched(self, kernel: Any, arguments: Arguments) -> None: ...


_listener: LaunchListener | None = None


def launch(kernel: Any, grid: tuple[int, ...], /, **arguments: Any) -> Any:
    """Launches a kernel of triton, and gives it compiled: its arguments by name, together with triton's options."""
    if _listener is not None:
        _listener.launched(kernel, arguments)
        return None
    while True:
        try:
            made = kernel[grid](**arguments)
        except OutOfResources as error:
            arguments = with_fewer_stages(kernel, arguments, str(error))
            _tell_once(f"kernels of this GPU read fewer steps ahead: {kernel.__name__}: {error}")
        else:
            return made


_PREFERRED_SHARED = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent


@cache
def prefer_shared(function: int) -> None:
    """Has a kernel that was launched run where the first-level cache is small, from its next launch on.

    The driver chooses a size by the kernel alone, and a processor changes it only when it is idle, which would end the
    overlap with other kernels.
    """
    ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(ctypes.c_void_p(function), _PREFERRED_SHARED, 100)


def with_fewer_stages(kernel: Any, arguments: Arguments, why: str) -> Arguments:
    """The next smaller variant of a kernel that takes more of a block's memory than the GPU has.

    Raises:
        RuntimeError: there is none.
    """
    name = "STAGES" if "STAGES" in arguments else "num_stages"
    stages = arguments.get(name, 1)
    if stages == 1:
        raise RuntimeError(f"the kernel {kernel.__name__} does not fit this GPU: {why}")
    return arguments | {name: stages - 1}


_told: list[str] = []


def _tell_once(what: str) -> None:
    """Log the first line alone."""
    if not _told:
        _told.append(what)
        logger.info(what)


@contextmanager
def unmade(listener: LaunchListener) -> Iterator[None]:
    """Within this block launches, in any thread, are told to the listener and not made."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


@triton.jit
def wait(OVERLAP: tl.constexpr, EARLY: tl.constexpr = False):
    """Waits until the previous kernels have written; lets the next kernel start, if EARLY before they have.

    In every kernel all programs that write, and at least one, wait, so a kernel ends after all that precede it. The
    next kernel starts when all programs of this one have let it, or have ended: if those that wait do so after the
    wait, everything before this kernel has ended by then. So what a kernel reads ahead must be written before the last
    kernel in front of it that is not EARLY; that kernel, and EARLY ones behind it, may still run. Products of one row
    or two are EARLY, and those whose `Tile` is. The talker's attention is not, therefore what it reads ahead, positions
    and its layer's cache, is complete: the attention of another layer stands between it and the last attention of its
    own layer. The attention in a frame may be: draws are not EARLY, and one stands between it and the last attention of
    its own layer. Blocks that wait take the room of those that work, so larger kernels are not EARLY.
    """
    if OVERLAP:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
        if not EARLY:
            gdc_launch_dependents()


def overlap(device: torch.device) -> dict[str, Any]:
    """The launch options that overlap kernels on a device."""
    known = architecture_of(device)
    return {"OVERLAP": True, "launch_pdl": True} if known is not None and known.overlaps else {"OVERLAP": False}


def architecture_of(device: torch.device) -> Architecture | None:
    """Of a GPU of NVIDIA, or of the one that launches are told for."""
    return _listener.architecture if _listener else _of(device)


def has_warpgroups(device: torch.device) -> bool:
    """Whether kernels in Gluon run there: triton 3.6 is the first for which they are written."""
    known = architecture_of(device)
    return known is not None and known.has_warpgroups and _TRITON >= (3, 6)


@cache
def _of(device: torch.device) -> Architecture | None:
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return of_nvidia(torch.cuda.get_device_capability(device)) if is_nvidia else None


def power_of_2(size: int) -> int:
    """The smallest power of 2 that is at least `size`."""
    return 1 << (size - 1).bit_length()
