"""One 80 ms frame for every row: the next token of text and the last frame in, sixteen codes out.

A row is a request. Rows are admitted, paused, released and reused while the others go on: all of it is masks over
tensors of a fixed shape. A step needs nothing of the host, so it can be captured once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.model.config import ModelConfig
from agent_tts.model.frame_state import COUNTS, FLAGS, SAMPLING_PARAMS, FrameState
from agent_tts.model.layers import BLOCK_SIZE, Cache
from agent_tts.model.prompt import VECTOR, Prompt
from agent_tts.model.row_changes import queued
from agent_tts.model.sampling import Warp, draw, forbid, penalise
from agent_tts.model.talker import Choose, Predictor, PredictorState, PromptPositions, Talker
from agent_tts.model.weights import Loadable

PROMPT_ENTRIES = 128  # of prompts in a step of fused kernels; `bench frame` measures their cost

# Parts of talker and predictor that a checkpoint keeps outside of their transformers.
_BESIDE_LAYERS = ("text_projection.", "codec_head.", "lm_head.", "small_to_mtp_projection.")

CONTROL_CODES = 1024  # at the end of the talker's vocabulary; never drawn, except for the end of speech


@dataclass(frozen=True, slots=True)
class StepOps:
    """The parts of a step that are either modules or fused kernels (`fused.fuse`)."""

    # It does what Talker.step does, if `mixes` with prompts of other rows, too; its input may be overwritten.
    talk: Callable[[Tensor, Tensor, Cache, Tensor | None, PromptPositions | None], Tensor]
    prefill: Callable[[PromptPositions, Cache, int | None], None]  # as Talker.prefill; of any rows if `mixes`
    complete: Callable[[PredictorState, Tensor, Tensor, Choose], tuple[Tensor, Tensor]]  # as Predictor.forward
    draw: Callable[[Tensor, Warp, Tensor, Tensor, int], Tensor]  # as sampling.draw
    mixes: bool  # False: every prompt is computed alone
    cache_dtype: torch.dtype | None = None  # of the talker; None: that of the weights
    # It does what FrameModel.step does with its draws: state, who runs, rows, prompts. None: the parts above do.
    step: Callable[[FrameState, Tensor, Tensor | None, PromptPositions | None], Frame] | None = None


@dataclass(frozen=True, slots=True)
class PromptEntries:
    """P entries of prompts, of rows that do not run; see `Prompt.numbers`. K codebooks."""

    rows: Tensor  # int64[P]
    positions: Tensor  # int64[P]: in the row; the padding position where an entry is only embedded
    numbers: Tensor  # int64[P, 1 + K]
    vectors: Tensor  # [P, H]: the speaker's, at the entry that has a place for it

    @staticmethod
    def size(count: int, codebooks: int) -> int:
        return count * (3 + codebooks)

    @staticmethod
    def of(packed: Tensor, vectors: Tensor) -> PromptEntries:
        """Views of one int64[size], in the order of the fields."""
        count = len(vectors)
        rows, positions = packed[: 2 * count].view(2, count)
        return PromptEntries(rows, positions, packed[2 * count :].view(count, -1), vectors)


@dataclass(frozen=True, slots=True)
class Frame:
    """What one step did, for every row. At most one mask is set for a row, besides `finite`."""

    codes: Tensor  # int64[B, 16]; meaningful where `spoke`
    spoke: Tensor  # bool[B]: the row has a new frame
    finite: Tensor  # bool[B]: the hidden state was finite; false where the row did not run
    ended: Tensor  # bool[B]: the row drew the end of speech, which is no frame
    starved: Tensor  # bool[B]: the row was to run, but has no text
    full: Tensor  # bool[B]: the row was to run, but its cache is full


class FrameModel(Loadable):
    """Talker and code predictor as one step. Rows change between steps; a step is only masks and tensors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config.talker)
        self.predictor = Predictor(config.talker)
        codes = torch.arange(config.talker.vocab_size)
        self.end_of_speech: Tensor  # bool[V]
        self.register_buffer("end_of_speech", codes == config.talker.codec_eos_token_id, persistent=False)
        self.control: Tensor  # bool[V]: never drawn
        control = (codes >= config.talker.vocab_size - CONTROL_CODES) & ~self.end_of_speech
        self.register_buffer("control", control, persistent=False)
        self.ops = StepOps(self.talker.step, self.talker.prefill, self.predictor, draw, mixes=False)

    def init_state(
        self, rows: int, max_model_len: int, blocks: int | None = None, block_size: int = BLOCK_SIZE
    ) -> FrameState:
        """Empty rows.

        Args:
            max_model_len: positions of a row, for prompt and frames together; the cache has a padding position besides.
            blocks: that the rows share, from a `BlockAllocator`; the first takes what must leave no trace. None gives
                each row room for all its positions.
        """
        talker, weight = self.config.talker, self.talker.codec_head.weight
        device, dtype = weight.device, weight.dtype
        if blocks is None:
            cache = Cache.empty(talker, rows, max_model_len + 1, weight, self.ops.cache_dtype)
        else:
            cache = Cache.paged(talker, rows, max_model_len, blocks, block_size, weight, self.ops.cache_dtype)

        def block(size: int, dtype: torch.dtype) -> Tensor:
            """Zeros [size, B], each line at a multiple of 16 bytes: kernels are compiled for such addresses."""
            return torch.zeros(size, -(-rows // 16) * 16, device=device, dtype=dtype)[:, :rows]

        state = FrameState(
            cache=cache,
            scratch=self.predictor.init_state(rows),
            counts=block(COUNTS, torch.int64),
            sampling_params=block(SAMPLING_PARAMS, torch.float32),
            flags=block(FLAGS, torch.bool),
            feedback=torch.zeros(rows, talker.hidden_size, device=device, dtype=dtype),
            text=torch.zeros(rows, max_model_len, device=device, dtype=torch.int64),
            seen=torch.zeros(rows, talker.vocab_size, device=device, dtype=torch.bool),
            text_lengths=[0] * rows,
        )
        state.sampling_params.fill_(1)  # so that a row without a request computes finite numbers
        state.ended.fill_(True)
        return state

    def check(self, state: FrameState, prompt: Prompt, vector: Tensor | None) -> None:
        """Raises ValueError: prompt and text are longer than the cache, or the speaker's vector [H] is missing."""
        if len(prompt.prefix) + len(prompt.text) > state.cache.padding_position:
            raise ValueError(f"prompt and text take more than {state.cache.padding_position} positions")
        size, needed = self.config.talker.hidden_size, any(one.codec == VECTOR for one in prompt.prefix)
        if needed and (vector is None or vector.shape != (size,)):
            raise ValueError(f"this voice needs a speaker vector of {size} values")

    @staticmethod
    def entries(
        state: FrameState, row: int, positions: NDArray[np.int64], numbers: NDArray[np.int64], vector: Tensor | None
    ) -> PromptEntries:
        """Entries of one row's prompt on the device; `vector` [H] where the numbers have a place for it."""
        device = state.ended.device
        packed = (np.full(len(positions), row), positions, numbers)
        vectors = state.feedback[:1] if vector is None else vector.to(state.feedback)[None]
        sent = queued(packed, device)
        return PromptEntries.of(sent, vectors.expand(len(positions), -1))

    @torch.inference_mode()
    def prefill(self, state: FrameState, entries: PromptEntries, span: int | None) -> Tensor:
        """Computes entries into the cache of their rows; gives their embeddings, [P, H]. Can be captured.

        The embedding of a prompt's last entry is the codec side of the row's first frame step. The entries are of one
        row, or of any rows where the `ops` mix. `span`: see `Talker.prefill`.
        """
        embedded = self.embed(entries)
        self.ops.prefill(embedded, state.cache, span)
        return embedded.x

    @torch.inference_mode()
    def embed(self, entries: PromptEntries) -> PromptPositions:
        """The sum of the text side and the codec side of each entry."""
        numbers = entries.numbers
        known, ids = numbers >= 0, numbers.clamp(min=0)
        text = self.talker.embed_text(ids[:, 0]).masked_fill(~known[:, :1], 0)
        tables = (self.talker.codec_embedding, *self.predictor.codec_embedding)
        codes = torch.stack([table(ids[:, index]) for index, table in enumerate(tables, 1)], dim=1)
        said = codes.masked_fill(~known[:, 1:, None], 0).sum(1)
        x = text + torch.where(numbers[:, 1:2] == VECTOR, entries.vectors, said)
        return PromptPositions(x, entries.rows, entries.positions)

    @torch.inference_mode()
    def step(
        self,
        state: FrameState,
        run: Tensor,
        choose: Choose | None = None,
        rows: Tensor | None = None,
        prompts: PromptPositions | None = None,
    ) -> Frame:
        """One frame for the rows of a mask bool[B]; nothing of any other row changes but of those of `prompts`.

        The batch are the rows int64[B], or all. A row that occurs twice must not run. A row without text or room, or
        that has ended, does not run. A row reads tts_pad, and may draw the end of speech, only when it has read its
        whole text.

        Args:
            choose: replaces the draw, for a comparison that reads the logits and forces the codes.
            prompts: are computed in the same batch, where the `ops` mix.
        """
        if choose is None and self.ops.step is not None:
            return self.ops.step(state, run, rows, prompts)
        batch = torch.arange(len(run), device=run.device) if rows is None else rows
        now = state.of(batch)
        run = run & ~now.ended
        full = run & (now.position >= state.cache.padding_position)
        has_text = now.text_read < now.text_length
        starved = run & ~full & ~has_text & ~now.text_complete
        run = run & ~full & ~starved

        at = now.text_read.clamp(max=state.text.shape[1] - 1)
        token = torch.where(has_text, state.text[batch, at], self.config.tts_pad_token_id)
        x = now.feedback + self.talker.embed_text(token)
        positions = torch.where(run, now.position, state.cache.padding_position)
        hidden = self.ops.talk(x, positions, state.cache, rows, prompts)

        text_read = now.text_read + has_text
        may_end = now.text_complete & (text_read >= now.text_length) & (now.frame >= now.sampling.min_frames)
        logits = penalise(self.talker.codec_head(hidden).float(), now.seen, now.sampling.repetition_penalty)
        logits = forbid(logits, self.end_of_speech & ~may_end[:, None])
        logits = forbid(logits, self.control)
        if choose is None:
            choose = partial(self._draw, now)
        first = choose(logits, 0)
        others, embedded = self.ops.complete(now.scratch, hidden, self.talker.codec_embedding(first), choose)

        ended = run & (first == self.config.talker.codec_eos_token_id)
        state.feedback[batch] = torch.where(run[:, None], embedded.sum(1), now.feedback)
        state.text_read[batch] = torch.where(run, text_read, now.text_read)
        state.seen[batch, first] = now.seen.gather(1, first[:, None])[:, 0] | run
        state.position[batch] = now.position + run
        state.frame[batch] = now.frame + run
        state.ended[batch] = now.ended | ended
        finite = run & hidden.isfinite().all(-1)
        return Frame(torch.cat((first[:, None], others), dim=1), run & ~ended, finite, ended, starved, full)

    def _draw(self, state: FrameState, logits: Tensor, codebook: int) -> Tensor:
        how = state.sampling.predictor if codebook else state.sampling.talker
        return self.ops.draw(logits, how, state.sampling.seed, state.frame, codebook)

    def checkpoint_name(self, name: str) -> str:
        part, _, inner = name.partition(".")
        owner = "talker" if part == "talker" else "talker.code_predictor"
        return f"{owner}.{inner}" if inner.startswith(_BESIDE_LAYERS) else f"{owner}.model.{inner}"
