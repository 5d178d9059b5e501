"""Speech recognition: one Whisper model for all calls, downloaded and loaded in the background."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray
from pipecat.frames.frames import (
    ControlFrame,
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService, STTService
from pipecat.services.whisper.stt import WhisperSTTService
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.types import assert_given

from agent_tts.agent.call import IN_RATE
from agent_tts.config.settings import AgentStt
from agent_tts.errors import SettingsError
from agent_tts.system.private_names import require
from agent_tts.system.records import user_data_folder
from agent_tts.system.threads import in_daemon

PROGRESS_S = 1.0  # between two updates of a download's progress
LONGEST_S = 30.0  # of a segment: Whisper hears so much at once; the event loop copies a longer one for too long
FRAMES_PER_S = 100  # of Whisper's input
SILENCE_S = 0.5  # behind a segment: Pipecat's
MOST_WAITING = 8  # segments of a call that are heard or recognised; what is said meanwhile is recognised too late
NO_SPEECH = 0.6  # the probability from which there are no words: Whisper's own; Pipecat's 0.4 drops "Two."
SCRIPTED_LATENCY_S = 0.1  # an upper bound; Pipecat waits that long for a transcript
# Megabytes of the weights, as Systran's repositories on the hub have them; rounded.
_SIZES = {"tiny": 75, "base": 145, "small": 484, "medium": 1_528, "large-v2": 3_087, "large-v3": 3_087}
TYPED = "Typed chat works."


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """What speech recognition or the language model is, for `GET /api/agent`."""

    kind: str
    name: str
    # One or two sentences on why another component is not used, commands between backticks; None when all is well.
    message: str | None = None


class SpeechToText:
    """Loads the model once. Calls are typed until it is loaded, and when it cannot be.

    Args:
        calls: most calls at once, which share the cores.
    """

    def __init__(self, settings: AgentStt, calls: int = 1) -> None:
        self._settings = settings
        self._calls = calls
        # The loaded model; any thread may call it. None before.
        self._model: Any = None
        # Why there is no model; None when there is one, or the settings want none.
        self._message: str | None = None
        # Follows the loading. None before `start`.
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> ComponentStatus:
        """What recognises speech now."""
        if self._settings.kind == "none":
            off = "Speech recognition is turned off: `agent-tts agent --set agent.stt.kind=whisper` turns it on."
            return ComponentStatus("none", "none", f"{off} {TYPED}")
        if self._settings.kind == "scripted":
            said = f'All speech is taken for "{self._settings.words}" (agent.stt.kind).'
            return ComponentStatus("scripted", "a script", said)
        if self._model is None:
            return ComponentStatus("none", self._settings.model, self._message)
        return ComponentStatus("whisper", self._settings.model)

    @property
    def to_download(self) -> str | None:
        """How much a start downloads first; None if nothing."""
        if self._settings.kind != "whisper" or _local(self._settings) is not None or _is_path(self._settings.model):
            return None
        size = _SIZES.get(self._settings.model.removesuffix(".en"))
        return "it" if size is None else f"about {size} MB"

    def start(self) -> None:
        if self._settings.kind == "whisper":
            self._message = f"Whisper is being loaded. {TYPED}"
            self._task = asyncio.create_task(self._load(), name="loading of Whisper")

    async def close(self) -> None:
        """Stop waiting. A thread that still downloads ends with the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self) -> None:
        """Wait until the model is loaded or has failed to load."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def service(self) -> STTService | None:
        """The service for a new pipeline; None while there is no model."""
        if self._settings.kind == "scripted":
            return ScriptedSTT(self._settings.words)
        if self._model is None:
            return None
        return _SharedWhisper(self._model, self._settings)

    async def _load(self) -> None:
        began = time.monotonic()
        loading = in_daemon(lambda: _loaded(self._settings, self._calls), "loading of Whisper")
        loaded = asyncio.wrap_future(loading)
        try:
            while not loaded.done():
                await asyncio.wait([loaded], timeout=PROGRESS_S)
                self._tell_progress()
            self._model = loaded.result()
        except Exception as error:  # noqa: BLE001 - on any failure, calls are typed
            self._message = f"Whisper could not be loaded: {_reason(error, self._settings).rstrip('.')}. {TYPED}"
            logger.warning("agent: {}", self._message)
            return
        finally:
            loaded.cancel()
        logger.info("agent: Whisper {} is loaded after {:.1f} s", self._settings.model, time.monotonic() - began)

    def _tell_progress(self) -> None:
        fetched = 0 if _local(self._settings) is not None else _size(_folder(self._settings))
        if fetched:
            whole = _SIZES.get(self._settings.model.removesuffix(".en"))
            far = f"{fetched / 1e6:.0f} MB so far" if whole is None else f"{fetched / 1e6:.0f} of about {whole} MB"
            self._message = f"Whisper is being downloaded: {far}. {TYPED}"


@dataclass
class RecognisingFrame(ControlFrame):
    """How much of the user's speech is not recognised yet, from the beginning of a voice. It follows its words."""

    segments: int
    interruptible: bool = field(default=False, init=False)


_BUFFER = "_audio_buffer _user_speaking _handle_user_started_speaking _handle_user_stopped_speaking _settings"
require("pipecat-ai", {SegmentedSTTService: _BUFFER, WhisperSTTService: "_load _model"})


class SegmentedRecogniser(SegmentedSTTService):
    """Says when a segment, of `LONGEST_S` at most, begins to be heard and is recognised, with or without words.

    It begins to recognise one in each pause that may be its end.
    """

    # Segments that are heard or recognised now.
    _waiting = 0
    # Recognises the segment so far. None: the voice has not paused, or has gone on.
    _ahead: asyncio.Task[list[Frame | None]] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Of the segments in Pipecat's queue, what recognises each already.
        self._begun: deque[asyncio.Task[list[Frame | None]] | None] = deque()

    @property
    def wants_wav_segments(self) -> bool:
        return False

    async def pause(self, pauses: bool) -> None:
        """The voice pauses, or goes on."""
        await self._drop_ahead()
        if pauses and self._user_speaking and self.is_usable and self._waiting <= MOST_WAITING:
            audio = bytes(self._audio_buffer) + bytes(round(SILENCE_S * self.sample_rate) * 2)
            self._ahead = self.create_task(_all_of(self.run_stt(audio)), name="recognition in a pause")

    async def process_audio_frame(self, frame: InputAudioRawFrame, direction: FrameDirection) -> None:
        await super().process_audio_frame(frame, direction)
        if self._user_speaking and len(self._audio_buffer) >= LONGEST_S * self.sample_rate * 2:
            await self._handle_user_stopped_speaking(VADUserStoppedSpeakingFrame())
            await self._handle_user_started_speaking(VADUserStartedSpeakingFrame())

    async def _handle_user_started_speaking(self, frame: VADUserStartedSpeakingFrame) -> None:
        await super()._handle_user_started_speaking(frame)
        await self._count(1)

    async def _handle_user_stopped_speaking(self, frame: VADUserStoppedSpeakingFrame) -> None:
        if not self._waiting:  # no beginning was heard
            return
        if self.is_usable and self._waiting <= MOST_WAITING:
            ahead, self._ahead = self._ahead, None
            self._begun.append(ahead)
            await super()._handle_user_stopped_speaking(frame)
        else:
            await self._drop_ahead()
            self._user_speaking = False
            self._audio_buffer.clear()
            await self._count(-1)
            logger.warning("agent: speech is left out: the recogniser is late, or gone")

    async def process_generator(self, generator: AsyncGenerator[Frame | None, None]) -> None:
        """Push what a segment is recognised as. Cancelling it is safe."""
        ahead = self._begun.popleft()
        try:
            await super().process_generator(generator if ahead is None else _made_by(ahead))
        finally:
            await self._count(-1)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._drop_ahead()

    async def _count(self, more: int) -> None:
        self._waiting += more
        await self.push_frame(RecognisingFrame(self._waiting))

    async def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.cancel_task(ahead)


async def _all_of(generator: AsyncGenerator[Frame | None, None]) -> list[Frame | None]:
    return [frame async for frame in generator]


async def _made_by(ahead: asyncio.Task[list[Frame | None]]) -> AsyncGenerator[Frame | None, None]:
    for frame in await ahead:
        yield frame


class _SharedWhisper(SegmentedRecogniser, WhisperSTTService):
    """Pipecat's service on a model that is already loaded."""

    def __init__(self, model: Any, settings: AgentStt) -> None:
        self._shared = model
        language = settings.language or None
        super().__init__(settings=self.Settings(model=settings.model, language=language))

    def _load(self) -> None:
        self._model = self._shared

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        """Recognise pcm_s16le. The `result` of a frame is how sure it is: the mean logarithm of a probability."""
        samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32_768
        settings: Any = self._settings
        language = assert_given(settings.language)
        heard = await asyncio.to_thread(lambda: list(self._shared.transcribe(samples, language=language)[0]))
        words = [one for one in heard if one.no_speech_prob < NO_SPEECH]
        if words:
            text, sure = " ".join(one.text.strip() for one in words), min(one.avg_logprob for one in words)
            yield TranscriptionFrame(text, "", time_now_iso8601(), language, sure)


class ScriptedSTT(SegmentedRecogniser):
    """Recognises `words` in all speech, so that a call can be measured without weights."""

    def __init__(self, words: str) -> None:
        super().__init__(settings=STTSettings(model="scripted", language=None), ttfs_p99_latency=SCRIPTED_LATENCY_S)
        self._words = words

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        yield TranscriptionFrame(self._words, "", time_now_iso8601(), None)


MOST_THREADS = 4  # of a segment: more gain nothing
# Guesses that are kept at each word of a short segment. With Whisper's 5 it takes 10 % longer, and understands as much:
# of 68 sentences in quiet 1.2 % of words are wrong with either, of 108 in noise 5.0 and 4.8 % (tiny.en); with 1 5.6 %.
BEAM = 2


def shares(cores: int, calls: int, threads: int | None = None) -> tuple[int, int]:
    """(segments recognised at once, threads of each), so that no more threads work than there are cores.

    CTranslate2's default has as many threads for each segment as there are cores: with two calls they wait for one
    another.
    """
    workers = max(1, min(cores, calls) if threads is None else min(cores // threads, calls))
    return workers, threads or max(1, min(MOST_THREADS, cores // workers))


# Of what Whisper hears of a segment, and of silence behind it. With less it repeats words: of 115 sentences one comes
# twice with 6.5 s, ten with 5 s, none with 8 s (tiny.en).
LEAST_S, AFTER_S = 8.0, 1.0


def heard_part(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Whisper's input without the zeros at its end, but of `LEAST_S` at least: float32[mel bands, frames of 10 ms]."""
    frames = np.flatnonzero(features.any(axis=0))
    last = max(round(LEAST_S * FRAMES_PER_S), int(frames[-1]) + 1 if len(frames) else 0)
    return np.ascontiguousarray(features[:, : last + last % 2])


def _loaded(settings: AgentStt, calls: int = 1) -> Any:
    """The model, downloaded if it is not in a folder. Blocks."""
    from ctranslate2 import get_cuda_device_count
    from faster_whisper import WhisperModel
    from faster_whisper.utils import download_model

    class ShortWhisper(WhisperModel):
        """Hears no more than a segment, and decodes one of less than `retry_s` seconds once.

        Whisper fills what it hears up to 30 s, which takes four times as long as a sentence. Its retries at higher
        temperatures cost up to five times as much, and make up words: a doubtful "mm" stays one.
        """

        def transcribe(self, audio: NDArray[np.float32], **options: Any) -> Any:
            """`audio`: float32[n] at `IN_RATE`, full scale 1."""
            once = {"temperature": 0.0, "beam_size": BEAM} if len(audio) < settings.retry_s * IN_RATE else {}
            least_s = max(LEAST_S, min(len(audio) / IN_RATE + AFTER_S, LONGEST_S))
            audio = np.pad(audio, (0, max(0, round(least_s * IN_RATE) - len(audio))))
            return super().transcribe(audio, without_timestamps=True, **options, **once)

        def encode(self, features: NDArray[np.float32]) -> Any:
            return super().encode(heard_part(features))

    folder = _local(settings)
    if folder is None:
        if _is_path(settings.model):
            raise SettingsError(f"{settings.model} is not a folder with a model (model.bin and config.json)")
        logger.info("agent: downloading Whisper {} once", settings.model)
        folder = Path(download_model(settings.model, output_dir=str(_folder(settings))))
    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not get_cuda_device_count())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers, threads = shares(cores, calls, settings.threads)
    return ShortWhisper(
        str(folder),
        device=settings.device,
        compute_type="int8" if on_cpu and settings.compute_type == "default" else settings.compute_type,
        cpu_threads=threads,
        num_workers=workers,
        local_files_only=True,
    )


def _local(settings: AgentStt) -> Path | None:
    """The folder with the whole model; None if it has to be downloaded."""
    for folder in (Path(settings.model).expanduser(), _folder(settings)):
        if (folder / "model.bin").is_file() and (folder / "config.json").is_file():
            return folder
    return None


def _is_path(model: str) -> bool:
    return model.count("/") > 1 or model.startswith((".", "/", "~"))


def _folder(settings: AgentStt) -> Path:
    """Where a model of this name is downloaded to."""
    base = Path(settings.folder).expanduser() if settings.folder else user_data_folder() / "whisper"
    return base / settings.model.replace("/", "--").lstrip(".")


def _size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except OSError:  # a file was moved to its place meanwhile
        return 0


def _reason(error: Exception, settings: AgentStt) -> str:
    if isinstance(error, ValueError) and "Invalid model size" in str(error):
        return f"{settings.model} is neither a folder with a model nor a name of one"
    if isinstance(error, SettingsError):
        return str(error)
    if isinstance(error, OSError | RuntimeError) or type(error).__module__.startswith(("huggingface_hub", "httpx")):
        return (
            f"{type(error).__name__}; connect this machine to huggingface.co, "
            "or name a folder with a model for faster-whisper: `agent-tts agent --whisper FOLDER`"
        )
    return f"{type(error).__name__}: {error}"
