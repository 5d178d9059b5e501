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
from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig, ModelType, SamplingParams
from agent_tts.model.frame import FrameModel
from agent_tts.model.prompt import VECTOR, PromptVoice, build_prompt
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
    return Case(PromptVoice(VECTOR, tiny.reference(9)), tiny.upstream_clone(vector, 9), vector)


@pytest.fixture(scope="module", params=["custom_voice", "base"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A checkpoint of the released size: 2.5 GB, deleted after its tests."""
    with TemporaryDirectory() as name:
        write(Path(name), size=SIZE, model_type=request.param)
        yield Path(name)


def test_codes_and_sound_are_upstreams(folder: Path) -> None:
    spoken = case(ModelConfig.read(folder).tts_model_type)
    theirs = upstream_speech(folder, spoken)
    gc.collect()  # one model in memory at a time
    model, codec = tiny.frame_model(folder), tiny.codec(folder)
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
        how = {"languages": ["english"], "non_streaming_mode": not streaming}
        codes, _ = tiny.upstream_speech(upstream, FRAMES, **how, **spoken.request)
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
