"""What LoRA adapters cost a frame on a GPU.

    python3 -m tests.measure.adapter_cost [BATCH ...]      default: 1 64

The model is of the released size 1.7B with random weights. Prints for each batch the milliseconds of a frame as a CUDA
graph (median of 50 replays): by fused kernels, by modules, and by modules with 8 adapters of rank 16, one for each row
in turn; and the last over the one before.
"""

from __future__ import annotations

import json
import sys

from agent_tts.bench.frame import measure, synthetic, versions
from agent_tts.model.adapters import Adapter, AdapterBank
from agent_tts.model.device import Device

ADAPTERS, RANK = 8, 16


def main(batches: list[int]) -> None:
    model = synthetic("1.7B")
    Device.of(model.frame.talker.norm.weight.device).use()
    print(json.dumps(versions()))
    found = {"modules": {one["batch"]: one["ms"]["frame"] for one in measure(model, batches, 512, fused=False)}}
    for batch in batches:
        model = synthetic("1.7B")
        bank = AdapterBank(model.frame, batch, ADAPTERS, RANK)
        for row in range(batch):
            bank.assign(row, Adapter(row % ADAPTERS))
        (one,) = measure(model, [batch], 512, fused=False)
        found.setdefault("adapters", {})[batch] = one["ms"]["frame"]
    model = synthetic("1.7B")
    found["fused"] = {one["batch"]: one["ms"]["frame"] for one in measure(model, batches, 512, fused=True)}
    for batch in batches:
        times = {name: ms[batch] for name, ms in found.items()}
        print(json.dumps({"batch": batch, **times, "cost": round(times["adapters"] / times["modules"], 3)}))


if __name__ == "__main__":
    main([int(batch) for batch in sys.argv[1:]] or [1, 64])
