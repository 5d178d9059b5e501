"""A fused step is as precise as the modules, and a captured graph equals it bit for bit."""

from __future__ import annotations

import copy
import statistics
import time

import pytest
import torch
from torch import Tensor, nn

from agent_tts.bench.frame import mid_speech
from agent_tts.engine.qwen3.graphs import FrameGraphs, LaunchedStep, rows_of_state
from agent_tts.model.frame import FrameModel
from agent_tts.model.quantised import EightBits, Quantised, check, distances
from agent_tts.model.speech import SpeechModel, SpeechState, accelerate
from agent_tts.model.talker import PromptPositions
from agent_tts.model.weights import build

FRAMES = 3
EIGHT = EightBits(weights=True, cache=True)

pytestmark = pytest.mark.gpu


def modules_of(model: FrameModel, dtype: torch.dtype) -> FrameModel:
    """The same weights in a model of plain modules."""
    plain = build(FrameModel, model.config)
    plain.talker.text_projection = copy.deepcopy(model.talker.text_projection)  # none in a fused model
    for name, weight in model.named_parameters():
        owner, _, attribute = name.rpartition(".")
        setattr(plain.get_submodule(owner), attribute, nn.Parameter(weight.to(dtype), requires_grad=False))
    return plain.to("cuda")


def forced_logits(model: FrameModel, rows: int, codes: Tensor, *, mixed: bool = False) -> list[Tensor]:
    """Logits of frames with given codes, after positions of noise that differ between rows.

    `mixed` computes the prompts of 30 more rows with each frame.
    """
    state = model.init_state(rows + 30, 512)
    generator = torch.Generator("cuda").manual_seed(7)
    for tensor in (state.cache.keys, state.cache.values, state.feedback):
        tensor.copy_(torch.randn(tensor.shape, device="cuda", generator=generator))
    state.position.copy_(torch.arange(rows + 30, device="cuda") * 37 % 400)
    state.ended.fill_(False)
    others = torch.arange(rows, rows + 30, device="cuda").repeat_interleave(4)
    positions = torch.arange(4, device="cuda").repeat(30)
    prompts = PromptPositions(
        torch.randn(120, state.feedback.shape[1], device="cuda").to(state.feedback), others, positions
    )
    state.text.fill_(1234)
    state.text_length.fill_(100)
    heard: list[Tensor] = []
    for frame in codes:

        def choose(logits: Tensor, codebook: int, frame: Tensor = frame) -> Tensor:
            heard.append(logits.float())
            return frame[:, codebook].contiguous()

        run, who = torch.ones(rows, dtype=torch.bool, device="cuda"), torch.arange(rows, device="cuda")
        model.step(state, run, choose, who, prompts if mixed else None)
    return heard


def mean_error(found: list[Tensor], truth: list[Tensor]) -> float:
    """Relative to the truth, without codes that cannot be drawn."""
    errors: list[float] = []
    for mine, true in zip(found, truth, strict=True):
        drawn = true.isfinite()
        errors.append(((mine - true)[drawn].norm() / true[drawn].norm()).item())
    return statistics.mean(errors)


@pytest.mark.parametrize("rows", [1, 4, 64, 100])
def test_fused_logits_are_as_close_to_float32_as_the_modules(model: SpeechModel, rows: int) -> None:
    generator = torch.Generator("cuda").manual_seed(rows)
    codes = torch.randint(2048, (max(FRAMES, 32 // rows), rows, 16), device="cuda", generator=generator)
    eager = modules_of(model.frame, torch.bfloat16)
    truth = forced_logits(modules_of(model.frame, torch.float32), rows, codes)
    accelerate(model)

    plain = mean_error(forced_logits(eager, rows, codes), truth)
    for mixed in (False, True):
        assert mean_error(forced_logits(model.frame, rows, codes, mixed=mixed), truth) < 1.05 * plain


@torch.inference_mode()
def test_fused_logits_with_weights_in_e4m3_are_as_close_to_float32_as_modules_with_the_same(model: SpeechModel) -> None:
    """At sizes of both kernels, and of a batch that takes several tiles."""
    rounded = SpeechModel(modules_of(model.frame, torch.bfloat16), model.codec)
    for part in (rounded.frame.talker, rounded.frame.predictor):
        for linear in part.layers.modules():
            if isinstance(linear, nn.Linear):
                plain = Quantised.of(linear.weight).dequantised(torch.bfloat16)
                linear.weight = nn.Parameter(plain, requires_grad=False)
    exact, eager = (modules_of(rounded.frame, dtype) for dtype in (torch.float32, torch.bfloat16))
    accelerate(rounded, eight=EightBits(weights=True))
    for rows in (1, 16, 64, 200):
        generator = torch.Generator("cuda").manual_seed(rows)
        codes = torch.randint(2048, (max(FRAMES, 32 // rows), rows, 16), device="cuda", generator=generator)
        truth = forced_logits(exact, rows, codes)
        error = mean_error(forced_logits(eager, rows, codes), truth)
        for mixed in (False, True):
            assert mean_error(forced_logits(rounded.frame, rows, codes, mixed=mixed), truth) < 1.05 * error


def test_the_check_of_e4m3_takes_less_than_a_start_may(model: SpeechModel) -> None:
    """3 s; measured again, because the first products load cuBLAS."""
    frame = modules_of(model.frame, torch.bfloat16)
    began = time.monotonic()
    said, (far, near) = check(frame, EIGHT), distances(frame, EIGHT)
    took_s = time.monotonic() - began
    print(f"{said}; twice in {took_s:.2f} s; times: {[round(times) for times in (far / near).tolist()]}")
    assert took_s < 2 * 3


@pytest.mark.parametrize("rows", [1, 2, 64, 100])
@torch.inference_mode()
def test_what_lies_between_the_products_draws_as_torch_does(model: SpeechModel, rows: int) -> None:
    """Up to roundings of products in another kernel, which now and then move a draw."""
    accelerate(model)
    torch.manual_seed(rows)
    state = mid_speech(model, rows, 300).frame
    again, who, run = copy.deepcopy(state), torch.arange(rows, device="cuda"), torch.ones_like(state.ended)
    before = again.of(who)
    found = model.frame.step(state, run, rows=who)
    expected = model.frame.step(again, run, lambda logits, book: model.frame._draw(before, logits, book), who)
    assert (found.codes != expected.codes).float().mean() < 0.05
    for name in ("position", "text_read", "frame"):
        assert torch.equal(getattr(state, name), getattr(again, name))
    same = (found.codes == expected.codes).all(1)
    torch.testing.assert_close(state.feedback[same], again.feedback[same], rtol=2**-7, atol=1e-3)


def speaking(model: SpeechModel, rows: int) -> SpeechState:
    """Decoding rows, and the padding row."""
    state = mid_speech(model, rows_of_state(rows, torch.device("cuda")), 300)
    state.frame.ended[rows:] = True
    return state


def launched(graphs: FrameGraphs, rows: list[int]) -> LaunchedStep:
    frame, _ = graphs.step(rows)
    assert frame is not None
    return frame


def spoken(model: SpeechModel, state: SpeechState, *, captured: bool, rows: list[int]) -> list[bytes]:
    graphs = FrameGraphs(model, state, captured=captured)
    return [
        b"".join(getattr(said, name).tobytes() for name in ("codes", "pcm", "ended", "finite"))
        for said in (launched(graphs, rows).result() for _ in range(FRAMES))
    ]


@torch.inference_mode()
def test_a_graph_equals_the_step_bit_for_bit(model: SpeechModel) -> None:
    accelerate(model)
    torch.manual_seed(1)
    state = speaking(model, 4)
    again = copy.deepcopy(state)
    assert spoken(model, state, captured=True, rows=[0, 2]) == spoken(model, again, captured=False, rows=[0, 2])
    assert torch.equal(state.frame.position, again.frame.position)
    padding_position = state.frame.cache.padding_position
    assert torch.equal(state.frame.cache.keys[:, :, :padding_position], again.frame.cache.keys[:, :, :padding_position])
    assert state.frame.position.tolist() == [303, 300, 303, 300, 300]


@torch.inference_mode()
def test_a_step_in_flight_does_not_change_the_result_before_it(model: SpeechModel) -> None:
    graphs = FrameGraphs(model, speaking(model, 2))
    first = launched(graphs, [0]).result()
    kept = first.pcm.copy()
    second = launched(graphs, [0])
    assert (first.pcm == kept).all()
    assert (second.result().pcm != kept).any()
