"""What rows speak with: a checkpoint of Qwen3-TTS, whatever computes its frames. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agent_tts.config.settings import Qwen3
from agent_tts.engine.qwen3.segment_feed import SEGMENT_S, SEGMENT_TOKENS
from agent_tts.engine_info import VoiceKind
from agent_tts.errors import SettingsError
from agent_tts.model.config import ModelConfig, ModelType, SamplingParams
from agent_tts.model.entries import CheckpointError
from agent_tts.model.prompt import Prompt, PromptVoice, Reference, build_prompt, takes_instructions
from agent_tts.options import StoredVoices
from agent_tts.text.directives import Ability
from agent_tts.text.tokens import Tokenizer
from agent_tts.voices import LANGUAGES

if TYPE_CHECKING:
    from agent_tts.model.adapters import Adapter
    from agent_tts.model.codec import CodecState

KINDS: dict[ModelType, VoiceKind] = {"custom_voice": "named", "voice_design": "designed", "base": "cloned"}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVoice:
    voice: PromptVoice
    vector: Any = None  # Tensor[H], on the device; of vox, its voice. None without one
    identity: bytes = b""  # of the vector: the same for equal ones
    codec: CodecState | None = None  # of one row, behind the voice's reference; None is the start of a stream
    stored: StoredVoices | None = None  # what it is of the library; None for other voices
    adapter: Adapter | None = None  # None: the model as it is


@dataclass(frozen=True, slots=True)
class StepResult:
    """What `speech.pack` gives, for the n rows of a step; overwritten by the second launch after it."""

    codes: NDArray[np.int16]  # [n, 16]
    pcm: NDArray[np.int16]  # [n, 1920]
    ended: NDArray[np.bool_]  # [n]
    finite: NDArray[np.bool_]  # [n]

    def of(self, rows: Sequence[bool]) -> StepResult:
        """Of those rows alone; a copy."""
        of = np.array(rows, np.bool_)
        return StepResult(self.codes[of], self.pcm[of], self.ended[of], self.finite[of])

    def result(self) -> StepResult:
        """As of a `LaunchedStep`: it is one that is done."""
        return self


class ServedModel:
    """Reads the configuration and tokenizer of a checkpoint at once; takes memory when it is loaded.

    Raises:
        CheckpointError: the folder is not such a checkpoint, or incomplete.
    """

    tells_codes = True  # whether a step has all codes of its frames
    queues = False  # whether a step is launched, and the next one prepared while it runs
    use: Callable[[], None] | None = None  # makes its device that of the present thread

    def __init__(self, folder: Path, name: str, settings: Qwen3, rows: int) -> None:
        self.name = name
        self.folder = folder
        self.config = ModelConfig.read(folder)
        self.kind = KINDS[self.config.tts_model_type]
        self.tokenizer = Tokenizer.load(folder)
        if self.tokenizer.size > self.config.talker.text_vocab_size:
            raise CheckpointError("vocab.json: more tokens than the model has embeddings for")
        try:
            SamplingParams.of(self.config.generation)
        except ValueError as error:
            raise CheckpointError(f"generation_config.json: {error}") from None
        self.rows = rows
        # Positions of the cache that a row may use: prompt and frames of one segment of text.
        self.max_model_len = settings.max_model_len
        # Tokens after which the end of a sentence ends a segment.
        self.piece_tokens = round(settings.piece_s * SEGMENT_TOKENS / SEGMENT_S)
        # What computes its frames: a `ModelRunner`, or what has the same methods. None until it is loaded.
        self._runner: Any = None

    @property
    def loaded(self) -> bool:
        return self._runner is not None

    @property
    def runner(self) -> Any:
        assert self._runner is not None, "it has to be loaded first"
        return self._runner

    def load(self) -> None:
        raise NotImplementedError

    def clone(self, vector: NDArray[np.float32], reference: Reference | None) -> LoadedVoice:
        """A cloned voice, with its vector float32[H]. Raises ValueError: the vector is no use."""
        raise NotImplementedError

    def close(self) -> None:
        """End what it does in the background. Idempotent."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """See `Engine.batch_sizes`."""
        return ()

    @property
    def vector_size(self) -> int | None:
        """Values of a speaker vector; None unless it speaks cloned voices."""
        return self.config.speaker_encoder.enc_dim if self.config.speaker_encoder else None

    @property
    def instructed(self) -> bool:
        """Whether it obeys instructions on how to speak; a clone speaks as its clip does."""
        return self.kind != "cloned" and takes_instructions(self.config)

    @property
    def abilities(self) -> tuple[Ability, ...]:
        """Which directives have an effect. Other instructions would make another voice of a designed one."""
        style: tuple[Ability, ...] = ("style",) if self.kind == "named" and self.instructed else ()
        return ("pause", "speed", "volume", "language", *style)

    @cached_property
    def languages(self) -> dict[str, str]:
        """Every name and code of a language that it speaks -> its code; a dialect is its own code."""
        codes = {name: LANGUAGES.get(name, name) for name in self.config.talker.codec_language_id}
        return codes | {code: code for code in codes.values()}

    def prompt(self, voice: PromptVoice, text: Sequence[int], instructions: str, **how: Any) -> Prompt:
        """The prompt of a segment, from tokens of its text; see `build_prompt`."""
        ids = (self.config.im_start_token_id, self.config.im_end_token_id)
        instruct = self.tokenizer.instruction(instructions, *ids) if instructions else ()
        role = self.tokenizer.role(self.config.im_start_token_id)
        made = build_prompt(self.config, voice, role=role, text=text, instruct=instruct, **how)
        return replace(made, source=(tuple(text), how["language"], instructions))


ServedT = TypeVar("ServedT", bound=ServedModel)


def opened(settings: Qwen3, make: Callable[[Path, str], ServedT]) -> list[ServedT]:
    """A model of each checkpoint; they take no memory yet. Raises SettingsError: a checkpoint is no use."""
    if not settings.models:
        raise SettingsError("qwen3.models: it needs a model: --model FOLDER, or a hub id; `--config gpu` has three")
    models: list[ServedT] = []
    for checkpoint in settings.models:
        folder = Path(checkpoint.source).expanduser()
        with named(folder):
            models.append(make(folder, _name(folder, models)))
    return models


@contextmanager
def named(folder: Path) -> Iterator[None]:
    """Errors of a checkpoint name its folder."""
    try:
        yield
    except CheckpointError as error:
        raise SettingsError(f"qwen3.models: {folder.name}: {error}") from error


def _name(folder: Path, taken: Iterable[ServedModel]) -> str:
    """The model's name for clients: that of its folder, or of the repository in the hub's cache. Unique."""
    repository = next((part for part in folder.parts if part.startswith("models--")), None)
    name = repository.rpartition("--")[2] if repository else folder.resolve().name
    names = {model.name for model in taken}
    number = next(n for n in range(1, 1_000) if (name if n == 1 else f"{name}-{n}") not in names)
    return name if number == 1 else f"{name}-{number}"
