"""Launches of kernels, each of which starts while the one before it still runs.

Programmatic dependent launch (Hopper and newer) hides the start of a kernel and the reading of its weights behind the
previous kernel. Before `wait`, a kernel may read only weights, and what earlier frames wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

Capability = tuple[int, int]  # of a GPU: major, minor


class LaunchListener(Protocol):
    """Is told of launches, which are then not made."""

    capability: Capability  # of the GPU that they are for

    def launched(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """`args`: one for each parameter of the kernel, in their order."""


_listener: LaunchListener | None = None


def launch(kernel: Any, grid: tuple[int, ...], /, **arguments: Any) -> None:
    """Launches a kernel of triton: its arguments by name, together with triton's options."""
    if _listener is None:
        kernel[grid](**arguments)
    else:
        args = tuple(arguments.pop(param.name) for param in kernel.params)
        _listener.launched(kernel, args, arguments)


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
def wait(OVERLAP: tl.constexpr):
    """Waits until the previous kernels have written; lets the next kernel start."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


def overlap(device: torch.device) -> dict[str, Any]:
    """The launch options that overlap kernels on a device."""
    major, _ = _listener.capability if _listener else _capability(device)
    return {"OVERLAP": True, "launch_pdl": True} if major >= 9 else {"OVERLAP": False}


@cache
def _capability(device: torch.device) -> Capability:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def power_of_2(size: int) -> int:
    """The smallest power of 2 that is at least `size`."""
    return 1 << (size - 1).bit_length()
