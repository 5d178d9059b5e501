"""A step of fused kernels gives the codes of the modules, and leaves the rows as they do.

On a GPU the kernels run compiled; elsewhere triton's interpreter runs them on a tiny model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import cast

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the kernels are written in it")

from agent_tts.model import speech
from agent_tts.model.config import PEAK
from agent_tts.model.frame import Frame, FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.fused import FusedPredictor, FusedStep, FusedTalker, fuse, joined, project_text
from agent_tts.model.kernels import frame as kernels
from agent_tts.model.kernels.architectures import ARCHITECTURES
from agent_tts.model.kernels.launch import Arguments, unmade
from agent_tts.model.kernels.linear import Hidden, rms_norm
from agent_tts.model.layers import TransformerLayer
from agent_tts.model.talker import Choose
from agent_tts.model.weights import build
from tests.model import tiny

pytestmark = pytest.mark.model

ROWS = 8
PADDING_ROW, ENDED, STARVED, FULL, NOT_FINITE = 7, 6, 5, 4, 2


def modules(size: str, codebooks: int = 16) -> FrameModel:
    """A copy, with so many codes a frame."""
    whole = tiny.models("custom_voice", size)[1]
    talker = whole.config.talker
    predictor = replace(talker.code_predictor, num_code_groups=codebooks)
    config = replace(whole.config, talker=replace(talker, num_code_groups=codebooks, code_predictor=predictor))
    model = build(FrameModel, config)
    weights = copy.deepcopy(whole.state_dict())
    model.load_state_dict({name: weights[name] for name in model.state_dict()}, assign=True)
    return model.requires_grad_(False)


def speaking(model: FrameModel) -> FrameState:
    """Rows in all situations, with noise in their cache."""
    state = model.init_state(ROWS, 40, blocks=ROWS * 2 + 1, block_size=32)
    generator = torch.Generator().manual_seed(7)
    for tensor in (state.cache.keys, state.cache.values, state.feedback):
        tensor.normal_(generator=generator)
    state.cache.block_table[:, :2] = torch.arange(1, 2 * ROWS + 1).view(ROWS, 2)
    state.position.copy_(torch.arange(ROWS) * 5 + 1)
    state.position[FULL] = state.cache.padding_position
    state.text.random_(1_000, generator=generator)
    state.text_length.copy_(torch.tensor([9, 2, 9, 1, 9, 0, 9, 9]))
    state.text_complete.copy_(torch.tensor([0, 1, 0, 1, 1, 0, 1, 1]))
    state.text_read[3] = 1  # all of it
    state.ended.copy_(torch.arange(ROWS) >= ENDED)
    state.seen.bernoulli_(0.3, generator=generator)
    state.feedback[NOT_FINITE] = torch.inf
    sampling = state.sampling
    sampling.seed.copy_(torch.arange(ROWS) * 2**60)
    sampling.repetition_penalty.fill_(1.3)
    sampling.min_frames.copy_(torch.arange(ROWS) % 3)
    for warp in (sampling.talker, sampling.predictor):
        warp.temperature.fill_(0)
        warp.temperature[3:5] = 0.7  # the others take the likeliest: quick
        warp.top_k[4] = 20
        warp.top_p[3] = 0.9
    return state


def same(found: Tensor, expected: Tensor) -> None:
    if found.dtype.is_floating_point:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    else:
        assert torch.equal(found, expected)


class Parts:
    """What stands for talker and predictor: hidden states and logits that are given; hears their inputs."""

    def __init__(self, model: FrameModel) -> None:
        generator = torch.Generator().manual_seed(9)
        talker = model.config.talker
        self.hidden = torch.randn(ROWS, talker.hidden_size, generator=generator)
        self.hidden[NOT_FINITE, 3] = torch.nan
        size = talker.num_code_groups - 1, ROWS, talker.code_predictor.vocab_size
        self.logits = 3 * torch.randn(size, generator=generator)
        self.heard: list[Tensor] = []
        self.predictor = model.predictor

    def talk(self, x: Tensor, positions: Tensor, *_: object) -> Tensor:
        self.heard += [x, positions]
        return self.hidden

    def complete(self, _: object, hidden: Tensor, first: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """As `Predictor.forward`."""
        project, embedded = self.predictor.small_to_mtp_projection, [first]
        codes: list[Tensor] = []
        self.heard += [project(hidden), project(first)]
        for codebook, (logits, table) in enumerate(zip(self.logits, self.predictor.codec_embedding, strict=True), 1):
            codes.append(choose(logits, codebook))
            embedded.append(table(codes[-1]))
            self.heard.append(project(embedded[-1]))
        return torch.stack(codes, dim=1), torch.stack(embedded, dim=1)


class Fused(FusedPredictor):
    """`Parts`, between the kernels."""

    def __init__(self, model: FrameModel) -> None:
        super().__init__(model, joined)
        self.parts = Parts(model)

    def mixed(self, x: Tensor, positions: Tensor, *_: object) -> Tensor:
        """Of the talker."""
        return self.parts.talk(x, positions)

    def complete(self, state: object, x: Tensor, follow: Callable[[Tensor, int, Tensor | None], Hidden]) -> None:
        self.parts.heard += [x[:ROWS], x[ROWS:]]
        for codebook, (logits, table) in enumerate(zip(self.parts.logits, self.inputs, strict=True), 1):
            following = follow(logits, codebook, table)
            self.parts.heard.append(following.x)
            assert following.normed is not None
            assert torch.equal(following.normed, rms_norm(following.x, self.layers[0].input_norm))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with numpy
@pytest.mark.parametrize(
    ("size", "who", "codebooks"),
    [
        (tiny.PROJECTED, [3, 1, 2, 4, 5, 6, PADDING_ROW, PADDING_ROW], 4),
        pytest.param(tiny.SAME_WIDTH, None, 16, marks=pytest.mark.slow),
    ],
)
@torch.inference_mode()
def test_what_lies_between_the_products(size: str, who: list[int] | None, codebooks: int) -> None:
    model = modules(size, codebooks)
    state, expected_state, parts = speaking(model), speaking(model), Parts(model)
    # Rows 0 and 3 would end; only row 3 has read its whole text.
    model.talker.codec_head.weight[model.config.talker.codec_eos_token_id] = 3 * (parts.hidden[0] + parts.hidden[3])
    rows, run = None if who is None else torch.tensor(who), torch.arange(ROWS) != 1
    model.ops = replace(model.ops, talk=parts.talk, complete=parts.complete)
    expected = model.step(expected_state, run, rows=rows)
    project_text(model)
    fused = Fused(model)
    found = FusedStep(model, cast(FusedTalker, fused), fused).step(state, run, rows, None)
    for mine, its in zip(fused.parts.heard, parts.heard, strict=True):
        same(mine, its)
    for field in fields(expected):
        same(getattr(found, field.name), getattr(expected, field.name))
    for name in ("counts", "flags", "seen", "feedback"):
        same(getattr(state, name), getattr(expected_state, name))
    outcomes = expected.starved, expected.full, expected.ended, expected.finite, expected.spoke & ~expected.finite
    assert all(outcome.any() for outcome in outcomes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_samples_and_masks_are_packed_alike() -> None:
    generator = torch.Generator().manual_seed(1)
    sound = torch.randn(6, 1_920, generator=generator)
    sound[0, 7], sound[1, 8], sound[2, 9] = torch.nan, torch.inf, -torch.inf
    sound[3] = (torch.arange(1_920) - 959.5) / PEAK  # near halves
    codes = torch.randint(2_048, (6, 16), generator=generator)
    masks = torch.rand(5, 6, generator=generator) < 0.5
    frame = Frame(codes, *masks)
    frame.finite[[0, 3, 4]] = True
    assert torch.equal(kernels.pack(frame, sound), speech.pack(frame, sound))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.timeout(300)
@torch.inference_mode()
def test_a_whole_step() -> None:
    plain, fused = modules(tiny.PROJECTED), modules(tiny.PROJECTED)
    fuse(fused)
    expected_state, found_state = speaking(plain), speaking(fused)
    rows, run = torch.tensor([0, 2, 4]), torch.ones(3, dtype=torch.bool)
    expected, found = plain.step(expected_state, run, rows=rows), fused.step(found_state, run, rows=rows)
    same(found.codes[expected.finite], expected.codes[expected.finite])
    for name in ("spoke", "finite", "ended", "starved", "full"):
        same(getattr(found, name), getattr(expected, name))


class Heard:
    """Hears of launches in place of a GPU."""

    architecture = ARCHITECTURES["sm_90"]

    def __init__(self) -> None:
        self.arguments: list[Arguments] = []

    def launched(self, kernel: object, arguments: Arguments) -> None:
        self.arguments.append(arguments)


def test_the_second_level_cache_keeps_the_output_matrices_of_the_predictor_alone() -> None:
    """Its other weights, and the talker's, would displace them."""
    model = modules("tiny")
    fuse(model)
    state = model.init_state(1, 40)
    with unmade(heard := Heard()):
        model.step(state, torch.ones(1, dtype=torch.bool))
    policies = [(one["weight"], one["EVICTION"]) for one in heard.arguments if "EVICTION" in one]
    kept = {weight.data_ptr() for weight, policy in policies if policy == "evict_last"}
    layers = [cast(TransformerLayer, layer) for layer in model.predictor.layers]
    assert kept == {layer.self_attn.o_proj.weight.data_ptr() for layer in layers}
    assert {policy for _, policy in policies} == {"evict_first", "evict_last"}
