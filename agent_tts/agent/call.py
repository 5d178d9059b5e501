"""What a pipeline's file is given for one call, and how that file is loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.transports.base_transport import BaseTransport

import agent_tts
from agent_tts.agent.turns import Turns
from agent_tts.config.settings import Agent
from agent_tts.errors import SettingsError
from agent_tts.integrations.pipecat import AgentTTSService


@dataclass(frozen=True, slots=True)
class Call:
    """The argument of `build(call)`, which a pipeline's file defines and which returns a `Pipeline`."""

    id: str
    settings: Agent
    transport: BaseTransport
    stt: STTService | None  # None: the user types
    llm: FrameProcessor  # a language model, or the built-in responder
    tts: AgentTTSService  # in this process
    turns: Turns  # observes the call; the argument of its `Playout`


Build = Callable[[Call], Pipeline]


def pipelines_folder() -> Path:
    """The package's pipelines: in the installed package, or beside it in a checkout."""
    package = Path(agent_tts.__file__).parent
    installed = package / "pipelines"
    return installed if installed.is_dir() else package.parent / "pipelines"


def load_build(path: str | None) -> Build:
    """The `build` of a Python file; None is `pipelines/voice_agent.py`.

    Raises:
        SettingsError: there is no such file, it cannot be run, or it has no `build`.
    """
    file = pipelines_folder() / "voice_agent.py" if path is None else Path(path).expanduser()
    spec = importlib.util.spec_from_file_location(f"agent_tts_pipeline_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise SettingsError(f"agent.pipeline: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingsError(f"agent.pipeline: {file.name} cannot be run: {type(error).__name__}: {error}") from error
    build: Build | None = getattr(module, "build", None)
    if not callable(build):
        raise SettingsError(f"agent.pipeline: {file.name} has no function build(call)")
    return build
