"""The predictor's fifteen logits equal upstream's, teacher-forced, with and without the projection of 1.7B."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agent_tts.model.frame import PromptEntries
from agent_tts.model.prompt import NOTHING
from tests.model import tiny

ROWS = 3


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
