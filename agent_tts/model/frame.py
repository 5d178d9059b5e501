"""One 80 ms frame for every row: the next token of text and the last frame go in, sixteen codes come out.

A row is a request. Rows join, pause, leave and are reused while the others go on: all of it is masks over tensors of a
fixed shape, and a step asks the host nothing, so it can be captured once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from agent_tts.model.config import ModelConfig
from agent_tts.model.layers import PAGE_POSITIONS, Cache
from agent_tts.model.predictor import Draw, Predictor, PredictorState
from agent_tts.model.prompt import Position, Prompt, Speaker
from agent_tts.model.sampling import Sampling, SamplingRows, Warp, draw, forbid, penalise
from agent_tts.model.talker import Talker

# What chooses a code of every row: (logits [B, V], codebook from 0) -> int64[B].
Choose = Callable[[Tensor, int], Tensor]

CONTROL_CODES = 1024  # the end of the talker's vocabulary: no speech, so never drawn, except for the end of speech


@dataclass(frozen=True, slots=True)
class StepOps:
    """The parts of a step that there are two of: the modules, and fused kernels (`fused.fuse`)."""

    talk: Callable[[Tensor, Tensor, Cache, Tensor | None], Tensor]  # as Talker.step; its input may be overwritten
    complete: Callable[[PredictorState, Tensor, Tensor, Draw], tuple[Tensor, Tensor]]  # as Predictor.forward
    draw: Callable[[Tensor, Warp, Tensor, Tensor, int], Tensor]  # as sampling.draw


@dataclass(frozen=True, slots=True)
class FrameState:
    """Everything that the rows remember from frame to frame. B rows, S positions of the cache, V codes of the talker.

    `text_lengths` is the host's own copy of `text_length`, so that adding text never waits for the device.
    """

    cache: Cache  # the talker's
    scratch: PredictorState
    sampling: SamplingRows
    position: Tensor  # int64[B]: where the next frame step writes the cache
    feedback: Tensor  # [B, H]: codec side of the next frame step
    text: Tensor  # int64[B, S]: text side of the frame steps
    text_length: Tensor  # int64[B]: how much of `text` is known
    text_complete: Tensor  # bool[B]: no more text will be added
    text_read: Tensor  # int64[B]: how much of `text` the talker has read
    frame: Tensor  # int64[B]: frames drawn since the row joined; the counter of the noise
    seen: Tensor  # bool[B, V]: first codes drawn since the row joined
    ended: Tensor  # bool[B]: the row has drawn the end of speech, or nobody has joined it
    text_lengths: list[int]

    def of(self, rows: Tensor) -> FrameState:
        """What the rows int64[B] remember, copied, in their order; cache and text are still those of all rows."""
        return replace(
            self,
            scratch=self.scratch.first(len(rows)),
            sampling=self.sampling.of(rows),
            position=self.position[rows],
            feedback=self.feedback[rows],
            text_length=self.text_length[rows],
            text_complete=self.text_complete[rows],
            text_read=self.text_read[rows],
            frame=self.frame[rows],
            seen=self.seen[rows],
            ended=self.ended[rows],
        )


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a row has computed of a prompt before its first frame step: T positions, the same for every such prompt."""

    keys: Tensor  # [layers, T, key/value heads, head_dim]
    values: Tensor  # same shape
    start: Tensor  # [H]: codec side of the first frame step


@dataclass(frozen=True, slots=True)
class Frame:
    """What one step did, for every row. At most one of the masks is set for a row."""

    codes: Tensor  # int64[B, 16]; meaningful where `spoke`
    spoke: Tensor  # bool[B]: the row has a new frame
    finite: Tensor  # bool[B]: what the codes were drawn from was a number; false also where nobody ran
    ended: Tensor  # bool[B]: the row has just drawn the end of speech, which is no frame
    starved: Tensor  # bool[B]: the row was to run, but has to wait for text
    full: Tensor  # bool[B]: the row was to run, but its cache is full


class FrameModel(nn.Module):
    """Talker and code predictor as one step. Joins and text come between steps; a step is only masks and tensors."""

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
        self.ops = StepOps(self.talker.step, self.predictor, draw)

    def init_state(
        self, rows: int, positions: int, pages: int | None = None, page_positions: int = PAGE_POSITIONS
    ) -> FrameState:
        """Empty rows. `positions` bounds prompt and frames of a request together; one more is the cache's sink.

        With a number of `pages` the rows share so many, of which one is nobody's, and have to be given them (`Pages`)
        before they write there. Without, each has room for all its positions.
        """
        talker, weight = self.config.talker, self.talker.codec_head.weight
        device, dtype = weight.device, weight.dtype

        def count() -> Tensor:
            return torch.zeros(rows, device=device, dtype=torch.int64)

        def mask() -> Tensor:
            return torch.zeros(rows, device=device, dtype=torch.bool)

        if pages is None:
            cache = Cache.empty(talker, rows, positions + 1, device, dtype)
        else:
            cache = Cache.paged(talker, rows, positions, pages, page_positions, device, dtype)
        return FrameState(
            cache=cache,
            scratch=self.predictor.init_state(rows, device, dtype),
            sampling=SamplingRows.empty(rows, device),
            position=count(),
            feedback=torch.zeros(rows, talker.hidden_size, device=device, dtype=dtype),
            text=torch.zeros(rows, positions, device=device, dtype=torch.int64),
            text_length=count(),
            text_complete=mask(),
            text_read=count(),
            frame=count(),
            seen=torch.zeros(rows, talker.vocab_size, device=device, dtype=torch.bool),
            ended=~mask(),
            text_lengths=[0] * rows,
        )

    @torch.inference_mode()
    def reset(self, state: FrameState, rows: Tensor) -> None:
        """Forgets the rows of a mask bool[B]; they speak no more until somebody joins them."""
        for counter in (state.position, state.text_length, state.text_read, state.frame):
            counter.masked_fill_(rows, 0)
        state.text_complete.masked_fill_(rows, False)
        state.feedback.masked_fill_(rows[:, None], 0)
        state.seen.masked_fill_(rows[:, None], False)
        state.ended.masked_fill_(rows, True)

    @torch.inference_mode()
    def join(
        self,
        state: FrameState,
        row: int,
        prompt: Prompt,
        sampling: Sampling,
        vector: Tensor | None = None,
        prefix: Prefix | None = None,
        computed: int = 0,
    ) -> None:
        """Gives a row to a request: forgets the former owner, computes the prefix, takes over the text.

        Args:
            vector: [H], the speaker's vector, where the prompt has a place for it.
            prefix: that of an earlier prompt with the same prefix, start and vector, in place of computing it.
            computed: how many positions of the prefix are in the row already, by `prefill`.
        Raises:
            ValueError: prompt and text are longer than the cache, or the vector is missing.
        """
        if len(prompt.prefix) + len(prompt.text) > state.cache.sink:
            raise ValueError(f"prompt and text take more than {state.cache.sink} positions")
        if prefix is None:
            start = self.embed([Position(None, prompt.start)], vector)[0]
            self.prefill(state, row, prompt.prefix[computed:], vector, at=computed)
        else:
            start = prefix.start
            state.cache.write(row, prefix.keys, prefix.values)
        self.reset(state, torch.arange(len(state.ended), device=state.ended.device) == row)
        state.text_lengths[row] = 0
        state.position[row] = len(prompt.prefix)
        state.feedback[row] = start
        state.sampling.set(row, sampling)
        self.add_text(state, row, prompt.text, complete=prompt.complete)
        state.ended[row] = False

    @torch.inference_mode()
    def prefill(
        self, state: FrameState, row: int, positions: Sequence[Position], vector: Tensor | None, *, at: int
    ) -> None:
        """Computes a part of a prompt's prefix, behind the `at` positions before it, into a row that does not run.

        Raises:
            ValueError: the vector is missing.
        """
        self.talker.prefill(self.embed(positions, vector), row, state.cache, at)

    @torch.inference_mode()
    def prefix(self, state: FrameState, row: int, positions: int) -> Prefix:
        """A copy of what a row has just joined with, for the next request with the same `positions` long prefix."""
        keys, values = state.cache.read(row, positions)
        return Prefix(keys, values, state.feedback[row].clone())

    @torch.inference_mode()
    def add_text(self, state: FrameState, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """Adds tokens to a row's text; the last of a complete text is tts_eos, which the caller adds.

        Raises:
            ValueError: the text is longer than the cache.
        """
        known = state.text_lengths[row]
        length = known + len(tokens)
        if length > state.text.shape[1]:
            raise ValueError(f"the text is longer than {state.text.shape[1]} tokens")
        added = torch.tensor(tokens, dtype=torch.int64)
        state.text[row, known:length] = added.to(state.text.device, non_blocking=True)
        state.text_lengths[row] = length
        state.text_length[row] = length
        state.text_complete[row] = complete

    def embed(self, positions: Sequence[Position], vector: Tensor | None) -> Tensor:
        """The sum of both sides of each position: [T, H].

        Raises:
            ValueError: the positions need a vector of the talker's hidden size, and it is not that.
        """
        weight = self.talker.codec_embedding.weight
        x = torch.zeros(len(positions), weight.shape[1], device=weight.device, dtype=weight.dtype)

        def ids(values: Sequence[object]) -> Tensor:
            return torch.tensor(values, device=weight.device, dtype=torch.int64)

        texts = [(at, p.text) for at, p in enumerate(positions) if p.text is not None]
        codes = [(at, p.codec) for at, p in enumerate(positions) if isinstance(p.codec, int)]
        frames = [(at, p.codec) for at, p in enumerate(positions) if isinstance(p.codec, tuple)]
        vectors = [at for at, p in enumerate(positions) if isinstance(p.codec, Speaker)]
        if texts:
            x[ids([at for at, _ in texts])] = self.talker.embed_text(ids([text for _, text in texts]))
        if codes:
            x[ids([at for at, _ in codes])] += self.talker.codec_embedding(ids([code for _, code in codes]))
        if frames:
            x[ids([at for at, _ in frames])] += self.embed_frames(ids([frame for _, frame in frames]))
        if vectors:
            if vector is None or vector.shape != x.shape[1:]:
                raise ValueError(f"this voice needs a speaker vector of {x.shape[1]} values")
            x[ids(vectors)] += vector.to(x)
        return x

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Codec side of whole frames: int64[T, 16] -> [T, H]."""
        first = self.talker.codec_embedding(frames[:, 0])
        others = [table(frames[:, index]) for index, table in enumerate(self.predictor.codec_embedding, 1)]
        return torch.stack([first, *others], dim=1).sum(1)

    @torch.inference_mode()
    def step(self, state: FrameState, run: Tensor, choose: Choose | None = None, rows: Tensor | None = None) -> Frame:
        """One frame for the rows of a mask bool[B]; nothing of any other row changes.

        The batch are the rows int64[B], or all. A row that is there twice must not run. `choose` takes the place of
        drawing: for a comparison that hears the logits and forces the codes.

        A row that is to run but has no text, or no room, or has ended, does not run. No row reads tts_pad, or draws the
        end of speech, before it has read the whole of its text.
        """
        batch = torch.arange(len(run), device=run.device) if rows is None else rows
        now = state.of(batch)
        run = run & ~now.ended
        full = run & (now.position >= state.cache.sink)
        has_text = now.text_read < now.text_length
        starved = run & ~full & ~has_text & ~now.text_complete
        run = run & ~full & ~starved

        at = now.text_read.clamp(max=state.text.shape[1] - 1)
        token = torch.where(has_text, state.text[batch, at], self.config.tts_pad_token_id)
        x = now.feedback + self.talker.embed_text(token)
        hidden = self.ops.talk(x, torch.where(run, now.position, state.cache.sink), state.cache, rows)

        text_read = now.text_read + has_text
        may_end = now.text_complete & (text_read >= now.text_length) & (now.frame >= now.sampling.min_frames)
        logits = self._mask_first(now, self.talker.codec_head(hidden).float(), may_end)
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

    def _mask_first(self, state: FrameState, logits: Tensor, may_end: Tensor) -> Tensor:
        """What of the first code's logits may be drawn: float32[B, V], bool[B] -> float32[B, V]."""
        logits = penalise(logits, state.seen, state.sampling.repetition_penalty)
        logits = forbid(logits, self.end_of_speech & ~may_end[:, None])
        return forbid(logits, self.control)

    def _draw(self, state: FrameState, logits: Tensor, codebook: int) -> Tensor:
        """The code of every row: [B, V] -> int64[B]."""
        how = state.sampling.predictor if codebook else state.sampling.talker
        return self.ops.draw(logits, how, state.sampling.seed, state.frame, codebook)

    def checkpoint_names(self) -> dict[str, str]:
        """Our name of each parameter -> its name in the checkpoint."""
        parts = (("talker.", self.talker), ("predictor.", self.predictor))
        return {
            prefix + name: part.checkpoint_name(name) for prefix, part in parts for name, _ in part.named_parameters()
        }
