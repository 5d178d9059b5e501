"""A Qwen3-TTS checkpoint on its device, with the state of every row."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray

from agent_tts.engine.qwen3.admission import Admission, LoadedVoice
from agent_tts.engine.qwen3.compiling import Steps, compiling
from agent_tts.engine.qwen3.graphs import FrameGraphs, LaunchedStep, batch_sizes, most_rows, rows_of_state
from agent_tts.events import VoiceKind
from agent_tts.model import codec as codec_module
from agent_tts.model.block_allocator import BlockAllocator
from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import BLOCK_SIZE
from agent_tts.model.prompt import Position, Prompt, PromptVoice, Reference
from agent_tts.model.sampling import SamplingParams
from agent_tts.model.speech import SpeechModel, SpeechState, accelerate, can_fuse
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
        self._running: _Running | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batches of its steps: on a CPU always all rows."""
        if self._one_size or self.device.type != "cuda":
            return (most_rows(self.rows, self.device),)
        return tuple(batch_sizes(self.rows))

    @property
    def loaded(self) -> bool:
        """Whether it can speak."""
        return self._running is not None

    @property
    def _loaded(self) -> _Running:
        assert self._running is not None, "it has to be loaded first"
        return self._running

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
            compilation.wait(self._tell_compiled)
            times.append(time.monotonic())
        blocks = BlockAllocator(state.frame.cache) if self.blocks is not None else None
        captured = self._graphs and self.device.type == "cuda"
        if captured:
            logger.info("{}: capturing its steps{}", self.name, ", with fused kernels" if fused else "")
        runner = FrameGraphs(
            model,
            state,
            captured=captured,
            buckets=() if self._one_size else None,
            mixed=not self._one_size,
            progress=self._tell,
        )
        admission = Admission(model, state, self.max_model_len, blocks, runner.prefill_budget)
        times.append(time.monotonic())
        spans = [after - before for before, after in pairwise(times)]
        logger.info("{}: weights {:.1f} s, then kernels {:.1f} s, capture {:.1f} s", self.name, *spans)
        running = _Running(model, state, runner, admission)
        running.warm_up(min(self.sizes[-1], WARM_UP_ROWS) if self.device.type == "cuda" else 1)
        self._running = running

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

    def _tell_compiled(self, done: int, total: int) -> None:
        logger.info("{}: {} of {} kernels compiled", self.name, done, total)

    def _tell(self, done: int, total: int) -> None:
        logger.info("{}: {} of {} captured", self.name, done, total)

    def speaker(self, voice: PromptVoice, vector: NDArray[np.float32] | None = None) -> LoadedVoice:
        """Load a voice; `vector` float32[H] where its prompt has a place for one. Takes as long as some frames.

        Raises:
            ValueError: the vector has another size, or holds what is not finite in the model's dtype.
        """
        if vector is not None and len(vector) != self.config.talker.hidden_size:
            raise ValueError(f"a speaker vector of {len(vector)} values, not {self.config.talker.hidden_size}")
        placed = None if vector is None else torch.from_numpy(vector).to(self.dtype)
        if placed is not None:
            if not placed.isfinite().all():  # in the cache it would reach the next request of the row
                raise ValueError("a speaker vector with values that are not finite, or too large")
            placed = placed.to(self.device)
        identity = b"" if vector is None else hashlib.sha256(vector.tobytes()).digest()
        return LoadedVoice(voice, placed, identity, self._after(voice.reference) if voice.reference else None)

    def _after(self, reference: Reference) -> CodecState:
        """The codec's state behind a reference. Decoded frame by frame: a long clip at once takes gigabytes.

        The rows are given, because kernels are compiled for that.
        """
        state = self._codec.init_state(1, self.device, self._codec_dtype)
        run = torch.ones(1, dtype=torch.bool, device=self.device)
        rows = torch.zeros(1, dtype=torch.int64, device=self.device)
        for codes in torch.tensor(reference.frames, device=self.device):
            self._loaded.model.decode(state, codes[None], run, rows)
        return state

    def prefill(self, row: int, prompt: Prompt, sampling: SamplingParams, speaker: LoadedVoice) -> bool:
        """Prefill a row, whatever it held before; True when the row may decode after the next update.

        False while the cache has no room or the prompt is being computed, which steps do: call it again with the same
        prompt.

        Raises:
            ValueError: the prompt is longer than the cache, or needs a speaker's vector.
        """
        return self._loaded.admission.prefill(row, prompt, sampling, speaker)

    def reserve(self, row: int, positions: int) -> bool:
        """Reserve the first `positions` of the cache for a row; False when the other rows have taken all blocks."""
        return self._loaded.admission.reserve(row, positions)

    def release(self, row: int) -> None:
        """Free a row until its next prefill."""
        if self._running:
            self._running.admission.release(row)

    @torch.inference_mode()
    def wipe(self, row: int) -> None:
        """Overwrite all that a row holds: a mask hides old numbers from the next request, but a masked NaN is NaN."""
        state = self._loaded.state
        blocks = state.frame.cache.block_table[row]
        for cache in (state.frame.cache.keys, state.frame.cache.values):
            cache[:, blocks] = 0
        for ring in (state.codec.keys, state.codec.values):
            ring[:, row] = 0

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """More of a row's text; the last of a complete text is followed by its end mark."""
        end = [self.config.tts_eos_token_id] if complete else []
        self._loaded.admission.add_text(row, [*tokens, *end], complete=complete)

    def update(self) -> bool:
        """Send the changes of rows to the device, ahead of a step; whether the step computes prompts."""
        return self._running is not None and self._running.admission.update()

    @property
    def has_prompts(self) -> bool:
        """Whether prompts wait to be computed by a step."""
        return self._running is not None and self._running.admission.has_prompts

    def launch(self, rows: Sequence[int]) -> LaunchedStep | None:
        """Begin a step: prompts that wait, and a frame of different rows; None with no rows.

        At most the largest of `sizes`. Each has its prompt in the cache, and has text left or its whole text.
        """
        return self._loaded.launch(rows)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class _Running:
    """The parts of a loaded model."""

    model: SpeechModel
    state: SpeechState
    graphs: FrameGraphs
    admission: Admission

    def launch(self, rows: Sequence[int]) -> LaunchedStep | None:
        """See `Qwen3Model.launch`."""
        launched, ends = self.graphs.step(rows, self.admission.take())
        self.admission.computed(ends)
        return launched

    def warm_up(self, most: int) -> None:
        """Run up to `most` rows, as many as the cache holds: what is loaded or allocated on first use would delay
        the first requests.
        """
        prompt = Prompt((Position(0, None),) * 16, shared=16, start=None, text=(0,), complete=False)
        speaker, prefill = LoadedVoice(PromptVoice()), self.admission.prefill
        for rows in map(range, sorted({1, most})):
            self.admission.prefixes.clear()
            for _ in ("computed", "kept"):
                ready: list[int] = []
                for _ in range(len(rows) + 1):  # each step computes one prompt at least
                    ready += [
                        row for row in rows if row not in ready and prefill(row, prompt, SamplingParams(), speaker)
                    ]
                    self.admission.update()
                    if launched := self.launch(ready):
                        launched.result()
                for row in rows:
                    self.admission.release(row)
        self.admission.prefixes.clear()
        self.admission.update()
