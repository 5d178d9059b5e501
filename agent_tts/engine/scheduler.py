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

# A paced request runs at once when its listener has less than this ahead, or than this share of the most that it could
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

    slots: int  # requests speaking at once
    queue: int  # requests waiting for a slot
    # Streams that a step may be made for: it costs what the next of these does, and the last are the most. With none,
    # all may run, and each costs its own.
    sizes: tuple[int, ...] = ()
    queue_s: float = 2.0  # longest wait for a slot, then `at_capacity`
    text_idle_s: float = 15.0  # longest time without text in a dry slot, then `starved`
    window_frames: int = 50  # frames made and not yet taken
    max_frames: int = 3_000  # frames of one request, whatever its text
    request_s: float = 600.0  # longest time in a slot, however slowly its listener takes it


@dataclass(slots=True, eq=False)
class Request:
    """One request, waiting or speaking."""

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
    # with it. What follows from the rest, kept because all requests are asked before every step.
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
    requests: list[Request]  # who speaks in it

    @property
    def run(self) -> list[int]:
        """The slots that speak in it."""
        return [request.slot for request in self.requests if request.slot is not None]


class Scheduler:
    """Streams in, engine inputs out; engine outputs in, events out."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        # Every request that has not finished, by id.
        self._requests: dict[int, Request] = {}
        # Those without a slot, oldest first.
        self._waiting: deque[Request] = deque()
        # The owner of each slot that has one.
        self._owners: dict[int, Request] = {}
        # Slots without an owner, a heap: the lowest is next, so that few requests are a small batch.
        self._free: list[int] = list(range(policy.slots))
        # What the engine must be told in the next step, in order.
        self._inputs: list[base.StepInput] = []
        # Events that did not come from a step.
        self._events: list[EngineEvent] = []
        # Steps so far, and when the last began in which all could run.
        self._steps = 0
        self._all_at = -math.inf
        # Before this time no deadline of a request passes; when it is reached, the next is looked for.
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
        """More text. An unknown request has finished already: nothing to do, here and in all commands below."""
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
        """Stop, free the slot."""
        if request := self._requests.get(request_id):
            self._finish(request, "cancelled")

    def taken(self, request_id: int, frames: int) -> None:
        """The listener's side took `frames` frames."""
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

    def plan(self, now: float) -> Step:
        """What the next step is told, and who speaks in it. Deadlines that have passed take effect."""
        reached = now >= self._deadline
        if reached:
            self._expire(now)
        while self._waiting and self._free:
            self._admit(self._waiting.popleft(), now)
        if reached:
            deadlines = [request.opened_at + self.policy.queue_s for request in self._waiting]
            deadlines += [self._deadline_of(request) for request in self._owners.values()]
            self._deadline = min(deadlines, default=math.inf)
        inputs, self._inputs = self._inputs, []
        requests = self._choose([request for request in self._owners.values() if self._can_run(request, now)], now)
        self._steps += 1
        for request in requests:
            request.under_way += 1
            request.due_at += FRAME_S
            request.ran_in = self._steps
        return Step(inputs, requests)

    def apply(
        self, outputs: Iterable[base.StepOutput], steps: Iterable[Step], now: float, step_s: float
    ) -> list[EngineEvent]:
        """What has happened until `now`, when these steps have given all their outputs.

        Args:
            outputs: of these steps, and perhaps of one that is still under way.
            step_s: how long these steps took, in seconds.
        """
        for step in steps:
            for request in step.requests:
                request.under_way -= 1
                request.due_at -= FRAME_S
                request.is_new = True
                request.busy_s += step_s
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
        for request in self._owners.values():
            if (
                request.has_text
                and request.credit > request.under_way
                and (runs_at := self._runs_at(request)) < wake_at
            ):
                wake_at = runs_at
                if wake_at <= now:
                    break
        return None if wake_at == math.inf else wake_at

    # ------------------------------------------------------------ inside

    def _can_run(self, request: Request, now: float) -> bool:
        return request.has_text and request.credit > request.under_way and request.due_at <= now

    def _choose(self, able: list[Request], now: float) -> list[Request]:
        """Who of those that can run does: all of them, or newcomers alone with whoever costs nothing beside them.

        Newcomers come first, here and so in all that is made of the step.
        """
        newcomers = [request for request in able if not (request.frames or request.under_way)]
        others = [request for request in able if request.frames or request.under_way]
        sizes = self.policy.sizes
        if any(now >= self._runs_at(request) for request in others):
            if not sizes or len(able) <= sizes[-1]:  # otherwise who is left out has its turn in the next step
                self._all_at = now
            chosen = newcomers + others
        else:
            room = next((size for size in sizes if size >= len(newcomers)), 0) - len(newcomers)
            chosen = newcomers + _driest(others, room) if newcomers else []
        return _most_urgent(chosen, sizes[-1]) if sizes and len(chosen) > sizes[-1] else chosen

    def _runs_at(self, request: Request) -> float:
        """When there is to be a step for a request that has text and credit."""
        due_at, all_at = request.due_at, self._all_at
        together_at = (due_at if due_at > all_at else all_at) + APART_S
        urgent_at = due_at + request.patience_s
        return urgent_at if urgent_at < together_at else together_at

    def _admit(self, request: Request, now: float) -> None:
        slot = heapq.heappop(self._free)
        request.slot, request.admitted_at, request.dry_since = slot, now, now
        self._owners[slot] = request
        self._deadline = min(self._deadline, self._deadline_of(request))
        self._inputs.append(base.StartRequest(slot, request.id, request.options))
        self._inputs += [base.AddText(slot, held.text, held.flush, held.last) for held in request.text]
        request.text.clear()
        self._events.append(events.RequestStarted(request.id, round((now - request.opened_at) * 1_000)))

    def _expire(self, now: float) -> None:
        while self._waiting and now >= self._waiting[0].opened_at + self.policy.queue_s and not self._free:
            self._refuse(self._waiting.popleft(), f"no slot came free within {self.policy.queue_s:g} s")
        for request in list(self._owners.values()):
            if not request.has_text and now >= request.dry_since + self.policy.text_idle_s:
                message = f"no text for {self.policy.text_idle_s:g} s: append text, or end the context"
                self._finish(request, "error", "starved", message)
            elif now >= request.admitted_at + self.policy.request_s:
                self._finish(request, "length")

    def _deadline_of(self, request: Request) -> float:
        """Of a request in its slot, as long as no text comes."""
        in_all = request.admitted_at + self.policy.request_s
        return in_all if request.has_text else min(in_all, request.dry_since + self.policy.text_idle_s)

    def _take(self, request: Request, output: base.StepOutput, now: float) -> None:
        match output:
            case base.FrameOutput(pcm=pcm):
                request.made(now)
                request.is_new = False
                self._events.append(events.RequestAudio(request.id, pcm))
                if request.frames >= request.cap(self.policy):
                    self._finish(request, "length")
            case base.AlignedOutput(words=words):
                self._events.append(events.RequestWords(request.id, words))
            case base.FlushedOutput():
                self._events.append(events.RequestFlushed(request.id, request.flushes.popleft()))
            case base.StarvedOutput():
                request.has_text, request.dry_since = False, now
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
            # The engine hears of it before it hears of the slot's next owner.
            self._inputs.append(base.ReleaseSlot(request.slot))
            del self._owners[request.slot]
            heapq.heappush(self._free, request.slot)
        elif request in self._waiting:
            self._waiting.remove(request)
        busy_ms = round(request.busy_s * 1_000, 3)
        self._events.append(RequestFinished(request.id, reason, busy_ms, code, message, retry_after_ms))


def _most_urgent(requests: Sequence[Request], count: int) -> list[Request]:
    """A full step: newcomers in their turn, and who runs dry first."""
    heard = [request for request in requests if not request.is_new]
    newcomers = [request for request in requests if request.is_new]
    places = max(min(NEWCOMERS, count // 2), count - len(heard))
    chosen = heapq.nsmallest(places, newcomers, key=lambda request: request.ran_in)
    return chosen + _driest(heard, count - len(chosen))


def _driest(requests: Sequence[Request], count: int) -> list[Request]:
    """Those whose listeners run dry first; none where `count` is negative."""
    return heapq.nsmallest(count, requests, key=lambda request: request.heard_until)
