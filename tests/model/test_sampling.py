"""Every processor equals its namesake in Hugging Face's generate; draws have the right frequencies and no state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agent_tts.model.config import SamplingDefaults, SamplingParams
from agent_tts.model.sampling import SamplingRows, Warp, draw, forbid, penalise, uniform, warp
from tests.examples import examples

SIZE = 3072
NO_IDS = torch.empty(1, 0, dtype=torch.int64)


def logits(seed: int, size: int = SIZE, rows: int = 1) -> Tensor:
    return 4 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


def rows_of(*params: SamplingParams) -> SamplingRows:
    counts, wanted = zip(*(one.numbers() for one in params), strict=True)
    return SamplingRows.of(torch.tensor(counts).T, torch.tensor(wanted).T)


def talker_warp(*params: SamplingParams) -> Warp:
    return rows_of(*params).talker


class TestProcessors:
    @given(seed=st.integers(0, 99), penalty=st.sampled_from([0.5, 1.0, 1.05, 2.0]), seen=st.sets(st.integers(0, 3071)))
    def test_repetition_penalty(self, seed: int, penalty: float, seen: set[int]) -> None:
        from transformers import RepetitionPenaltyLogitsProcessor

        x, ids = logits(seed), torch.tensor([sorted(seen)], dtype=torch.int64)
        mask = torch.zeros(1, SIZE, dtype=torch.bool)
        mask[0, ids[0]] = True
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, x.clone())
        assert torch.equal(penalise(x, mask, torch.tensor([penalty])), theirs)

    def test_suppressed_codes(self) -> None:
        from transformers import SuppressTokensLogitsProcessor

        x, codes = logits(1), [2048, 2149, 3071]
        mask = torch.zeros(SIZE, dtype=torch.bool)
        mask[codes] = True
        assert torch.equal(forbid(x, mask), SuppressTokensLogitsProcessor(codes)(NO_IDS, x.clone()))

    @examples(40)
    @given(
        seed=st.integers(0, 99),
        temperature=st.sampled_from([0.1, 0.9, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 2, 50, 3071, 3072, 9999]),
        top_p=st.sampled_from([0.01, 0.5, 0.8, 0.95, 1.0]),
        ties=st.booleans(),
    )
    def test_temperature_then_top_k_then_top_p(
        self, seed: int, temperature: float, top_k: int, top_p: float, ties: bool
    ) -> None:
        from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        x = logits(seed)
        if ties and top_p == 1:  # top-p may keep either of two equal codes
            x = x.round()
        theirs = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
        if top_k:
            theirs.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            theirs.append(TopPLogitsWarper(top_p))
        one = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
        expected = theirs(cast(torch.LongTensor, NO_IDS), cast(torch.FloatTensor, x.clone()))
        assert torch.equal(warp(x, talker_warp(one)), expected)

    def test_each_row_has_its_own_parameters(self) -> None:
        params = [
            SamplingParams(),
            SamplingParams(temperature=2, top_k=3),
            SamplingParams(top_p=0.5, top_k=0),
            SamplingParams(temperature=0),
        ]
        x = logits(2, rows=4)
        together = warp(x, talker_warp(*params))
        for row, one in enumerate(params):
            assert torch.equal(together[row], warp(x[row : row + 1], talker_warp(one))[0])


class TestNoise:
    def test_is_splitmix64(self) -> None:
        """The generator in plain integers, over the counter of (frame, codebook) and then over the codes."""

        def mix(z: int) -> int:
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
            return z ^ z >> 31

        gamma = 0x9E3779B97F4A7C15
        assert mix(gamma) == 0xE220A8397B1DCDAF  # the published first output for seed 0
        for seed, frame, codebook in [(0, 0, 0), (-1, 3, 15), (2**63 - 1, 4095, 7)]:
            start = mix((seed + (frame * 64 + codebook + 1) * gamma) % 2**64)
            expected = [((mix((start + code * gamma) % 2**64) >> 41) + 0.5) / 2**23 for code in range(1, 101)]
            found = uniform(torch.tensor([seed]), torch.tensor([frame]), codebook, 100)
            assert found[0].double().tolist() == expected

    def test_depends_only_on_seed_frame_and_codebook(self) -> None:
        seeds, frames = torch.tensor([5, 6, 5, 5]), torch.tensor([0, 0, 1, 0])
        noise = uniform(seeds, frames, 0, SIZE)
        assert torch.equal(noise[0], noise[3])
        others = [noise[0], noise[1], noise[2], uniform(seeds[:1], frames[:1], 1, SIZE)[0]]
        for i, one in enumerate(others):
            for other in others[:i]:
                assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1]) < 0.1

    def test_is_never_zero_or_one(self) -> None:
        noise = uniform(torch.arange(500), torch.zeros(500, dtype=torch.int64), 0, SIZE)
        assert noise.min() > 0
        assert noise.max() < 1
        assert abs(noise.mean() - 0.5) < 0.002


class TestDraw:
    @pytest.mark.parametrize("along", ["frames", "seeds"])
    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(),
            SamplingParams(temperature=1.7, top_k=0),
            SamplingParams(top_p=0.7, top_k=0),
            SamplingParams(top_k=4),
        ],
        ids=["default", "hot", "top-p", "top-k"],
    )
    def test_has_the_frequencies_of_the_softmax(self, params: SamplingParams, along: str) -> None:
        count, size = 20_000, 64
        x = logits(11, size).expand(count, size)
        one = talker_warp(params)
        how = Warp(one.temperature.expand(count), one.top_k.expand(count), one.top_p.expand(count))
        counter, still = torch.arange(count), torch.full((count,), 42)
        seed, frame = (still, counter) if along == "frames" else (counter, still)
        drawn = draw(x, how, seed, frame, codebook=3).bincount(minlength=size)
        expected = warp(x[:1], one)[0].softmax(-1) * count
        assert drawn[expected == 0].sum() == 0
        assert chi_square_p(drawn, expected) > 0.001

    def test_at_temperature_zero_is_the_most_likely_code(self) -> None:
        x = logits(3, rows=8)
        greedy = talker_warp(*[SamplingParams(temperature=0, top_k=50, top_p=0.5)] * 8)
        assert torch.equal(draw(x, greedy, torch.arange(8), torch.arange(8), 0), x.argmax(-1))

    def test_of_a_row_does_not_depend_on_the_others(self) -> None:
        x = logits(4, rows=16)
        params = [SamplingParams(seed=row, top_k=row, temperature=row / 4) for row in range(16)]
        rows, frames = rows_of(*params), torch.arange(16)
        together = draw(x, rows.talker, rows.seed, frames, 2)
        for row, one in enumerate(params):
            alone = rows_of(one)
            assert draw(x[row : row + 1], alone.talker, alone.seed, frames[row : row + 1], 2) == together[row]


def chi_square_p(drawn: Tensor, expected: Tensor) -> float:
    """Probability of counts at least this far from the expected; codes expected less than five times are merged."""
    rare = expected < 5
    drawn = torch.cat((drawn[~rare], drawn[rare].sum()[None])).double()
    expected = torch.cat((expected[~rare], expected[rare].sum()[None])).double()
    drawn, expected = drawn[expected > 0], expected[expected > 0]
    statistic = ((drawn - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2).double(), statistic / 2))


class TestSampling:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", -0.1),
            ("temperature", float("nan")),
            ("top_k", -1),
            ("top_p", 0.0),
            ("top_p", 1.1),
            ("repetition_penalty", 0.0),
            ("predictor_temperature", -1.0),
            ("predictor_top_k", -1),
            ("predictor_top_p", 2.0),
            ("min_frames", -1),
        ],
    )
    def test_out_of_range_is_an_error_that_names_it(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"^{name} "):
            replace(SamplingParams(), **{name: value})

    def test_defaults_come_from_the_checkpoint(self) -> None:
        assert SamplingParams.of(SamplingDefaults()) == SamplingParams()
        asked = SamplingDefaults(temperature=0.5, top_k=9, top_p=0.8, repetition_penalty=1.2)
        found = SamplingParams.of(
            replace(asked, subtalker_temperature=0.4, subtalker_top_k=8, subtalker_top_p=0.7), seed=3
        )
        assert found == SamplingParams(3, 0.5, 9, 0.8, 1.2, 0.4, 8, 0.7)
        greedy = SamplingParams.of(replace(asked, do_sample=False, subtalker_dosample=False))
        assert (greedy.temperature, greedy.predictor_temperature) == (0, 0)

    @pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 2**64, 2**200 + 1])
    def test_any_integer_is_a_seed(self, seed: int) -> None:
        assert int(rows_of(SamplingParams(seed=seed)).seed[0]) % 2**64 == seed % 2**64
