"""The engine processes of a node: how many there are, and what each is told."""

from __future__ import annotations

from functools import partial

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import chosen_engine
from agent_tts.ipc.engine_process import EngineProcess


def engine_settings(settings: Settings) -> list[Settings]:
    """The settings of each engine process: the i-th has the i-th device, and the first again after the last.

    Engines that share a device share the memory that its engine may take.
    """
    if chosen_engine(settings) != "qwen3":
        return [settings] * (settings.engines or 1)
    named = [device.strip() for device in settings.qwen3.device.split(",")]
    devices = ["cuda:0" if device == "cuda" else device for device in named]
    count = settings.engines or len(devices)
    taken = [devices[number % len(devices)] for number in range(count)]
    memory = settings.qwen3.memory
    sections = [{"device": device, "memory": memory / taken.count(device)} for device in taken]
    return [settings.model_copy(update={"qwen3": settings.qwen3.model_copy(update=section)}) for section in sections]


def engine_processes(settings: Settings) -> list[partial[EngineProcess]]:
    """Makers of the engine processes; each wants `on_events` and `on_lost`. Several are told apart by a number."""
    each = engine_settings(settings)
    if len(each) == 1:
        return [partial(EngineProcess, each[0])]
    return [partial(EngineProcess, of_one, name=f"engine {number}") for number, of_one in enumerate(each)]
