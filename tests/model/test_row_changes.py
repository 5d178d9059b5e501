"""Changes of rows reach the device in one upload, with the same result as one by one. Rows share blocks."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agent_tts.model.config import SamplingParams
from agent_tts.model.frame import FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.layers import Cache
from agent_tts.model.row_changes import BlockAllocator, Prefix, RowChanges, Writes, upload
from tests.model import tiny
from tests.model.test_frame import prompt_of, said, step, tell

pytestmark = pytest.mark.model

ROWS = 6


@pytest.fixture
def model() -> FrameModel:
    return tiny.models("custom_voice")[1]


def assert_equal(found: FrameState, expected: FrameState, *names: str) -> None:
    for name in names:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def spoken_before(model: FrameModel, state: FrameState) -> Prefix:
    """Fill all rows with a former owner; return a prefix of the first row's prompt."""
    prompt = prompt_of(model)
    for row in range(ROWS):
        tiny.admit(model, state, row, prompt, SamplingParams(seed=row))
    start = state.feedback[0].clone()
    for _ in range(3):
        step(model, state, *range(ROWS))
    return Prefix(*state.cache.read(0, len(prompt.prefix)), start)


def begin_with(changes: RowChanges, row: int, prefix: Prefix, sampling: SamplingParams) -> None:
    assert prefix.start is not None
    changes.put_prefix(row, prefix)
    changes.admit(row, prefix.keys.shape[1], sampling, prefix.start)


@pytest.mark.parametrize("blocks", [None, 100])
def test_changes_in_one_upload_equal_changes_one_by_one(model: FrameModel, blocks: int | None) -> None:
    state = model.init_state(ROWS, 64, blocks, block_size=4)
    given = None if blocks is None else BlockAllocator(state.cache)
    for length in range(4, 65, 4):  # so that no row's blocks are adjacent
        assert given is None or all(given.ensure(row, length) for row in range(ROWS))
    if given is not None:
        tell(given)
    prefix = spoken_before(model, state)
    again = copy.deepcopy(state)
    length = prefix.keys.shape[1]
    assert length > 4  # more than a block
    admitted = (4, 1, 3)

    together = RowChanges(state, given)
    for row in admitted:
        prompt = prompt_of(model, text=tiny.TEXT[:row], complete=row == 1)
        sampling = SamplingParams(seed=-row, top_k=row, predictor_top_p=0.5)
        begin_with(together, row, prefix, sampling)
        together.add_text(row, prompt.text, complete=row == 1)
        tiny.admit(model, again, row, prompt, sampling)
    texts = ((0, [7, 8]), (2, [9]), (5, [6]), (4, tiny.TEXT[4:]))
    for row, tokens in texts:
        together.add_text(row, tokens, complete=row == 2)
    assert tell(together) == list(admitted)
    for row, tokens in texts:
        alone = RowChanges(again)
        alone.add_text(row, tokens, complete=row == 2)
        assert tell(alone) == []

    assert_equal(state, again, "counts", "sampling_params", "flags", "feedback", "text", "seen")
    for row in range(ROWS):
        for mine, theirs in zip(state.cache.read(row, length), again.cache.read(row, length), strict=True):
            assert torch.equal(mine, theirs)
    frames, expected = ([step(model, each, *range(ROWS)) for _ in range(4)] for each in (state, again))
    for row in range(ROWS):
        assert torch.equal(said(frames, row), said(expected, row))


def test_forgotten_changes_have_no_effect(model: FrameModel) -> None:
    state = model.init_state(ROWS, 64)
    prefix = spoken_before(model, state)
    before = copy.deepcopy(state)
    changes = RowChanges(state)
    begin_with(changes, 2, prefix, SamplingParams())
    changes.add_text(2, [1, 2], complete=True)
    changes.forget(2)
    assert tell(changes) == []
    assert_equal(state, before, "counts", "flags", "text")


def test_text_for_a_former_owner_is_not_read(model: FrameModel) -> None:
    state = model.init_state(ROWS, 64)
    prefix = spoken_before(model, state)
    changes = RowChanges(state)
    changes.add_text(2, [1, 2, 3], complete=True)
    begin_with(changes, 2, prefix, SamplingParams())
    changes.add_text(2, [4], complete=False)
    tell(changes)
    assert state.text_length[2] == 1
    assert state.text[2, 0] == 4
    assert not state.text_complete[2]


def test_a_prefix_is_written_before_the_row_is_admitted(model: FrameModel) -> None:
    """The rest of its prompt is computed in between; until then nothing else of the row changes."""
    state = model.init_state(ROWS, 64)
    prefix = spoken_before(model, state)
    before = copy.deepcopy(state)
    changes = RowChanges(state)
    changes.put_prefix(2, prefix)
    assert tell(changes) == []
    for mine, kept in zip(state.cache.read(2, prefix.keys.shape[1]), (prefix.keys, prefix.values), strict=True):
        assert torch.equal(mine, kept)
    assert_equal(state, before, "counts", "flags", "text", "feedback")


class Launches(TorchDispatchMode):
    """Counts operations that launch work on the device."""

    VIEWS = frozenset(
        {"alias", "detach", "empty", "flatten", "lift_fresh", "resolve_conj", "resolve_neg", "select", "slice", "split"}
        | {"split_with_sizes", "view"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


def test_the_number_of_launches_does_not_depend_on_the_number_of_rows(model: FrameModel) -> None:
    """Each launch takes the host some microseconds, which delay all rows."""
    state = model.init_state(ROWS, 64)
    prefix = spoken_before(model, state)
    counts = []
    for rows in (2, ROWS):
        changes = RowChanges(state)
        with Launches() as launches:
            for row in range(rows):
                begin_with(changes, row, prefix, SamplingParams())
                changes.add_text(row, [1, 2, 3], complete=True)
            tell(changes)
        counts.append(launches.counted)
    assert counts[0] == counts[1]
    assert counts[0].total() < 15
    assert not {"item", "_local_scalar_dense", "nonzero"} & set(counts[0])  # each would wait for the device


# ---------------------------------------------------------------- blocks


@pytest.fixture
def cache() -> Cache:
    """Two rows of 20 positions, and five blocks of 4 for both."""
    config = tiny.config("custom_voice").talker
    return Cache.paged(config, rows=2, max_model_len=20, blocks=6, size=4, like=torch.empty(0))


def test_no_two_rows_share_a_block(cache: Cache) -> None:
    blocks = BlockAllocator(cache)
    assert blocks.ensure(0, 5)
    assert blocks.ensure(1, 4)
    assert blocks.ensure(0, 8)  # it already has them
    assert blocks.ensure(0, 9)
    assert not blocks.ensure(0, 17)  # one block is left
    tell(blocks)
    given = [*cache.block_table[0, :3].tolist(), *cache.block_table[1, :1].tolist()]
    assert len(set(given)) == 4
    assert 0 not in given
    assert not cache.block_table[0, 3:].any()
    assert not cache.block_table[1, 1:].any()


def test_a_request_for_too_many_blocks_changes_nothing(cache: Cache) -> None:
    blocks = BlockAllocator(cache)
    assert blocks.ensure(0, 12)
    tell(blocks)
    before = cache.block_table.clone()
    assert not blocks.ensure(1, 9)
    tell(blocks)
    assert torch.equal(cache.block_table, before)
    assert blocks.ensure(1, 8)


def test_a_released_row_frees_its_blocks(cache: Cache) -> None:
    blocks = BlockAllocator(cache)
    assert blocks.ensure(0, 20)
    tell(blocks)
    blocks.release(0)
    assert cache.block_table[0].any()  # a running step may still use them
    tell(blocks)
    assert not cache.block_table.any()
    assert blocks.ensure(1, 20)
    tell(blocks)
    assert cache.block_table[1, :5].all()
    assert cache.block_table[1, -1] == 0  # the padding position belongs to no row
    with pytest.raises(ValueError, match="at most 20 positions"):
        blocks.ensure(1, 21)


def test_blocks_do_not_change_the_codes() -> None:
    """Rows that grow block by block, beside each other, in reused blocks."""
    model = tiny.models("custom_voice")[1]
    contiguous = model.init_state(rows=2, max_model_len=64)
    paged = model.init_state(rows=2, max_model_len=64, blocks=12, block_size=8)
    paged.cache.keys.fill_(9)
    paged.cache.values.fill_(9)
    blocks = BlockAllocator(paged.cache)
    prompt = prompt_of(model)
    for row in range(2):
        assert blocks.ensure(row, len(prompt.prefix))
        tell(blocks)
        for state in (contiguous, paged):
            tiny.admit(model, state, row, prompt, SamplingParams(seed=row))
    found, expected = [], []
    for frame in range(12):
        for row in range(2):
            assert blocks.ensure(row, len(prompt.prefix) + frame + 1)
        tell(blocks)
        found.append(step(model, paged, 0, 1))
        expected.append(step(model, contiguous, 0, 1))
    for row in range(2):
        assert torch.equal(said(found, row), said(expected, row))
    assert len(said(found)) > 8


# ---------------------------------------------------------------- arrays


def test_arrays_of_any_shape_arrive_by_one_copy() -> None:
    arrays = [np.array([[1, -2], [3, 2**62]]).T, np.empty(0, np.int64), np.array([9]), np.empty((2, 0), np.int64)]
    sent = upload(arrays, torch.device("cpu"))
    for found, array in zip(sent, arrays, strict=True):
        assert found.dtype == torch.int64
        assert np.array_equal(found.numpy(), array)
    assert len({found.untyped_storage().data_ptr() for found in sent}) == 1


def test_writes_happen_in_order() -> None:
    found: list[tuple[str, list[int]]] = []
    writes = Writes()
    for name, sizes in (("first", (2, 1)), ("second", ()), ("third", (3,))):

        def write(*sent: torch.Tensor, name: str = name) -> None:
            found.append((name, [len(one) for one in sent]))

        writes.add(write, *(np.arange(size) for size in sizes))
    assert found == []
    writes.send(torch.device("cpu"))
    assert found == [("first", [2, 1]), ("second", []), ("third", [3])]


def test_without_writes_nothing_is_sent() -> None:
    Writes().send(torch.device("cpu"))
