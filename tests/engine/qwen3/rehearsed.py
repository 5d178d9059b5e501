"""Which launches a rehearsal of a checkpoint's configuration finds, as JSON: `python -m ... FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_tts.engine.qwen3 import compiling
from agent_tts.engine.qwen3.compiling import Steps

if TYPE_CHECKING:
    from agent_tts.model.kernels.ahead import Launch


# On an H100, of all kinds.
STEPS = Steps(
    "", "bfloat16", "float16", 64, paged=True, sizes=(1,), mixed=True, watermark=True, adapters=(0, 0),
    fp8_weights=False, fp8_cache=False, architecture="sm_90",
)  # fmt: skip


def rehearsed(steps: Steps, layers: int = compiling.LAYERS) -> dict[Hashable, Launch]:
    """The launches by variant."""
    from agent_tts.model.kernels.ahead import Rehearsal
    from agent_tts.model.kernels.architectures import architecture

    compiling.LAYERS = layers
    rehearsal = Rehearsal(architecture(steps.architecture))
    compiling._rehearse(steps, rehearsal)
    return rehearsal.launches


def main() -> None:
    compiling.leave_out_compiler()  # before torch is imported
    from agent_tts.model.kernels import codec

    largest = replace(STEPS, folder=sys.argv[1], max_model_len=2_048, sizes=(256,), adapters=(2, 4))
    both = replace(largest, sizes=(1, 256))
    of_largest, of_both = rehearsed(largest), rehearsed(both).keys()
    every = rehearsed(both, layers=1_000).keys()
    linear = [launch.arguments for launch in of_largest.values() if launch.kernel is codec.linear]
    found = {
        "layers": [of_both == every, rehearsed(both, layers=1).keys() == every],
        "steps without a ring": sorted({one["T"] for one in linear if one["ring"] is None}),
        "steps in a ring": sorted({one["T"] for one in linear if one["ring"] is not None}),
        "compiler": "torch._dynamo.config" in sys.modules,  # of torch
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
