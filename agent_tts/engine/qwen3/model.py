"""Qwen3-TTS checkpoints: opened from the settings, checked against the memory, and loaded on their device."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray

from agent_tts.config.settings import Qwen3, Settings
from agent_tts.engine.laps import Laps
from agent_tts.engine.qwen3.compiling import Compilation, Steps
from agent_tts.engine.qwen3.graphs import FrameGraphs, batch_sizes, rows_of_state
from agent_tts.engine.qwen3.runner import LoadedVoice, ModelRunner
from agent_tts.errors import SettingsError
from agent_tts.events import VoiceKind
from agent_tts.model import codec as codec_module
from agent_tts.model.adapters import AdapterBank
from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import BLOCK_SIZE
from agent_tts.model.prompt import PromptVoice, Reference, SpeakerPlace, takes_instructions
from agent_tts.model.sampling import SamplingParams
from agent_tts.model.speech import SpeechModel, can_fuse, put_kernels
from agent_tts.model.watermark import Watermark
from agent_tts.model.watermark_weights import load_watermark
from agent_tts.model.weights import CODEC, MODEL, build, plan
from agent_tts.text.directives import Ability
from agent_tts.text.tokens import Tokenizer
from agent_tts.voices import LANGUAGES

GIB = 1 << 30
USUAL_SHARE = Qwen3().memory  # of the free memory; graphs and libraries take the rest
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KINDS: dict[ModelType, VoiceKind] = {"custom_voice": "named", "voice_design": "designed", "base": "cloned"}
WARM_UP_ROWS = 16  # that are prefilled at once before the first request
SPEAKER_ENCODER = ("speaker_encoder.",)  # prefix in model.safetensors of what only enrolment needs


class Qwen3Model:
    """Reads the configuration and tokenizer of a checkpoint at once; takes memory when it is loaded.

    Raises:
        CheckpointError: the folder is not such a checkpoint, or incomplete.
    """

    def __init__(self, folder: Path, name: str, settings: Qwen3, device: torch.device, rows: int) -> None:
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
        # Blocks of the cache that the rows share; None gives each row all its positions. Set before `load`.
        self.blocks: int | None = None
        self.device = device
        on_gpu = device.type == "cuda"
        self.dtype = DTYPES.get(settings.dtype, torch.bfloat16 if on_gpu else torch.float32)
        # Adapters at once, and their largest rank. Only clones have some.
        self._adapters = (settings.adapters if self.kind == "cloned" else 0), settings.adapter_rank
        if self._adapters[0] and on_gpu and settings.cuda_graphs:
            raise CheckpointError("fused kernels run no adapters: qwen3.cuda_graphs: false, or qwen3.adapters: 0")
        # Whether its steps are fused kernels.
        self._fused = can_fuse(device, self.dtype) and not self._adapters[0]
        # float16: its signal-to-noise ratio is 20 dB better than that of bfloat16.
        codec_dtype = torch.float16 if self._fused else torch.float32
        self._codec_dtype = DTYPES.get(settings.codec_dtype, codec_dtype)
        # Whether a step is one captured graph.
        self._captured = settings.cuda_graphs and on_gpu
        # Whether every step is a batch of all rows, so that the rounding of a row never depends on the others.
        self._one_size = settings.reproducible
        self._frame = build(FrameModel, self.config)
        self._codec = build(Codec, self.config.codec)
        self._plans = (
            plan(self._frame, folder, MODEL, self.dtype, unused=SPEAKER_ENCODER),
            plan(self._codec, folder, CODEC, self._codec_dtype, unused=codec_module.ENCODING),
        )
        # Of its sound, of any dtype and on any device until `load`. None without one. Set before `load`.
        self.watermark: Watermark | None = None
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
    def abilities(self) -> tuple[Ability, ...]:
        """Which directives have an effect. Other instructions would make another voice of a designed one."""
        style: tuple[Ability, ...] = ("style",) if self.kind == "named" and takes_instructions(self.config) else ()
        return ("pause", "speed", "volume", "language", *style)

    @cached_property
    def languages(self) -> dict[str, str]:
        """Every name and code of a language that it speaks -> its code; a dialect is its own code."""
        codes = {name: LANGUAGES.get(name, name) for name in self.config.talker.codec_language_id}
        return codes | {code: code for code in codes.values()}

    @property
    def weight_bytes(self) -> int:
        """Memory that its weights take on the device."""
        marks = sum(weight.numel() for weight in self.watermark.parameters()) if self.watermark else 0
        adapters = AdapterBank.nbytes(self.config.talker, *self._adapters, self.dtype)
        return sum(plan.nbytes for plan in self._plans) + marks * self._codec_dtype.itemsize + adapters

    @property
    def block_bytes(self) -> int:
        """Memory of one block of the cache on the device."""
        talker = self.config.talker
        heads = talker.num_hidden_layers * talker.num_key_value_heads
        return BLOCK_SIZE * 2 * heads * talker.head_dim * self.dtype.itemsize

    @property
    def cache_bytes(self) -> int:
        """Memory of the cache on the device."""
        if self.blocks is not None:
            return self.blocks * self.block_bytes
        positions = rows_of_state(self.rows, self.device) * (self.max_model_len + 1)
        return positions * self.block_bytes // BLOCK_SIZE

    @property
    def codec_bytes(self) -> int:
        """Memory that the state of the codec and the watermark takes on the device."""
        rows = rows_of_state(self.rows, self.device)
        states = [self._codec.init_state(rows, "meta", self._codec_dtype)]
        if self.watermark is not None:
            states.append(self.watermark.init_state(rows, "meta", self._codec_dtype))
        return sum(t.nbytes for state in states for t in (state.keys, state.values, *state.histories))

    def load(self) -> None:
        """Read the weights while kernels are compiled, take the memory of the state, and capture the steps."""
        laps = Laps()
        with closing(Compilation(self._steps())) as compilation:
            for part in self._plans:
                part.load(self.device)
            logger.info("{}: loaded on {} as {}", self.name, self.device, _name_of(self.dtype))
            laps.end("weights")
            watermark = self.watermark.to(self.device, self._codec_dtype) if self.watermark else None
            model = SpeechModel(self._frame, self._codec, watermark)
            rows = rows_of_state(self.rows, self.device)
            adapters = AdapterBank(self._frame, rows, *self._adapters) if self._adapters[0] else None
            if self._fused:
                put_kernels(model)
            state = model.init_state(rows, self.max_model_len, self.blocks)
            laps.end("layout and state")
            if why := compilation.wait(partial(self._tell, "kernels compiled")):
                logger.warning("kernels: {}; the rest is when first used", why)
            laps.end("rest of the kernels")
        if self._captured:
            logger.info("{}: capturing its steps{}", self.name, ", with fused kernels" if self._fused else "")
        graphs = FrameGraphs(
            model,
            state,
            captured=self._captured,
            sizes=self.sizes,
            mixed=not self._one_size,
            defer=True,
            progress=partial(self._tell, "captured"),
        )
        laps.end("capture")
        runner = ModelRunner(model, state, graphs, self.max_model_len, adapters)
        runner.warm_up(min(self.sizes[-1], WARM_UP_ROWS) if self.device.type == "cuda" else 1)
        self._runner = runner
        laps.end("warm-up")
        logger.info("{}: {}", self.name, laps)

    def _steps(self) -> list[Steps]:
        """What to compile ahead; nothing without fused kernels."""
        if not self._fused:
            return []
        steps = Steps(
            folder=str(self.folder),
            dtype=_name_of(self.dtype),
            codec_dtype=_name_of(self._codec_dtype),
            max_model_len=self.max_model_len,
            paged=self.blocks is not None,
            sizes=self.sizes,
            mixed=not self._one_size,
            watermark=self.watermark is not None,
            capability=torch.cuda.get_device_capability(self.device),
        )
        return [steps]

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


def create_models(node: Settings, slots: int) -> list[Qwen3Model]:
    """The models of the settings, in their order; those with `load: start` are loaded.

    Raises:
        SettingsError: none is named, a checkpoint cannot be used, or the device is not there or too small.
    """
    settings, watermark = node.qwen3, _watermark(node)
    if not settings.models:
        raise SettingsError("qwen3.models: the engine qwen3 needs a model: --model FOLDER, or a hub id")
    logger.info("opening {}", settings.device)
    laps = Laps()
    device = _device(settings.device)
    limit_threads(device)
    use(device)
    memory(device)
    laps.end("device")
    models: list[Qwen3Model] = []
    for checkpoint in settings.models:
        folder = Path(checkpoint.source).expanduser()
        with _named(folder):
            models.append(Qwen3Model(folder, _name(folder, models), settings, device, slots))
    laps.end("configurations and tokenizers")
    logger.info("{}", laps)
    for model in models:
        model.watermark = watermark
    plan_memory(models, device, slots, settings.memory)
    for checkpoint, model in zip(settings.models, models, strict=True):
        if checkpoint.load == "start":
            with _named(model.folder):
                model.load()
    return models


def _watermark(settings: Settings) -> Watermark | None:
    """That of all models; None without one."""
    if settings.watermark == "none":
        return None
    try:
        return load_watermark(Path(settings.audioseal.source), settings.audioseal.message)
    except CheckpointError as error:
        raise SettingsError(f"audioseal.source: {error}") from error


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Errors of a checkpoint name its folder."""
    try:
        yield
    except CheckpointError as error:
        raise SettingsError(f"qwen3.models: {folder.name}: {error}") from error


def limit_threads(device: torch.device) -> None:
    """Leave a core to the front: threads that wait for a busy core at every layer are slower than one thread."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if device.type == "cuda" else max(1, (os.cpu_count() or 1) - 1))


def use(device: torch.device) -> None:
    """Make `device` the current device of this thread; convolutions in float32 do not use TF32."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False


def plan_memory(models: Sequence[Qwen3Model], device: torch.device, slots: int, share: float) -> None:
    """Log the memory of the models. Where it does not suffice for max_model_len in every slot, slots share blocks.

    Raises:
        SettingsError: it is more than is free; the message says what to change.
    """
    free, total = memory(device) or (math.inf, math.inf)
    # A share of the free memory, bounded by a share of all memory, which the engines of one device split.
    budget = min(max(share, USUAL_SHARE) * free, share * total)
    fixed = sum(model.weight_bytes + model.codec_bytes for model in models)
    caches = sum(model.cache_bytes for model in models)
    if fixed + caches > budget:
        left = budget - fixed
        for model in models:
            model.blocks = int(left / len(models) / model.block_bytes)
            if model.blocks * BLOCK_SIZE < 2 * model.max_model_len:
                raise SettingsError(
                    f"the models need {(fixed + caches) / GIB:.1f} GiB on {device}, and {free / GIB:.1f} GiB are free: "
                    f"fewer slots (now {slots}), fewer qwen3.max_model_len, fewer qwen3.models or a smaller one"
                )
    for model in models:
        weights, codec, cache = (n / GIB for n in (model.weight_bytes, model.codec_bytes, model.cache_bytes))
        logger.info(
            "{}: {:.2f} GiB of weights, {:.2f} of codec state, {:.2f} of cache ({}) for {} slots on {}",
            *(model.name, weights, codec, cache, "shared" if model.blocks else "of each slot", slots, device),
        )


def memory(device: torch.device) -> tuple[int, int] | None:
    """Free and total memory of a device, in bytes; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    except OSError:
        return None
    kib = {name: int(value) for name, value, *_ in lines}
    return kib["MemAvailable:"] * 1024, kib["MemTotal:"] * 1024


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cuda:0" if name == "cuda" else name)  # kernels and graphs want a number
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"qwen3.device: {name} is not there: PyTorch sees no CUDA device; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"qwen3.device: {name} is not there: this machine has {torch.cuda.device_count()}")
    return device


def _name(folder: Path, taken: Iterable[Qwen3Model]) -> str:
    """The model's name for clients: that of its folder, or of the repository in the hub's cache. Unique."""
    repository = next((part for part in folder.parts if part.startswith("models--")), None)
    name = repository.rpartition("--")[2] if repository else folder.resolve().name
    names = {model.name for model in taken}
    number = next(n for n in range(1, 1_000) if (name if n == 1 else f"{name}-{n}") not in names)
    return name if number == 1 else f"{name}-{number}"
