"""Qwen3-TTS checkpoints: opened from the settings, checked against the memory, and loaded on their device."""

from __future__ import annotations

import hashlib
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from loguru import logger
from numpy.typing import NDArray

from agent_tts.config.settings import Qwen3, Settings
from agent_tts.engine.laps import Laps
from agent_tts.engine.qwen3.compiling import Compilation, Steps
from agent_tts.engine.qwen3.graphs import FrameGraphs, batch_sizes, rows_of_state
from agent_tts.engine.qwen3.memory import LIBRARIES, DeviceMemory, ModelNeeds
from agent_tts.engine.qwen3.runner import ModelRunner
from agent_tts.engine.qwen3.served import LoadedVoice, ServedModel, named, opened
from agent_tts.errors import SettingsError
from agent_tts.model import codec as codec_module
from agent_tts.model.adapters import AdapterBank
from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.device import Device, queues
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.kernels.architectures import of_nvidia
from agent_tts.model.prompt import VECTOR, PromptVoice, Reference
from agent_tts.model.quantised import EightBits, check, saved_bytes
from agent_tts.model.speech import SpeechModel, prepare_kernels, put_kernels, why_not_e4m3, why_not_fused
from agent_tts.model.watermark import Watermark, load_watermark
from agent_tts.model.weights import CODEC, MODEL, build, plan

# Measured on the meta device (tests/engine/qwen3/test_memory.py): what a row's step has at once, in its widest layers.
FUSED_WORK, MODULE_WORK = 3, 6
MOST_SLOTS = 65_535  # of the settings
CHECK = 512 << 20  # bytes: of what e4m3 changes, predictions and a layer in float32
GRAPH = 16 << 20  # bytes of a captured one: the nodes, and what the host reads
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WARM_UP_ROWS = 16  # that are prefilled at once before the first request
SPEAKER_ENCODER = ("speaker_encoder.",)  # prefix in model.safetensors of what only enrolment needs


class Qwen3Model(ServedModel):
    """A checkpoint that PyTorch's modules or fused kernels speak with."""

    def __init__(self, folder: Path, name: str, settings: Qwen3, device: torch.device, rows: int) -> None:
        super().__init__(folder, name, settings, rows)
        self.queues, self.use = queues(device), lambda: Device.of(device).use()
        # Blocks of the cache that the rows share; None gives each row all its positions. Set before `load`.
        self.blocks: int | None = None
        self.device = device
        self.dtype = DTYPES.get(settings.dtype, torch.bfloat16 if queues(device) else torch.float32)
        # Adapters at once, and their largest rank. Only clones have some.
        self._adapters = (settings.adapters if self.kind == "cloned" else 0), settings.adapter_rank
        self._fused = why_not_fused(device, self.dtype) is None
        self._eight = EightBits(settings.weights == "fp8", settings.kv_cache == "fp8")
        if self._eight and (why := why_not_e4m3(device, self.dtype)):
            raise CheckpointError(f"{self._eight} is for fused kernels alone: {why}; use bfloat16")
        # float16: its signal-to-noise ratio is 20 dB better than that of bfloat16.
        codec_dtype = torch.float16 if self._fused else torch.float32
        self._codec_dtype = DTYPES.get(settings.codec_dtype, codec_dtype)
        self._captured = settings.cuda_graphs and queues(device)
        # Whether every step is a batch of all rows, so that the rounding of a row never depends on the others.
        self._one_size = settings.reproducible
        self._frame = build(FrameModel, self.config)
        self._codec = build(Codec, self.config.codec)
        self._plans = (
            plan(self._frame, folder, MODEL, self.dtype, unused=SPEAKER_ENCODER),
            plan(self._codec, folder, CODEC, self._codec_dtype, unused=codec_module.ENCODING),
        )
        # What marks its sound, of any dtype and on any device until `load`. None without one. Set before `load`.
        self.watermark: Watermark | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        sizes = batch_sizes(self.rows, self.device)
        return sizes[-1:] if self._one_size else sizes

    @property
    def needs(self) -> ModelNeeds:
        talker, codec = self.config.talker, self.config.codec
        adapters = AdapterBank.nbytes(talker, *self._adapters, self.dtype)
        saved = saved_bytes(self._frame, self.dtype) if self._eight.weights else 0
        weights = sum(plan.nbytes for plan in self._plans) + adapters
        states = [self._codec.init_state(1, "meta", self._codec_dtype)]
        copied = self._plans[1].nbytes if self._fused else 0
        if self.watermark is not None:
            marks = sum(weight.numel() for weight in self.watermark.parameters()) * self._codec_dtype.itemsize
            weights, copied = weights + marks, copied + marks * self._fused
            states.append(self.watermark.init_state(1, "meta", self._codec_dtype))
        width = 1 if self._eight.cache else self.dtype.itemsize
        position = 2 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim * width
        # What the widest layer takes, the codec's last.
        samples = FRAME_SAMPLES * (codec.decoder_dim >> len(codec.upsample_rates)) * self._codec_dtype.itemsize
        if self._fused:
            predictor = talker.code_predictor
            copied += talker.num_code_groups * predictor.vocab_size * predictor.hidden_size * self.dtype.itemsize
            work = FUSED_WORK * samples
        else:
            # A row's cache of one layer is gathered, and repeated for the queries that share it.
            repeats = 1 + talker.num_attention_heads // talker.num_key_value_heads
            work = MODULE_WORK * samples + repeats * self.max_model_len * position // talker.num_hidden_layers
        return ModelNeeds(
            name=self.name,
            weights=weights + copied - saved,
            loading=saved + CHECK if self._eight else 0,
            position=position,
            row=sum(t.nbytes for state in states for t in (state.keys, state.values, *state.histories)),
            work=work,
            step_rows=batch_sizes(MOST_SLOTS, self.device)[-1],
            graphs=GRAPH * (2 * len(self.sizes) + 1) if self._captured else 0,
            padding_rows=rows_of_state(0, self.device),
        )

    def load(self) -> None:
        """Read the weights while kernels are compiled, take the memory of the state, and capture the steps.

        It returns when the kernels of all sizes are there: who is served never waits for a compilation or a capture.
        """
        laps = Laps()
        with ExitStack() as stack:
            # Reading waits for the disk and the device, while this thread imports.
            use = Device.of(self.device).use
            reader = stack.enter_context(ThreadPoolExecutor(1, "qwen3 weights", use))
            reading = [reader.submit(part.load, self.device) for part in self._plans]
            compilation = stack.enter_context(closing(Compilation(self._steps())))
            if self._fused:
                prepare_kernels()
            for part in reading:
                part.result()
            logger.info("{}: loaded on {} as {}", self.name, self.device, _name_of(self.dtype))
            laps.end("weights")
            if self._eight:
                logger.info("{}: {}: {}", self.name, self._eight, check(self._frame, self._eight))
                laps.end("check of fp8")
            watermark = self.watermark.to(self.device, self._codec_dtype) if self.watermark else None
            model = SpeechModel(self._frame, self._codec, watermark)
            rows = rows_of_state(self.rows, self.device)
            adapters = AdapterBank(self._frame, rows, *self._adapters) if self._adapters[0] else None
            if self._fused:
                put_kernels(model, adapters, self._eight)
                Device.of(self.device).trim()  # weights that kernels have concatenated
            elif adapters:
                adapters.adapt()
            state = model.init_state(rows, self.max_model_len, self.blocks)
            laps.end("layout and state")
            if why := compilation.wait(partial(self._tell, "kernels compiled")):
                logger.warning("kernels: {}; the rest is when first used", why)
            laps.end("rest of the kernels")
        if why := why_not_fused(self.device, self.dtype):
            logger.info("{}: steps by PyTorch's modules: {}", self.name, why)
        if self._captured:
            logger.info("{}: capturing its steps{}", self.name, ", with fused kernels" if self._fused else "")
        graphs = FrameGraphs(
            model,
            state,
            captured=self._captured,
            sizes=self.sizes,
            mixed=not self._one_size,
            progress=partial(self._tell, "captured"),
        )
        laps.end("capture")
        runner = ModelRunner(model, state, graphs, self.max_model_len, adapters)
        runner.warm_up(min(self.sizes[-1], WARM_UP_ROWS) if queues(self.device) else 1)
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
            fp8_weights=self._eight.weights,
            fp8_cache=self._eight.cache,
            adapters=self._adapters,
            architecture=of_nvidia(torch.cuda.get_device_capability(self.device)).name,
        )
        return [steps]

    def _tell(self, what: str, done: int, total: int) -> None:
        logger.info("{}: {} of {} {}", self.name, done, total, what)

    def clone(self, vector: NDArray[np.float32], reference: Reference | None) -> LoadedVoice:
        """Load a cloned voice, with its vector float32[H]. A reference takes as long as its frames.

        Raises:
            ValueError: the vector has another size, or holds what is not finite in the model's dtype.
        """
        placed = torch.from_numpy(vector).to(self.dtype)
        if not placed.isfinite().all():  # in the cache it would reach the next request of the row
            raise ValueError("a speaker vector with values that are not finite, or too large")
        voice = PromptVoice(VECTOR, reference)
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
    logger.info("opening {}", settings.device)
    laps = Laps()
    device = Device.named(settings.device)
    if "OMP_NUM_THREADS" not in os.environ:  # the user has not set PyTorch's threads on the host
        torch.set_num_threads(device.threads)
    device.use()
    device.memory()
    laps.end("device")
    models = open_models(settings, device.device, slots)
    laps.end("configurations and tokenizers")
    logger.info("{}", laps)
    if device.note:
        logger.info("{}: {}", device.device, device.note)
    for model in models:
        model.watermark = watermark
    free, total = device.memory() or (math.inf, math.inf)
    memory = DeviceMemory(free, total, settings.memory, LIBRARIES if device.queues else 0)
    plan = memory.plan([model.needs for model in models], slots, models[0].max_model_len, exact=node.slots is not None)
    for model, part in zip(models, plan.models, strict=True):
        model.rows, model.blocks = plan.slots, part.blocks
    for line in plan.lines:
        logger.info("memory of {}: {}", device.device, line)
    for checkpoint, model in zip(settings.models, models, strict=True):
        if checkpoint.load == "start":
            with named(model.folder):
                model.load()
    return models


def open_models(settings: Qwen3, device: torch.device, slots: int) -> list[Qwen3Model]:
    """Models that take no memory yet; the device need not be there. Raises SettingsError: a checkpoint is no use."""
    return opened(settings, lambda folder, name: Qwen3Model(folder, name, settings, device, slots))


def _watermark(settings: Settings) -> Watermark | None:
    """That of all models; None without one."""
    if settings.watermark == "none":
        return None
    try:
        return load_watermark(Path(settings.audioseal.source), settings.audioseal.message)
    except CheckpointError as error:
        raise SettingsError(f"audioseal.source: {error}") from error
