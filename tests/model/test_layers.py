"""Norm, rotation and feed-forward equal upstream's to the last bit, also in bfloat16; cache rows are independent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_tts.model.layers import MLP, Cache, RMSNorm, Transformer, rope, rotate
from tests.model import oracle, tiny

FLOATS = torch.empty(0)  # relative, by dtype of the cache
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
CONFIG = tiny.config("custom_voice").talker


def upstream() -> Any:
    return oracle.qwen_tts().core.models.modeling_qwen3_tts


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@DTYPES
def test_the_norm_rounds_where_upstream_rounds(dtype: torch.dtype) -> None:
    ours, theirs = RMSNorm(64, 1e-6).to(dtype), upstream().Qwen3TTSRMSNorm(64, 1e-6).to(dtype)
    weight = noise(64).to(dtype)
    ours.weight.data.copy_(weight)
    theirs.weight.data.copy_(weight)
    x = 30 * noise(5, 64, seed=1).to(dtype)
    assert torch.equal(ours(x), theirs(x))


@DTYPES
def test_the_rotation_rounds_where_upstream_rounds(dtype: torch.dtype) -> None:
    """Also at large positions, where frequencies rounded to bfloat16 would be off by turns."""
    theirs = tiny.models("custom_voice")[0].talker.model
    size, sections = CONFIG.head_dim, theirs.config.rope_scaling["mrope_section"]
    positions = torch.tensor([[0, 1, 2, 77, 4095]])
    cos, sin = rope(positions, CONFIG, dtype)
    their_cos, their_sin = theirs.rotary_emb(noise(1).to(dtype), positions.expand(3, 1, -1))
    assert torch.equal(cos[:, :, 0], their_cos[0])
    query, key = noise(1, 5, 4, size).to(dtype), noise(1, 5, 2, size).to(dtype)
    rotated, _ = upstream().apply_multimodal_rotary_pos_emb(
        query.transpose(1, 2), key.transpose(1, 2), their_cos, their_sin, sections, mrope_interleaved=True
    )
    assert torch.equal(rotate(query, cos, sin).transpose(1, 2), rotated)


@DTYPES
def test_the_feed_forward_is_upstreams(dtype: torch.dtype) -> None:
    theirs = copy.deepcopy(tiny.models("custom_voice")[0].talker.model.layers[0].mlp).to(dtype)
    ours = MLP(CONFIG).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    x = noise(3, 64).to(dtype)
    assert torch.equal(ours(x), theirs(x))


class TestCache:
    """A transformer over a cache of three rows."""

    def transformer(self) -> Transformer:
        return tiny.models("custom_voice")[1].talker

    def dirty(self) -> Cache:
        cache = Cache.empty(CONFIG, rows=3, positions=13, like=FLOATS)
        cache.keys.fill_(9)
        cache.values.fill_(9)
        return cache

    def whole(self, model: Transformer, x: Tensor) -> Tensor:
        """All positions of one row at once, in a separate cache."""
        cache = Cache.empty(CONFIG, 1, x.shape[0], x)
        window = model.window(torch.arange(len(x))[None], len(x), cache)
        return model.run(x[None], cache, window)[0]

    def test_position_by_position_is_all_at_once(self) -> None:
        """Rows at different positions, each after a prompt, in reused cache rows."""
        model, cache = self.transformer(), self.dirty()
        x = noise(3, 10, 64)
        expected = torch.stack([self.whole(model, row) for row in x])
        prompts = [2, 5, 1]
        for row, length in enumerate(prompts):
            window = model.window(torch.arange(length)[None], length, cache, torch.tensor([row]))
            found = model.run(x[row : row + 1, :length], cache, window)
            torch.testing.assert_close(found[0], expected[row, :length])
        for step in range(5):
            positions = torch.tensor(prompts) + step
            window = model.window(positions[:, None], cache.padding_position, cache)
            found = model.run(x[torch.arange(3), positions][:, None], cache, window)
            torch.testing.assert_close(found[:, 0], expected[torch.arange(3), positions])

    def test_blocks_in_any_order_are_a_row(self) -> None:
        """A prompt and steps over blocks of 4 equal those over one long block; block 0 belongs to no row."""
        model, x = self.transformer(), noise(2, 10, 64)
        cache = Cache.paged(CONFIG, rows=2, max_model_len=10, blocks=8, size=4, like=FLOATS)
        cache.keys.fill_(9)
        cache.values.fill_(9)
        assert cache.padding_position >= 10
        cache.block_table[0, :3] = torch.tensor([5, 2, 7])
        cache.block_table[1, :3] = torch.tensor([1, 6, 3])
        expected = torch.stack([self.whole(model, row) for row in x])
        for row in range(2):
            window = model.window(torch.arange(5)[None], 5, cache, torch.tensor([row]))
            torch.testing.assert_close(model.run(x[row : row + 1, :5], cache, window)[0], expected[row, :5])
        for position in range(5, 10):
            before = cache.keys[:, [1, 6, 3]].clone()
            positions = torch.tensor([[position], [cache.padding_position]])  # row 1 pauses
            found = model.run(
                x[:, position : position + 1], cache, model.window(positions, cache.padding_position, cache)
            )
            torch.testing.assert_close(found[0, 0], expected[0, position])
            assert torch.equal(cache.keys[:, [1, 6, 3]], before)

    def test_prompts_of_several_rows_can_be_padded(self) -> None:
        model, cache = self.transformer(), self.dirty()
        x, rows, lengths = noise(2, 6, 64), torch.tensor([2, 0]), torch.tensor([[6], [3]])
        positions = torch.arange(6).expand(2, -1)
        positions = torch.where(positions < lengths, positions, cache.padding_position)
        found = model.run(x, cache, model.window(positions, 6, cache, rows))
        torch.testing.assert_close(found[0], self.whole(model, x[0]))
        torch.testing.assert_close(found[1, :3], self.whole(model, x[1, :3]))
        assert (cache.keys[:, 0, 3:-1] == 9).all()  # the padding went to the padding position
        assert (cache.keys[:, 1] == 9).all()
