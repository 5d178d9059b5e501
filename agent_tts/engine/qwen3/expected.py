"""What a device has memory for: `python -m agent_tts.engine.qwen3.expected FREE TOTAL SLOTS QWEN3`.

Bytes of a GPU (0: the device's own), slots (0: the default), and the section `qwen3` of the settings as JSON, with
folders as sources. Nothing is loaded. Prints JSON: `slots`, `streams` and `most` slots, or the `error` with which an
engine would not start.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from agent_tts.config.settings import Qwen3
from agent_tts.engine.factory import CPU_SLOTS, DEFAULT_SLOTS
from agent_tts.engine.qwen3.memory import LIBRARIES, DeviceMemory
from agent_tts.engine.qwen3.model import open_models
from agent_tts.errors import SettingsError
from agent_tts.model.device import Device

MOST = 4_096  # slots that are asked about


def expected(free: int, total: int, slots: int, settings: Qwen3) -> dict[str, Any]:
    try:
        if total and not torch.cuda.is_available():  # one that the driver shows, without a torch that uses it
            device = Device.of(torch.device("cuda:0"))
        else:
            device, *_ = [Device.named(name.strip()) for name in settings.device.split(",")]
        if not (total and device.queues):
            free, total = device.memory() or (sys.maxsize, sys.maxsize)
        memory = DeviceMemory(free, total, settings.memory, LIBRARIES if device.queues else 0)
        slots_ = slots or (DEFAULT_SLOTS if device.queues else CPU_SLOTS)
        models = open_models(settings, device.device, slots_)
        needs = [model.needs for model in models]
        plan = memory.plan(needs, slots_, settings.max_model_len, exact=bool(slots))
    except SettingsError as error:
        return {"error": str(error)}
    return {"slots": plan.slots, "streams": plan.streams, "most": memory.most(needs, settings.max_model_len, MOST)}


if __name__ == "__main__":
    free, total, slots = map(int, sys.argv[1:4])
    print(json.dumps(expected(free, total, slots, Qwen3.model_validate_json(sys.argv[4]))))
