"""What LoRA adapters cost a frame on a GPU.

    python3 -m tests.measure.adapter_cost [BATCH ...]      default: 1 64

The model is of the released size 1.7B with random weights. Prints for each batch the milliseconds of a frame as a CUDA
graph (median of 50 replays) by fused kernels: without adapters, and with 8 of rank 16, of which the rows have none, and
one for each row in turn; and the last over the first.
"""

from __future__ import annotations

import json
import sys

import torch

from agent_tts.bench.frame import measure, synthetic, versions
from agent_tts.model.adapters import Adapter, AdapterBank
from agent_tts.model.device import Device
from agent_tts.model.speech import accelerate

ADAPTERS, RANK = 8, 16


def main(batches: list[int]) -> None:
    Device.of(torch.device("cuda", 0)).use()
    print(json.dumps(versions()))
    found = {
        name: {batch: measured(batch, own) for batch in batches}
        for name, own in (("none", None), ("unused", 0), ("each", 1))
    }
    for batch in batches:
        times = {name: ms[batch] for name, ms in found.items()}
        print(json.dumps({"batch": batch, **times, "cost": round(times["each"] / times["none"], 3)}))


def measured(batch: int, own: int | None) -> float:
    """Milliseconds of a frame; `own` adapters a row, None without any in the model."""
    model = synthetic("1.7B")
    bank = None if own is None else AdapterBank(model.frame, batch, ADAPTERS, RANK)
    for row in range(batch if bank and own else 0):
        assert bank
        bank.assign(row, Adapter(row % ADAPTERS))
    accelerate(model, bank)
    (one,) = measure(model, [batch], 512, fused=False)
    return float(one["ms"]["frame"])


if __name__ == "__main__":
    main([int(batch) for batch in sys.argv[1:]] or [1, 64])
