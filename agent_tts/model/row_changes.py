"""How the host changes rows between two frames: all of it is collected, and reaches the device at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.model.frame_state import COUNTS, POSITION, SAMPLING, WISHES, FrameState
from agent_tts.model.sampling import Sampling
from agent_tts.model.upload import upload


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a row has computed of a prompt: its first T positions, the same for every prompt that begins so."""

    keys: Tensor  # [layers, T, key/value heads, head_dim]
    values: Tensor  # same shape
    start: Tensor | None  # [H]: codec side of the first frame step; None unless the prompt ends here


@dataclass(slots=True)
class _Join:
    """A row that is given to a request."""

    numbers: NDArray[np.int64]  # [1 + COUNTS + WISHES]: the row, its counts, and the bits of its wishes
    start: Tensor  # [H]: codec side of the first frame step


@dataclass(slots=True)
class _Text:
    """Text that is added to a row."""

    at: int
    tokens: list[int] = field(default_factory=list)
    complete: bool = False


class RowChanges:
    """What the host wants of the rows, collected between two steps and told to the device at once, without waiting.

    The order of the stream is all the synchronisation there is: a step under way still finds what was there before.
    """

    def __init__(self, state: FrameState) -> None:
        self._state = state
        self._prefixes: dict[int, Prefix] = {}
        self._joins: dict[int, _Join] = {}
        self._texts: dict[int, _Text] = {}

    def begin(self, row: int, prefix: Prefix) -> None:
        """Puts the beginning of a prompt into a row."""
        self._prefixes[row] = prefix

    def join(self, row: int, positions: int, sampling: Sampling, start: Tensor) -> None:
        """Gives a row to a request, with no text yet; whatever the former owner left is forgotten.

        Args:
            positions: length of the prompt's prefix, which is in the row by the next step.
            start: codec side of the first frame step, [H].
        """
        numbers = np.zeros(1 + COUNTS + WISHES, np.int64)
        numbers[0] = row
        counts, wishes = numbers[1 : 1 + COUNTS], numbers[1 + COUNTS :]
        counts[POSITION] = positions
        counts[SAMPLING:], wishes.view(np.float32)[::2] = sampling.numbers()
        self._joins[row] = _Join(numbers, start)
        self._texts.pop(row, None)
        self._state.text_lengths[row] = 0

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """Adds tokens to a row's text; the last of a complete text is tts_eos, which the caller adds.

        Raises:
            ValueError: the text is longer than the cache.
        """
        known, most = self._state.text_lengths[row], self._state.text.shape[1]
        if known + len(tokens) > most:
            raise ValueError(f"the text is longer than {most} tokens")
        text = self._texts.setdefault(row, _Text(known))
        text.tokens += tokens
        text.complete = complete
        self._state.text_lengths[row] = known + len(tokens)

    def forget(self, row: int) -> None:
        """Nothing of what was wanted of a row is wanted any more."""
        for wanted in (self._prefixes, self._joins, self._texts):
            wanted.pop(row, None)

    @torch.inference_mode()
    def apply(self) -> Tensor | None:
        """Tells the device, by one copy; the rows that joined there: int64[n], on the device; None where none did."""
        prefixes, joins, texts = self._prefixes, self._joins, self._texts
        self._prefixes, self._joins, self._texts = {}, {}, {}
        if not (prefixes or joins or texts):
            return None
        arrays = [np.stack([join.numbers for join in joins.values()], axis=1)] if joins else []
        if prefixes:
            arrays.append(_prefix_numbers(prefixes, self._state.cache.page_positions))
        if texts:
            arrays += _text_numbers(texts, self._state.text.shape[1])
        sent = iter(upload(arrays, self._state.counts.device))
        rows = self._write_joins(next(sent), list(joins.values())) if joins else None
        if prefixes:
            self._write_prefixes(next(sent), list(prefixes.values()))
        if texts:
            self._write_texts(next(sent), next(sent))
        return rows

    def _write_joins(self, numbers: Tensor, joins: Sequence[_Join]) -> Tensor:
        state, rows = self._state, numbers[0]
        state.counts.index_copy_(1, rows, numbers[1 : 1 + COUNTS])
        state.wishes.index_copy_(1, rows, numbers[1 + COUNTS :].view(torch.float32)[:, ::2])
        state.flags.index_fill_(1, rows, False)
        state.seen.index_fill_(0, rows, False)
        state.feedback.index_copy_(0, rows, torch.stack([join.start for join in joins]))
        return rows

    def _write_texts(self, texts: Tensor, tokens: Tensor) -> None:
        state, (rows, lengths, complete) = self._state, texts
        state.text_length.index_copy_(0, rows, lengths)
        state.text_complete.index_copy_(0, rows, complete.view(torch.bool)[::8])
        state.text.view(-1).index_copy_(0, *tokens)

    def _write_prefixes(self, numbers: Tensor, prefixes: Sequence[Prefix]) -> None:
        rows, columns, places = numbers
        keys, values = ([getattr(prefix, name) for prefix in prefixes] for name in ("keys", "values"))
        self._state.cache.write(rows, columns, places, _joined(keys), _joined(values))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """[layers, T, ...] each -> [layers, sum of T, ...]."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _text_numbers(texts: Mapping[int, _Text], size: int) -> list[NDArray[np.int64]]:
    """Row, length and completeness of each text, [3, n]; place in all rows' text, and token, of all of it, [2, m]."""
    lengths = [(row, text.at + len(text.tokens), text.complete) for row, text in texts.items()]
    places = [row * size + text.at + index for row, text in texts.items() for index in range(len(text.tokens))]
    tokens = [token for text in texts.values() for token in text.tokens]
    return [np.array(lengths, np.int64).T, np.array((places, tokens), np.int64)]


def _prefix_numbers(prefixes: Mapping[int, Prefix], size: int) -> NDArray[np.int64]:
    """Of each position of all prefixes: its row, the column of the row's table, and the place in that page: [3, T]."""
    lengths = [prefix.keys.shape[1] for prefix in prefixes.values()]
    positions = np.concatenate([np.arange(length) for length in lengths])
    return np.stack((np.repeat(np.fromiter(prefixes, np.int64), lengths), positions // size, positions % size))
