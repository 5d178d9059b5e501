"""Slots of an engine and their requests: text in, frames out; for engines without a model, the text as units."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

from loguru import logger

from agent_tts.directives import Directive, Pause
from agent_tts.engine.base import (
    AddText,
    DoneOutput,
    FailedOutput,
    FlushedOutput,
    FrameOutput,
    ReleaseSlot,
    StartRequest,
    StarvedOutput,
    StepInput,
    StepOutput,
)
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE
from agent_tts.errors import SpeechError
from agent_tts.text.chars import SOUND
from agent_tts.text.directives import Directives, in_letters
from agent_tts.text.feed import Reading, TextFeed, Unit, spelled

READ_CHARS = 128  # of text at once: 0.4 ms of words, 1.5 ms of digits that are spoken as words
READ_S = 0.005  # of a step, for the texts of all slots; those that are left read theirs in the next steps


class Feed:
    """Text of one request, in chunks of `READ_CHARS`, so that no step has to read a long text at once."""

    def __init__(self, opened: StartRequest) -> None:
        self.slot = opened.slot
        self.epoch = opened.epoch
        # Text that is not read yet. Bounded by the front's limits of a context's characters and unanswered flushes.
        self._unread: deque[AddText] = deque()
        # When a chunk was last read; 0 before the first. Those that have waited the longest are the next to read.
        self.read_at = 0.0

    def take_text(self, text: AddText) -> None:
        """More text, with what comes after it. Small pieces that wait are read together."""
        if self._unread and not (self._unread[-1].flush or self._unread[-1].last or self._unread[-1].directive):
            text = replace(text, text=self._unread.pop().text + text.text)
        *before, last = range(0, len(text.text), READ_CHARS) or (0,)
        self._unread += [AddText(text.slot, text.text[start : start + READ_CHARS]) for start in before]
        self._unread.append(replace(text, text=text.text[last:]))

    def next_chunk(self) -> AddText:
        """The next chunk of the text, to read now. There must be one."""
        self.read_at = time.monotonic()
        return self._unread.popleft()


class Outlet:
    """One request's audio that is not handed out yet, and the flush points in it."""

    def __init__(self, slot: int, epoch: int) -> None:
        self.slot = slot
        self.epoch = epoch
        # Frames handed out.
        self.frames = 0
        # pcm_s16le to hand out.
        self._pcm = bytearray()
        # For each unanswered flush: the number of frames before it.
        self._flushes: deque[int] = deque()
        # Whether `_pcm` is all that is left.
        self._ended = False

    @property
    def samples(self) -> int:
        """Length of all audio so far, handed out or not."""
        return (self.frames * FRAME_BYTES + len(self._pcm)) // 2

    @property
    def ready(self) -> int:
        """Whole frames that wait to be handed out."""
        return len(self._pcm) // FRAME_BYTES

    @property
    def finished(self) -> bool:
        """Whether all audio has been handed out and no more will come."""
        return self._ended and not self._pcm

    def write(self, pcm: bytes) -> None:
        """Append pcm_s16le of any length."""
        self._pcm += pcm

    def rest(self, pause: Pause) -> None:
        """Append a pause."""
        self._pcm += bytes(2 * (pause.ms * SAMPLE_RATE // 1_000))

    def flush(self) -> None:
        """A flush is answered after all audio so far, whose last frame is filled up with silence."""
        self._pcm += bytes(-len(self._pcm) % FRAME_BYTES)
        self._flushes.append(self.frames + self.ready)

    def end(self) -> None:
        """No more audio will come; the last frame may be shorter."""
        self._ended = True

    def hand_out(self) -> list[StepOutput]:
        """The next frame, if there is one, and the flushes that it answers."""
        outputs: list[StepOutput] = []
        if self.ready or (self._ended and self._pcm):
            outputs.append(FrameOutput(self.slot, self.epoch, bytes(self._pcm[:FRAME_BYTES])))
            del self._pcm[:FRAME_BYTES]
            self.frames += 1
        while self._flushes and self._flushes[0] <= self.frames:
            self._flushes.popleft()
            outputs.append(FlushedOutput(self.slot, self.epoch))
        return outputs


class Mark(Enum):
    """A point in the text."""

    FLUSH = "flush"
    END = "end"


class SlotFeed(Feed, Outlet):
    """One request's text and audio: units out to the engine, which writes their samples; frames out to the listener.

    `language` is the code of the language that is spoken, `directives` are those that have an effect.
    """

    def __init__(
        self, opened: StartRequest, language: str, first_words: int = 2, directives: Directives | None = None
    ) -> None:
        Feed.__init__(self, opened)
        Outlet.__init__(self, opened.slot, opened.epoch)
        # See `pending`.
        self._pending: deque[Unit | Directive | Mark] = deque()
        # Cuts the text into units that later text cannot change.
        self._text = TextFeed(Reading.of(opened.options, language), first_words=first_words, directives=directives)

    @property
    def pending(self) -> deque[Unit | Directive | Mark]:
        """What the engine has to speak next, in order.

        If nothing waits, this reads one chunk of the text, which may yield nothing to speak yet.
        """
        if not self._pending and self._unread:
            text = self.next_chunk()
            self._pending += self._text.append(text.text)
            if text.directive:
                self._pending += self._text.direct(text.directive)
            if text.flush:
                self._pending += [*self._text.flush(), Mark.FLUSH]
            if text.last:
                self._pending += [*self._text.flush(), Mark.END]
        return self._pending

    @property
    def has_to_read(self) -> bool:
        """Whether `pending` would read."""
        return not self._pending and bool(self._unread)

    @property
    def dry(self) -> bool:
        """Whether there is nothing to speak and no unread text."""
        return not (self._pending or self._unread)

    def ipa(self, unit: Unit) -> tuple[str, ...]:
        """The words of a unit that are given in IPA, in order."""
        says = (self._text.sounds[offset] for ch, offset in zip(unit.text, unit.offsets, strict=True) if ch == SOUND)
        return tuple(say.ipa or "" for say in says)

    def spelled(self, unit: Unit) -> Unit:
        """The unit with letters in place of IPA."""
        chars: list[tuple[str, int]] = []
        for ch, offset in zip(unit.text, unit.offsets, strict=True):
            chars += spelled(in_letters(self._text.sounds[offset]), offset) if ch == SOUND else [(ch, offset)]
        return Unit("".join(ch for ch, _ in chars), tuple(offset for _, offset in chars))

    def offset_after(self, unit: Unit, index: int) -> int:
        """The offset after a character of a unit."""
        offset = unit.offsets[index]
        return offset + (len(self._text.sounds[offset].text) if unit.text[index] == SOUND else 1)

    def mark(self, mark: Mark | Directive) -> None:
        """All audio before `mark` has been written."""
        if isinstance(mark, Pause):
            self.rest(mark)
        elif mark is Mark.END:
            self.end()
        elif mark is Mark.FLUSH:
            self.flush()

    def hand_out(self) -> list[StepOutput]:
        """The next frame and what follows it, or why there is none; nothing if the engine still has text to speak."""
        outputs = super().hand_out()
        if self.finished:
            outputs.append(DoneOutput(self.slot, self.epoch))
        elif self.dry and not any(isinstance(output, FrameOutput) for output in outputs):
            outputs.append(StarvedOutput(self.slot, self.epoch))
        return outputs


class SlotRequest(Protocol):
    """A request as `SlotTable` knows it."""

    @property
    def feed(self) -> Feed: ...


RequestT = TypeVar("RequestT", bound=SlotRequest)


class SlotTable(Generic[RequestT]):
    """Which request has which slot. An error of one request ends that request alone."""

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
                        request.feed.take_text(one)
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
