"""Finds the file that says how a conversation's pipeline is built."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from pipecat.pipeline.pipeline import Pipeline

import agent_tts
from agent_tts.agent.call import Call
from agent_tts.errors import SettingsError

Build = Callable[[Call], Pipeline]


def pipelines_folder() -> Path:
    """Where the package's pipelines are: in the installed package, or beside it in a checkout."""
    package = Path(agent_tts.__file__).parent
    installed = package / "pipelines"
    return installed if installed.is_dir() else package.parent / "pipelines"


def load_build(path: str | None) -> Build:
    """The `build` of a Python file; of `pipelines/voice_agent.py` when None is named.

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
