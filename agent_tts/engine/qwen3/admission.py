"""Admission of rows: prompts are computed, or copied from equal ones that were computed before; text is added.

Changes are collected while the engine schedules, and reach the device together, ahead of the step. Prompts are computed
in the step itself, so a row decodes from the next step on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from agent_tts.engine.qwen3.prefill import ChunkInputs
from agent_tts.engine.qwen3.prompt_queue import PrefillBudget, PromptChunk, PromptQueue
from agent_tts.model.block_allocator import BlockAllocator
from agent_tts.model.codec import CodecState
from agent_tts.model.prompt import Prompt, PromptVoice
from agent_tts.model.row_changes import Prefix, RowChanges
from agent_tts.model.sampling import SamplingParams
from agent_tts.model.speech import SpeechModel, SpeechState
from agent_tts.model.upload import Writes

PREFIX_POSITIONS = 4_096  # of cached prompts: 115 kB each at the released sizes
# Positions, 24 s, that a row reserves behind its prompt where rows share the cache, so that few run out of it later.
SPEECH_POSITIONS = 300


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVoice:
    """A voice on the device."""

    voice: PromptVoice
    vector: Tensor | None = None  # [H], on the device
    identity: bytes = b""  # of the vector: the same for equal ones
    codec: CodecState | None = None  # of one row, behind the voice's reference; None is the start of a stream


@dataclass(slots=True, eq=False)
class _Prefill:
    """A row's prompt that is being computed, or has been."""

    row: int
    prompt: Prompt
    sampling: SamplingParams
    speaker: LoadedVoice
    computed: int = 0  # entries, see `Prompt.length`
    decoding: bool = False  # the row decodes from the next update on

    @property
    def shared(self) -> int:
        """Leading entries that are the same in other prompts."""
        return self.length if self.is_shared else self.prompt.shared

    @property
    def is_shared(self) -> bool:
        """Whether all entries are shared: an equal prompt has nothing to compute."""
        return self.prompt.shared == len(self.prompt.prefix)

    @property
    def key(self) -> object:
        """Equal for prompts with equal shared entries."""
        start = self.prompt.start if self.is_shared else None
        return self.prompt.prefix[: self.prompt.shared], start, self.speaker.identity

    @property
    def length(self) -> int:
        """Entries."""
        return self.prompt.length


class Admission:
    """Brings prompts and text of rows into a state.

    Args:
        max_model_len: positions that a row may use.
        allocator: of the blocks of the cache, where rows share it.
        budget: of the prompts that a step computes.
    """

    def __init__(
        self,
        model: SpeechModel,
        state: SpeechState,
        max_model_len: int,
        allocator: BlockAllocator | None,
        budget: PrefillBudget,
    ) -> None:
        self._frame = model.frame
        self._state = state
        self._max_model_len = max_model_len
        self._allocator = allocator
        self._queue: PromptQueue[_Prefill] = PromptQueue(budget)
        # What the step in preparation computes.
        self._chunks: list[PromptChunk[_Prefill]] = []
        self._changes = RowChanges(state.frame, allocator)
        # The last prompt of each row, until the row is released.
        self._prefills: dict[int, _Prefill] = {}
        # Codec states of rows that begin to decode behind a reference; the others start a stream.
        self._codecs: dict[int, CodecState] = {}
        # Shared beginnings of prompts by key; the most recently used is the last.
        self.prefixes: OrderedDict[object, Prefix] = OrderedDict()

    def prefill(self, row: int, prompt: Prompt, sampling: SamplingParams, speaker: LoadedVoice) -> bool:
        """See `Qwen3Model.prefill`."""
        prefill = self._prefills.get(row)
        if prefill is not None and prefill.prompt is prompt:
            return prefill.decoding
        self._frame.check(self._state.frame, prompt, speaker.vector)
        self.release(row)
        if not self.reserve(row, min(self._max_model_len, len(prompt.prefix) + SPEECH_POSITIONS)):
            return False
        prefill = self._prefills[row] = _Prefill(row, prompt, sampling, speaker)
        key = prefill.key
        if prefix := self.prefixes.get(key):
            self.prefixes.move_to_end(key)
            self._reuse(prefill, prefix)
        if not prefill.decoding:
            self._queue.add(prefill)
        return prefill.decoding

    def _reuse(self, prefill: _Prefill, prefix: Prefix) -> None:
        """Copy the shared entries of a prompt, which may be all."""
        self._changes.put_prefix(prefill.row, prefix)
        prefill.computed = prefill.shared
        if prefix.start is not None:
            self._start_decoding(prefill, prefix.start)

    def _start_decoding(self, prefill: _Prefill, start: Tensor) -> None:
        """The row decodes from the next update on."""
        prefill.decoding = True
        row, prompt = prefill.row, prefill.prompt
        self._changes.admit(row, len(prompt.prefix), prefill.sampling, start)
        self._changes.add_text(row, prompt.text, complete=prompt.complete)
        if prefill.speaker.codec:
            self._codecs[row] = prefill.speaker.codec

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """More text of a row that decodes."""
        self._changes.add_text(row, tokens, complete=complete)

    def reserve(self, row: int, positions: int) -> bool:
        """See `Qwen3Model.reserve`."""
        return self._allocator is None or self._allocator.ensure(row, positions)

    def release(self, row: int) -> None:
        """Forget a row's prompt and text, and free its blocks."""
        if prefill := self._prefills.pop(row, None):
            self._queue.drop(prefill)
        self._changes.forget(row)
        self._codecs.pop(row, None)
        if self._allocator:
            self._allocator.release(row)

    @property
    def has_prompts(self) -> bool:
        """Whether any wait to be computed."""
        return bool(self._queue)

    def update(self) -> bool:
        """Send the changes of rows to the device, without waiting; whether prompts wait to be computed."""
        writes = Writes()
        if self._allocator:
            self._allocator.collect(writes)
        if rows := self._changes.collect(writes):
            writes.add(self._state.codec.reset, np.array(rows, np.int64))
        writes.send(self._state.frame.ended.device)
        for row, codec in self._codecs.items():
            self._state.codec.put(row, codec)
        self._codecs.clear()
        return self.has_prompts

    def take(self) -> list[ChunkInputs]:
        """The chunks of prompts of the next step; `computed` has to be called when it is launched."""
        self._chunks = self._queue.schedule()
        return [self._inputs(chunk) for chunk in self._chunks]

    def computed(self, ends: Sequence[Tensor]) -> None:
        """The step is launched. `ends`: what the last entry of each chunk is embedded as, [H] each."""
        for (prefill, _, end), start in zip(self._chunks, ends, strict=True):
            if end == prefill.shared:
                self._keep(prefill, start if prefill.is_shared else None)
            if end == prefill.length:
                self._start_decoding(prefill, start)
        self._chunks = []

    def _inputs(self, chunk: PromptChunk[_Prefill]) -> ChunkInputs:
        prefill, begin, end = chunk
        length = len(prefill.prompt.prefix)
        positions = np.arange(begin, end)
        positions[positions == length] = self._state.frame.cache.padding_position
        numbers = prefill.prompt.numbers(self._frame.config.talker.num_code_groups, begin, end)
        return ChunkInputs(prefill.row, positions, min(end, length) if begin else None, numbers, prefill.speaker.vector)

    def _keep(self, prefill: _Prefill, start: Tensor | None) -> None:
        """Cache the shared entries of a prompt, also for the prompts that wait; with `start` if all are shared."""
        key = prefill.key
        if key in self.prefixes:
            return
        prefix = self._frame.prefix(self._state.frame, prefill.row, prefill.prompt.shared, start)
        self.prefixes[key] = prefix
        for other in [other for other in self._queue if not other.computed and other.key == key]:
            self._reuse(other, prefix)
            if other.decoding:
                self._queue.drop(other)
        while sum(prefix.keys.shape[1] for prefix in self.prefixes.values()) > PREFIX_POSITIONS:
            self.prefixes.popitem(last=False)
