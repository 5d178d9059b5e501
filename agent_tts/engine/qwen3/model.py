"""A Qwen3-TTS checkpoint on its device, with the state of every row."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray

from agent_tts.engine.qwen3.compiling import Steps, compiling
from agent_tts.engine.qwen3.graphs import FrameGraphs, batch_sizes, rows_of_state
from agent_tts.engine.qwen3.runner import LoadedVoice, ModelRunner
from agent_tts.events import VoiceKind
from agent_tts.model import codec as codec_module
from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import BLOCK_SIZE
from agent_tts.model.prompt import PromptVoice, Reference, SpeakerPlace
from agent_tts.model.speech import SpeechModel, accelerate, can_fuse
from agent_tts.model.weights import build, plan
from agent_tts.text.tokens import Tokenizer

KINDS: dict[ModelType, VoiceKind] = {"custom_voice": "named", "voice_design": "designed", "base": "cloned"}
WARM_UP_ROWS = 16  # that are prefilled at once before the first request
SPEAKER_ENCODER = ("speaker_encoder.",)  # prefix in model.safetensors of what only enrolment needs


class Qwen3Model:
    """Reads the configuration and tokenizer of a checkpoint at once; takes memory when it is loaded.

    Args:
        max_model_len: positions of the cache that a row may use: prompt and frames of one segment of text.
        graphs: on a GPU, a step is one captured graph.
        one_size: every step is a batch of all rows, so that the rounding of a row never depends on the others.
    Raises:
        CheckpointError: the folder is not such a checkpoint, or incomplete.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        device: torch.device,
        dtype: torch.dtype,
        codec_dtype: torch.dtype,
        rows: int,
        max_model_len: int,
        graphs: bool = True,
        one_size: bool = False,
    ) -> None:
        self.name = name
        self.folder = folder
        self.config = ModelConfig.read(folder)
        self.kind = KINDS[self.config.tts_model_type]
        self.tokenizer = Tokenizer.load(folder)
        if self.tokenizer.size > self.config.talker.text_vocab_size:
            raise CheckpointError("vocab.json: more tokens than the model has embeddings for")
        self.rows = rows
        self.max_model_len = max_model_len
        # Blocks of the cache that the rows share; None gives each row all its positions. Set before `load`.
        self.blocks: int | None = None
        self.device = device
        self.dtype = dtype
        self._graphs = graphs
        self._one_size = one_size
        self._codec_dtype = codec_dtype
        self._frame = build(FrameModel, self.config)
        self._codec = build(Codec, self.config.codec)
        codec_file = folder / "speech_tokenizer/model.safetensors"
        self._plans = (
            plan(self._frame, folder / "model.safetensors", dtype, unused=SPEAKER_ENCODER),
            plan(self._codec, codec_file, self._codec_dtype, unused=codec_module.ENCODING),
        )
        # None until it is loaded.
        self._runner: ModelRunner | None = None

    @property
    def loaded(self) -> bool:
        """Whether it can speak."""
        return self._runner is not None

    @property
    def runner(self) -> ModelRunner:
        """Its rows and steps, once it is loaded."""
        assert self._runner is not None, "it has to be loaded first"
        return self._runner

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batches of its steps."""
        sizes = batch_sizes(self.rows, self.device)
        return sizes[-1:] if self._one_size else sizes

    @property
    def vector_size(self) -> int | None:
        """Values of a speaker vector; None unless it speaks cloned voices."""
        return self.config.speaker_encoder.enc_dim if self.config.speaker_encoder else None

    @property
    def weight_bytes(self) -> int:
        """Memory that its weights take on the device."""
        return sum(plan.nbytes for plan in self._plans)

    @property
    def block_bytes(self) -> int:
        """Memory of one block of the cache on the device."""
        return BLOCK_SIZE * self._position_bytes

    @property
    def cache_bytes(self) -> int:
        """Memory of the cache on the device."""
        if self.blocks is not None:
            return self.blocks * self.block_bytes
        return rows_of_state(self.rows, self.device) * (self.max_model_len + 1) * self._position_bytes

    @property
    def codec_bytes(self) -> int:
        """Memory that the codec's state takes on the device."""
        state = self._codec.init_state(rows_of_state(self.rows, self.device), "meta", self._codec_dtype)
        return sum(tensor.nbytes for tensor in (state.keys, state.values, *state.histories))

    @property
    def _position_bytes(self) -> int:
        talker = self.config.talker
        return 2 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim * self.dtype.itemsize

    def load(self) -> None:
        """Read the weights while kernels are compiled, take the memory of the state, and capture the steps."""
        times = [time.monotonic()]
        with compiling(self._steps()) as compilation:
            for part in self._plans:
                part.load(self.device)
            logger.info("{}: loaded on {} as {}", self.name, self.device, _name_of(self.dtype))
            model = SpeechModel(self._frame, self._codec)
            fused = accelerate(model)
            state = model.init_state(rows_of_state(self.rows, self.device), self.max_model_len, self.blocks)
            times.append(time.monotonic())
            compilation.wait(partial(self._tell, "kernels compiled"))
            times.append(time.monotonic())
        captured = self._graphs and self.device.type == "cuda"
        if captured:
            logger.info("{}: capturing its steps{}", self.name, ", with fused kernels" if fused else "")
        graphs = FrameGraphs(
            model,
            state,
            captured=captured,
            sizes=self.sizes,
            mixed=not self._one_size,
            progress=partial(self._tell, "captured"),
        )
        times.append(time.monotonic())
        spans = [after - before for before, after in pairwise(times)]
        logger.info("{}: weights {:.1f} s, then kernels {:.1f} s, capture {:.1f} s", self.name, *spans)
        runner = ModelRunner(model, state, graphs, self.max_model_len)
        runner.warm_up(min(self.sizes[-1], WARM_UP_ROWS) if self.device.type == "cuda" else 1)
        self._runner = runner

    def _steps(self) -> Steps | None:
        """What to compile ahead; None without fused kernels."""
        if not can_fuse(self.device, self.dtype):
            return None
        return Steps(
            folder=str(self.folder),
            dtype=_name_of(self.dtype),
            codec_dtype=_name_of(self._codec_dtype),
            max_model_len=self.max_model_len,
            paged=self.blocks is not None,
            sizes=self.sizes,
            mixed=not self._one_size,
            capability=torch.cuda.get_device_capability(self.device),
        )

    def _tell(self, what: str, done: int, total: int) -> None:
        logger.info("{}: {} of {} {}", self.name, done, total, what)

    def clone(self, vector: NDArray[np.float32], reference: Reference | None) -> LoadedVoice:
        """Load a cloned voice, with its vector float32[H]. A reference takes as long as its frames.

        Raises:
            ValueError: the vector has another size, or holds what is not finite in the model's dtype.
        """
        if len(vector) != self.config.talker.hidden_size:
            raise ValueError(f"a speaker vector of {len(vector)} values, not {self.config.talker.hidden_size}")
        placed = torch.from_numpy(vector).to(self.dtype)
        if not placed.isfinite().all():  # in the cache it would reach the next request of the row
            raise ValueError("a speaker vector with values that are not finite, or too large")
        voice = PromptVoice(SpeakerPlace.VECTOR, reference)
        identity = hashlib.sha256(vector.tobytes()).digest()
        return LoadedVoice(voice, placed.to(self.device), identity, self._after(reference) if reference else None)

    def _after(self, reference: Reference) -> CodecState:
        """The codec's state behind a reference. Decoded frame by frame: a long clip at once takes gigabytes.

        The rows are given, because kernels are compiled for that.
        """
        state = self._codec.init_state(1, self.device, self._codec_dtype)
        run = torch.ones(1, dtype=torch.bool, device=self.device)
        rows = torch.zeros(1, dtype=torch.int64, device=self.device)
        for codes in torch.tensor(reference.frames, device=self.device):
            self.runner.model.decode(state, codes[None], run, rows)
        return state


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
