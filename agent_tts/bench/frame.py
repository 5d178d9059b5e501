"""Measures one 80 ms frame of a batch on a GPU, whole and by its parts, each as a CUDA graph.

Rows are set to the middle of a long request: all run at one position and have text to read. End of speech cannot be
sampled there, so random weights take as long as released ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from agent_tts.bench.checkpoint import SIZES, distribution, write_configuration
from agent_tts.errors import SettingsError
from agent_tts.model import codec as codec_module
from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig
from agent_tts.model.frame import PROMPT_ENTRIES, FrameModel, PromptEntries
from agent_tts.model.frame_state import FrameState
from agent_tts.model.quantised import NOTHING, EightBits
from agent_tts.model.speech import SpeechModel, SpeechState, accelerate, why_not_e4m3
from agent_tts.model.talker import PromptPositions
from agent_tts.model.weights import CODEC, MODEL, Loadable, build, plan

# `with prompts`: the frame plus PROMPT_ENTRIES entries of prompts; only fused kernels compute both at once.
PARTS = ("frame", "with prompts", "talker", "predictor", "sampling", "codec")
_POSITIONS = 2_048
_WARM_UP = 5
_REPLAYS = 50


def device() -> torch.device:
    """The GPU. Raises SettingsError: there is none."""
    if not torch.cuda.is_available():
        raise SettingsError("bench frame measures a CUDA GPU, and torch finds none here")
    return torch.device("cuda")


def synthetic(size: str) -> SpeechModel:
    """A model of a released size with random weights, made on the GPU. Raises SettingsError: no such size, no GPU."""
    if size not in SIZES:
        raise SettingsError(f"unknown size {size!r}; known are {', '.join(SIZES)}")
    with TemporaryDirectory() as folder:
        config = write_configuration(Path(folder), SIZES[size], "custom_voice")
    frame, codec = build(FrameModel, config), build(Codec, config.codec)
    for module in (frame, codec):
        _randomise(module, device())
    return SpeechModel(frame, codec)


def load(folder: Path) -> SpeechModel:
    """The model of a checkpoint folder. Raises SettingsError: not a checkpoint, or no GPU."""
    config = ModelConfig.read(folder)
    frame, codec = build(FrameModel, config), build(Codec, config.codec)
    plans = (
        plan(frame, folder, MODEL, torch.bfloat16, unused=("speaker_encoder.",)),
        plan(codec, folder, CODEC, torch.bfloat16, unused=codec_module.ENCODING),
    )
    for part in plans:
        part.load(device())
    return SpeechModel(frame, codec)


def measure(
    model: SpeechModel, batches: Sequence[int], context: int, eight: EightBits = NOTHING, *, fused: bool
) -> Iterator[dict[str, Any]]:
    """Milliseconds of the frame and of each part, for each batch size.

    Weights in 8 bits replace those of the model for good. Raises SettingsError: this GPU has no kernels for 8 bits.
    """
    weight = model.frame.talker.codec_head.weight
    if eight and (why := why_not_e4m3(weight.device, weight.dtype)):
        raise SettingsError(f"--fp8: {why}")
    if fused:
        accelerate(model, eight=eight)
    for rows in batches:
        state = mid_speech(model, rows, context)
        found = {name: _milliseconds(part) for name, part in _parts(model, state).items()}
        yield {
            "batch": rows,
            "context": context,
            "fused": fused,
            "fp8": [name for name, used in asdict(eight).items() if used],
            "ms": {name: round(value, 4) for name, value in found.items()},
            "audio_s_per_s": round(rows * 80 / found["frame"], 1),
        }


def versions() -> dict[str, str]:
    """GPU and library versions of the measurement."""
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": str(torch.version.cuda)}


def _randomise(module: Loadable, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(0)
    for ours, theirs in module.checkpoint_names().items():
        owner, _, name = ours.rpartition(".")
        place = module.get_submodule(owner)
        shape = tuple(place.get_parameter(name).shape)
        weight = torch.empty(shape, device=device, dtype=torch.bfloat16)
        weight.normal_(*distribution(theirs, shape), generator=generator)
        setattr(place, name, nn.Parameter(weight, requires_grad=False))
    module.to(device)


@torch.inference_mode()
def mid_speech(model: SpeechModel, rows: int, context: int) -> SpeechState:
    """State of `rows` rows in the middle of speech, at position `context`."""
    state = model.init_state(rows, _POSITIONS)
    frame, sampling = state.frame, state.frame.sampling
    for part in (frame.cache.keys, frame.cache.values):
        if part.dtype == torch.uint8:
            part.random_(0x38)  # from 0 to 1 in e4m3
        else:
            part.normal_()
    frame.position.fill_(context)
    frame.text.random_(model.frame.config.talker.text_vocab_size)
    frame.text_length.fill_(frame.text.shape[1])
    frame.ended.fill_(False)
    sampling.seed.copy_(torch.arange(rows))
    sampling.repetition_penalty.fill_(1.05)
    for warp in (sampling.talker, sampling.predictor):
        warp.temperature.fill_(0.9)
        warp.top_k.fill_(50)
    return state


def _parts(model: SpeechModel, state: SpeechState) -> dict[str, Callable[[], object]]:
    """The measured functions by name; each can be repeated."""
    frame, ops = state.frame, model.frame.ops
    rows = len(frame.ended)
    talker = model.frame.config.talker
    run = torch.ones_like(frame.ended)
    x = torch.randn(rows, talker.hidden_size, device=run.device, dtype=torch.bfloat16)
    logits = torch.randn(rows, talker.code_predictor.vocab_size, device=run.device)
    codes = torch.randint(talker.code_predictor.vocab_size, (rows, talker.num_code_groups), device=run.device)
    sampling, position = frame.sampling, frame.position.clone()

    def whole(beside: PromptPositions | None = None) -> object:
        frame.position.copy_(position)
        frame.text_read.zero_()
        return model.step(state, run, prompts=beside)

    def sample() -> object:
        draws = range(talker.num_code_groups)
        return [ops.draw(logits, sampling.predictor, sampling.seed, frame.frame, index) for index in draws]

    parts: dict[str, Callable[[], object]] = {
        "frame": whole,
        "talker": lambda: ops.talk(x.clone(), position, frame.cache, None, None),
        "predictor": lambda: ops.complete(frame.scratch, x, x, lambda logits, codebook: codes[:, codebook]),
        "sampling": sample,
        "codec": lambda: model.decode(state.codec, codes, run, None),
    }
    if ops.mixes:
        entries = _prompts(frame, talker.num_code_groups)
        parts["with prompts"] = lambda: whole(model.frame.embed(entries))
    return {name: parts[name] for name in PARTS if name in parts}


def _prompts(state: FrameState, codebooks: int) -> PromptEntries:
    """One prompt, in a speaking row's place of the cache: the overwritten values do not affect the time."""
    packed = torch.zeros(PromptEntries.size(PROMPT_ENTRIES, codebooks), dtype=torch.int64, device=state.ended.device)
    entries = PromptEntries.of(packed, state.feedback[:1].expand(PROMPT_ENTRIES, -1))
    entries.positions.copy_(torch.arange(PROMPT_ENTRIES))
    return entries


@torch.inference_mode()
def _milliseconds(part: Callable[[], object]) -> float:
    """Median time of a graph's replays, in ms, by CUDA events."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        part()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        part()
    times: list[float] = []
    for _ in range(_WARM_UP + _REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[_WARM_UP:])
