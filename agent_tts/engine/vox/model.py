"""A checkpoint of Qwen3-TTS in vox-tts: its voices, and the sessions of its rows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import vox
from loguru import logger
from numpy.typing import NDArray
from vox.formats import VoiceProfile

from agent_tts.config.settings import Settings
from agent_tts.engine.base import to_pcm16
from agent_tts.engine.qwen3.served import LoadedVoice, ServedModel, StepResult
from agent_tts.engine.vox.files import checked
from agent_tts.engine_info import FRAME_SAMPLES
from agent_tts.errors import AtCapacity, Unsupported
from agent_tts.model.config import SamplingParams
from agent_tts.model.entries import CheckpointError
from agent_tts.model.prompt import VECTOR, Prompt, PromptVoice, Reference, takes_instructions
from agent_tts.options import StoredVoices
from agent_tts.system.cores import cores

PROBE = "I understand how frustrating that must be, and I will help you right away. Is Tuesday at nine fine?"
PROBE_FRAMES = 16  # after one with the prompt
SILENCE = np.zeros(FRAME_SAMPLES, np.float32)
# What vox would read as a control token in instructions, which it gets as text.
_CONTROL = re.compile(r"<(?=\|?\w+\|?>)")


@dataclass(slots=True, eq=False)
class RowSession:
    """A row's speech of one prompt."""

    session: vox.Session
    tokens: list[int]  # that vox has not been given
    complete: bool  # those are the last
    held: list[int] = field(default_factory=list)  # the beginning of a character, whose other bytes are in later ones
    first: Future[NDArray[np.float32] | None] | None = None  # its first frame, while it is computed
    begun: bool = False  # whether that is there
    frame: NDArray[np.float32] | None = None  # pulled last; None: the end of speech


class VoxModel(ServedModel):
    """A session of vox for each row, in turn. The first frame of each, behind its prompt, is computed in a thread.

    It is its own runner, with the methods of `ModelRunner`, and `pull`.
    """

    tells_codes = False
    has_prompts = False
    adapters = None

    def __init__(self, folder: Path, name: str, settings: Settings) -> None:
        super().__init__(folder, name, settings.qwen3, settings.slots or 1)
        self._settings = settings.vox
        # How long a frame takes here, in seconds; 0 until it is loaded.
        self.frame_s = 0.0
        # None until it is loaded.
        self._engine: vox.Engine = None
        self._rows: dict[int, RowSession] = {}
        self._prompts = ThreadPoolExecutor(1, "vox prompts")
        # A number for each step, in place of its codes, of which nothing is known: speech is no loop by them.
        self._count = 0

    def load(self) -> None:
        """Map its file into memory, and try how long a frame takes. Raises CheckpointError."""
        resources = {"device": self._settings.device, "threads": max(1, int(cores())), "strict": True}
        try:
            self._engine = vox.Engine(checked(self.folder, self._settings.type), resources=resources)
            self._runner = self
            self.frame_s = self._tried_s()
        except vox.VoxError as error:
            raise CheckpointError(f"vox cannot use it: {error.message}") from error
        logger.info("{}: loaded by vox as {}; a frame takes {:.1f} ms", self.name, resources, self.frame_s * 1_000)

    def _tried_s(self) -> float:
        speaker = LoadedVoice(PromptVoice(next(iter(self.config.talker.spk_id), None)))
        if self.kind == "cloned":
            speaker = self.clone(np.ones(self.config.talker.hidden_size, np.float32), None)
        how = {"complete": False, "streaming": True, "language": "auto"}
        prompt = self.prompt(speaker.voice, self.tokenizer.encode(PROBE), "A calm voice.", **how)
        self.prefill(0, prompt, SamplingParams.of(self.config.generation), speaker)
        while not self.pull(0):
            time.sleep(0.001)
        times = [time.perf_counter()]
        while len(times) <= PROBE_FRAMES and self.pull(0):
            times.append(time.perf_counter())
        self.release(0)
        return float(median(np.diff(times)))

    def clone(self, vector: NDArray[np.float32], reference: Reference | None) -> LoadedVoice:
        """See `ServedModel.clone`."""
        if not np.isfinite(vector).all():
            raise ValueError("a speaker vector with values that are not finite, or too large")
        profile = VoiceProfile(vector, mode="xvector_only", model=self._engine.info["manifest"]["model"])
        if reference:
            role, end = self.tokenizer.role(self.config.im_start_token_id), self.tokenizer.encode("\n")
            profile.mode, profile.ref_codes = "icl", np.array(reference.frames, np.int16)
            # A whole turn, of which vox takes the text.
            tokens = (*role, *reference.text, self.config.im_end_token_id, *end)
            profile.ref_text_tokens = np.array(tokens, np.int32)
        with TemporaryDirectory(prefix="agent-tts-") as folder:
            path = Path(folder, "voice.tvoice")
            profile.save(str(path))
            return LoadedVoice(PromptVoice(VECTOR, reference), self._engine.load_voice(path))

    def prefill(self, row: int, prompt: Prompt, sampling: SamplingParams, speaker: LoadedVoice, **_: bool) -> bool:
        """Begin the speech of a prompt. Raises AtCapacity: there is too little memory; Unsupported: vox refuses it."""
        self.release(row)
        tokens, language, instructions = prompt.source
        told = _CONTROL.sub("< ", instructions) if takes_instructions(self.config) else ""
        drawn: dict[str, Any] = {name.replace("predictor_", "sub_"): value for name, value in asdict(sampling).items()}
        del drawn["min_frames"]  # 2, as the model has it
        if reference := speaker.voice.reference:
            drawn["decoder_context_frames"] = len(reference.frames)  # all of them: the codec has heard the whole clip
        drawn |= {"chunk_frames": 1, "max_frames": self.max_model_len, "markup": "off"}
        drawn["seed"] = drawn["seed"] % ((1 << 63) - 1) + 1  # 0 is none
        try:
            voice = speaker.vector or self._engine.speaker_voice(speaker.voice.speaker, told or None)
            session = self._engine.session(voice, chunk_samples=FRAME_SAMPLES, language=language, **drawn)
        except vox.VoxError as error:
            kind = AtCapacity if isinstance(error, vox.OutOfMemory) else Unsupported
            raise kind(f"vox: {error.message}") from error
        self._rows[row] = RowSession(session, [*tokens], prompt.complete)
        return True

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        known = self._rows[row]
        known.tokens += tokens
        known.complete = complete

    def reserve(self, row: int, positions: int) -> bool:
        return True

    def release(self, row: int) -> None:
        """Forget a row's speech, which stops within a layer."""
        if (known := self._rows.pop(row, None)) is not None:
            known.session.cancel()

    wipe = release  # nothing of a session is left for the next one

    def forget(self, is_gone: Callable[[StoredVoices], bool]) -> None:
        """No prompts are kept."""

    def pull(self, row: int) -> bool:
        """Compute the next frame of a row; False while its first one is being computed, or text for it is missing."""
        known = self._rows[row]
        try:
            if known.begun:
                self._feed(known)
                known.frame = next(known.session.ready(), None)
            elif known.first is None:
                self._feed(known)
                known.first = self._prompts.submit(next, known.session.ready(), None)
                return False
            elif not known.first.done():
                return False
            else:
                known.frame, known.first = known.first.result(), None
        except vox.VoxError as error:
            logger.error("{}: {}", self.name, error.message)
            known.frame = SILENCE * np.float32(np.nan)
        speaks = known.frame is not None or bool(known.session.info["finished"])
        known.begun = known.begun or speaks
        return speaks

    def _feed(self, known: RowSession) -> None:
        """Give vox its text token by token: `flush` ends a token where it would wait for the rest of a word."""
        while known.tokens:
            known.held.append(known.tokens.pop(0))
            text = self.tokenizer.decode(known.held)
            if self.tokenizer.encode(text) == known.held:  # not of a part of a character
                known.session.feed(text).flush()
                known.held.clear()
        if known.complete:
            known.session.end()

    def update(self) -> bool:
        return False

    def launch(self, rows: Sequence[int], **_: bool) -> StepResult:
        """The frames that were pulled for these rows."""
        self._count = (self._count + 1) % 30_000
        frames = [self._rows[row].frame for row in rows]
        sound = np.array([SILENCE if frame is None else frame for frame in frames])
        pcm = np.array([np.frombuffer(to_pcm16(np.nan_to_num(samples)), "<i2") for samples in sound])
        ended = np.array([frame is None for frame in frames])
        return StepResult(np.full((len(rows), 1), self._count, np.int16), pcm, ended, np.isfinite(sound).all(-1))  # pyrefly: ignore[bad-argument-type]

    def close(self) -> None:
        """Stop all rows. Idempotent."""
        for row in [*self._rows]:
            self.release(row)
        self._prompts.shutdown(cancel_futures=True)
