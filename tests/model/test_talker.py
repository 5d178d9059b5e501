"""The talker's hidden states and logits equal upstream's, teacher-forced, in a prompt and step by step.

So do the predictor's fifteen logits, with and without the projection of 1.7B.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from agent_tts.model.frame import PromptEntries
from agent_tts.model.layers import Cache
from agent_tts.model.prompt import NOTHING
from agent_tts.model.talker import PromptPositions
from tests.model import tiny

LENGTH = 12
ROWS = 3


def test_a_prompt_and_its_steps_equal_upstreams_forward() -> None:
    upstream, ours = tiny.models("custom_voice")
    talker = ours.talker
    x = torch.randn(LENGTH, tiny.HIDDEN, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = upstream.talker.model(inputs_embeds=x[None]).last_hidden_state[0]
        cache = Cache.empty(ours.config.talker, 2, 32, x)
        row = torch.tensor([1])
        talker.prefill(PromptPositions(x[:4], row.expand(4), torch.arange(4)), cache, None)
        talker.prefill(PromptPositions(x[4:7], row.expand(3), torch.arange(4, 7)), cache, 7)
        for position in range(7, LENGTH):
            positions = torch.tensor([cache.padding_position, position])  # row 0 pauses
            hidden = talker.step(torch.stack((-x[position], x[position])), positions, cache)[1]
            torch.testing.assert_close(hidden, theirs[position], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                talker.codec_head(hidden), upstream.talker.codec_head(theirs[position]), rtol=1e-5, atol=1e-5
            )
    assert not cache.keys[:, 0, : cache.padding_position].any()


def test_bfloat16_is_as_near_to_float32_as_upstreams() -> None:
    """Rounding at other places than upstream costs quality long before it changes a greedy code."""
    upstream, ours = tiny.models("custom_voice")
    theirs, mine = (copy.deepcopy(model).to(torch.bfloat16) for model in (upstream.talker.model, ours.talker))
    x = torch.randn(64, tiny.HIDDEN, generator=torch.Generator().manual_seed(1))
    cache = Cache.empty(ours.config.talker, 1, 65, x.bfloat16())
    window = mine.window(torch.arange(64)[None], 64, cache)
    with torch.no_grad():
        exact = upstream.talker.model(inputs_embeds=x[None]).last_hidden_state
        their_error = theirs(inputs_embeds=x[None].bfloat16()).last_hidden_state - exact
        error = mine.run(x[None].bfloat16(), cache, window) - exact
    assert error.norm() < 1.1 * their_error.norm()


def test_the_text_side_is_upstreams() -> None:
    upstream, ours = tiny.models("custom_voice")
    ids = torch.tensor([0, 9707, 151671, 151935])
    with torch.no_grad():
        theirs = upstream.talker.text_projection(upstream.talker.get_text_embeddings()(ids))
        torch.testing.assert_close(ours.talker.embed_text(ids), theirs, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- the predictor


@pytest.mark.parametrize("size", [tiny.PROJECTED, tiny.SAME_WIDTH])
def test_every_head_is_upstreams(size: str) -> None:
    upstream, ours = tiny.models("custom_voice", size)
    codes = tiny.reference_frames(ROWS)
    codes[0] = 0  # an ordinary code
    hidden = torch.randn(ROWS, tiny.HIDDEN, generator=torch.Generator().manual_seed(1))
    state = ours.predictor.init_state(ROWS)
    logits: list[Tensor] = []

    def teacher(found: Tensor, codebook: int) -> Tensor:
        assert found.dtype == torch.float32
        logits.append(found)
        return codes[:, codebook]

    with torch.no_grad():
        theirs, _ = upstream.talker.forward_sub_talker_finetune(codes, hidden)
        for _ in range(2):  # the previous frame must not matter
            logits.clear()
            others, embedded = ours.predictor(state, hidden, ours.talker.codec_embedding(codes[:, 0]), teacher)
        torch.testing.assert_close(torch.stack(logits, 1), theirs, rtol=1e-5, atol=1e-5)
        assert torch.equal(others, codes[:, 1:])
        said = torch.cat((torch.full((len(codes), 1), NOTHING), codes), dim=1)
        nowhere = torch.zeros(len(said), dtype=torch.int64)
        entries = PromptEntries(nowhere, nowhere, said, hidden)
        torch.testing.assert_close(embedded.sum(1), ours.embed(entries).x)
