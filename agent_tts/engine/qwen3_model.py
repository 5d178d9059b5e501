"""A Qwen3-TTS checkpoint on its device, with the state of every row; the only file of the engine that holds tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.events import VoiceKind
from agent_tts.model import codec as codec_module
from agent_tts.model.codec import Codec
from agent_tts.model.codec_state import CodecState
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel, FrameState
from agent_tts.model.layers import Cache
from agent_tts.model.prompt import Prompt, Voice
from agent_tts.model.sampling import Sampling
from agent_tts.model.weights import build, plan
from agent_tts.text.tokens import Tokenizer

KINDS: dict[ModelType, VoiceKind] = {"custom_voice": "named", "voice_design": "designed", "base": "cloned"}
# In bfloat16 the codec's sound is 23 dB above its own rounding noise (`agent-tts bench parity`), which can be heard.
CODEC_DTYPE = torch.float32
SPEAKER_ENCODER = ("speaker_encoder.",)  # what begins so in model.safetensors is for enrolment only


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one step did, for the rows that took part, in their order."""

    ended: NDArray[np.bool_]  # bool[n]: the row said the end of speech, and no frame
    finite: NDArray[np.bool_]  # bool[n]: the frame is audio
    codes: NDArray[np.int64]  # int64[n, 16]
    pcm: NDArray[np.int16]  # int16[n, 1920]


@dataclass(frozen=True, slots=True, eq=False)
class Speaker:
    """Who speaks, as the model needs it."""

    voice: Voice
    vector: Tensor | None = None  # [H], on the device
    codec: CodecState | None = None  # of one row: what follows the voice's reference; None is the start of a stream


@dataclass(frozen=True, slots=True)
class _Rows:
    """The state of all rows."""

    frame: FrameState
    codec: CodecState


class Qwen3Model:
    """Reads what a checkpoint says of itself at once; takes memory when it is loaded.

    Args:
        positions: of the cache of each row: prompt and frames of one piece of speech.
    Raises:
        CheckpointError: it is no checkpoint of this kind, or incomplete.
    """

    def __init__(
        self, folder: Path, name: str, *, device: torch.device, dtype: torch.dtype, rows: int, positions: int
    ) -> None:
        self.name = name
        self.folder = folder
        self.config = ModelConfig.read(folder)
        self.kind = KINDS[self.config.tts_model_type]
        self.tokenizer = Tokenizer.load(folder)
        if self.tokenizer.size > self.config.talker.text_vocab_size:
            raise CheckpointError("vocab.json: more tokens than the model has embeddings for")
        self.rows = rows
        self.positions = positions
        self.device = device
        self.dtype = dtype
        self._frame = build(FrameModel, self.config)
        self._codec = build(Codec, self.config.codec)
        codec_file = folder / "speech_tokenizer/model.safetensors"
        self._plans = (
            plan(self._frame, folder / "model.safetensors", dtype, unused=SPEAKER_ENCODER),
            plan(self._codec, codec_file, CODEC_DTYPE, unused=codec_module.ENCODING),
        )
        # None until it is loaded.
        self._state: _Rows | None = None

    @property
    def loaded(self) -> bool:
        """Whether it can speak."""
        return self._state is not None

    @property
    def _loaded(self) -> _Rows:
        assert self._state is not None, "it has to be loaded first"
        return self._state

    @property
    def vector_size(self) -> int | None:
        """Values of a speaker vector; None unless it speaks cloned voices."""
        return self.config.speaker_encoder.enc_dim if self.config.speaker_encoder else None

    @property
    def weight_bytes(self) -> int:
        """Memory that its weights take on the device."""
        return sum(plan.nbytes for plan in self._plans)

    @property
    def state_bytes(self) -> int:
        """Memory that the state of its rows takes on the device, but for some small tensors."""
        cache = Cache.empty(self.config.talker, self.rows, self.positions + 1, torch.device("meta"), self.dtype)
        codec = self._codec.init_state(self.rows, "meta", CODEC_DTYPE)
        return sum(t.nbytes for t in (cache.keys, cache.values, codec.keys, codec.values, *codec.histories))

    def load(self) -> None:
        """Take the memory, and read the weights."""
        for part in self._plans:
            part.load(self.device)
        frame = self._frame.init_state(self.rows, self.positions)
        self._state = _Rows(frame, self._codec.init_state(self.rows, self.device, CODEC_DTYPE))

    def speaker(self, voice: Voice, vector: NDArray[np.float32] | None = None) -> Speaker:
        """A voice made ready; `vector` float32[H] where the voice has a place for one. Takes as long as some frames.

        Raises:
            ValueError: the vector has another size.
        """
        if vector is not None and len(vector) != self.config.talker.hidden_size:
            raise ValueError(f"a speaker vector of {len(vector)} values, not {self.config.talker.hidden_size}")
        placed = None if vector is None else torch.from_numpy(vector).to(self.device, self.dtype)
        codec = None
        if voice.reference:
            codec = self._codec.init_state(1, self.device, CODEC_DTYPE)
            self._codec.decode(torch.tensor([voice.reference.frames], device=self.device), codec)
        return Speaker(voice, placed, codec)

    def join(self, row: int, prompt: Prompt, sampling: Sampling, speaker: Speaker) -> None:
        """Give a row to a prompt, whoever had it before.

        Raises:
            ValueError: the prompt is longer than the cache.
        """
        state = self._loaded
        self._frame.join(state.frame, row, prompt, sampling, speaker.vector)
        if speaker.codec:
            state.codec.put(row, speaker.codec)
        else:
            self._codec.reset(state.codec, torch.arange(self.rows, device=self.device) == row)

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """More of a row's text; the last of a complete text is followed by its end mark."""
        end = [self.config.tts_eos_token_id] if complete else []
        self._frame.add_text(self._loaded.frame, row, [*tokens, *end], complete=complete)

    def step(self, rows: Sequence[int]) -> Spoken:
        """One frame of some different rows, each of which has joined, and has text or knows that there is no more."""
        state = self._loaded
        index = torch.tensor(rows)
        run = torch.zeros(self.rows, dtype=torch.bool).index_fill(0, index, True).to(self.device)
        frame = self._frame.step(state.frame, run)
        pcm = self._codec.step(state.codec, frame.codes, frame.spoke)
        finite = pcm.isfinite().all(-1)
        samples = (pcm.nan_to_num().clamp(-1, 1) * 32_767).to(torch.int16)
        return Spoken(*(tensor.cpu()[index].numpy() for tensor in (frame.ended, finite, frame.codes, samples)))
