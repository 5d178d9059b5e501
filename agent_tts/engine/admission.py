"""How rows come to speak: prompts are computed or taken from those that were, text is added, all between two steps.

What a row wants is collected while the engine asks its rows, and reaches the device when the rows have been asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.engine.prefill import Part, Prefill
from agent_tts.engine.prompt_queue import PromptQueue
from agent_tts.model.codec_state import CodecState
from agent_tts.model.pages import Pages
from agent_tts.model.prompt import Prompt, Voice
from agent_tts.model.row_changes import Prefix, RowChanges
from agent_tts.model.sampling import Sampling
from agent_tts.model.speech import SpeechModel, SpeechState

PREFIX_POSITIONS = 4_096  # of prompts, kept ready: 115 kB each at the released sizes
# Positions that a row is given with its prompt, where rows share the cache, so that few run out of it later: 24 s.
SPEECH_POSITIONS = 300
# Positions of prompts that are computed in one step: about 2 ms on a GPU, a second on a small CPU.
BATCH, CPU_BATCH = 256, 64


@dataclass(frozen=True, slots=True, eq=False)
class Speaker:
    """Who speaks, as the model needs it."""

    voice: Voice
    vector: Tensor | None = None  # [H], on the device
    codec: CodecState | None = None  # of one row: what follows the voice's reference; None is the start of a stream


@dataclass(slots=True, eq=False)
class _Joining:
    """A prompt that has to be computed for a row."""

    row: int
    prompt: Prompt
    sampling: Sampling
    speaker: Speaker
    numbers: NDArray[np.int64]  # see `Prompt.numbers`
    computed: int = 0
    joined: bool = False  # the next update computes the last of it, or another one has

    @property
    def length(self) -> int:
        return len(self.prompt.prefix)

    def part(self, count: int) -> Part:
        """The next positions, and the one behind them: of the last part, what follows the prefix."""
        numbers = self.numbers[self.computed : self.computed + count + 1]
        return Part(self.row, self.computed, numbers, self.speaker.vector)


class Admission:
    """Prompts of rows, on their way into a state.

    Args:
        positions: that a row may have.
        pages: of the cache, where rows share it.
    """

    def __init__(
        self, model: SpeechModel, state: SpeechState, positions: int, pages: Pages | None, *, captured: bool
    ) -> None:
        self._frame = model.frame
        self._codec = model.codec
        self._state = state
        self._positions = positions
        self._pages = pages
        padded = state.frame.ended.device.type == "cuda"
        self._queue: PromptQueue[_Joining] = PromptQueue(BATCH if padded else CPU_BATCH)
        shapes = self._queue.shapes() if padded else ()
        self._prefill = Prefill(model.frame, state.frame, shapes, captured=captured)
        self._changes = RowChanges(state.frame)
        # The last prompt of each row that had to be computed, until the row is released.
        self._joining: dict[int, _Joining] = {}
        # What rows that are about to join go on from in the codec; the others start a stream.
        self._codecs: dict[int, CodecState] = {}
        # What rows have joined with, the one used last at the end.
        self.prefixes: OrderedDict[object, Prefix] = OrderedDict()

    def join(self, row: int, prompt: Prompt, sampling: Sampling, speaker: Speaker) -> bool:
        """Give a row to a prompt, whoever had it before; see `Qwen3Model.join`."""
        joining = self._joining.get(row)
        if joining is None or joining.prompt is not prompt:
            self._frame.check(self._state.frame, prompt, speaker.vector)
            self.release(row)
            if not self.reserve(row, min(self._positions, len(prompt.prefix) + SPEECH_POSITIONS)):
                return False
            key = _key(prompt, speaker)
            if prefix := self.prefixes.get(key):
                self.prefixes.move_to_end(key)
                self._begin(row, prompt, sampling, speaker, prefix)
                return True
            numbers = prompt.numbers(self._frame.config.talker.num_code_groups)
            joining = self._joining[row] = _Joining(row, prompt, sampling, speaker, numbers)
            self._queue.add(joining)
            self._begin_last()
        return joining.joined

    def _begin(
        self, row: int, prompt: Prompt, sampling: Sampling, speaker: Speaker, prefix: Prefix | None = None
    ) -> None:
        """The row speaks from the next update on."""
        self._changes.join(row, len(prompt.prefix), sampling, prefix)
        self._changes.add_text(row, prompt.text, complete=prompt.complete)
        if speaker.codec:
            self._codecs[row] = speaker.codec

    def _begin_last(self) -> None:
        """The rows speak whose prompts the next update ends."""
        for joining in self._queue.batch:
            if self._queue.ends(joining) and not joining.joined:
                joining.joined = True
                self._begin(joining.row, joining.prompt, joining.sampling, joining.speaker)

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """More of a row's text, which has joined."""
        self._changes.add_text(row, tokens, complete=complete)

    def reserve(self, row: int, positions: int) -> bool:
        """Whether a row may use so many positions of the cache; False when the others have taken what there is."""
        return self._pages is None or self._pages.ensure(row, positions)

    def release(self, row: int) -> None:
        """Nobody uses the row until it is joined again."""
        if joining := self._joining.pop(row, None):
            self._queue.drop(joining)
            self._begin_last()
        self._changes.forget(row)
        self._codecs.pop(row, None)
        if self._pages:
            self._pages.release(row)

    def update(self) -> bool:
        """Compute the prompts of this step, and tell the device what rows want; whether there were prompts.

        Between two steps, after the rows were asked. Waits for nothing.
        """
        if self._pages:
            self._pages.update()
        computed = bool(self._queue.batch)
        if computed:
            self._compute(self._queue.batch)
        rows = self._changes.apply()
        if rows is not None:
            self._codec.reset(self._state.codec, rows)
        for row, codec in self._codecs.items():
            self._state.codec.put(row, codec)
        self._codecs.clear()
        self._queue.done()
        self._begin_last()
        return computed

    def _compute(self, batch: Sequence[_Joining]) -> None:
        parts = [joining.part(self._queue.part(joining)) for joining in batch]
        starts = self._prefill.run(self._queue.shape(batch[0]), parts)
        for joining, start in zip(batch, starts, strict=True):
            if joining.joined:
                self._changes.start(joining.row, start)
                self._keep(joining, start)

    def _keep(self, joining: _Joining, start: Tensor) -> None:
        """Keeps what has been computed of a prompt for the next one."""
        key = _key(joining.prompt, joining.speaker)
        if key is None or key in self.prefixes:
            return
        self.prefixes[key] = self._frame.prefix(self._state.frame, joining.row, joining.length, start)
        while sum(prefix.keys.shape[1] for prefix in self.prefixes.values()) > PREFIX_POSITIONS:
            self.prefixes.popitem(last=False)


def _key(prompt: Prompt, speaker: Speaker) -> object:
    """What the prefix depends on; None where it holds the text, too, which is another one each time."""
    if speaker.voice.reference:
        return None
    return prompt.prefix, prompt.start, speaker if speaker.vector is not None else None
