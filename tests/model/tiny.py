"""Upstream's model and ours from the same tiny checkpoint, and tokenised texts."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from agent_tts.bench.checkpoint import SIZES, write, write_configuration
from agent_tts.model import weights
from agent_tts.model.codec import ENCODING, Codec
from agent_tts.model.config import ModelConfig, ModelType, SamplingParams
from agent_tts.model.frame import FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.prompt import Prompt, Reference
from agent_tts.model.row_changes import RowChanges, Writes
from tests.model import crafted, oracle

# Two sizes: with the projection into the predictor, as in 1.7B, and without it, as in 0.6B.
PROJECTED, SAME_WIDTH = "tiny", "tiny-0.6B"
HIDDEN = SIZES[PROJECTED]["talker"]["hidden_size"]

ROLE = (151644, 77091, 198)  # <|im_start|>assistant\n
INSTRUCT = (151644, 872, 198, 31115, 9906, 151645, 198)  # <|im_start|>user\n...<|im_end|>\n
TEXT = (9707, 11, 1879, 0, 1096)
REF_TEXT = (785, 3974, 13876)


@cache
def config(model_type: ModelType, size: str = PROJECTED) -> ModelConfig:
    """The configuration of a checkpoint."""
    with TemporaryDirectory() as folder:
        return write_configuration(Path(folder), SIZES[size], model_type)


@torch.inference_mode()
def admit(
    model: FrameModel,
    state: FrameState,
    row: int,
    prompt: Prompt,
    sampling: SamplingParams,
    vector: Tensor | None = None,
) -> None:
    """Give a row to a request with prompt and text at once, whatever it held before."""
    model.check(state, prompt, vector)
    positions = np.append(np.arange(len(prompt.prefix)), state.cache.padding_position)
    entries = model.entries(state, row, positions, prompt.numbers(model.config.talker.num_code_groups), vector)
    changes = RowChanges(state)
    changes.admit(row, len(prompt.prefix), sampling, model.prefill(state, entries, None)[-1])
    changes.add_text(row, prompt.text, complete=prompt.complete)
    changes.collect(writes := Writes())
    writes.send(state.ended.device)


@cache
def _folder() -> Path:
    """One for all processes of the tests; otherwise for this process."""
    if shared := os.environ.get("SHARED_BY_TESTS"):
        return Path(shared)
    folder = mkdtemp(prefix="agent-tts-checkpoints-")
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that is made on first use and shared: tests that write to it copy it first."""
    folder = _folder() / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            make(part)
            part.rename(folder)
    return folder


def checkpoint(model_type: ModelType, size: str = PROJECTED) -> Path:
    """A checkpoint folder; tests must not write to it."""
    return kept(f"{size}-{model_type}", lambda folder: write(folder, size=size, model_type=model_type))


def ending(model_type: ModelType) -> Path:
    """The same, but it draws the end of speech soon after the end of its text, as trained checkpoints do."""
    return _crafted(model_type, crafted.ending)


def behind(model_type: ModelType, size: str = PROJECTED) -> Path:
    """The same, but it draws the end of speech right behind its text, and never within it."""
    return _crafted(model_type, crafted.behind, size)


def looping(model_type: ModelType) -> Path:
    """The same, but it draws one and the same first code for ever."""
    return _crafted(model_type, crafted.looping)


def _crafted(model_type: ModelType, craft: Callable[[Path], None], size: str = PROJECTED) -> Path:
    source = checkpoint(model_type, size)

    def make(folder: Path) -> None:
        shutil.copytree(source, folder)
        craft(folder)

    return kept(f"{craft.__name__}/{source.name}", make)


@lru_cache(maxsize=oracle.MODELS)
@torch.inference_mode(False)
def models(model_type: ModelType, size: str = PROJECTED) -> tuple[Any, FrameModel]:
    """Upstream's model and ours, float32 on the CPU. Both are shared: a test restores what it changes."""
    folder = checkpoint(model_type, size)
    ours = frame_model(folder)
    return oracle.load(folder).model, ours


def frame_model(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> FrameModel:
    """Ours, with the weights of a checkpoint of any size."""
    model = weights.build(FrameModel, ModelConfig.read(folder))
    weights.plan(model, folder, weights.MODEL, dtype, unused=("speaker_encoder.",)).load(device)
    return model


def codec(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Codec:
    """Ours, with the weights of a checkpoint of any size."""
    codec = weights.build(Codec, ModelConfig.read(folder).codec)
    weights.plan(codec, folder, weights.CODEC, dtype, ENCODING).load(device)
    return codec


def upstream_speech(upstream: Any, frames: int, **request: Any) -> tuple[Tensor, Tensor]:
    """Greedy codes of upstream's own generate(), int64[<= frames, 16], and the talker's hidden states."""
    (codes,), (hidden,) = upstream.generate(
        input_ids=[torch.tensor([[*ROLE, *TEXT, 151645, 198, *ROLE]])],
        do_sample=False,
        subtalker_dosample=False,
        max_new_tokens=frames + 1,  # the codes of the last frame are never completed
        **request,
    )
    return codes, hidden


def upstream_clone(vector: Tensor, frames: int | None = None) -> dict[str, Any]:
    """What upstream's generate() is given of a cloned voice: its vector, and a reference of so many frames if any."""
    alone = frames is None
    codes = None if frames is None else reference_frames(frames)
    clone = {"ref_code": [codes], "ref_spk_embedding": [vector], "x_vector_only_mode": [alone], "icl_mode": [not alone]}
    ids = {} if alone else {"ref_ids": [torch.tensor([[*ROLE, *REF_TEXT, 151645, 198]])]}
    return {"voice_clone_prompt": clone, **ids}


def reference(count: int) -> Reference:
    """The same reference as ours."""
    return Reference(REF_TEXT, tuple(map(tuple, reference_frames(count).tolist())))


def reference_frames(count: int) -> Tensor:
    """Codes of a clip: int64[count, 16]."""
    return torch.randint(2048, (count, 16), generator=torch.Generator().manual_seed(3))


def speaker_vector() -> Tensor:
    return torch.randn(HIDDEN, generator=torch.Generator().manual_seed(5))
