"""A frame step gives upstream's codes for every kind of model and prompt, whatever the other rows do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agent_tts.model.config import SamplingParams
from agent_tts.model.frame import Frame, FrameModel, PromptEntries
from agent_tts.model.frame_state import FrameState
from agent_tts.model.prompt import VECTOR, Prompt, PromptVoice, build_prompt
from agent_tts.model.row_changes import BlockAllocator, RowChanges, Writes
from agent_tts.model.weights import build
from tests.examples import examples
from tests.model import tiny

GREEDY = SamplingParams(temperature=0, predictor_temperature=0)
TTS_EOS = 151673
FRAMES = 8
RYAN = PromptVoice("ryan")


def upstream_codes(upstream: Any, frames: int = FRAMES, *, streaming: bool = True, **request: Any) -> Tensor:
    return tiny.upstream_speech(upstream, frames, non_streaming_mode=not streaming, **request)[0]


def prompt_of(model: FrameModel, voice: PromptVoice = RYAN, **options: Any) -> Prompt:
    return build_prompt(model.config, voice, **dict[str, Any](role=tiny.ROLE, text=tiny.TEXT) | options)


def step(model: FrameModel, state: FrameState, *rows: int) -> Frame:
    run = torch.zeros(len(state.ended), dtype=torch.bool)
    run[list(rows)] = True
    return model.step(state, run)


def tell(changed: RowChanges | BlockAllocator) -> list[int] | None:
    """Upload the changes to the device; of row changes, return the admitted rows."""
    admitted = changed.collect(writes := Writes())
    writes.send(torch.device("cpu"))
    return admitted


def add_text(state: FrameState, row: int, tokens: Sequence[int], *, complete: bool) -> None:
    changes = RowChanges(state)
    changes.add_text(row, tokens, complete=complete)
    tell(changes)


def said(frames: list[Frame], row: int = 0) -> Tensor:
    """Codes of one row: int64[frames, 16]."""
    codes = [frame.codes[row] for frame in frames if frame.spoke[row]]
    return torch.stack(codes) if codes else torch.empty(0, 16, dtype=torch.int64)


def speak(
    model: FrameModel,
    prompt: Prompt,
    sampling: SamplingParams = GREEDY,
    vector: Tensor | None = None,
    frames: int = FRAMES,
) -> Tensor:
    """Codes of one request alone: int64[<= frames, 16]."""
    state = model.init_state(rows=1, max_model_len=64)
    tiny.admit(model, state, 0, prompt, sampling, vector)
    return said([step(model, state, 0) for _ in range(frames)])


@contextmanager
def end_of_speech_at(frame: int, upstream: Any, ours: FrameModel, **request: Any) -> Iterator[None]:
    """Make the end of speech the most likely first code of one frame of one request, in both models."""
    heads = [upstream.talker.codec_head.weight, ours.talker.codec_head.weight]
    before = heads[0][2150].clone()
    _, hidden = tiny.upstream_speech(upstream, FRAMES, **request)
    wanted = torch.full((len(hidden),), -9.0)
    wanted[frame] = 9
    try:
        for head in heads:
            head.data[2150] = torch.linalg.lstsq(hidden, wanted[:, None], driver="gelsd").solution[:, 0]
        yield
    finally:
        for head in heads:
            head.data[2150] = before


WHOLE = pytest.param(False, marks=pytest.mark.slow)
MODES = pytest.mark.parametrize("streaming", [True, WHOLE], ids=["streaming", "whole-text"])


class TestCodesEqualUpstreams:
    @pytest.mark.parametrize(
        ("size", "instruct", "streaming"),
        [
            pytest.param(tiny.PROJECTED, (), True, marks=pytest.mark.slow),
            pytest.param(tiny.PROJECTED, (), False, marks=pytest.mark.slow),
            (tiny.PROJECTED, tiny.INSTRUCT, True),
            pytest.param(tiny.SAME_WIDTH, (), False, marks=pytest.mark.slow),
        ],
        ids=["1.7B-streaming", "1.7B-whole-text", "1.7B-instruct-streaming", "0.6B-whole-text"],
    )
    def test_with_a_named_speaker(self, streaming: bool, size: str, instruct: tuple[int, ...]) -> None:
        upstream, ours = tiny.models("custom_voice", size)
        ids = [torch.tensor([instruct])] if instruct else None
        request = {"languages": ["English"], "speakers": ["Ryan"], "instruct_ids": ids}
        theirs = upstream_codes(upstream, streaming=streaming, **request)
        prompt = prompt_of(ours, PromptVoice("Ryan"), language="English", instruct=instruct, streaming=streaming)
        assert torch.equal(speak(ours, prompt), theirs)
        assert len(theirs) == FRAMES
        assert len(set(theirs[:, 0].tolist())) > FRAMES // 2  # a model with constant codes proves nothing

    @pytest.mark.parametrize(
        ("speaker", "language"),
        [("serena", "Chinese"), ("eric", "Auto"), pytest.param("Eric", "german", marks=pytest.mark.slow)],
    )
    def test_with_every_kind_of_language(self, speaker: str, language: str) -> None:
        """tests/model/test_prompt.py has every pair."""
        upstream, ours = tiny.models("custom_voice")
        theirs = upstream_codes(upstream, 4, languages=[language], speakers=[speaker])
        assert torch.equal(speak(ours, prompt_of(ours, PromptVoice(speaker), language=language), frames=4), theirs)

    @pytest.mark.parametrize(
        ("language", "streaming"), [("auto", True), pytest.param("German", False, marks=pytest.mark.slow)]
    )
    def test_with_a_designed_voice(self, streaming: bool, language: str) -> None:
        upstream, ours = tiny.models("voice_design")
        ids = [torch.tensor([tiny.INSTRUCT])]
        theirs = upstream_codes(upstream, streaming=streaming, languages=[language], instruct_ids=ids)
        prompt = prompt_of(ours, PromptVoice(), language=language, instruct=tiny.INSTRUCT, streaming=streaming)
        assert torch.equal(speak(ours, prompt), theirs)

    @pytest.mark.parametrize(
        ("size", "streaming"), [(tiny.PROJECTED, True), pytest.param(tiny.SAME_WIDTH, False, marks=pytest.mark.slow)]
    )
    def test_with_a_speaker_vector(self, streaming: bool, size: str) -> None:
        upstream, ours = tiny.models("base", size)
        vector = tiny.speaker_vector()
        clone = tiny.upstream_clone(vector)
        theirs = upstream_codes(upstream, streaming=streaming, languages=["english"], **clone)
        prompt = prompt_of(ours, PromptVoice(VECTOR), language="english", streaming=streaming)
        assert torch.equal(speak(ours, prompt, vector=vector), theirs)

    @pytest.mark.parametrize(
        ("length", "streaming"),
        [
            pytest.param(4, True, marks=pytest.mark.slow),
            (8, True),
            pytest.param(9, True, marks=pytest.mark.slow),
            pytest.param(14, True, marks=pytest.mark.slow),
            pytest.param(14, False, marks=pytest.mark.slow),
        ],
        ids=["short", "as-long-as-the-text", "one-more", "long", "behind-the-whole-text"],
    )
    def test_with_a_reference(self, streaming: bool, length: int) -> None:
        upstream, ours = tiny.models("base")
        vector = tiny.speaker_vector()
        clone = tiny.upstream_clone(vector, length)
        theirs = upstream_codes(upstream, streaming=streaming, languages=["auto"], **clone)
        prompt = prompt_of(ours, PromptVoice(VECTOR, tiny.reference(length)), streaming=streaming)
        assert torch.equal(speak(ours, prompt, vector=vector), theirs)

    @pytest.mark.parametrize("penalty", [0.5, pytest.param(2.0, marks=pytest.mark.slow)])
    def test_with_a_repetition_penalty(self, penalty: float) -> None:
        upstream, ours = tiny.models("custom_voice")
        theirs = upstream_codes(upstream, 10, languages=["auto"], speakers=["ryan"], repetition_penalty=penalty)
        found = speak(ours, prompt_of(ours), replace(GREEDY, repetition_penalty=penalty), frames=10)
        assert torch.equal(found, theirs)
        repeated = len(theirs) - len(set(theirs[:, 0].tolist()))
        assert repeated > 3 if penalty < 1 else repeated == 0

    @MODES
    def test_to_the_end_of_speech(self, streaming: bool) -> None:
        upstream, ours = tiny.models("custom_voice")
        request = {"languages": ["auto"], "speakers": ["ryan"]}
        with end_of_speech_at(6, upstream, ours, non_streaming_mode=not streaming, **request):
            theirs = upstream_codes(upstream, streaming=streaming, **request)
            assert torch.equal(speak(ours, prompt_of(ours, streaming=streaming)), theirs)
        assert len(theirs) == 6

    @pytest.mark.slow
    def test_with_at_least_two_frames(self) -> None:
        upstream, ours = tiny.models("custom_voice")
        request = {"languages": ["auto"], "speakers": ["ryan"]}
        prompt = prompt_of(ours, streaming=False)
        with end_of_speech_at(0, upstream, ours, non_streaming_mode=True, **request):
            assert torch.equal(speak(ours, prompt), upstream_codes(upstream, streaming=False, **request))
            assert len(speak(ours, prompt, replace(GREEDY, min_frames=0))) == 0


class TestEndOfSpeech:
    def test_is_reported_once_without_a_frame(self) -> None:
        upstream, ours = tiny.models("custom_voice")
        state = ours.init_state(rows=1, max_model_len=64)
        tiny.admit(ours, state, 0, prompt_of(ours), GREEDY)
        with end_of_speech_at(6, upstream, ours, languages=["auto"], speakers=["ryan"]):
            frames = [step(ours, state, 0) for _ in range(FRAMES)]
        assert [frame.spoke.item() for frame in frames] == [True] * 6 + [False] * 2
        assert [frame.ended.item() for frame in frames] == [False] * 6 + [True, False]

    def test_is_not_drawn_before_all_text_is_read(self) -> None:
        upstream, ours = tiny.models("custom_voice")
        request: dict[str, Any] = {"languages": ["auto"], "speakers": ["ryan"]}
        early = len(tiny.TEXT) - 1
        with end_of_speech_at(early, upstream, ours, **request):
            assert len(upstream_codes(upstream, **request)) == early  # without the mask it is drawn
            assert len(speak(ours, prompt_of(ours))) > early


@cache
def said_at_once() -> Tensor:
    _, ours = tiny.models("custom_voice")
    return speak(ours, prompt_of(ours))


class TestText:
    @examples(8)
    @given(cuts=st.lists(st.integers(0, len(tiny.TEXT)), max_size=4).map(sorted), late=st.integers(1, 3))
    def test_word_by_word_equals_the_whole_text(self, cuts: list[int], late: int) -> None:
        """Tokens in any pieces, each after a wait of the row, give the same codes; a waiting row reads nothing."""
        _, ours = tiny.models("custom_voice")
        state = ours.init_state(rows=1, max_model_len=64)
        first, *bounds = [*cuts, len(tiny.TEXT)]
        tiny.admit(ours, state, 0, prompt_of(ours, text=tiny.TEXT[:first], complete=False), GREEDY)
        frames = [step(ours, state, 0) for _ in range(first)]
        for begin, end in zip([first, *bounds], bounds, strict=False):
            waiting = [step(ours, state, 0) for _ in range(late)]
            assert all(frame.starved.item() and not frame.spoke.item() for frame in waiting)
            add_text(state, 0, tiny.TEXT[begin:end], complete=False)
            frames += [step(ours, state, 0) for _ in range(end - begin)]
        add_text(state, 0, [TTS_EOS], complete=True)
        frames += [step(ours, state, 0) for _ in range(FRAMES - len(tiny.TEXT))]
        assert torch.equal(said(frames), said_at_once())

    def test_beyond_the_cache_is_refused(self) -> None:
        _, ours = tiny.models("custom_voice")
        state = ours.init_state(rows=1, max_model_len=20)
        with pytest.raises(ValueError, match="20 positions"):
            tiny.admit(ours, state, 0, prompt_of(ours, text=[5] * 20), GREEDY)
        tiny.admit(ours, state, 0, prompt_of(ours, complete=False), GREEDY)
        with pytest.raises(ValueError, match="20 tokens"):
            add_text(state, 0, [5] * 16, complete=True)


def requests(model: FrameModel) -> list[tuple[Prompt, SamplingParams]]:
    """Three requests that differ in every field, with sampling noise."""
    return [
        (prompt_of(model, PromptVoice("ryan"), language="english"), SamplingParams(seed=1)),
        (
            prompt_of(model, PromptVoice("eric"), text=tiny.TEXT[:3], instruct=tiny.INSTRUCT),
            SamplingParams(seed=-2, top_k=5),
        ),
        (
            prompt_of(model, PromptVoice("serena"), streaming=False),
            SamplingParams(seed=2**64 - 3, top_p=0.8, temperature=1.3),
        ),
    ]


@cache
def said_alone() -> list[Tensor]:
    _, ours = tiny.models("custom_voice")
    return [speak(ours, prompt, sampling, frames=6) for prompt, sampling in requests(ours)]


class TestRows:
    @examples(5)
    @given(data=st.data())
    def test_do_not_affect_each_other(self, data: st.DataObject) -> None:
        """Rows are admitted and pause at any time, in any place; each gives the codes that it gives alone."""
        _, ours = tiny.models("custom_voice")
        wanted, alone = requests(ours), said_alone()
        state = ours.init_state(rows=4, max_model_len=48)
        places = data.draw(st.permutations(range(4)))[:3]
        arrivals = data.draw(st.tuples(*[st.integers(0, 4)] * 3))
        heard: list[list[Frame]] = [[], [], []]
        for now in range(22):
            for request, (prompt, sampling) in enumerate(wanted):
                if arrivals[request] == now:
                    tiny.admit(ours, state, places[request], prompt, sampling)
            running = [r for r in range(3) if arrivals[r] <= now and len(heard[r]) < len(alone[r])]
            chosen = [r for r in running if now > 14 or data.draw(st.booleans())]
            frame = step(ours, state, *(places[r] for r in chosen))
            for r in chosen:
                heard[r].append(frame)
        for r in range(3):
            assert torch.equal(said(heard[r], places[r]), alone[r])

    def test_that_pause_keep_their_state(self) -> None:
        _, ours = tiny.models("custom_voice")
        state = ours.init_state(rows=2, max_model_len=48)
        for row in (0, 1):
            tiny.admit(ours, state, row, *requests(ours)[row])
        step(ours, state, 0, 1)
        before = {name: tensor.clone() for name, tensor in row_tensors(state, 1).items()}
        moving = row_tensors(state, 0)["position"].clone()
        frames = [step(ours, state, 0) for _ in range(3)]
        assert not any(frame.spoke[1] or frame.ended[1] or frame.starved[1] for frame in frames)
        for name, tensor in row_tensors(state, 1).items():
            assert torch.equal(tensor, before[name]), name
        assert row_tensors(state, 0)["position"] == moving + 3

    def test_that_are_reused_start_clean(self) -> None:
        _, ours = tiny.models("custom_voice")
        prompt, sampling = prompt_of(ours), replace(GREEDY, repetition_penalty=4.0)
        state = ours.init_state(rows=2, max_model_len=48)
        for tensor in row_tensors(state, 1).values():
            tensor.fill_(True if tensor.dtype == torch.bool else 7)
        state.seen[1, ::2] = False  # a penalty on all codes alike would change little
        tiny.admit(ours, state, 1, prompt, sampling)
        assert torch.equal(said([step(ours, state, 1) for _ in range(8)], 1), speak(ours, prompt, sampling, frames=8))

    def test_without_a_request_give_no_frame(self) -> None:
        _, ours = tiny.models("custom_voice")
        state = ours.init_state(rows=2, max_model_len=48)
        tiny.admit(ours, state, 0, *requests(ours)[0])
        frame = step(ours, state, 0, 1)
        assert frame.spoke.tolist() == [True, False]
        assert not frame.starved.any()  # a row without a request does not wait for text

    def test_that_are_full_stop_and_report_it(self) -> None:
        _, ours = tiny.models("custom_voice")
        prompt = prompt_of(ours)
        state = ours.init_state(rows=1, max_model_len=len(prompt.prefix) + 9)
        tiny.admit(ours, state, 0, prompt, GREEDY)
        frames = [step(ours, state, 0) for _ in range(11)]
        assert torch.equal(said(frames), speak(ours, prompt, frames=9))
        assert [frame.full.item() for frame in frames] == [False] * 9 + [True] * 2

    def test_need_the_vector_of_their_voice(self) -> None:
        _, ours = tiny.models("base")
        state = ours.init_state(rows=1, max_model_len=48)
        for vector in (None, torch.zeros(3)):
            with pytest.raises(ValueError, match="vector of 64"):
                tiny.admit(ours, state, 0, prompt_of(ours, PromptVoice(VECTOR)), GREEDY, vector)


def row_tensors(state: FrameState, row: int) -> dict[str, Tensor]:
    """Everything that a row keeps between steps, as views, without the cache's padding position."""
    kept = {name: getattr(state, name)[row] for name in ("position", "feedback", "text", "text_length")}
    kept |= {name: getattr(state, name)[row] for name in ("text_complete", "text_read", "frame", "seen", "ended")}
    kept |= {"keys": state.cache.keys[:, row, :-1], "values": state.cache.values[:, row, :-1]}
    return kept


class TestPrefill:
    """A prompt in chunks equals the whole prompt, and changes no other row."""

    ROWS, ROW = 4, 2

    def prompts(self, model: FrameModel) -> list[tuple[Prompt, Tensor | None]]:
        """Prompts of ten and of more than forty positions."""
        voices = PromptVoice(), PromptVoice(VECTOR), PromptVoice(VECTOR, tiny.reference(30))
        vectors = None, tiny.speaker_vector(), tiny.speaker_vector()
        return [(prompt_of(model, voice), vector) for voice, vector in zip(voices, vectors, strict=True)]

    def state(self, model: FrameModel, *, paged: bool) -> FrameState:
        """A state with marked values, so that writes can be detected."""
        state = model.init_state(self.ROWS, 64, 80 if paged else None, block_size=8)
        if paged:
            state.cache.block_table[:, :8] = torch.randperm(79)[: self.ROWS * 8].view(self.ROWS, 8) + 1
        state.cache.keys.fill_(9)
        state.cache.values.fill_(9)
        return state

    @pytest.mark.parametrize("paged", [False, True])
    @pytest.mark.parametrize("cut", [1, 7, -1], ids=["after-one", "after-seven", "before-the-start"])
    def test_in_chunks(self, paged: bool, cut: int) -> None:
        model = tiny.models("base")[1]
        for prompt, vector in self.prompts(model):
            whole, cut_up = self.state(model, paged=paged), self.state(model, paged=paged)
            cut_up.cache.block_table.copy_(whole.cache.block_table)
            tiny.admit(model, whole, self.ROW, prompt, GREEDY, vector)

            length, at = len(prompt.prefix), cut % prompt.length
            positions = np.append(np.arange(length), cut_up.cache.padding_position)
            for begin, end in ((0, at), (at, prompt.length)):
                numbers = prompt.numbers(16, begin, end)
                entries = model.entries(cut_up, self.ROW, positions[begin:end], numbers, vector)
                start = model.prefill(cut_up, entries, min(end, length) if begin else None)[-1]

            torch.testing.assert_close(start, whole.feedback[self.ROW], rtol=0, atol=1e-5)
            for row in range(self.ROWS):
                known = length if row == self.ROW else 0
                for mine, theirs in zip(cut_up.cache.read(row, 64), whole.cache.read(row, 64), strict=True):
                    torch.testing.assert_close(mine[:, :known], theirs[:, :known], rtol=0, atol=1e-5)
                    assert (mine[:, :known] != 9).all()
                    assert (mine[:, known:] == 9).all()  # neither after it nor in another row

    @pytest.mark.parametrize("paged", [False, True])
    def test_positions_after_it_are_not_read(self, paged: bool) -> None:
        """A mask hides numbers, but a masked NaN of the row's former owner is still NaN."""
        model = tiny.models("base")[1]
        for prompt, vector in self.prompts(model):
            state, length = self.state(model, paged=paged), len(prompt.prefix)
            for kept in (state.cache.keys, state.cache.values):
                kept.fill_(math.nan)
            positions = np.append(np.arange(length), state.cache.padding_position)
            for begin, end in ((0, 5), (5, prompt.length)):
                numbers = prompt.numbers(16, begin, end)
                entries = model.entries(state, self.ROW, positions[begin:end], numbers, vector)
                model.prefill(state, entries, min(end, length) if begin else None)
            assert all(kept.isfinite().all() for kept in state.cache.read(self.ROW, length))

    def test_shared_positions_of_prompts(self) -> None:
        """All of the prompt, unless a reference is aligned with the text."""
        model = tiny.models("base")[1]
        other = (11, 12, 13, 14, 15, 16, 17, 18, 19, 20)
        for prompt, vector in self.prompts(model):
            voice = PromptVoice() if vector is None else PromptVoice(VECTOR)
            if len(prompt.prefix) > 20:
                voice = PromptVoice(VECTOR, tiny.reference(30))
            another = prompt_of(model, voice, text=other)
            assert prompt.shared == another.shared
            assert prompt.prefix[: prompt.shared] == another.prefix[: prompt.shared]
            assert (prompt.shared < len(prompt.prefix)) == (voice.reference is not None)
            if voice.reference:
                assert prompt.prefix[prompt.shared] != another.prefix[prompt.shared]

    def test_needs_no_value_on_the_host(self) -> None:
        model = build(FrameModel, tiny.config("custom_voice")).to("meta")
        state = model.init_state(rows=3, max_model_len=48)
        packed = torch.zeros(PromptEntries.size(2, 16), dtype=torch.int64, device="meta")
        for span in (None, 48):
            embedded = model.prefill(state, PromptEntries.of(packed, state.feedback[:2]), span)
            assert embedded.shape == state.feedback[:2].shape


class TestStep:
    def test_needs_no_value_on_the_host(self) -> None:
        """On tensors without data, any use of a value on the host raises."""
        model = build(FrameModel, tiny.config("custom_voice")).to("meta")
        frame = model.step(model.init_state(rows=3, max_model_len=48), torch.ones(3, dtype=torch.bool, device="meta"))
        assert frame.codes.shape == (3, 16)

    def test_reads_row_inputs_at_aligned_addresses(self) -> None:
        state = tiny.models("custom_voice")[1].init_state(rows=3, max_model_len=48)
        for block in (state.counts, state.sampling_params, state.flags):
            assert all(line.data_ptr() % 16 == 0 for line in block)

    def test_keeps_every_tensor_in_place(self) -> None:
        """A captured graph reads and writes fixed addresses."""
        _, ours = tiny.models("custom_voice")
        state = ours.init_state(rows=2, max_model_len=48)
        places = {name: tensor.data_ptr() for name, tensor in row_tensors(state, 0).items()}
        tiny.admit(ours, state, 0, *requests(ours)[0])
        step(ours, state, 0)
        assert {name: tensor.data_ptr() for name, tensor in row_tensors(state, 0).items()} == places


def test_every_parameter_has_its_place_in_the_checkpoint() -> None:
    for size in (tiny.PROJECTED, tiny.SAME_WIDTH):
        upstream, ours = tiny.models("custom_voice", size)
        names = ours.checkpoint_names()
        assert set(names) == set(ours.state_dict())
        talker = {name for name in upstream.state_dict() if name.startswith("talker.")}
        assert sorted(names.values()) == sorted(talker)


def test_a_row_with_nan_is_reported_although_it_draws_codes() -> None:
    _, model = tiny.models("custom_voice")
    state = model.init_state(2, 64)
    for row in range(2):
        tiny.admit(model, state, row, prompt_of(model), GREEDY)
    state.feedback[0] = torch.nan
    assert step(model, state, 0, 1).finite.tolist() == [False, True]
