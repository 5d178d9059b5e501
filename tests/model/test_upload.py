"""Arrays arrive unchanged."""

from __future__ import annotations

import numpy as np
import torch

from agent_tts.model.upload import Writes, upload


def test_arrays_of_any_shape_arrive_by_one_copy() -> None:
    arrays = [np.array([[1, -2], [3, 2**62]]).T, np.empty(0, np.int64), np.array([9]), np.empty((2, 0), np.int64)]
    sent = upload(arrays, torch.device("cpu"))
    for found, array in zip(sent, arrays, strict=True):
        assert found.dtype == torch.int64
        assert np.array_equal(found.numpy(), array)
    assert len({found.untyped_storage().data_ptr() for found in sent}) == 1


def test_writes_happen_in_order() -> None:
    found: list[tuple[str, list[int]]] = []
    writes = Writes()
    for name, sizes in (("first", (2, 1)), ("second", ()), ("third", (3,))):

        def write(*sent: torch.Tensor, name: str = name) -> None:
            found.append((name, [len(one) for one in sent]))

        writes.add(write, *(np.arange(size) for size in sizes))
    assert found == []
    writes.send(torch.device("cpu"))
    assert found == [("first", [2, 1]), ("second", []), ("third", [3])]


def test_without_writes_nothing_is_sent() -> None:
    Writes().send(torch.device("cpu"))
