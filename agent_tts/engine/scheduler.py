"""Chooses the requests of each step: FIFO admission to slots, credit, pacing, deadlines, frame caps. Sans-I/O.

A request waits in a queue until a slot is free. In its slot it runs when it has text, credit, and less audio ahead of
its listener than its lead allows. It leaves the slot with exactly one `RequestFinished`. The engine echoes the
request's id as the epoch; outputs with the epoch of an earlier request of the slot are dropped.
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

# A paced request is urgent when its listener has less than MIN_BUFFER_S of audio ahead, or less than MIN_BUFFER_SHARE
# of what its lead allows. Other paced requests wait up to BATCH_WINDOW_S for one another, and as long after the last
# step that ran all of them: one step serves many, and in between the engine is idle, so that a new request starts at
# once.
MIN_BUFFER_S, MIN_BUFFER_SHARE = 0.240, 0.75
BATCH_WINDOW_S = 0.020

# Most requests of a full step that got no frame from their last step: new ones, whose prompts are computed a few at a
# time, and those that wait for a model or for cache blocks. More of them would only displace requests that can speak.
MAX_WITHOUT_FRAME = 32

# Frames after which a request is a runaway: ten (0.8 s) a character, about ten times ordinary speech, which covers
# digits and symbols that are spelled out; the constant covers leading and trailing silence.
CAP_FRAMES = 50
CAP_FRAMES_PER_CHAR = 10


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of the scheduler."""

    slots: int  # requests speaking at once
    queue: int  # requests waiting for a slot
    batch_sizes: tuple[int, ...] = ()  # as `Engine.batch_sizes`
    queue_s: float = 2.0  # longest wait for a slot, then `at_capacity`
    text_idle_s: float = 15.0  # longest time without text in a dry slot, then `starved`
    window_frames: int = 50  # credit: frames made and not yet taken by the listener's side
    max_frames: int = 3_000  # frames of one request, whatever its text
    request_s: float = 600.0  # longest time in a slot


@dataclass(slots=True, eq=False)
class Request:
    """One request, waiting or speaking. Times are those of the `now` arguments, in seconds."""

    id: int
    options: SpeechOptions
    opened_at: float
    credit: int  # frames that may be made before the listener's side takes some
    slot: int | None = None  # None while it waits
    admitted_at: float = 0.0  # when it got its slot
    text: list[base.AddText] = field(default_factory=list)  # arrived while it waited; `slot` is filled in on admission
    chars: int = 0  # characters so far
    ended: bool = False  # no more text will come
    has_text: bool = False  # the engine may have something to speak
    idle_since: float = 0.0  # when the engine ran out of text; meaningless while `has_text`
    frames: int = 0  # made so far
    in_flight: int = 0  # steps that it runs in and whose outputs are still to come
    last_step: int = 0  # the number of the last of them
    got_frame: bool = False  # from the last step that has given its outputs
    buffered_until: float = 0.0  # when a listener who plays without pause will have played all frames
    flushes: deque[str] = field(default_factory=deque)  # flush ids that the engine has not answered yet
    busy_s: float = 0.0  # duration of the steps it ran in
    # Earliest time at which its lead allows the next frame, and how long after that it may wait to share a step.
    # Derived from the fields above; stored because they are read for every request before every step.
    runnable_at: float = -math.inf
    max_delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.options.lead_ms is not None:
            most_s = max(0.0, self.options.lead_ms / 1_000 - FRAME_S)
            self.max_delay_s = most_s - min(MIN_BUFFER_S, MIN_BUFFER_SHARE * most_s)

    def add_frame(self, now: float) -> None:
        """Count one more frame."""
        self.frames += 1
        self.credit -= 1
        self.buffered_until = max(self.buffered_until, now) + FRAME_S
        if self.options.lead_ms is not None:
            self.runnable_at = self.buffered_until + FRAME_S * (1 + self.in_flight) - self.options.lead_ms / 1_000

    def max_frames(self, policy: Policy) -> int:
        """Frames after which it is a runaway."""
        by_text = (CAP_FRAMES + CAP_FRAMES_PER_CHAR * self.chars) / min(1.0, self.options.speed)
        return min(policy.max_frames, math.ceil(by_text))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine."""

    inputs: list[base.StepInput]
    requests: list[Request]  # those that speak in it

    @property
    def run(self) -> list[int]:
        """The slots that speak in it."""
        return [request.slot for request in self.requests if request.slot is not None]


class Scheduler:
    """Commands in, step inputs out; step outputs in, events out."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        # Every request that has not finished, by id.
        self._requests: dict[int, Request] = {}
        # Requests without a slot, oldest first.
        self._waiting: deque[Request] = deque()
        # The request of each slot that has one.
        self._running: dict[int, Request] = {}
        # Free slots, a heap: the lowest is next, so that few requests make a small batch.
        self._free: list[int] = list(range(policy.slots))
        # Inputs of the next step, in order.
        self._inputs: list[base.StepInput] = []
        # Events that `update` has not returned yet.
        self._events: list[EngineEvent] = []
        # Steps so far, and the start of the last one with room for all that could run.
        self._steps = 0
        self._last_full_step_at = -math.inf
        # No deadline of a request is earlier; recomputed when it is reached.
        self._deadline = math.inf

    @property
    def speaking(self) -> int:
        """Requests in slots."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests waiting for a slot."""
        return len(self._waiting)

    # ------------------------------------------------------------ commands

    def open(self, request_id: int, options: SpeechOptions, now: float) -> None:
        """Take a new request, or refuse it at once when the queue is full."""
        request = Request(request_id, options, opened_at=now, credit=self.policy.window_frames)
        self._requests[request_id] = request
        if len(self._waiting) >= len(self._free) + self.policy.queue:
            self._refuse(request, f"all {self.policy.slots} slots are speaking and the queue is full")
        else:
            self._waiting.append(request)
            self._deadline = min(self._deadline, now + self.policy.queue_s)

    def append(self, request_id: int, text: str) -> None:
        """More text. Here and below, a command for an unknown request is ignored: it has finished."""
        self._text(request_id, text)

    def flush(self, request_id: int, flush_id: str) -> None:
        """Speak all text so far; answered by `RequestFlushed`."""
        if request := self._requests.get(request_id):
            request.flushes.append(flush_id)
            self._text(request_id, "", flush=True)

    def end(self, request_id: int) -> None:
        """No more text."""
        self._text(request_id, "", last=True)

    def cancel(self, request_id: int) -> None:
        """End the request and free its slot."""
        if request := self._requests.get(request_id):
            self._finish(request, "cancelled")

    def grant_credit(self, request_id: int, frames: int) -> None:
        """The listener's side has taken `frames` frames."""
        if request := self._requests.get(request_id):
            request.credit = min(request.credit + frames, self.policy.window_frames)

    def _text(self, request_id: int, text: str, *, flush: bool = False, last: bool = False) -> None:
        request = self._requests.get(request_id)
        if request is None or request.ended:
            return
        request.chars += len(text)
        request.ended = last
        request.has_text = True
        message = base.AddText(-1 if request.slot is None else request.slot, text, flush, last)
        (request.text if request.slot is None else self._inputs).append(message)

    # ------------------------------------------------------------ one step

    def schedule(self, now: float) -> Step:
        """The next step: its inputs and its requests. Deadlines that have passed take effect."""
        reached = now >= self._deadline
        if reached:
            self._expire(now)
        while self._waiting and self._free:
            self._admit(self._waiting.popleft(), now)
        if reached:
            deadlines = [request.opened_at + self.policy.queue_s for request in self._waiting]
            deadlines += [self._deadline_of(request) for request in self._running.values()]
            self._deadline = min(deadlines, default=math.inf)
        inputs, self._inputs = self._inputs, []
        requests = self._select([request for request in self._running.values() if self._can_run(request, now)], now)
        self._steps += 1
        for request in requests:
            request.in_flight += 1
            request.runnable_at += FRAME_S
            request.last_step = self._steps
        return Step(inputs, requests)

    def update(
        self, outputs: Iterable[base.StepOutput], steps: Iterable[Step], now: float, step_s: float
    ) -> list[EngineEvent]:
        """Apply the outputs of steps; returns all events since the last call.

        Args:
            outputs: of `steps`, and perhaps of one that is still in flight.
            steps: those that have given all their outputs.
            step_s: duration of each of them, in seconds.
        """
        for step in steps:
            for request in step.requests:
                request.in_flight -= 1
                request.runnable_at -= FRAME_S
                request.got_frame = False
                request.busy_s += step_s
        for output in outputs:
            running = self._running.get(output.slot)
            if running is not None and running.id == output.epoch:
                self._process(running, output, now)
        new, self._events = self._events, []
        return new

    def next_step_at(self, now: float) -> float | None:
        """When the next step is due: at once if not after `now`; None: not before a new command."""
        if self._inputs or self._events or (self._waiting and self._free):
            return now
        earliest = self._deadline
        for request in self._running.values():
            if (
                request.has_text
                and request.credit > request.in_flight
                and (due_at := self._step_due_at(request)) < earliest
            ):
                earliest = due_at
                if earliest <= now:
                    break
        return None if earliest == math.inf else earliest

    # ------------------------------------------------------------ inside

    def _can_run(self, request: Request, now: float) -> bool:
        return request.has_text and request.credit > request.in_flight and request.runnable_at <= now

    def _select(self, able: list[Request], now: float) -> list[Request]:
        """The requests of the step: all that can run, or new ones with those that fit in without raising its cost.

        New requests come first, here and in all work of the step.
        """
        new = [request for request in able if not (request.frames or request.in_flight)]
        others = [request for request in able if request.frames or request.in_flight]
        sizes = self.policy.batch_sizes
        if any(now >= self._step_due_at(request) for request in others):
            if not sizes or len(able) <= sizes[-1]:  # otherwise those left out run in the next step
                self._last_full_step_at = now
            selected = new + others
        else:
            room = next((size for size in sizes if size >= len(new)), 0) - len(new)
            selected = new + _least_buffered(others, room) if new else []
        return _most_urgent(selected, sizes[-1]) if sizes and len(selected) > sizes[-1] else selected

    def _step_due_at(self, request: Request) -> float:
        """The latest start of a step for a request that has text and credit."""
        runnable_at, full_step_at = request.runnable_at, self._last_full_step_at
        shared_at = (runnable_at if runnable_at > full_step_at else full_step_at) + BATCH_WINDOW_S
        urgent_at = runnable_at + request.max_delay_s
        return urgent_at if urgent_at < shared_at else shared_at

    def _admit(self, request: Request, now: float) -> None:
        slot = heapq.heappop(self._free)
        request.slot, request.admitted_at, request.idle_since = slot, now, now
        self._running[slot] = request
        self._deadline = min(self._deadline, self._deadline_of(request))
        self._inputs.append(base.StartRequest(slot, request.id, request.options))
        self._inputs += [base.AddText(slot, held.text, held.flush, held.last) for held in request.text]
        request.text.clear()
        self._events.append(events.RequestStarted(request.id, round((now - request.opened_at) * 1_000)))

    def _expire(self, now: float) -> None:
        while self._waiting and now >= self._waiting[0].opened_at + self.policy.queue_s and not self._free:
            self._refuse(self._waiting.popleft(), f"no slot came free within {self.policy.queue_s:g} s")
        for request in list(self._running.values()):
            if not request.has_text and now >= request.idle_since + self.policy.text_idle_s:
                message = f"no text for {self.policy.text_idle_s:g} s: append text, or end the context"
                self._finish(request, "error", "starved", message)
            elif now >= request.admitted_at + self.policy.request_s:
                self._finish(request, "length")

    def _deadline_of(self, request: Request) -> float:
        """The next deadline of a request in a slot."""
        in_all = request.admitted_at + self.policy.request_s
        return in_all if request.has_text else min(in_all, request.idle_since + self.policy.text_idle_s)

    def _process(self, request: Request, output: base.StepOutput, now: float) -> None:
        match output:
            case base.FrameOutput(pcm=pcm):
                request.add_frame(now)
                request.got_frame = True
                self._events.append(events.RequestAudio(request.id, pcm))
                if request.frames >= request.max_frames(self.policy):
                    self._finish(request, "length")
            case base.AlignedOutput(words=words):
                self._events.append(events.RequestWords(request.id, words))
            case base.FlushedOutput():
                self._events.append(events.RequestFlushed(request.id, request.flushes.popleft()))
            case base.StarvedOutput():
                request.has_text, request.idle_since = False, now
                self._deadline = min(self._deadline, self._deadline_of(request))
            case base.DoneOutput(length=length):
                self._finish(request, "length" if length else "end")
            case base.FailedOutput(code=code, message=message):
                self._finish(request, "error", code, message)

    def _refuse(self, request: Request, why: str) -> None:
        self._finish(request, "error", "at_capacity", f"{why}: try again", retry_after_ms=RETRY_MS)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        code: str | None = None,
        message: str = "",
        retry_after_ms: int | None = None,
    ) -> None:
        del self._requests[request.id]
        if request.slot is not None:
            # Before the `StartRequest` of the slot's next request.
            self._inputs.append(base.ReleaseSlot(request.slot))
            del self._running[request.slot]
            heapq.heappush(self._free, request.slot)
        elif request in self._waiting:
            self._waiting.remove(request)
        busy_ms = round(request.busy_s * 1_000, 3)
        self._events.append(RequestFinished(request.id, reason, busy_ms, code, message, retry_after_ms))


def _most_urgent(requests: Sequence[Request], count: int) -> list[Request]:
    """`count` requests: some without a frame, those that ran longest ago first; then the least buffered."""
    with_frame = [request for request in requests if request.got_frame]
    without_frame = [request for request in requests if not request.got_frame]
    places = max(min(MAX_WITHOUT_FRAME, count // 2), count - len(with_frame))
    selected = heapq.nsmallest(places, without_frame, key=lambda request: request.last_step)
    return selected + _least_buffered(with_frame, count - len(selected))


def _least_buffered(requests: Sequence[Request], count: int) -> list[Request]:
    """Those whose listeners run out of audio first; none if `count` is negative."""
    return heapq.nsmallest(count, requests, key=lambda request: request.buffered_until)
