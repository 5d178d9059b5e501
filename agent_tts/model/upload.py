"""From the host to the device, without waiting for either.

A copy from pinned memory is only queued. Its memory comes from torch's pool of pinned memory, which gives it to nobody
else before the device has read it: so there is no buffer here that could be written too early.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEAST = 8_192  # numbers: nearly all that is sent is smaller, so that a few buffers of one size serve for ever


def staged(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """int64[n] on the host, from where `copy_(..., non_blocking=True)` to the device does not wait."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    pinned = torch.empty(max(len(array), _LEAST), dtype=torch.int64, pin_memory=True)
    return pinned[: len(array)].copy_(tensor)


def upload(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Arrays on the device, of the same shapes, by one copy.

    Each number is eight bytes, whatever it stands for: to take types apart on either side takes longer than to send it.
    """
    packed = np.concatenate([array.ravel() for array in arrays])
    sent = torch.split(staged(packed, device).to(device, non_blocking=True), [array.size for array in arrays])
    return [whole.view(array.shape) for whole, array in zip(sent, arrays, strict=True)]
