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

_ALIGNED = 8  # bytes: the widest number that is sent
_LEAST = 8_192  # numbers: nearly all that is sent is smaller, so that a few buffers of one size serve for ever


def staged(array: NDArray[np.int64], device: torch.device) -> Tensor:
    """int64[n] on the host, from where `copy_(..., non_blocking=True)` to the device does not wait."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    pinned = torch.empty(max(len(array), _LEAST), dtype=torch.int64, pin_memory=True)
    return pinned[: len(array)].copy_(tensor)


def upload(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Arrays on the device, of the same shapes and dtypes, by one copy."""
    sizes = [-(-array.nbytes // _ALIGNED) for array in arrays]
    packed = np.empty(sum(sizes), np.int64)
    places = np.split(packed, np.cumsum(sizes)[:-1])
    for array, place in zip(arrays, places, strict=True):
        place.view(np.uint8)[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sent = torch.split(staged(packed, device).to(device, non_blocking=True), sizes)
    return [
        whole.view(torch.uint8)[: array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for whole, array in zip(sent, arrays, strict=True)
    ]


_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}
