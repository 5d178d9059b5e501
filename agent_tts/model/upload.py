"""Copies from the host to the device without waiting.

A copy from pinned memory is only queued. torch's pinned pool reuses the memory only after the device has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.model.device import queues

_LEAST = 8_192  # numbers of a buffer: nearly all copies fit, so that the pool needs few buffers


class Writes:
    """Writes on a device between two steps; their arrays go there in one copy."""

    def __init__(self) -> None:
        # A function that writes, and what it takes.
        self._writes: list[tuple[Callable[..., object], tuple[NDArray[np.int64], ...]]] = []

    def add(self, write: Callable[..., object], *arrays: NDArray[np.int64]) -> None:
        """Calls `write` with these arrays as tensors on the device, after all that was added before."""
        self._writes.append((write, arrays))

    def send(self, device: torch.device) -> None:
        if self._writes:
            self._send(device)

    @torch.inference_mode()
    def _send(self, device: torch.device) -> None:
        numbers = [array for _, arrays in self._writes for array in arrays]
        sent = iter(upload(numbers, device) if numbers else ())
        for write, arrays in self._writes:
            write(*islice(sent, len(arrays)))


def staged(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """All numbers, int64[n], in pinned memory of the host where the device has streams."""
    count = sum(array.size for array in arrays)
    if queues(device):
        pinned = torch.empty(max(count, _LEAST), dtype=torch.int64, pin_memory=True)[:count]
    else:
        pinned = torch.empty(count, dtype=torch.int64)
    np.concatenate(arrays, axis=None, out=pinned.numpy())
    return pinned


def queued(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """All numbers on the device, int64[n]. Without waiting on a GPU with pinned memory: others may read it too late."""
    return staged(arrays, device).to(device, non_blocking=queues(device))


def upload(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Arrays on the device, of the same shapes, by one copy: splitting types would take longer than eight bytes for
    each.
    """
    sent = torch.split(queued(arrays, device), [array.size for array in arrays])
    return [whole if array.ndim == 1 else whole.view(array.shape) for whole, array in zip(sent, arrays, strict=True)]
