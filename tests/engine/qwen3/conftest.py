"""Parts of a model that are quicker than the whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from agent_tts.model.codec import Codec
from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.talker import Predictor

LEVEL = 0.26  # RMS of the noise

_parts = {Predictor: Predictor.forward, Codec: Codec.forward}


def _all_at_once(predictor: Predictor, _: object, hidden: Tensor, first: Tensor, __: object) -> tuple[Tensor, Tensor]:
    """As `Predictor.forward`: the likeliest codes, which depend on the talker alone and not on each other."""
    x = predictor.small_to_mtp_projection(hidden + first)
    codes = [head(x).argmax(-1) for head in predictor.lm_head]
    embedded = [table(code) for table, code in zip(predictor.codec_embedding, codes, strict=True)]
    return torch.stack(codes, dim=1), torch.stack([first, *embedded], dim=1)


@cache
def _mixture(width: int) -> Tensor:
    """float32[width, 1920]."""
    return torch.randn(width, FRAME_SAMPLES, generator=torch.Generator().manual_seed(11))


def _noise_of_each_frame(codec: Codec, codes: Tensor, _: object) -> Tensor:
    """As `Codec.forward`: noise that depends on a frame's own codes alone, as loud as that of a tiny checkpoint."""
    first_code, others = codec.quantizer.values()
    x = (first_code(codes[..., :1]) + others(codes[..., 1:])).transpose(1, 2).float()
    return (LEVEL * F.normalize(x, dim=-1) @ _mixture(x.shape[-1])).flatten(1).clamp(-1, 1)


@pytest.fixture(scope="module")
def quick_parts() -> Iterator[None]:
    """A frame takes a third of its time, in modules about what the engine does with frames, whatever their sound is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "forward", _all_at_once)
        patch.setattr(Codec, "forward", _noise_of_each_frame)
        yield


@pytest.fixture
def whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test of such a module that compares codes or sound with those of others."""
    for part, forward in _parts.items():
        monkeypatch.setattr(part, "forward", forward)
