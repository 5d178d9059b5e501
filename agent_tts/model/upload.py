"""From the host to the device, without waiting for either.

A copy from pinned memory is only queued. Its memory comes from torch's pool of pinned memory, which gives it to nobody
else before the device has read it: so there is no buffer here that could be written too early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEAST = 8_192  # numbers: nearly all that is sent is smaller, so that a few buffers of one size serve for ever


class Writes:
    """What is to be written on a device between two steps. What it is made of goes there by one copy for all."""

    def __init__(self) -> None:
        # What writes, and how many arrays it takes.
        self._writes: list[tuple[Callable[..., object], int]] = []
        self._arrays: list[NDArray[np.int64]] = []

    def add(self, write: Callable[..., object], *arrays: NDArray[np.int64]) -> None:
        """Calls `write` with these arrays as tensors on the device, after all that was added before."""
        self._writes.append((write, len(arrays)))
        self._arrays += arrays

    @torch.inference_mode()
    def send(self, device: torch.device) -> None:
        """Queues all of it on the current stream."""
        sent = iter(upload(self._arrays, device) if self._arrays else ())
        for write, count in self._writes:
            write(*islice(sent, count))


def staged(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """int64[n] on the host, all of their numbers, from where `copy_(..., non_blocking=True)` does not wait."""
    count = sum(array.size for array in arrays)
    if device.type == "cuda":
        pinned = torch.empty(max(count, _LEAST), dtype=torch.int64, pin_memory=True)[:count]
    else:
        pinned = torch.empty(count, dtype=torch.int64)
    np.concatenate(arrays, axis=None, out=pinned.numpy())
    return pinned


def upload(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Arrays on the device, of the same shapes, by one copy.

    Each number is eight bytes, whatever it stands for: to take types apart on either side takes longer than to send it.
    """
    sent = torch.split(staged(arrays, device).to(device, non_blocking=True), [array.size for array in arrays])
    return [whole.view(array.shape) for whole, array in zip(sent, arrays, strict=True)]
