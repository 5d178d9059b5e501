"""The comparison of models finds which part differs and by how much, and no difference between equal models."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agent_tts.errors import SettingsError
from agent_tts.model.config import ModelConfig
from tests.measure.parity_distance import Distance, Request, Subject, distances, logits_distance, signal_distance
from tests.measure.parity_subjects import Eager, Upstream
from tests.measure.test_tools import tool
from tests.model import oracle, tiny

FRAMES = 12  # more than the text's tokens, so that the end of speech is compared too
NEVER = float("-inf")


def measured(folder: Path, reference: Callable[[], Subject], tested: Callable[[], Subject]) -> dict[str, Distance]:
    request = Request.of(ModelConfig.read(folder))
    found = distances(request, drawn(folder), reference, {"tested": tested})
    return {distance.part: distance for distance in found["tested"]}


@cache
def drawn(folder: Path) -> Tensor:
    return eager(folder).draw(Request.of(ModelConfig.read(folder)), FRAMES)


def eager(folder: Path, dtype: torch.dtype = torch.float32) -> Eager:
    return Eager.load(folder, "cpu", dtype)


whole = cache(eager)


def perturbed(folder: Path, parameter: Callable[[Eager], Tensor]) -> Eager:
    subject = eager(folder)
    parameter(subject).mul_(1.01)
    return subject


@pytest.mark.slow
def test_our_model_equals_the_reference_to_float32_rounding() -> None:
    assert oracle.qwen_tts()  # `oracle` imports it even if other packages of upstream are missing
    folder = tiny.checkpoint("base")
    for part, distance in measured(folder, partial(Upstream, folder), partial(eager, folder)).items():
        assert 0 < distance.relative_error < 1e-4, part
        assert distance.snr_db > 90
        assert distance.agreement in (1, None)


@pytest.mark.slow
def test_a_model_has_no_distance_from_itself() -> None:
    folder = tiny.checkpoint("base")
    found = measured(folder, partial(eager, folder), partial(eager, folder))
    assert list(found) == ["talker", "predictor", *(f"code {number}" for number in range(1, 16)), "codec"]
    for distance in found.values():
        assert distance.max_error == 0
        assert distance.snr_db == math.inf
        assert distance.kl in (0, None)


@pytest.mark.slow
def test_rounding_to_bfloat16_is_a_small_distance() -> None:
    folder = tiny.checkpoint("custom_voice")
    found = measured(folder, partial(eager, folder), partial(eager, folder, torch.bfloat16))
    assert all(20 < distance.snr_db < 60 for distance in found.values())
    assert 0 < (found["talker"].kl or 0) < 1e-3
    assert 0.8 < (found["predictor"].agreement or 0) < 1


@pytest.mark.parametrize(
    ("parameter", "off"),
    [
        pytest.param(lambda it: it.model.predictor.lm_head[4].weight, {"predictor", "code 5"}, marks=pytest.mark.slow),
        pytest.param(lambda it: it.model.talker.codec_head.weight, {"talker"}, marks=pytest.mark.slow),
        pytest.param(lambda it: it.codec.decoder[0].conv.weight, {"codec"}, marks=pytest.mark.slow),
        (
            lambda it: it.model.talker.layers[0].mlp.up_proj.weight,
            {"talker", "predictor", *(f"code {number}" for number in range(1, 16))},
        ),
    ],
    ids=["head-of-code-5", "talker-head", "codec", "talker-layer"],
)
def test_a_weight_that_is_off_by_one_percent_shows_in_its_part(
    parameter: Callable[[Eager], Tensor], off: set[str]
) -> None:
    folder = tiny.checkpoint("custom_voice")
    found = measured(folder, partial(whole, folder), partial(perturbed, folder, parameter))
    assert {part for part, distance in found.items() if distance.max_error > 0} == off
    assert all(distance.snr_db < 80 for part, distance in found.items() if part in off)


def test_drawn_codes_are_the_most_likely_under_forced_codes() -> None:
    folder = tiny.checkpoint("voice_design")
    subject, request = eager(folder), Request.of(ModelConfig.read(folder))
    codes = subject.draw(request, FRAMES)
    said = subject.speak(request, codes)
    assert torch.equal(said.predictor.argmax(-1), codes[:, 1:])
    assert torch.equal(said.talker[:, :2048].argmax(-1), codes[:, 0])
    assert len(set(codes[:, 0].tolist())) > FRAMES // 2


def test_the_end_of_speech_counts_only_after_the_text_is_read() -> None:
    request = Request.of(ModelConfig.read(tiny.checkpoint("custom_voice")))
    drawable = request.drawable(FRAMES)
    assert drawable.sum(1).tolist() == [2048] * 9 + [2049] * 3  # nine tokens; the tenth is tts_eos
    assert drawable[-1, 2150]


def test_distances_of_known_signals() -> None:
    found = signal_distance("x", torch.tensor([3.0, -4.0]), torch.tensor([3.0, -4.4]))
    assert found.max_error == pytest.approx(0.4)
    assert found.relative_error == pytest.approx(0.1)
    assert found.snr_db == pytest.approx(10 * math.log10(25 / 0.16), rel=1e-5)


def test_distances_of_known_logits() -> None:
    reference = torch.tensor([[0.0, math.log(3), NEVER], [1.0, 0.0, NEVER]])
    tested = torch.tensor([[math.log(3), 0.0, NEVER], [1.0, 0.0, NEVER]])
    found = logits_distance("x", reference, tested)
    assert found.agreement == 0.5
    assert found.kl == pytest.approx(0.25 * math.log(3), rel=1e-6)  # (3/4 - 1/4) ln 3, and 0, over two
    assert found.max_error == pytest.approx(math.log(3))


def test_a_code_that_only_the_tested_model_forbids_is_an_infinite_distance() -> None:
    found = logits_distance("x", torch.zeros(1, 3), torch.tensor([[0.0, 0.0, NEVER]]))
    assert (found.max_error, found.kl, found.snr_db) == (math.inf, math.inf, -math.inf)


def test_a_missing_reference_implementation_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    with pytest.raises(SettingsError, match=r"--reference upstream: .*: pip install qwen-tts==0.1.1"):
        Upstream(tiny.checkpoint("custom_voice"))


def test_the_command_prints_and_writes_the_figures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--dtype", "float32", "--frames", "3", "--json", str(out))
    done = tool("parity", "--model", str(tiny.checkpoint("custom_voice")), *options)
    assert done.exit_code == 0, done.stderr
    assert "eager, float32, cpu: against float32, 3 frames" in done.stdout
    exact, yardstick = json.loads(out.read_text())["runs"]
    assert {part["snr_db"] for part in exact["parts"]} == {"inf"}
    assert yardstick["tested"] == "eager, bfloat16, cpu"
    assert all(part["snr_db"] > 20 for part in yardstick["parts"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "float16"), "--dtype float16: must be one of float32, bfloat16"),
        (("--reference", "onnx"), "--reference onnx: must be one of float32, upstream"),
        (("--device", "tpu"), "--device tpu: must be one of cpu"),
        (("--json", "{missing}/x"), "--json x: there is no such folder"),
        ((), "neither a folder here nor a hub id"),
    ],
)
def test_options_that_cannot_be_compared_are_refused(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = tool("parity", "--model", "nowhere", *(part.format(missing=tmp_path / "missing") for part in options))
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
