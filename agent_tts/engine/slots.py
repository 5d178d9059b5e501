"""Slots of an engine and their requests: text in, frames out; for engines without a model, the text as units."""

from __future__ import annotations

import heapq
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar

from loguru import logger

from agent_tts.directives import Directive, Pause
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE
from agent_tts.errors import SpeechError
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    End,
    Finished,
    Flush,
    Flushed,
    Open,
    OutOfText,
    StepCommand,
    StepEvent,
)
from agent_tts.options import EngineOptions
from agent_tts.text.chars import SOUND
from agent_tts.text.directives import in_letters
from agent_tts.text.feed import TextFeed, Unit, spelled

READ_CHARS = 128  # of text at once: digits that are spoken as words take eight times as long as words
READ_S = 0.005  # of a step, for the texts of all slots; those that are left read theirs in the next steps

Opened = Open[int, EngineOptions]
Point = Directive | Flush[int] | End[int]  # what stands between two texts, or behind the last


class Feed:
    """Text of one request, in chunks of `READ_CHARS`, so that no step has to read a long text at once."""

    def __init__(self, opened: Opened, slot: int) -> None:
        self.id = opened.id
        self.slot = slot
        # Text that is not read yet, each with what comes right after it, if that has come. Bounded by the front's
        # limits of a context's characters and unanswered flushes.
        self._unread: deque[tuple[str, Point | None]] = deque()
        # When a chunk was last read; 0 before the first. Those that have waited the longest are the next to read.
        self.read_at = 0.0

    def take(self, command: Append[int] | Flush[int] | End[int]) -> None:
        """More text, or what comes after it. Small pieces that wait are read together."""
        content = command.content if isinstance(command, Append) else command
        text, point = (content, None) if isinstance(content, str) else ("", content)
        if self._unread and self._unread[-1][1] is None:
            text = self._unread.pop()[0] + text
        *before, last = range(0, len(text), READ_CHARS) or (0,)
        self._unread += [(text[start : start + READ_CHARS], None) for start in before]
        self._unread.append((text[last:], point))

    def next_chunk(self, now: float) -> tuple[str, Point | None]:
        """The next chunk of the text, to read now, with what comes right after it. There must be one."""
        self.read_at = now
        return self._unread.popleft()


class Outlet:
    """One request's audio that is not handed out yet, and the flush points in it."""

    def __init__(self, request_id: int) -> None:
        self._id = request_id
        self.frames = 0
        # pcm_s16le to hand out.
        self._pcm = bytearray()
        # Unanswered flushes, each with the number of frames before it.
        self._flushes: deque[tuple[int, str | None]] = deque()
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
        self._pcm += pcm

    def rest(self, pause: Pause) -> None:
        self._pcm += bytes(2 * (pause.ms * SAMPLE_RATE // 1_000))

    def flush(self, flush_id: str | None) -> None:
        """A flush is answered after all audio so far, whose last frame is filled up with silence."""
        self._pcm += bytes(-len(self._pcm) % FRAME_BYTES)
        self._flushes.append((self.frames + self.ready, flush_id))

    def end(self) -> None:
        """No more audio will come; the last frame may be shorter."""
        self._ended = True

    def hand_out(self) -> list[StepEvent]:
        """The next frame, if there is one, and the flushes that it answers."""
        new: list[StepEvent] = []
        if self.ready or (self._ended and self._pcm):
            new.append(Audio(self._id, bytes(self._pcm[:FRAME_BYTES])))
            del self._pcm[:FRAME_BYTES]
            self.frames += 1
        while self._flushes and self._flushes[0][0] <= self.frames:
            new.append(Flushed(self._id, self._flushes.popleft()[1]))
        return new


class SlotFeed(Feed, Outlet):
    """One request's text and audio: units out to the engine, which writes their samples; frames out to the listener."""

    def __init__(self, opened: Opened, slot: int, text: TextFeed) -> None:
        """`text` cuts it into units that later text cannot change."""
        Feed.__init__(self, opened, slot)
        Outlet.__init__(self, opened.id)
        # What the engine has to speak next, in order.
        self.pending: deque[Unit | Point] = deque()
        self._text = text

    def read(self, now: float) -> deque[Unit | Point]:
        """`pending`. If nothing waits, this reads one chunk of the text, which may yield nothing to speak yet."""
        if not self.pending:
            self.read_on(now)
        return self.pending

    def read_on(self, now: float) -> bool:
        """Read one more chunk of the text into `pending`; False if there is none."""
        if not self._unread:
            return False
        text, point = self.next_chunk(now)
        self.pending += self._text.append(text)
        if isinstance(point, Flush | End):
            self.pending += [*self._text.flush(), point]
        elif point:
            self.pending += self._text.direct(point)
        return True

    @property
    def has_to_read(self) -> bool:
        return not self.pending and bool(self._unread)

    @property
    def dry(self) -> bool:
        """Whether there is nothing to speak and no unread text."""
        return not (self.pending or self._unread)

    def ipa(self, unit: Unit) -> tuple[str, ...]:
        says = (self._text.sounds[offset] for ch, offset in zip(unit.text, unit.offsets, strict=True) if ch == SOUND)
        return tuple(say.ipa or "" for say in says)

    def spelled(self, unit: Unit) -> Unit:
        chars: list[tuple[str, int]] = []
        for ch, offset in zip(unit.text, unit.offsets, strict=True):
            chars += spelled(in_letters(self._text.sounds[offset]), offset) if ch == SOUND else [(ch, offset)]
        return Unit("".join(ch for ch, _ in chars), tuple(offset for _, offset in chars))

    def offset_after(self, unit: Unit, index: int) -> int:
        offset = unit.offsets[index]
        return offset + (len(self._text.sounds[offset].text) if unit.text[index] == SOUND else 1)

    def mark(self, point: Point) -> None:
        """All audio before `point` has been written."""
        if isinstance(point, Pause):
            self.rest(point)
        elif isinstance(point, End):
            self.end()
        elif isinstance(point, Flush):
            self.flush(point.flush_id)

    def hand_out(self) -> list[StepEvent]:
        """The next frame and what follows it, or why there is none; nothing if the engine still has text to speak."""
        new = super().hand_out()
        if self.finished:
            new.append(Finished(self.id, "end"))
        elif self.dry and not any(isinstance(event, Audio) for event in new):
            new.append(OutOfText(self.id))
        return new


class SlotRequest(Protocol):
    @property
    def feed(self) -> Feed: ...


RequestT = TypeVar("RequestT", bound=SlotRequest)


class SlotTable(Generic[RequestT]):
    """Which request has which slot. An error of one request ends that request alone.

    `make` makes a request in its slot, `free` is told of each slot that is taken back.
    """

    def __init__(
        self, count: int, make: Callable[[Opened, int], RequestT], free: Callable[[int], None] = lambda slot: None
    ) -> None:
        self._make = make
        self._told_free = free
        # Free slots, a heap: the lowest is next, so that few requests make a small batch.
        self._free = list(range(count))
        # They are kept by id: the slot, until it is taken back; and the request, unless it has failed or is done.
        self._slots: dict[int, int] = {}
        self._requests: dict[int, RequestT] = {}

    def apply(self, commands: Sequence[StepCommand]) -> list[StepEvent]:
        """Give slots to requests, text to their feeds, and take slots back."""
        new: list[StepEvent] = []
        for command in commands:
            if isinstance(command, Open):
                slot = self._slots[command.id] = heapq.heappop(self._free)
                try:
                    self._requests[command.id] = self._make(command, slot)
                except Exception as error:  # noqa: BLE001
                    new.append(_failed(command.id, slot, error))
            elif isinstance(command, Cancel):
                self._requests.pop(command.id, None)
                slot = self._slots.pop(command.id)
                heapq.heappush(self._free, slot)
                self._told_free(slot)
            elif request := self._requests.get(command.id):
                request.feed.take(command)
        return new

    def requests(self, run: Collection[int] | None = None) -> list[RequestT]:
        found = self._requests.values() if run is None else map(self._requests.get, run)
        return [request for request in found if request is not None]

    def has(self, request: RequestT) -> bool:
        return self._requests.get(request.feed.id) is request

    def guard(self, request: RequestT, act: Callable[[], list[StepEvent] | None]) -> list[StepEvent]:
        """What `act` gives, or the request's failure; nothing is done for a request behind its last event."""
        feed = request.feed
        try:
            new: list[StepEvent] = act() or []
        except Exception as error:  # noqa: BLE001
            new = [_failed(feed.id, feed.slot, error)]
        if new and isinstance(new[-1], Finished):
            del self._requests[feed.id]
        return new

    def clear(self) -> None:
        self._requests.clear()


def _failed(request_id: int, slot: int, error: Exception) -> Finished[int]:
    """The failure of one request. A fault is logged by its type and place, without any of the text."""
    if isinstance(error, SpeechError):
        return Finished(request_id, "error", code=error.code, message=error.message)
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("slot {} failed: {}\n{}", slot, type(error).__name__, where)
    return Finished(request_id, "error", code="internal", message="the engine failed on this context")
