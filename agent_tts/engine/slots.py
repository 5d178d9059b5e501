"""Slots of an engine and their requests; for engines without a model also their text as units and audio as frames."""

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

READ_CHARS = 500  # of text at once: half a millisecond


def in_chunks(text: AddText) -> Iterator[AddText]:
    """The text in chunks of `READ_CHARS`, so that no step has to read a long text at once."""
    *before, last = range(0, len(text.text), READ_CHARS) or (0,)
    for start in before:
        yield AddText(text.slot, text.text[start : start + READ_CHARS])
    yield replace(text, text=text.text[last:])


class Mark(Enum):
    """A point in the text."""

    FLUSH = "flush"
    END = "end"


class SlotFeed(Outlet):
    """One request's text and audio: units out to the engine, which writes their samples; frames out to the listener.

    Args:
        language: the code of the language that is spoken.
    """

    def __init__(self, opened: StartRequest, language: str, first_words: int = 2) -> None:
        super().__init__(opened.slot, opened.epoch)
        # Text to be cut into units. Bounded by the front's limits of a context's characters and unanswered flushes.
        self._unread: deque[AddText] = deque()
        # What the engine has to speak next, in order.
        self._pending: deque[Unit | Break | Mark] = deque()
        # Cuts the text into units that later text cannot change.
        self._text = TextFeed(Reading.of(opened.options, language), first_words=first_words)

    @property
    def pending(self) -> deque[Unit | Break | Mark]:
        """What the engine has to speak next, in order.

        If nothing waits, this reads one chunk of the text, which may yield nothing to speak yet.
        """
        if not self._pending and self._unread:
            self._read(self._unread.popleft())
        return self._pending

    @property
    def dry(self) -> bool:
        """Whether there is nothing to speak and no unread text."""
        return not (self._pending or self._unread)

    def take_text(self, text: AddText) -> None:
        """More text, with its flush and its end."""
        self._unread.extend(in_chunks(text))

    def _read(self, text: AddText) -> None:
        self._pending += self._text.append(text.text)
        if text.flush:
            self._pending += [*self._text.flush(), Mark.FLUSH]
        if text.last:
            self._pending += [*self._text.flush(), Mark.END]

    def mark(self, mark: Mark) -> None:
        """All audio before `mark` has been written."""
        if mark is Mark.END:
            self.end()
        else:
            self.flush()

    def hand_out(self) -> list[StepOutput]:
        """The next frame and what follows it, or why there is none; nothing if the engine still has text to speak."""
        outputs = super().hand_out()
        if self.finished:
            outputs.append(DoneOutput(self.slot, self.epoch))
        elif self.dry and not any(isinstance(output, FrameOutput) for output in outputs):
            outputs.append(StarvedOutput(self.slot, self.epoch))
        return outputs


class Feed(Protocol):
    """Takes the text of a request."""

    @property
    def slot(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    def take_text(self, text: AddText) -> None: ...


class SlotRequest(Protocol):
    """A request as `SlotTable` knows it."""

    @property
    def feed(self) -> Feed: ...


RequestT = TypeVar("RequestT", bound=SlotRequest)


class SlotTable(Generic[RequestT]):
    """Which request has which slot. An error of one request ends that request alone.

    Args:
        make: makes the request of a slot.
    """

    def __init__(self, count: int, make: Callable[[StartRequest], RequestT]) -> None:
        self._make = make
        # The request of each slot; None if it is free, or its request has failed or is done.
        self._requests: list[RequestT | None] = [None] * count

    def apply(self, inputs: Sequence[StepInput]) -> list[StepOutput]:
        """Give slots to requests, text to their feeds, and take slots back."""
        outputs: list[StepOutput] = []
        for one in inputs:
            match one:
                case StartRequest(slot=slot, epoch=epoch):
                    self._requests[slot] = None
                    try:
                        self._requests[slot] = self._make(one)
                    except Exception as error:  # noqa: BLE001
                        outputs.append(_failed(slot, epoch, error))
                case AddText(slot=slot):
                    if request := self._requests[slot]:
                        outputs += self.guard(request, partial(request.feed.take_text, one))
                case ReleaseSlot(slot=slot):
                    self._requests[slot] = None
        return outputs

    def requests(self, run: Collection[int] | None = None) -> list[RequestT]:
        """The requests of these slots, or of all."""
        found: Iterable[RequestT | None] = self._requests if run is None else (self._requests[slot] for slot in run)
        return [request for request in found if request is not None]

    def has(self, request: RequestT) -> bool:
        """Whether the request still has its slot."""
        return self._requests[request.feed.slot] is request

    def guard(self, request: RequestT, act: Callable[[], list[StepOutput] | None]) -> list[StepOutput]:
        """The outputs of `act`, or the request's failure; the slot is cleared after the request's last output."""
        feed = request.feed
        try:
            outputs = act() or []
        except Exception as error:  # noqa: BLE001
            outputs = [_failed(feed.slot, feed.epoch, error)]
        if outputs and isinstance(outputs[-1], DoneOutput | FailedOutput):
            self._requests[feed.slot] = None
        return outputs

    def clear(self) -> None:
        """Clear all slots."""
        self._requests = [None] * len(self._requests)


def _failed(slot: int, epoch: int, error: Exception) -> FailedOutput:
    """The failure of one request. A fault is logged by its type and place, without any of the text."""
    if isinstance(error, SpeechError):
        return FailedOutput(slot, epoch, error.code, error.message)
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("slot {} failed: {}\n{}", slot, type(error).__name__, where)
    return FailedOutput(slot, epoch, "internal", "the engine failed on this context")
