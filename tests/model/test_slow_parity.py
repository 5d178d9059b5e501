"""Models of a released size give upstream's codes, and its sound.

Tests with tiny models cannot show that nothing depends on the released widths, depth or layout.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_tts.bench.checkpoint import write
from agent_tts.model.codec import ENCODING, Codec
from agent_tts.model.config import ModelConfig, ModelType, SamplingParams
from agent_tts.model.frame import FrameModel
from agent_tts.model.prompt import VECTOR, PromptVoice, Reference, build_prompt
from agent_tts.model.weights import CODEC, MODEL, build, plan
from tests.model import oracle, tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SIZE = "0.6B"
FRAMES = 12
HIDDEN = 1024  # of the talker of this size
GREEDY = SamplingParams(temperature=0, predictor_temperature=0)


@dataclass(frozen=True)
class Case:
    """One kind of voice, as upstream's arguments and as ours."""

    voice: PromptVoice
    request: dict[str, Any]
    vector: Tensor | None = None


def case(model_type: ModelType) -> Case:
    if model_type == "custom_voice":
        return Case(PromptVoice("ryan"), {"speakers": ["Ryan"]})
    vector = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(5))
    frames = tiny.reference_frames(9)
    clone = {"ref_code": [frames], "ref_spk_embedding": [vector], "x_vector_only_mode": [False], "icl_mode": [True]}
    reference = Reference(tiny.REF_TEXT, tuple(map(tuple, frames.tolist())))
    ref_ids = [torch.tensor([[*tiny.ROLE, *tiny.REF_TEXT, 151645, 198]])]
    return Case(PromptVoice(VECTOR, reference), {"voice_clone_prompt": clone, "ref_ids": ref_ids}, vector)


@pytest.fixture(scope="module", params=["custom_voice", "base"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A checkpoint of the released size: 2.5 GB, deleted after its tests."""
    with TemporaryDirectory() as name:
        write(Path(name), size=SIZE, model_type=request.param)
        yield Path(name)


def test_codes_and_sound_are_upstreams(folder: Path) -> None:
    config = ModelConfig.read(folder)
    spoken = case(config.tts_model_type)
    theirs = upstream_speech(folder, spoken)
    gc.collect()  # one model in memory at a time
    model, codec = build(FrameModel, config), build(Codec, config.codec)
    plan(model, folder, MODEL, torch.float32, unused=("speaker_encoder.",)).load("cpu")
    plan(codec, folder, CODEC, torch.float32, unused=ENCODING).load("cpu")
    for streaming, (codes, waveform) in theirs.items():
        assert len(codes) == FRAMES
        assert len(set(map(tuple, codes.tolist()))) > FRAMES // 2  # a model with constant codes proves nothing
        assert torch.equal(our_codes(model, spoken, streaming), codes)
        error = (our_waveform(codec, codes) - waveform).abs().max() / waveform.abs().max()
        assert error < 1e-4
        assert waveform.square().mean().sqrt() > 0.01


def upstream_speech(folder: Path, spoken: Case) -> dict[bool, tuple[Tensor, Tensor]]:
    """Streaming or not -> greedy codes int64[F, 16], and one full forward of the codec over them."""
    upstream = oracle.load.__wrapped__(folder).model  # gigabytes, freed after use
    found = {}
    for streaming in (True, False):
        (codes,), _ = upstream.generate(
            input_ids=[torch.tensor([[*tiny.ROLE, *tiny.TEXT, 151645, 198, *tiny.ROLE]])],
            languages=["english"],
            non_streaming_mode=not streaming,
            do_sample=False,
            subtalker_dosample=False,
            max_new_tokens=FRAMES + 1,  # the codes of the last frame are never completed
            **spoken.request,
        )
        with torch.inference_mode():
            found[streaming] = codes, upstream.speech_tokenizer.model.decoder(codes.T[None]).flatten()
    return found


def our_codes(model: FrameModel, spoken: Case, streaming: bool) -> Tensor:
    state = model.init_state(rows=1, max_model_len=64)
    options: dict[str, Any] = {"role": tiny.ROLE, "text": tiny.TEXT, "language": "english", "streaming": streaming}
    tiny.admit(model, state, 0, build_prompt(model.config, spoken.voice, **options), GREEDY, spoken.vector)
    return torch.cat([model.step(state, torch.tensor([True])).codes for _ in range(FRAMES)])


def our_waveform(codec: Codec, codes: Tensor) -> Tensor:
    """Decoded frame by frame, as when streaming."""
    state = codec.init_state(1, "cpu", torch.float32)
    return torch.cat([codec.step(state, frame[None], torch.tensor([True]))[0] for frame in codes])
