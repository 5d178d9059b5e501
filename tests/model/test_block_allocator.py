"""Rows take blocks as they grow, and release them for the next owner."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model.block_allocator import BlockAllocator
from agent_tts.model.layers import Cache
from agent_tts.model.sampling import SamplingParams
from tests.model import tiny
from tests.model.test_frame import prompt_of, said, step, tell


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
            model.admit(state, row, prompt, SamplingParams(seed=row))
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
