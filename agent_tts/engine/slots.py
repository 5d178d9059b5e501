"""Slots of the engines without a model: whose they are, their text as units to speak, their audio cut into frames."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

from loguru import logger

from agent_tts.engine.base import (
    AddText,
    DoneOutput,
    FailedOutput,
    FrameOutput,
    ReleaseSlot,
    StartRequest,
    StarvedOutput,
    StepInput,
    StepOutput,
)
from agent_tts.engine.outlet import Outlet
from agent_tts.errors import SpeechError
from agent_tts.text.feed import Break, Reading, TextFeed, Unit

READ_CHARS = 500  # of text in one go: half a millisecond


def in_chunks(text: AddText) -> Iterator[AddText]:
    """The same in chunks of `READ_CHARS`, so that no step has to read a long text at once."""
    *before, last = range(0, len(text.text), READ_CHARS) or (0,)
    for start in before:
        yield AddText(text.slot, text.text[start : start + READ_CHARS])
    yield replace(text, text=text.text[last:])


class Mark(Enum):
    """A point in the text at which something is due."""

    FLUSH = "flush"
    END = "end"


class SlotFeed:
    """One owner's text and audio: units out to the engine, which writes their samples; frames out to the listener."""

    def __init__(self, opened: StartRequest, language: str, first_words: int = 2) -> None:
        """`language` is the code of the one that is spoken."""
        self.slot = opened.slot
        self.epoch = opened.epoch
        # Text to be cut into units, in pieces. Bounded by what the front lets in: characters of a context, and flushes
        # that are not answered yet.
        self._unread: deque[AddText] = deque()
        # What the engine has to speak next, in order, as far as the text is read.
        self._pending: deque[Unit | Break | Mark] = deque()
        # Cuts the text into units that later text cannot change.
        self._feed = TextFeed(Reading.of(opened.options, language), first_words=first_words)
        # Its audio.
        self._outlet = Outlet(opened.slot, opened.epoch)

    @property
    def frames(self) -> int:
        """Frames handed out."""
        return self._outlet.frames

    @property
    def samples(self) -> int:
        """Length of all audio so far, handed out or not."""
        return self._outlet.samples

    @property
    def ready(self) -> int:
        """Whole frames that wait to be handed out."""
        return self._outlet.ready

    @property
    def pending(self) -> deque[Unit | Break | Mark]:
        """What the engine has to speak next, in order.

        Where nothing waits, one piece of the text is read for it, so that no step has to read a long text at once;
        that may be nothing to speak yet.
        """
        if not self._pending and self._unread:
            self._read(self._unread.popleft())
        return self._pending

    @property
    def dry(self) -> bool:
        """Whether there is nothing to speak, and no text that is not read yet."""
        return not (self._pending or self._unread)

    def take_text(self, text: AddText) -> None:
        """More text, with its flush and its end."""
        self._unread.extend(in_chunks(text))

    def _read(self, text: AddText) -> None:
        self._pending += self._feed.append(text.text)
        if text.flush:
            self._pending += [*self._feed.flush(), Mark.FLUSH]
        if text.last:
            self._pending += [*self._feed.end(), Mark.END]

    def write(self, pcm: bytes) -> None:
        """Append audio of what was taken from `pending`: pcm_s16le of any length."""
        self._outlet.write(pcm)

    def rest(self, pause: Break) -> None:
        """Append a pause that was taken from `pending`."""
        self._outlet.rest(pause)

    def mark(self, mark: Mark) -> None:
        """All audio before `mark` has been written."""
        if mark is Mark.END:
            self._outlet.end()
        else:
            self._outlet.flush()

    def hand_out(self) -> list[StepOutput]:
        """The next frame and what is due after it, or why there is none; nothing while the engine owes audio."""
        outputs = self._outlet.hand_out()
        if self._outlet.finished:
            outputs.append(DoneOutput(self.slot, self.epoch))
        elif self.dry and not any(isinstance(output, FrameOutput) for output in outputs):
            outputs.append(StarvedOutput(self.slot, self.epoch))
        return outputs


class Feed(Protocol):
    """Where the text of an owner goes."""

    @property
    def slot(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def take_text(self, text: AddText) -> None: ...


class HasFeed(Protocol):
    """An owner as `Slots` knows it."""

    @property
    def feed(self) -> Feed: ...


OwnerT = TypeVar("OwnerT", bound=HasFeed)


class Slots(Generic[OwnerT]):
    """Who owns which slot. What goes wrong for one owner ends that owner alone."""

    def __init__(self, count: int, make: Callable[[StartRequest], OwnerT]) -> None:
        # Makes the owner of a slot; an error of it is the owner's.
        self._make = make
        # The owner of each slot; None when it is free, failed or done.
        self._owners: list[OwnerT | None] = [None] * count

    def apply(self, inputs: Sequence[StepInput]) -> list[StepOutput]:
        """Open and close slots, and hand them their text."""
        outputs: list[StepOutput] = []
        for one in inputs:
            match one:
                case StartRequest(slot=slot, epoch=epoch):
                    self._owners[slot] = None
                    try:
                        self._owners[slot] = self._make(one)
                    except Exception as error:  # noqa: BLE001
                        outputs.append(_failed(slot, epoch, error))
                case AddText(slot=slot):
                    if owner := self._owners[slot]:
                        outputs += self.guard(owner, partial(owner.feed.take_text, one))
                case ReleaseSlot(slot=slot):
                    self._owners[slot] = None
        return outputs

    def owners(self, run: Collection[int] | None = None) -> list[OwnerT]:
        """The owners of these slots; of all, without an argument."""
        owners: Iterable[OwnerT | None] = self._owners if run is None else (self._owners[slot] for slot in run)
        return [owner for owner in owners if owner is not None]

    def owns(self, owner: OwnerT) -> bool:
        """Whether it still has its slot."""
        return self._owners[owner.feed.slot] is owner

    def guard(self, owner: OwnerT, act: Callable[[], list[StepOutput] | None]) -> list[StepOutput]:
        """What `act` says for `owner`, or its failure; after the owner's last output the slot is nobody's."""
        feed = owner.feed
        try:
            outputs = act() or []
        except Exception as error:  # noqa: BLE001
            outputs = [_failed(feed.slot, feed.epoch, error)]
        if outputs and isinstance(outputs[-1], DoneOutput | FailedOutput):
            self._owners[feed.slot] = None
        return outputs

    def clear(self) -> None:
        """Close all slots."""
        self._owners = [None] * len(self._owners)


def _failed(slot: int, epoch: int, error: Exception) -> FailedOutput:
    """The end of one owner. An error that is ours is logged, without a word of what was to be spoken."""
    if isinstance(error, SpeechError):
        return FailedOutput(slot, epoch, error.code, error.message)
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("slot {} failed: {}\n{}", slot, type(error).__name__, where)
    return FailedOutput(slot, epoch, "internal", "the engine failed on this context")
