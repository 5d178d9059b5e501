"""The talker: one hidden state per 80 ms frame, and from it the first of the frame's 16 codes.

Its input at each position is the sum of a text side (a token of the text) and a codec side (the last frame).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.model.config import TalkerConfig
from agent_tts.model.layers import Cache, Transformer


@dataclass(frozen=True, slots=True)
class PromptPositions:
    """P positions of prompts, of rows that do not run."""

    x: Tensor  # [P, H]
    rows: Tensor  # int64[P]
    positions: Tensor  # int64[P]: in the row


class TextProjection(nn.Module):
    """From the width of the text embedding to the width of the talker."""

    def __init__(self, text_hidden_size: int, hidden_size: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_hidden_size, text_hidden_size)
        self.linear_fc2 = nn.Linear(text_hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class Talker(Transformer):
    """The language model over frames, with its two embeddings and its head."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(config)
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)
        self.text_projection: nn.Module = TextProjection(config.text_hidden_size, config.hidden_size)
        self.codec_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Text side: int64[...] -> [..., H]."""
        projected: Tensor = self.text_projection(self.text_embedding(ids))
        return projected

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
        """One position of each of the rows int64[B], or of all: x [B, H] -> [B, H]. A row that pauses is at the padding
        position.
        """
        assert prompts is None, "modules compute every prompt alone"
        span = cache.padding_position  # a position that is used is below the padding position
        return self.run(x[:, None], cache, self.window(positions[:, None], span, cache, rows))[:, 0]
