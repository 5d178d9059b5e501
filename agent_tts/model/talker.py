"""The talker: one hidden state per 80 ms frame, and from it the first of the frame's 16 codes. The predictor gives the
other fifteen.

The talker's input at each position is the sum of a text side (a token of the text) and a codec side (the last frame).

For the predictor a frame has 16 positions and a cache of its own: position 0 is the talker's hidden state after the
final norm, position 1 the first code (code 0), position i + 1 code i. The output at position i + 1 gives code i + 1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agent_tts.model.config import TalkerConfig
from agent_tts.model.layers import Cache, Transformer, Window


@dataclass(frozen=True, slots=True)
class PromptPositions:
    """P positions of prompts, of rows that do not run."""

    x: Tensor  # [P, H]
    rows: Tensor  # int64[P]
    positions: Tensor  # int64[P]: in the row


class Talker(Transformer):
    """The language model over frames, with its two embeddings and its head."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)
        first = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        second = nn.Linear(config.text_hidden_size, config.hidden_size)
        projection = OrderedDict[str, nn.Module](linear_fc1=first, silu=nn.SiLU(), linear_fc2=second)
        self.text_projection: nn.Module = nn.Sequential(projection)  # to the width of the talker
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text side: int64[...] -> [..., H]."""
        return self.text_projection(self.text_embedding(ids))

    def prefill(self, prompt: PromptPositions, cache: Cache, span: int | None) -> None:
        """Writes consecutive positions of one row's prompt, then perhaps the padding position.

        `span` is how many leading positions of the row they may read; None where they begin at position 0.
        """
        window = self.window(prompt.positions[None], span, cache, prompt.rows[:1])
        self.run(prompt.x[None], cache, window)

    def step(
        self,
        x: Tensor,
        positions: Tensor,
        cache: Cache,
        rows: Tensor | None = None,
        prompts: PromptPositions | None = None,
    ) -> Tensor:
        """A position of the rows int64[B], or of all: x [B, H] -> [B, H]. A row pauses at the padding position."""
        assert prompts is None, "modules compute every prompt alone"
        span = cache.padding_position  # a position that is used is below the padding position
        return self.run(x[:, None], cache, self.window(positions[:, None], span, cache, rows))[:, 0]


# ---------------------------------------------------------------- the code predictor

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
