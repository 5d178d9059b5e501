"""What hears the user: one Whisper model for all calls, fetched and loaded beside the node's start."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.services.stt_service import STTService
from pipecat.services.whisper.stt import WhisperSTTService

from agent_tts.agent.scripted import ScriptedSTT
from agent_tts.agent.status import ComponentStatus
from agent_tts.config.settings import AgentStt
from agent_tts.voices.library import default_folder

LOOK_S = 1.0  # between two looks at how far a download is
TYPED = "Typed chat works."


class SpeechToText:
    """Loads the model once; until it is there, and if it cannot be had, calls are typed."""

    def __init__(self, settings: AgentStt) -> None:
        self._settings = settings
        # The loaded model, which takes calls from any thread. None before.
        self._model: Any = None
        # Why there is none; None when there is one, or none is wanted.
        self._message: str | None = None
        # Watches the loading. None before it begins.
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> ComponentStatus:
        """What hears now."""
        if self._settings.kind == "none":
            return ComponentStatus("none", "none", f"Speech recognition is turned off (agent.stt.kind). {TYPED}")
        if self._settings.kind == "scripted":
            return ComponentStatus(
                "scripted", "a script", f'All speech is taken for "{self._settings.words}" (agent.stt.kind).'
            )
        if self._model is None:
            return ComponentStatus("none", self._settings.model, self._message)
        return ComponentStatus("whisper", self._settings.model)

    def start(self) -> None:
        """Begin to load."""
        if self._settings.kind == "whisper":
            self._message = f"Whisper is being loaded. {TYPED}"
            self._task = asyncio.create_task(self._load(), name="loading of Whisper")

    async def close(self) -> None:
        """Wait for nothing any more. What a thread still downloads ends with the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Wait until it is known whether there is a model."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def service(self) -> STTService | None:
        """What hears in a new pipeline; None while there is nothing."""
        if self._settings.kind == "scripted":
            return ScriptedSTT(self._settings.words)
        if self._model is None:
            return None
        return _SharedWhisper(self._model, self._settings)

    async def _load(self) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[Any] = loop.create_future()

        def settle(model: Any, error: Exception | None) -> None:
            if not loaded.done():
                loaded.set_exception(error) if error is not None else loaded.set_result(model)

        def load() -> None:
            model, error = None, None
            try:
                model = _loaded(self._settings)
            except Exception as caught:  # noqa: BLE001 - whatever it is, calls are typed
                error = caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, model, error)

        # A daemon: a download that hangs must not keep the node from its end.
        threading.Thread(target=load, name="loading of Whisper", daemon=True).start()
        try:
            while not loaded.done():
                await asyncio.wait([loaded], timeout=LOOK_S)
                self._tell_progress()
            self._model = loaded.result()
        except Exception as error:  # noqa: BLE001
            self._message = f"Whisper's weights could not be had: {_reason(error, self._settings).rstrip('.')}. {TYPED}"
            logger.warning("agent: {}", self._message)
            return
        logger.info("agent: Whisper {} is loaded after {:.1f} s", self._settings.model, time.monotonic() - began)

    def _tell_progress(self) -> None:
        fetched = 0 if _local(self._settings) is not None else _size(_folder(self._settings))
        if fetched:
            self._message = f"Whisper is being fetched: {fetched / 1e6:.0f} MB so far. {TYPED}"


class _SharedWhisper(WhisperSTTService):
    """Pipecat's service on a model that was loaded before."""

    def __init__(self, model: Any, settings: AgentStt) -> None:
        self._shared = model
        super().__init__(settings=self.Settings(model=settings.model, language=settings.language or None))

    def _load(self) -> None:
        self._model = self._shared


def _loaded(settings: AgentStt) -> Any:
    """The model, fetched if need be. Blocks."""
    from faster_whisper import WhisperModel
    from faster_whisper.utils import download_model

    folder = _local(settings)
    if folder is None:
        if settings.model.count("/") > 1 or settings.model.startswith((".", "/", "~")):
            raise FileNotFoundError(f"{settings.model} is no folder with a model (model.bin and config.json)")
        logger.info("agent: fetching Whisper {} once", settings.model)
        folder = Path(download_model(settings.model, output_dir=str(_folder(settings))))
    return WhisperModel(str(folder), device=settings.device, compute_type=settings.compute_type, local_files_only=True)


def _local(settings: AgentStt) -> Path | None:
    """The folder that holds the whole model already; None if it has to be fetched."""
    for folder in (Path(settings.model).expanduser(), _folder(settings)):
        if (folder / "model.bin").is_file() and (folder / "config.json").is_file():
            return folder
    return None


def _folder(settings: AgentStt) -> Path:
    """Where a model of this name is fetched to."""
    base = Path(settings.folder).expanduser() if settings.folder else default_folder().with_name("whisper")
    return base / settings.model.replace("/", "--").lstrip(".")


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except OSError:  # a file that was moved to its place meanwhile
        return 0


def _reason(error: Exception, settings: AgentStt) -> str:
    if isinstance(error, ValueError) and "Invalid model size" in str(error):
        return f"{settings.model} is neither a folder with a model nor a name of one"
    if isinstance(error, FileNotFoundError) and not error.errno:
        return str(error)
    if isinstance(error, OSError | RuntimeError) or type(error).__module__.startswith(("huggingface_hub", "httpx")):
        return (
            f"{type(error).__name__}; connect this machine to huggingface.co, "
            "or set agent.stt.model to a folder with a model for faster-whisper"
        )
    return f"{type(error).__name__}: {error}"
