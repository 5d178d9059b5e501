"""A loaded model at work: prompts and text of its rows in, steps out.

Changes of rows are collected while the engine schedules, and reach the device together, ahead of the step. Prompts are
computed in the steps (chunked prefill), or copied from equal ones that were computed before; a row decodes from the
next step on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agent_tts.engine.qwen3.graphs import ChunkInputs, FrameGraphs, LaunchedStep, PrefillBudget
from agent_tts.engine.qwen3.served import LoadedVoice
from agent_tts.model.adapters import AdapterBank
from agent_tts.model.codec import CodecState
from agent_tts.model.config import SamplingParams
from agent_tts.model.prompt import Position, Prompt, PromptVoice
from agent_tts.model.row_changes import BlockAllocator, Prefix, RowChanges, Writes
from agent_tts.model.speech import SpeechModel, SpeechState
from agent_tts.options import StoredVoices

PREFIX_POSITIONS = 4_096  # of cached prompts: 115 kB each at the released sizes
# Positions, 24 s, that a row reserves behind its prompt where rows share the cache, so that few run out of it later.
SPEECH_POSITIONS = 300


@dataclass(slots=True, eq=False)
class RowPrompt:
    """A row's prompt that is being computed, or has been. Its entries are its positions and one more."""

    row: int
    prompt: Prompt
    sampling: SamplingParams
    speaker: LoadedVoice
    last: bool = False  # it is computed behind those that are not
    computed: int = 0  # entries, see `Prompt.numbers`
    decoding: bool = False  # the row decodes from the next update on

    @property
    def shared(self) -> int:
        """Leading entries that are the same in other prompts."""
        return self.prompt.length if self.is_shared else self.prompt.shared

    @property
    def is_shared(self) -> bool:
        return self.prompt.shared == len(self.prompt.prefix)

    @property
    def key(self) -> PrefixKey:
        """Equal for prompts with equal shared entries."""
        start = self.prompt.start if self.is_shared else None
        return PrefixKey(self.prompt.prefix[: self.prompt.shared], start, self.speaker.identity, self.speaker.stored)


class PrefixKey(NamedTuple):
    """What the shared entries of a prompt are made of."""

    entries: tuple[Position, ...]
    start: object  # what follows them, if all entries are shared
    identity: bytes  # of the speaker's vector
    stored: StoredVoices | None  # the speaker's voice in the library


class PromptChunk(NamedTuple):
    prompt: RowPrompt
    begin: int  # entries
    end: int


def take_chunks(waiting: list[RowPrompt], budget: PrefillBudget) -> list[PromptChunk]:
    """The chunks of a step: the next one of each waiting prompt in turn, while there is room.

    A step computes a bounded number of entries, so that rows that decode are not delayed by the number of prompts. Each
    prompt is computed in chunks: first the entries that it shares with prompts of the same voice, then the rest, cut at
    the budget of a step. Prompts are also cut to fill a step where that does not change their rounding
    (`PrefillBudget.cut`). A prompt with entries left comes first in the next step if that step can finish it, otherwise
    last.
    """
    waiting.sort(key=lambda prompt: prompt.last)
    left = budget.entries
    chunks: list[PromptChunk] = []
    for prompt in waiting:
        if not left or len(chunks) == budget.prompts:
            break
        begin = prompt.computed
        end = min(prompt.shared if begin < prompt.shared else prompt.prompt.length, begin + budget.entries)
        if end - begin > left:
            end = begin + left if budget.cut else begin
        if end > begin:
            left -= end - begin
            chunks.append(PromptChunk(prompt, begin, end))
    for prompt, _, end in chunks:
        waiting.remove(prompt)
        prompt.computed = end
    more = [prompt for prompt, _, end in chunks if end < prompt.prompt.length]
    soon = [prompt for prompt in more if prompt.prompt.length - prompt.computed <= budget.entries]
    waiting[:] = [*soon, *waiting, *(prompt for prompt in more if prompt not in soon)]
    return chunks


class ModelRunner:
    """Brings prompts and text of rows into a state, and runs its steps. A row may use `max_model_len` positions."""

    def __init__(
        self,
        model: SpeechModel,
        state: SpeechState,
        graphs: FrameGraphs,
        max_model_len: int,
        adapters: AdapterBank | None = None,
    ) -> None:
        self.model = model
        self.state = state
        # Adapters of its voices. None where it runs none.
        self.adapters = adapters
        self.graphs = graphs
        self._max_model_len = max_model_len
        # What gives rows blocks of the cache. None where each row has all its positions.
        self._allocator = None if state.frame.cache.contiguous else BlockAllocator(state.frame.cache)
        self._budget = graphs.prefill_budget
        self._waiting: list[RowPrompt] = []
        self._changes = RowChanges(state.frame, self._allocator)
        # The last prompt of each row, until the row is released.
        self._prompts: dict[int, RowPrompt] = {}
        # Codec states of rows that begin to decode behind a reference; the others start a stream.
        self._codecs: dict[int, CodecState] = {}
        # Shared beginnings of prompts by key; the most recently used is the last.
        self.prefixes: OrderedDict[PrefixKey, Prefix] = OrderedDict()

    # ---------------------------------------------------------------- rows

    def prefill(
        self, row: int, prompt: Prompt, sampling: SamplingParams, speaker: LoadedVoice, *, last: bool = False
    ) -> bool:
        """Prefill a row, whatever it held before; True when the row may decode after the next update.

        False while the cache has no room or the prompt is being computed, which steps do: call it again with the same
        prompt.

        Raises:
            ValueError: the prompt is longer than the cache, or needs a speaker's vector.
        """
        known = self._prompts.get(row)
        if known is not None and known.prompt is prompt:
            return known.decoding
        self.model.frame.check(self.state.frame, prompt, speaker.vector)
        self.release(row)
        if not self.reserve(row, min(self._max_model_len, len(prompt.prefix) + SPEECH_POSITIONS)):
            return False
        if self.adapters:
            self.adapters.assign(row, speaker.adapter)
        new = self._prompts[row] = RowPrompt(row, prompt, sampling, speaker, last)
        key = new.key
        if prefix := self.prefixes.get(key):
            self.prefixes.move_to_end(key)
            self._reuse(new, prefix)
        if not new.decoding:
            self._waiting.append(new)
        return new.decoding

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """More text of a row that decodes; the last of a complete text is followed by its end mark."""
        end = [self.model.frame.config.tts_eos_token_id] if complete else []
        self._changes.add_text(row, [*tokens, *end], complete=complete)

    def reserve(self, row: int, positions: int) -> bool:
        """Reserve the first `positions` of the cache for a row; False when the other rows have taken all blocks."""
        return self._allocator is None or self._allocator.ensure(row, positions)

    def release(self, row: int) -> None:
        """Forget a row's prompt and text, and free its blocks."""
        prompt = self._prompts.pop(row, None)
        if prompt in self._waiting:
            self._waiting.remove(prompt)
        self._changes.forget(row)
        self._codecs.pop(row, None)
        if self._allocator:
            self._allocator.release(row)

    def forget(self, is_gone: Callable[[StoredVoices], bool]) -> None:
        """Drop the cached prompts of voices that the library has no more."""
        for key in [key for key in self.prefixes if key.stored is not None and is_gone(key.stored)]:
            del self.prefixes[key]

    @torch.inference_mode()
    def codec_of(self, row: int) -> CodecState:
        """A copy of the codec's state of a row, on the device, behind all steps so far."""
        codec = self.state.codec
        return CodecState(
            codec.position[row : row + 1].clone(),
            codec.keys[:, row : row + 1].clone(),
            codec.values[:, row : row + 1].clone(),
            tuple(ring[row : row + 1].clone() for ring in codec.histories),
        )

    @torch.inference_mode()
    def wipe(self, row: int) -> None:
        """Overwrite all that a row holds: a mask hides old numbers from the next request, but a masked NaN is NaN."""
        cache, codec = self.state.frame.cache, self.state.codec
        blocks = cache.block_table[row]
        cache.keys[:, blocks] = cache.values[:, blocks] = 0
        codec.keys[:, row] = codec.values[:, row] = 0

    # ---------------------------------------------------------------- steps

    @property
    def has_prompts(self) -> bool:
        return bool(self._waiting)

    def update(self) -> bool:
        """Send the changes of rows to the device ahead of a step, without waiting; whether it computes prompts."""
        writes = Writes()
        if self._allocator:
            self._allocator.collect(writes)
        if rows := self._changes.collect(writes):
            writes.add(self.state.restart, np.array(rows, np.int64))
        writes.send(self.state.frame.ended.device)
        for row, codec in self._codecs.items():
            self.state.codec.put(row, codec)
        self._codecs.clear()
        return self.has_prompts

    def launch(self, rows: Sequence[int], *, timed: bool = False) -> LaunchedStep | None:
        """Begin a step: prompts that wait, and a frame of different rows; None with no rows.

        They fit into a batch of the graphs. Each has its prompt in the cache, and has text left or its whole text.
        `timed`: see `LaunchedStep.device_s`.
        """
        chunks = take_chunks(self._waiting, self._budget)
        launched, ends = self.graphs.step(rows, [self._inputs(chunk) for chunk in chunks], timed=timed)
        for (prompt, _, end), start in zip(chunks, ends, strict=True):
            if end == prompt.shared:
                self._keep(prompt, start if prompt.is_shared else None)
            if end == prompt.prompt.length:
                self._start_decoding(prompt, start)
        return launched

    def _inputs(self, chunk: PromptChunk) -> ChunkInputs:
        (row_prompt, begin, end), frame = chunk, self.state.frame
        length = len(row_prompt.prompt.prefix)
        positions = np.arange(begin, end)
        positions[positions == length] = frame.cache.padding_position
        numbers = row_prompt.prompt.numbers(self.model.frame.config.talker.num_code_groups, begin, end)
        span = min(end, length) if begin else None
        return ChunkInputs(row_prompt.row, positions, span, numbers, row_prompt.speaker.vector)

    def _start_decoding(self, prompt: RowPrompt, start: Tensor) -> None:
        """The row decodes from the next update on. `start` [H] is the embedding of its prompt's last entry."""
        prompt.decoding = True
        self._changes.admit(prompt.row, len(prompt.prompt.prefix), prompt.sampling, start)
        self._changes.add_text(prompt.row, prompt.prompt.text, complete=prompt.prompt.complete)
        if prompt.speaker.codec:
            self._codecs[prompt.row] = prompt.speaker.codec

    def _reuse(self, prompt: RowPrompt, prefix: Prefix) -> None:
        """Copy the shared entries of a prompt, which may be all."""
        self._changes.put_prefix(prompt.row, prefix)
        prompt.computed = prompt.shared
        if prefix.start is not None:
            self._start_decoding(prompt, prefix.start)

    def _keep(self, prompt: RowPrompt, start: Tensor | None) -> None:
        """Cache the shared entries of a prompt, also for the prompts that wait; with `start` if all are shared."""
        key = prompt.key
        if key in self.prefixes:
            return
        prefix = Prefix(*self.state.frame.cache.read(prompt.row, prompt.prompt.shared), start)
        self.prefixes[key] = prefix
        for other in [other for other in self._waiting if not other.computed and other.key == key]:
            self._reuse(other, prefix)
            if other.decoding:
                self._waiting.remove(other)
        while sum(prefix.keys.shape[1] for prefix in self.prefixes.values()) > PREFIX_POSITIONS:
            self.prefixes.popitem(last=False)

    def warm_up(self, most: int) -> None:
        """Run up to `most` rows, as the cache allows: what is made at first use would delay the first requests."""
        prompt = Prompt((Position(0, None),) * 16, shared=16, start=None, text=(0,), complete=False)
        speaker = LoadedVoice(PromptVoice())
        for rows in map(range, sorted({1, most})):
            self.prefixes.clear()
            for _ in ("computed", "kept"):
                ready: list[int] = []
                for _ in range(len(rows) + 1):  # each step computes one prompt at least
                    new = [row for row in rows if row not in ready]
                    ready += [row for row in new if self.prefill(row, prompt, SamplingParams(), speaker)]
                    self.update()
                    if launched := self.launch(ready):
                        launched.result()
                    if len(ready) == len(rows):
                        break
                for row in rows:
                    self.release(row)
        self.prefixes.clear()
        self.update()
