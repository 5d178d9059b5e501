"""Rows take pages as they grow, and the next owner gets them."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model.layers import Cache
from agent_tts.model.pages import Pages
from agent_tts.model.sampling import Sampling
from tests.model import tiny
from tests.model.test_frame import prompt_of, said, step, tell

CPU = torch.device("cpu")


@pytest.fixture
def cache() -> Cache:
    """Two rows of 20 positions, and five pages of 4 for both."""
    config = tiny.config("custom_voice").talker
    return Cache.paged(config, rows=2, positions=20, pages=6, size=4, device=CPU, dtype=torch.float32)


def test_nobody_shares_a_page(cache: Cache) -> None:
    pages = Pages(cache)
    assert pages.ensure(0, 5)
    assert pages.ensure(1, 4)
    assert pages.ensure(0, 8)  # it has them
    assert pages.ensure(0, 9)
    assert not pages.ensure(0, 17)  # one is left
    tell(pages)
    given = [*cache.block_table[0, :3].tolist(), *cache.block_table[1, :1].tolist()]
    assert len(set(given)) == 4
    assert 0 not in given
    assert not cache.block_table[0, 3:].any()
    assert not cache.block_table[1, 1:].any()


def test_more_than_there_is_changes_nothing(cache: Cache) -> None:
    pages = Pages(cache)
    assert pages.ensure(0, 12)
    tell(pages)
    before = cache.block_table.clone()
    assert not pages.ensure(1, 9)
    tell(pages)
    assert torch.equal(cache.block_table, before)
    assert pages.ensure(1, 8)


def test_pages_come_back_with_the_row(cache: Cache) -> None:
    pages = Pages(cache)
    assert pages.ensure(0, 20)
    tell(pages)
    pages.release(0)
    assert cache.block_table[0].any()  # a step that is under way still needs it
    tell(pages)
    assert not cache.block_table.any()
    assert pages.ensure(1, 20)
    tell(pages)
    assert cache.block_table[1, :5].all()
    assert cache.block_table[1, -1] == 0  # the padding position stays nobody's
    with pytest.raises(ValueError, match="at most 20 positions"):
        pages.ensure(1, 21)


def test_a_request_says_the_same_over_pages() -> None:
    """Rows that grow page by page, beside each other, over what others left."""
    model = tiny.models("custom_voice")[1]
    plain = model.init_state(rows=2, positions=64)
    paged = model.init_state(rows=2, positions=64, pages=12, page_positions=8)
    paged.cache.keys.fill_(9)
    paged.cache.values.fill_(9)
    pages = Pages(paged.cache)
    prompt = prompt_of(model)
    for row in range(2):
        assert pages.ensure(row, len(prompt.prefix))
        tell(pages)
        for state in (plain, paged):
            model.join(state, row, prompt, Sampling(seed=row))
    found, expected = [], []
    for frame in range(12):
        for row in range(2):
            assert pages.ensure(row, len(prompt.prefix) + frame + 1)
        tell(pages)
        found.append(step(model, paged, 0, 1))
        expected.append(step(model, plain, 0, 1))
    for row in range(2):
        assert torch.equal(said(found, row), said(expected, row))
    assert len(said(found)) > 8
