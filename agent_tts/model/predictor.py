"""The code predictor: from the talker's hidden state and the first code of a frame to the other fifteen.

A frame has 16 positions and a cache of its own: position 0 is the talker's hidden state after the final norm, position
1 the first code (code 0), position i + 1 code i. The output at position i + 1 gives code i + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agent_tts.model.config import TalkerConfig
from agent_tts.model.layers import Cache, Transformer, Window

# What chooses a code of every row: (logits [B, V], codebook from 0) -> int64[B].
Choose = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class PredictorState:
    """Scratch memory of one frame."""

    cache: Cache  # one position a code, no padding position: no row pauses within a frame
    windows: tuple[Window, ...]  # positions 0 and 1 together, then one position each

    def first(self, rows: int) -> PredictorState:
        """The first rows: a view."""
        return PredictorState(self.cache.first(rows), tuple(window.first(rows) for window in self.windows))


class Predictor(Transformer):
    """Fifteen embeddings, five layers, fifteen heads."""

    def __init__(self, config: TalkerConfig) -> None:
        shape, talker_size = config.code_predictor, config.hidden_size
        super().__init__(shape)
        self.codebooks = config.num_code_groups
        others = range(self.codebooks - 1)
        self.codec_embedding = nn.ModuleList(nn.Embedding(shape.vocab_size, talker_size) for _ in others)
        self.lm_head = nn.ModuleList(nn.Linear(shape.hidden_size, shape.vocab_size, bias=False) for _ in others)
        self.small_to_mtp_projection: nn.Module = nn.Identity()
        if shape.hidden_size != talker_size:
            self.small_to_mtp_projection = nn.Linear(talker_size, shape.hidden_size)

    def init_state(self, rows: int) -> PredictorState:
        cache = Cache.empty(self.shape, rows, self.codebooks, self.norm.weight)
        positions = torch.arange(self.codebooks, device=cache.keys.device).expand(rows, -1)
        calls = [(0, 2), *((position, position + 1) for position in range(2, self.codebooks))]
        return PredictorState(cache, tuple(self.window(positions[:, start:end], end, cache) for start, end in calls))

    def forward(self, state: PredictorState, hidden: Tensor, first: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """Completes the frame of every row.

        `hidden` [B, H] is the talker's, after its final norm; `first` [B, H] its embedding of the first code. Gives
        codes 1..15 as int64[B, 15], and the embeddings of all 16 codes [B, 16, H].
        """
        codes: list[Tensor] = []
        embedded = [first]
        x = torch.stack((hidden, first), dim=1)
        for index, window in enumerate(state.windows):
            out = self.run(self.small_to_mtp_projection(x), state.cache, window)
            code = choose(self.lm_head[index](out[:, -1]).float(), index + 1)
            codes.append(code)
            embedded.append(self.codec_embedding[index](code))
            x = embedded[-1][:, None]
        return torch.stack(codes, dim=1), torch.stack(embedded, dim=1)
