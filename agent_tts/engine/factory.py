"""Makes an engine and its loop from settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.engine.base import Engine
from agent_tts.engine.laps import Laps
from agent_tts.engine.loop import EngineLoop, policy
from agent_tts.engine.scheduler import Scheduler
from agent_tts.errors import SettingsError, needing
from agent_tts.text.normalize import prepare

DEFAULT_SLOTS = 64
CPU_SLOTS = 4  # of a neural engine without a GPU


def chosen_engine(settings: Settings) -> str:
    """The name of the configured engine; for `auto`, qwen3 if it has models, else hibari if it is here, else espeak."""
    if settings.engine != "auto":
        return settings.engine
    if settings.qwen3.models:
        return "qwen3"
    return "hibari" if find_spec("hibari") and find_spec("onnxruntime") else "espeak"


def create_engine(settings: Settings) -> Engine:
    """Load the configured engine. Raises SettingsError: it cannot run here; the message says what to do."""
    name = chosen_engine(settings)
    if settings.watermark != "none" and name != "qwen3":
        raise SettingsError(f"watermark: only the engine qwen3 marks its speech, this node's is {name}: leave it out")
    prepare()
    slots = settings.slots or DEFAULT_SLOTS
    if name == "tone":
        from agent_tts.engine.tone import ToneEngine

        return ToneEngine(settings, slots)
    if name == "qwen3":
        return _qwen3(settings)
    if name == "vox":
        with needing("vox"):
            from agent_tts.engine.vox.engine import VoxEngine
        return VoxEngine(settings, settings.slots or 0)
    try:
        from agent_tts.engine.espeak.engine import EspeakEngine
        from agent_tts.engine.espeak.workers import EspeakError
    except ImportError as error:
        raise SettingsError(f"espeak-ng is not there ({error}): install espeakng-loader") from error
    try:
        return _hibari(settings) if name == "hibari" else EspeakEngine(settings, slots)
    except (EspeakError, OSError) as error:
        raise SettingsError(f"espeak-ng cannot be loaded ({error}): install espeakng-loader anew") from error


def _hibari(settings: Settings) -> Engine:
    with needing("voice"):
        from agent_tts.engine.hibari.engine import HibariEngine
    return HibariEngine(settings, settings.slots)


def _qwen3(settings: Settings) -> Engine:
    from agent_tts.engine.qwen3.compiling import begun_ahead

    laps = Laps()
    wants_gpu = settings.qwen3.device not in ("cpu", "mps")
    with begun_ahead() if wants_gpu else nullcontext():
        with needing("qwen"):
            import torch

            from agent_tts.engine.qwen3.engine import Qwen3Engine
        laps.end("libraries")
        on_gpu = wants_gpu and torch.cuda.is_available()
        engine = Qwen3Engine(settings, settings.slots or (DEFAULT_SLOTS if on_gpu else CPU_SLOTS))
        laps.end("models and voices")
    logger.info("started: {}", laps)
    return engine


def create_loop(settings: Settings, clock: Callable[[], float] = time.monotonic) -> EngineLoop:
    """An engine and its scheduler in a loop that is ready to step."""
    engine = create_engine(settings)
    scheduler = Scheduler(policy(settings, engine.info.slots, engine.batch_sizes))
    return EngineLoop(engine, scheduler, clock, tells_stages=settings.telemetry.stages)
