"""Who speaks next: FIFO admission to slots, credit, pacing, deadlines and frame caps. Pure: `now` is an argument.

A request waits in a queue until a slot is free. In its slot it runs when it has text and credit and its listener's
lead allows it. It leaves the slot with exactly one `RequestFinished`. The engine echoes the request's id as the epoch:
an output of an earlier request in the slot is dropped.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agent_tts import events
from agent_tts.engine import base
from agent_tts.errors import RETRY_MS
from agent_tts.events import FRAME_MS, EngineEvent, FinishReason, RequestFinished, SpeechOptions

FRAME_S = FRAME_MS / 1_000

# A paced stream runs at once when its listener has less than this ahead, or than this share of the most that it could
# have. The others wait so long for one another, and after the last step for all: one step for many instead of a step
# for each, and the engine is idle in between, so that a newcomer waits for nobody.
SAFE_S, SAFE_SHARE = 0.240, 0.75
APART_S = 0.020

# Places of a full step for those that had no frame when they last ran: newcomers, whose prompts are computed few at a
# time, and who waits for a model or for room in the cache. More of them would only keep out who can speak.
NEWCOMERS = 32

# Runaway guard: ten frames (0.8 s) a character, some ten times ordinary speech, which leaves room for digits and
# symbols that are spelled out; the constant covers leading and trailing silence.
CAP_FRAMES = 50
CAP_FRAMES_PER_CHAR = 10


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the scheduler."""

    slots: int  # streams speaking at once
    queue: int  # streams waiting for a slot
    # Streams that a step may be made for: it costs what the next of these does, and the last are the most. With none,
    # all may run, and each costs its own.
    sizes: tuple[int, ...] = ()
    queue_s: float = 2.0  # longest wait for a slot, then `at_capacity`
    text_idle_s: float = 15.0  # longest time without text in a dry slot, then `starved`
    window_frames: int = 50  # frames made and not yet taken
    max_frames: int = 3_000  # frames of one stream, whatever its text
    stream_s: float = 600.0  # longest time in a slot, however slowly its listener takes it


@dataclass(slots=True, eq=False)
class Stream:
    """One stream, waiting or speaking."""

    id: int
    options: SpeechOptions
    opened_at: float  # time of `open`
    credit: int  # frames that may still be made before the listener's side takes some
    slot: int | None = None  # None while it waits
    admitted_at: float = 0.0  # when it got its slot
    text: list[base.AddText] = field(default_factory=list)  # arrived while it waited; `slot` is filled in on admission
    chars: int = 0  # characters so far
    ended: bool = False  # no more text will come
    has_text: bool = False  # the engine may have something to speak
    dry_since: float = 0.0  # since when there is none; means nothing while `has_text`
    frames: int = 0  # made so far
    under_way: int = 0  # steps that it runs in and whose outputs are still to come
    is_new: bool = True  # it had no frame in the last step that it ran in
    ran_in: int = 0  # the number of that step
    heard_until: float = 0.0  # when a listener who plays without pause will have played all of them
    flushes: deque[str] = field(default_factory=deque)  # flush ids that the engine has not answered yet
    busy_s: float = 0.0  # duration of the steps it ran in
    # Earliest time at which its lead allows the next frame, and how long after that it may wait for others, who run
    # with it. What follows from the rest, kept because all streams are asked before every step.
    due_at: float = -math.inf
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        if self.options.lead_ms is not None:
            most_s = max(0.0, self.options.lead_ms / 1_000 - FRAME_S)
            self.patience_s = most_s - min(SAFE_S, SAFE_SHARE * most_s)

    def made(self, now: float) -> None:
        """One more frame has been made."""
        self.frames += 1
        self.credit -= 1
        self.heard_until = max(self.heard_until, now) + FRAME_S
        if self.options.lead_ms is not None:
            self.due_at = self.heard_until + FRAME_S * (1 + self.under_way) - self.options.lead_ms / 1_000

    def cap(self, policy: Policy) -> int:
        """Frames after which it must be a runaway."""
        by_text = (CAP_FRAMES + CAP_FRAMES_PER_CHAR * self.chars) / min(1.0, self.options.speed)
        return min(policy.max_frames, math.ceil(by_text))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine."""

    inputs: list[base.StepInput]
    streams: list[Stream]  # who speaks in it

    @property
    def run(self) -> list[int]:
        """The slots that speak in it."""
        return [stream.slot for stream in self.streams if stream.slot is not None]


class Scheduler:
    """Streams in, engine inputs out; engine outputs in, events out."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        # Every stream that has not finished, by id.
        self._streams: dict[int, Stream] = {}
        # Those without a slot, oldest first.
        self._waiting: deque[Stream] = deque()
        # The owner of each slot that has one.
        self._owners: dict[int, Stream] = {}
        # Slots without an owner, a heap: the lowest is next, so that few streams are a small batch.
        self._free: list[int] = list(range(policy.slots))
        # What the engine must be told in the next step, in order.
        self._inputs: list[base.StepInput] = []
        # Events that did not come from a step.
        self._events: list[EngineEvent] = []
        # Steps so far, and when the last began in which all could run.
        self._steps = 0
        self._all_at = -math.inf
        # Before this time no deadline of a stream passes; when it is reached, the next is looked for.
        self._deadline = math.inf

    @property
    def speaking(self) -> int:
        """Slots with an owner."""
        return len(self._owners)

    @property
    def queued(self) -> int:
        """Streams waiting for a slot."""
        return len(self._waiting)

    # ------------------------------------------------------------ commands

    def open(self, stream_id: int, options: SpeechOptions, now: float) -> None:
        """Take a new stream, or refuse it at once when the queue is full."""
        stream = Stream(stream_id, options, opened_at=now, credit=self.policy.window_frames)
        self._streams[stream_id] = stream
        if len(self._waiting) >= len(self._free) + self.policy.queue:
            self._refuse(stream, f"all {self.policy.slots} slots are speaking and the queue is full")
        else:
            self._waiting.append(stream)
            self._deadline = min(self._deadline, now + self.policy.queue_s)

    def append(self, stream_id: int, text: str) -> None:
        """More text. An unknown stream has finished already: nothing to do, here and in all commands below."""
        self._text(stream_id, text)

    def flush(self, stream_id: int, flush_id: str) -> None:
        """Speak all text so far; answered by `RequestFlushed`."""
        if stream := self._streams.get(stream_id):
            stream.flushes.append(flush_id)
            self._text(stream_id, "", flush=True)

    def end(self, stream_id: int) -> None:
        """No more text."""
        self._text(stream_id, "", last=True)

    def cancel(self, stream_id: int) -> None:
        """Stop, free the slot."""
        if stream := self._streams.get(stream_id):
            self._finish(stream, "cancelled")

    def taken(self, stream_id: int, frames: int) -> None:
        """The listener's side took `frames` frames."""
        if stream := self._streams.get(stream_id):
            stream.credit = min(stream.credit + frames, self.policy.window_frames)

    def _text(self, stream_id: int, text: str, *, flush: bool = False, last: bool = False) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            return
        stream.chars += len(text)
        stream.ended = last
        stream.has_text = True
        message = base.AddText(-1 if stream.slot is None else stream.slot, text, flush, last)
        (stream.text if stream.slot is None else self._inputs).append(message)

    # ------------------------------------------------------------ one step

    def plan(self, now: float) -> Step:
        """What the next step is told, and who speaks in it. Deadlines that have passed take effect."""
        reached = now >= self._deadline
        if reached:
            self._expire(now)
        while self._waiting and self._free:
            self._admit(self._waiting.popleft(), now)
        if reached:
            deadlines = [stream.opened_at + self.policy.queue_s for stream in self._waiting]
            deadlines += [self._deadline_of(stream) for stream in self._owners.values()]
            self._deadline = min(deadlines, default=math.inf)
        inputs, self._inputs = self._inputs, []
        streams = self._choose([stream for stream in self._owners.values() if self._can_run(stream, now)], now)
        self._steps += 1
        for stream in streams:
            stream.under_way += 1
            stream.due_at += FRAME_S
            stream.ran_in = self._steps
        return Step(inputs, streams)

    def apply(
        self, outputs: Iterable[base.StepOutput], steps: Iterable[Step], now: float, step_s: float
    ) -> list[EngineEvent]:
        """What has happened until `now`, when these steps have given all their outputs.

        Args:
            outputs: of these steps, and perhaps of one that is still under way.
            step_s: how long these steps took, in seconds.
        """
        for step in steps:
            for stream in step.streams:
                stream.under_way -= 1
                stream.due_at -= FRAME_S
                stream.is_new = True
                stream.busy_s += step_s
        for output in outputs:
            owner = self._owners.get(output.slot)
            if owner is not None and owner.id == output.epoch:
                self._take(owner, output, now)
        new, self._events = self._events, []
        return new

    def wake_at(self, now: float) -> float | None:
        """When the next step is due: a time not after `now` is at once; None is never, without a new command."""
        if self._inputs or self._events or (self._waiting and self._free):
            return now
        wake_at = self._deadline
        for stream in self._owners.values():
            if stream.has_text and stream.credit > stream.under_way and (runs_at := self._runs_at(stream)) < wake_at:
                wake_at = runs_at
                if wake_at <= now:
                    break
        return None if wake_at == math.inf else wake_at

    # ------------------------------------------------------------ inside

    def _can_run(self, stream: Stream, now: float) -> bool:
        return stream.has_text and stream.credit > stream.under_way and stream.due_at <= now

    def _choose(self, able: list[Stream], now: float) -> list[Stream]:
        """Who of those that can run does: all of them, or newcomers alone with whoever costs nothing beside them.

        Newcomers come first, here and so in all that is made of the step.
        """
        newcomers = [stream for stream in able if not (stream.frames or stream.under_way)]
        others = [stream for stream in able if stream.frames or stream.under_way]
        sizes = self.policy.sizes
        if any(now >= self._runs_at(stream) for stream in others):
            if not sizes or len(able) <= sizes[-1]:  # otherwise who is left out has its turn in the next step
                self._all_at = now
            chosen = newcomers + others
        else:
            room = next((size for size in sizes if size >= len(newcomers)), 0) - len(newcomers)
            chosen = newcomers + _driest(others, room) if newcomers else []
        return _most_urgent(chosen, sizes[-1]) if sizes and len(chosen) > sizes[-1] else chosen

    def _runs_at(self, stream: Stream) -> float:
        """When there is to be a step for a stream that has text and credit."""
        due_at, all_at = stream.due_at, self._all_at
        together_at = (due_at if due_at > all_at else all_at) + APART_S
        urgent_at = due_at + stream.patience_s
        return urgent_at if urgent_at < together_at else together_at

    def _admit(self, stream: Stream, now: float) -> None:
        slot = heapq.heappop(self._free)
        stream.slot, stream.admitted_at, stream.dry_since = slot, now, now
        self._owners[slot] = stream
        self._deadline = min(self._deadline, self._deadline_of(stream))
        self._inputs.append(base.StartRequest(slot, stream.id, stream.options))
        self._inputs += [base.AddText(slot, held.text, held.flush, held.last) for held in stream.text]
        stream.text.clear()
        self._events.append(events.RequestStarted(stream.id, round((now - stream.opened_at) * 1_000)))

    def _expire(self, now: float) -> None:
        while self._waiting and now >= self._waiting[0].opened_at + self.policy.queue_s and not self._free:
            self._refuse(self._waiting.popleft(), f"no slot came free within {self.policy.queue_s:g} s")
        for stream in list(self._owners.values()):
            if not stream.has_text and now >= stream.dry_since + self.policy.text_idle_s:
                message = f"no text for {self.policy.text_idle_s:g} s: append text, or end the context"
                self._finish(stream, "error", "starved", message)
            elif now >= stream.admitted_at + self.policy.stream_s:
                self._finish(stream, "length")

    def _deadline_of(self, stream: Stream) -> float:
        """Of a stream in its slot, as long as no text comes."""
        in_all = stream.admitted_at + self.policy.stream_s
        return in_all if stream.has_text else min(in_all, stream.dry_since + self.policy.text_idle_s)

    def _take(self, stream: Stream, output: base.StepOutput, now: float) -> None:
        match output:
            case base.FrameOutput(pcm=pcm):
                stream.made(now)
                stream.is_new = False
                self._events.append(events.RequestAudio(stream.id, pcm))
                if stream.frames >= stream.cap(self.policy):
                    self._finish(stream, "length")
            case base.AlignedOutput(words=words):
                self._events.append(events.RequestWords(stream.id, words))
            case base.FlushedOutput():
                self._events.append(events.RequestFlushed(stream.id, stream.flushes.popleft()))
            case base.StarvedOutput():
                stream.has_text, stream.dry_since = False, now
                self._deadline = min(self._deadline, self._deadline_of(stream))
            case base.DoneOutput(length=length):
                self._finish(stream, "length" if length else "end")
            case base.FailedOutput(code=code, message=message):
                self._finish(stream, "error", code, message)

    def _refuse(self, stream: Stream, why: str) -> None:
        self._finish(stream, "error", "at_capacity", f"{why}: try again", retry_after_ms=RETRY_MS)

    def _finish(
        self,
        stream: Stream,
        reason: FinishReason,
        code: str | None = None,
        message: str = "",
        retry_after_ms: int | None = None,
    ) -> None:
        del self._streams[stream.id]
        if stream.slot is not None:
            # The engine hears of it before it hears of the slot's next owner.
            self._inputs.append(base.ReleaseSlot(stream.slot))
            del self._owners[stream.slot]
            heapq.heappush(self._free, stream.slot)
        elif stream in self._waiting:
            self._waiting.remove(stream)
        busy_ms = round(stream.busy_s * 1_000, 3)
        self._events.append(RequestFinished(stream.id, reason, busy_ms, code, message, retry_after_ms))


def _most_urgent(streams: Sequence[Stream], count: int) -> list[Stream]:
    """A full step: newcomers in their turn, and who runs dry first."""
    heard = [stream for stream in streams if not stream.is_new]
    newcomers = [stream for stream in streams if stream.is_new]
    places = max(min(NEWCOMERS, count // 2), count - len(heard))
    chosen = heapq.nsmallest(places, newcomers, key=lambda stream: stream.ran_in)
    return chosen + _driest(heard, count - len(chosen))


def _driest(streams: Sequence[Stream], count: int) -> list[Stream]:
    """Those whose listeners run dry first; none where `count` is negative."""
    return heapq.nsmallest(count, streams, key=lambda stream: stream.heard_until)
