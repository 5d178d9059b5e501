"""What a GPU has memory for: `python -m agent_tts.engine.qwen3.expected FREE TOTAL SLOTS QWEN3`.

Bytes, slots (0: the default), and the section `qwen3` of the settings as JSON, with folders as sources. Nothing is
loaded and no GPU is used. Prints JSON: `slots`, `streams` and `most` slots, or the `error`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from agent_tts.config.settings import Qwen3
from agent_tts.engine.factory import DEFAULT_SLOTS
from agent_tts.engine.qwen3.memory import LIBRARIES, DeviceMemory
from agent_tts.engine.qwen3.model import open_models
from agent_tts.errors import SettingsError

MOST = 4_096  # slots that are asked about


def expected(free: int, total: int, slots: int, settings: Qwen3) -> dict[str, Any]:
    memory = DeviceMemory(free, total, settings.memory, LIBRARIES)
    try:
        models = open_models(settings, torch.device("cuda:0"), slots or DEFAULT_SLOTS)
        needs = [model.needs for model in models]
        plan = memory.plan(needs, slots or DEFAULT_SLOTS, settings.max_model_len, exact=bool(slots))
    except SettingsError as error:
        return {"error": str(error)}
    return {"slots": plan.slots, "streams": plan.streams, "most": memory.most(needs, settings.max_model_len, MOST)}


if __name__ == "__main__":
    free, total, slots = map(int, sys.argv[1:4])
    print(json.dumps(expected(free, total, slots, Qwen3.model_validate_json(sys.argv[4]))))
