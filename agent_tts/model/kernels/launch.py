"""How kernels follow one another: each starts while the one before it still runs, and waits before it reads its work.

Programmatic dependent launch (Hopper and newer) hides the start of a kernel, and the reading of its weights, behind the
kernel before it. The rule that keeps it right: before `wait` a kernel reads nothing but weights.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait(OVERLAP: tl.constexpr):
    """Until all that came before has been written; from here on the next kernel may start."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@cache
def overlap(device: torch.device) -> dict[str, Any]:
    """The launch options of kernels on a device."""
    able = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"OVERLAP": True, "launch_pdl": True} if able else {"OVERLAP": False}


def power_of_2(size: int) -> int:
    """The smallest power of 2 that is not less."""
    return 1 << (size - 1).bit_length()
