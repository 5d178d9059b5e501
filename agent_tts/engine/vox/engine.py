"""VoxEngine: Qwen3-TTS by vox-tts, in C++ on CPUs and by Vulkan, for machines without an NVIDIA GPU. Experimental."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.row import Row
from agent_tts.engine.qwen3.served import ServedModel, named, opened
from agent_tts.engine.slots import Opened
from agent_tts.engine.vox.files import SMALLER
from agent_tts.engine.vox.model import VoxModel
from agent_tts.engine_info import FRAME_MS
from agent_tts.errors import SettingsError, Unsupported
from agent_tts.options import AnyVoice

SPARE = 1.1  # of the time of a frame, for what else the machine does
MOST_SLOTS = 64


class VoxEngine(Qwen3Engine):
    """Speaks the frames of a step one after the other.

    Raises:
        SettingsError: there is no model or no file of it, or none runs in real time.
    """

    name = "vox"

    def _open(self, settings: Settings, slots: int) -> Sequence[ServedModel]:
        models = opened(settings.qwen3, lambda folder, name: VoxModel(folder, name, settings))
        for model in models:
            with named(model.folder):
                model.load()
        slowest = max(models, key=lambda model: model.frame_s)
        carried = min(MOST_SLOTS, int(FRAME_MS / (SPARE * slowest.frame_s * 1_000)))
        if not (settings.slots or carried):
            smaller = "a model of 0.6B" if slowest.config.tts_model_size == "1b7" else "the engine hibari or espeak"
            instead = f"vox.type={SMALLER[settings.vox.type]}" if settings.vox.type in SMALLER else smaller
            took = f"a frame of {slowest.name} as {settings.vox.type} takes {slowest.frame_s * 1_000:.0f} ms here"
            limit = f"{FRAME_MS / SPARE:.0f} ms are real time"
            raise SettingsError(f"vox: {took}, {limit}: try {instead}; or --slots 1, slower than speech")
        logger.info("vox: {} slots; {} in real time", settings.slots or carried, carried)
        models[0].rows = settings.slots or carried
        return models

    def _able(self, model: ServedModel, rows: list[Row]) -> list[Row]:
        return [row for row in rows if model.runner.pull(row.feed.slot)]

    def _make(self, opened: Opened, slot: int) -> Row:
        options = opened.options
        if options.text_mode == "whole":
            raise Unsupported("the engine vox speaks a text as it comes: text_mode live or auto")
        if isinstance(self._voices.choose(options).voice, AnyVoice):
            raise Unsupported("the engine vox speaks no voice of nobody: name a cloned one")
        return super()._make(replace(opened, options=replace(options, text_mode="live")), slot)
