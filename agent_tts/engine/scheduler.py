"""Chooses the requests of each step: fair shares of slots, credit, pacing, deadlines, frame caps. Sans-I/O.

A request waits in a queue until a slot is free. In its slot it runs when it has text, credit, and less audio ahead of
its listener than its lead allows. It leaves the slot with exactly one `RequestFinished`. The engine echoes the
request's id as the epoch; outputs with the epoch of an earlier request of the slot are dropped.

An owner may use every slot that is free. A free slot goes to the oldest waiting request of the owner who has the fewest
slots; owners with equally many take turns. While no slot is free, `_victim` selects one to take back:

- one without text for `IDLE_S`: for any request that has text, and for a request of an owner with fewer slots;
- one that speaks: for a request with text of an owner who has had fewer slots for `PATIENCE_S` while it waits. Where
  slots come free by themselves, in fair turns, this is rare.

"Fewer" is by two or more, so that the owner who gives is not left with less than the one who gets. The request in the
slot ends with an error that says why. No text of an idle one is lost: it is flushed first. One whose text has not begun
is parked, and waits again when its text begins.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from agent_tts import events
from agent_tts.directives import Directive, Pause, Prosody, Say
from agent_tts.engine import base
from agent_tts.engine_info import FRAME_BYTES, FRAME_MS, SAMPLE_RATE
from agent_tts.events import CutReason, EngineEvent, FinishReason, RequestFinished
from agent_tts.forecast import Forecast, retry_ms
from agent_tts.options import EngineOptions, within

FRAME_S = FRAME_MS / 1_000
BYTES_PER_S = 2 * SAMPLE_RATE

# A paced request is urgent when its listener has less than MIN_BUFFER_S of audio ahead. Others wait up to
# BATCH_WINDOW_S for one another, and as long after the last step that ran all of them: one step serves many, and in
# between the engine is idle, so that a new request starts at once.
MIN_BUFFER_S = 0.070
BATCH_WINDOW_S = 0.040

# A paced request is growing when its listener has less than GROWING_BUFFER_S ahead, or less than GROWING_SHARE of what
# its lead allows. It runs GROWING_WINDOW_S after the last step, with those alike and others that add no time to it.
GROWING_BUFFER_S, GROWING_SHARE, GROWING_WINDOW_S = 0.240, 0.75, 0.010

# Requests of a step, unless more are urgent or more than MAX_BEHIND can run: new ones wait for its end, and one of
# twice the size takes half as long again.
MAX_SHARED, MAX_BEHIND = 64, 256

# Frames that are told together, because a piece of audio costs the front about as much as its first frame, whatever its
# length; and what the listener must keep ahead meanwhile. Speech starts, and a listener who runs short is served, frame
# by frame.
MAX_HELD = 6
MIN_AHEAD_S = 0.480

# Most requests of a full step that got no frame from their last step: new ones, whose prompts are computed a few at a
# time, and those that wait for a model or for cache blocks. More of them would only displace requests that can speak.
MAX_WITHOUT_FRAME = 32

# While others wait: the longest pause in the text of a request that keeps its slot, longer than those of a language
# model between two words; and how long an owner has fewer slots before one is taken from a request that speaks, longer
# than slots usually take to come free. Both are at most these shares of the longest wait for a slot.
IDLE_S, IDLE_SHARE = 1.0, 0.5
PATIENCE_S, PATIENCE_SHARE = 1.0, 0.5
MAX_TAKEN_BACK = 8  # slots a step: each takes a look at all of them, and the step waits meanwhile

# Free slots that are given in a step: each takes a look at all owners who wait, and the engine 0.1 ms.
MAX_ADMITTED = 32

# For estimates of a request's rest: speech of one character before any was measured; it counts as a text of CHARS
# characters that was spoken, and the last 4 * CHARS characters count most.
CHAR_S, CHARS = 0.065, 500
ESTIMATE_S = 0.1  # how long an estimate for refused requests is used again: a flood of them is cheap

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
    max_frames: int = 60_000  # frames of one request, whatever its text
    request_s: float = 600.0  # longest time in a slot beyond the length of the audio made


@dataclass(slots=True, eq=False)
class Request:
    """One request, waiting or speaking. Times are those of the `now` arguments, in seconds."""

    id: int
    options: EngineOptions
    owner: int
    opened_at: float
    credit: int  # frames that may be made before the listener's side takes some
    slot: int | None = None  # None while it waits or is parked
    parked: bool = False  # gave its slot back before its text began, and does not wait
    waits_since: float = 0.0  # when it was opened, or when the text of a parked one began
    started: bool = False  # `RequestStarted` was sent
    admitted_at: float = 0.0  # when it got its slot
    text: list[base.AddText] = field(default_factory=list)  # arrived while it waited; `slot` is filled in on admission
    begun: bool = False  # text has come, or a flush, or the end
    chars: int = 0  # characters so far
    rest_frames: int = 0  # of the pauses so far
    slowest: float = 1.0  # speed so far; 1 if none was slower
    ended: bool = False  # no more text will come
    has_text: bool = False  # the engine may have something to speak
    idle_since: float = 0.0  # when the engine ran out of text; meaningless while `has_text`
    spoke_at: float = 0.0  # when its last frame was made, or it got its slot
    frames: int = 0  # made so far
    held: list[bytes] = field(default_factory=list)  # of these, not told yet, as pcm_s16le
    in_flight: int = 0  # steps that it runs in and whose outputs are still to come
    last_step: int = 0  # the number of the last of them
    got_frame: bool = False  # from the last step that has given its outputs
    buffered_until: float = 0.0  # when a listener who plays without pause will have played all frames
    # Flush ids that the engine has not answered yet; None for the scheduler's own flush.
    flushes: deque[str | None] = field(default_factory=deque)
    spoken_up: bool = False  # the scheduler has flushed it, and no text has come since
    busy_s: float = 0.0  # duration of the steps it ran in
    # Earliest time at which its lead allows the next frame; seconds from then until it is growing, and until its
    # listener has heard all frames. Derived from the fields above; stored because they are read for every request
    # before every step.
    runnable_at: float = -math.inf
    growing_s: float = 0.0
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self.slowest = min(1.0, self.options.speed)
        if self.options.lead_ms is not None:
            self.ahead_s = max(0.0, self.options.lead_ms / 1_000 - FRAME_S)
            self.growing_s = self.ahead_s - min(GROWING_BUFFER_S, GROWING_SHARE * self.ahead_s)

    def add_frame(self, now: float, length_s: float) -> None:
        """Count one more frame."""
        self.frames += 1
        self.credit -= 1
        self.spoke_at = now
        self.buffered_until = max(self.buffered_until, now) + length_s
        if self.options.lead_ms is not None:
            self.runnable_at = self.buffered_until + FRAME_S * (1 + self.in_flight) - self.options.lead_ms / 1_000

    @property
    def held_until(self) -> float:
        """When its listener has no more than `MIN_AHEAD_S` ahead, unless the frames that are held are told."""
        return self.buffered_until - FRAME_S * len(self.held) - MIN_AHEAD_S

    def max_frames(self, policy: Policy) -> int:
        """Frames after which it is a runaway."""
        by_text = (CAP_FRAMES + CAP_FRAMES_PER_CHAR * self.chars) / self.slowest
        return min(policy.max_frames, math.ceil(by_text) + self.rest_frames)

    def leaves_at(self, policy: Policy) -> float:
        """When it has had its slot for too long: speech takes its time to be heard, so only time beyond it counts."""
        return self.admitted_at + self.frames * FRAME_S + policy.request_s


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
        # Requests that wait for a slot, oldest first, by owner; of these, the one who got a slot last is last. No owner
        # without a request.
        self._waiting: dict[int, deque[Request]] = {}
        # Parked requests whose text has begun since the last step.
        self._returning: list[Request] = []
        # Requests that may not wait and have not started.
        self._impatient: list[Request] = []
        # The request of each slot that has one, and how many slots each owner has.
        self._running: dict[int, Request] = {}
        self._held: Counter[int] = Counter()
        # Free slots, a heap: the lowest is next, so that few requests make a small batch.
        self._free: list[int] = list(range(policy.slots))
        # Inputs of the next step, in order.
        self._inputs: list[base.StepInput] = []
        # Events that `update` has not returned yet.
        self._events: list[EngineEvent] = []
        # Requests with frames that are not told yet, by id; and a time before which none of them has to be told. It is
        # recomputed when it is reached.
        self._holding: dict[int, Request] = {}
        self._held_until = math.inf
        # Steps so far, the start of the last one, and of the last one with room for all that could run.
        self._steps = 0
        self._last_step_at = -math.inf
        self._last_full_step_at = -math.inf
        # No deadline of a request is earlier; recomputed when it is reached.
        self._deadline = math.inf
        # Since when an owner who waits has had fewer slots than another, while none came free for it.
        self._short_since: dict[int, float] = {}
        # No slot can be taken back for a waiting request earlier; recomputed when it is reached.
        self._take_back_at = -math.inf
        self._idle_s = min(IDLE_S, IDLE_SHARE * policy.queue_s)
        # Without a queue there is no time to wait.
        self._patience_s = min(PATIENCE_S, PATIENCE_SHARE * policy.queue_s) if policy.queue else 0.0
        # How long requests kept their slots; and since when those had one that have left it since the last step.
        self._forecast = Forecast()
        self._left: list[float] = []
        # Speech and text that were spoken to the end, in seconds and characters, later ones weighing more.
        self._spoken = (CHAR_S * CHARS, float(CHARS))
        # When the last estimate was made; the times at which it has slots free, in order; and what owners with so many
        # slots were told.
        self._estimated_at = -math.inf
        self._frees: list[float] = []
        self._told_ms: dict[int, int] = {}

    @property
    def speaking(self) -> int:
        """Requests in slots."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests waiting for a slot."""
        return sum(map(len, self._waiting.values()))

    # ------------------------------------------------------------ commands

    def open(
        self,
        request_id: int,
        options: EngineOptions,
        now: float,
        owner: int = 0,
        *,
        waits: bool = True,
        waited_s: float = 0.0,
    ) -> None:
        """Take a new request, or refuse one at once when the queue is full.

        Args:
            owner: whose it is; owners get equal shares of the slots and of the queue.
            waits: whether it may wait for a slot; otherwise it is refused unless one is free for it.
            waited_s: how long it has waited at other engines.
        """
        request = Request(request_id, options, owner, opened_at=now - waited_s, credit=self.policy.window_frames)
        self._requests[request_id] = request
        if waits or self.queued < len(self._free):
            self._enqueue(request, now, waited_s)
            if not waits:
                self._impatient.append(request)
        else:
            self._refuse(request, "no slot is free", now)

    def append(self, request_id: int, text: str) -> None:
        """More text. Here and below, a command for an unknown request is ignored: it has finished."""
        self._text(request_id, text)

    def direct(self, request_id: int, directive: Directive) -> None:
        """A directive after all text so far."""
        self._text(request_id, "", directive=directive)

    def flush(self, request_id: int, flush_id: str) -> None:
        """Speak all text so far; answered by `RequestFlushed`."""
        self._flush(request_id, flush_id)

    def _flush(self, request_id: int, flush_id: str | None) -> None:
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

    def _text(
        self,
        request_id: int,
        text: str,
        *,
        flush: bool = False,
        last: bool = False,
        directive: Directive | None = None,
    ) -> None:
        request = self._requests.get(request_id)
        if request is None or request.ended:
            return
        request.chars += len(text)
        if isinstance(directive, Prosody):
            request.slowest = min(request.slowest, within("speed", request.options.speed * directive.speed))
        elif isinstance(directive, Pause):
            request.rest_frames += math.ceil(directive.ms / FRAME_MS)
        elif isinstance(directive, Say):
            request.chars += len(directive.alias or directive.ipa or directive.text)
        request.ended = last
        request.has_text = True
        request.spoken_up = False
        if not request.begun:
            request.begun = True
            if request.parked:
                request.parked = False
                self._returning.append(request)
            self._take_back_at = -math.inf
        message = base.AddText(-1 if request.slot is None else request.slot, text, flush, last, directive)
        (request.text if request.slot is None else self._inputs).append(message)

    # ------------------------------------------------------------ one step

    def schedule(self, now: float) -> Step:
        """The next step: its inputs and its requests. Deadlines that have passed take effect."""
        for since in self._left:
            self._forecast.ended(now - since)
        self._left.clear()
        returning, self._returning = self._returning, []
        for request in returning:
            self._enqueue(request, now)
        reached = now >= self._deadline
        if reached:
            self._expire(now)
        self._fill(now)
        self._expire_impatient(now)
        if reached:
            if not self._free:
                self._expire_waiting(now)
            self._deadline = min(map(self._deadline_of, self._requests.values()), default=math.inf)
        inputs, self._inputs = self._inputs, []
        requests = self._select([request for request in self._running.values() if self._can_run(request, now)], now)
        self._steps += 1
        if requests:
            self._last_step_at = now
        for request in requests:
            request.in_flight += 1
            if request.runnable_at == -math.inf and request.options.lead_ms is not None:
                # The first frame counts as made, so that the second one can be made in a step of others.
                request.buffered_until = now
                request.runnable_at = now + FRAME_S - request.options.lead_ms / 1_000
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
                if not (request.frames or request.in_flight):
                    request.runnable_at = -math.inf  # until an output says otherwise
                request.got_frame = False
                request.busy_s += step_s
        for output in outputs:
            running = self._running.get(output.slot)
            if running is not None and running.id == output.epoch:
                self._process(running, output, now)
        if now >= self._held_until:
            self._tell_due(now)
        new, self._events = self._events, []
        return new

    def next_step_at(self, now: float) -> float | None:
        """When the next step is due: at once if not after `now`; None: not before a new command."""
        if self._inputs or self._events or self._returning or (self._waiting and self._free):
            return now
        earliest = min(self._deadline, self._held_until)
        if self._waiting:
            earliest = min(earliest, self._take_back_at)
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

    def urgent_at(self) -> float:
        """When the first listener runs short; a time that has passed if a request waits for its first frame."""
        if self._waiting or self._returning:
            return -math.inf
        running = self._running.values()
        return min(
            (self._urgent_at(one) for one in running if one.has_text and one.credit > one.in_flight), default=math.inf
        )

    # ------------------------------------------------------------ inside

    def _can_run(self, request: Request, now: float) -> bool:
        return request.has_text and request.credit > request.in_flight and request.runnable_at <= now

    def _select(self, able: list[Request], now: float) -> list[Request]:
        """The requests of the step: all that can run, or new and growing ones with those that add no time to it.

        All are up to `MAX_SHARED`, unless many are urgent or wait. Who comes for the first time waits for urgent ones
        alone.

        New requests come first, here and in all work of the step.
        """
        new = [request for request in able if not (request.frames or request.in_flight)]
        others = [request for request in able if request.frames or request.in_flight]
        sizes = self.policy.batch_sizes
        most = sizes[-1] if sizes else len(able)
        growing = [request for request in others if now >= request.runnable_at + request.growing_s]
        urgent = sum(now >= self._urgent_at(request) for request in growing)
        is_first = any(not request.last_step for request in new)  # later ones wait for a model or for cache blocks
        window_over = not is_first and now >= self._last_full_step_at + BATCH_WINDOW_S
        if urgent or (window_over and any(now >= request.runnable_at + BATCH_WINDOW_S for request in others)):
            if urgent <= MAX_SHARED and len(able) <= MAX_BEHIND:
                most = min(most, MAX_SHARED)
            if len(able) <= most:  # otherwise those left out run in the next step
                self._last_full_step_at = now
            selected = new + others
        else:
            if now < self._last_step_at + GROWING_WINDOW_S:
                growing = []
            first = new + growing
            room = next((size for size in sizes if size >= len(first)), 0) - len(first)
            if room and growing:
                others = [request for request in others if now < request.runnable_at + request.growing_s]
            selected = first + _least_buffered(others, room) if first else []
        return _most_urgent(selected, most) if len(selected) > most else selected

    def _step_due_at(self, request: Request) -> float:
        """The latest start of a step for a request that has text and credit."""
        runnable_at, full_step_at = request.runnable_at, self._last_full_step_at
        shared_at = (runnable_at if runnable_at > full_step_at else full_step_at) + BATCH_WINDOW_S
        growing_at = runnable_at + request.growing_s
        if shared_at <= growing_at:
            return shared_at
        growing_at = max(growing_at, min(self._last_step_at + GROWING_WINDOW_S, self._urgent_at(request)))
        return min(shared_at, growing_at)

    @staticmethod
    def _urgent_at(request: Request) -> float:
        return request.runnable_at + request.ahead_s - MIN_BUFFER_S

    def _enqueue(self, request: Request, now: float, waited_s: float = 0.0) -> None:
        """Have a request wait for a slot. If the queue is full, this one or one that waits is refused."""
        request.waits_since = now - waited_s
        if self.queued >= len(self._free) + self.policy.queue:
            refused = self._free_place(request, now)
            if refused is not None:
                self._refuse(refused, f"all {self.policy.slots} slots are in use and the queue is full", now)
            if refused is request:
                return
        waiting = self._waiting.setdefault(request.owner, deque())
        place = len(waiting)
        while place and waiting[place - 1].waits_since > request.waits_since:
            place -= 1
        waiting.insert(place, request)
        self._take_back_at = -math.inf
        self._deadline = min(self._deadline, request.waits_since + self.policy.queue_s)

    def _free_place(self, request: Request, now: float) -> Request | None:
        """Make room for one more in a full queue; returns the request to refuse for it, perhaps this one."""
        used = {owner: self._held[owner] + len(waiting) for owner, waiting in self._waiting.items()}
        mine = used.get(request.owner, self._held[request.owner])
        most = max(used, key=used.__getitem__, default=request.owner)
        if used.get(most, 0) > mine + 1:
            return self._waiting[most][-1]
        if (victim := self._victim(request, mine, now)) is None:
            return request
        self._give_back(victim, now)
        return None

    def _fill(self, now: float) -> None:
        """Give slots to requests that wait: free ones, then those that may be taken back."""
        # Owners who wait, a heap: of those with the fewest slots, the one whose turn is next comes first.
        owners = [
            (self._held.get(owner, 0), turn, owner) for turn, owner in enumerate(self._waiting if self._free else ())
        ]
        heapq.heapify(owners)
        for last_turn in range(len(owners), len(owners) + min(MAX_ADMITTED, len(self._free), self.queued)):
            held, _, owner = owners[0]
            self._admit(self._waiting[owner][0], now)
            if owner in self._waiting:
                heapq.heapreplace(owners, (held + 1, last_turn, owner))
            else:
                heapq.heappop(owners)
        taken_back = 0
        while self._waiting and not self._free:
            if now < self._take_back_at or taken_back == MAX_TAKEN_BACK or (taker := self._take_back(now)) is None:
                return
            self._admit(taker, now)
            taken_back += 1
        if not self._waiting:
            self._short_since.clear()

    def _take_back(self, now: float) -> Request | None:
        """Free a slot for a waiting request and return that; if none may have one yet, set `_take_back_at`."""
        held, first = self._held, self._first_waiting()
        most = max(held.values())
        self._short_since = {
            owner: self._short_since.get(owner, now) for owner in self._waiting if held.get(owner, 0) + 1 < most
        }
        idle_times = [idle_at for other in self._running.values() if (idle_at := self._idle_at(other)) < math.inf]
        next_times = [idle_at for idle_at in idle_times if idle_at > now]
        if len(next_times) < len(idle_times):
            self._flush_idle(now)
        elif not self._short_since:  # the usual case, and the cheapest: nobody can take one
            self._take_back_at = min(next_times, default=math.inf)
            return None
        begun = first if first.begun else self._first_begun()
        for request in (begun, first):
            if request is None:
                continue
            if (victim := self._victim(request, held[request.owner], now)) is not None:
                self._give_back(victim, now)
                return request
            if (patient_at := self._short_since.get(request.owner, -math.inf) + self._patience_s) > now:
                next_times.append(patient_at)
        self._take_back_at = min(next_times, default=math.inf)
        return None

    def _first_waiting(self) -> Request:
        """The request that gets the next free slot. One must wait."""
        held = self._held
        return self._waiting[min(self._waiting, key=lambda owner: held.get(owner, 0))][0]

    def _first_begun(self) -> Request | None:
        """The same of the waiting requests whose text has begun, if any."""
        begun = [next((request for request in waiting if request.begun), None) for waiting in self._waiting.values()]
        found = [request for request in begun if request is not None]
        return min(found, key=lambda request: self._held[request.owner], default=None)

    def _idle_at(self, request: Request) -> float:
        """From when on a request in a slot has been without text for too long, if others wait."""
        if request.has_text:
            return math.inf
        if not request.begun:
            return request.admitted_at
        return request.spoke_at + (0.0 if request.spoken_up else self._idle_s)

    def _flush_idle(self, now: float) -> None:
        """Have idle requests speak the words that more text could have changed, as many as wait for their slots."""
        idle = [other for other in self._running.values() if other.begun and self._idle_at(other) <= now]
        for other in sorted(idle, key=self._readiness, reverse=True)[: self.queued]:
            if not other.spoken_up:
                self._flush(other.id, None)
                other.spoken_up = True

    def _readiness(self, request: Request) -> tuple[int, bool, float]:
        """The greatest gives way first: of the owner with the most slots, before its text, idle the longest."""
        return self._held[request.owner], not request.begun, -request.spoke_at

    def _victim(self, request: Request, mine: int, now: float) -> Request | None:
        """The request whose slot this one may have now, by the rules at the top.

        Args:
            mine: slots that count as those of this one's owner.
        """
        held, fair = self._held, mine + 1
        idle = [other for other in self._running.values() if self._idle_at(other) <= now]
        ready = [other for other in idle if other.spoken_up or not other.begun]
        victim = max(ready, key=self._readiness, default=None)
        if victim is not None and (request.begun or held[victim.owner] > fair):
            return victim
        patient = now >= self._short_since.get(request.owner, now) + self._patience_s
        if patient and (request.begun or not self.policy.queue) and max(held.values(), default=0) > fair:
            return max(
                self._running.values(),
                key=lambda other: (held[other.owner], self._idle_at(other) <= now, other.admitted_at),
            )
        return None

    def _give_back(self, victim: Request, now: float) -> None:
        """Free the slot of a request for one that waits."""
        if not victim.begun:
            self._release(victim)
            victim.parked = True
        elif victim.has_text:
            why = "others wait, and this client has the most slots: try again"
            self._finish(victim, "error", "at_capacity", why, self._retry_ms(victim.owner, now), gave_way=True)
        else:
            why = f"no text for {now - victim.spoke_at:.1f} s while others wait: send the next text in a new context"
            self._finish(victim, "error", "starved", why, gave_way=True)

    def _admit(self, request: Request, now: float) -> None:
        """Give a free slot to a request that waits; its owner's turn comes last now."""
        self._leave_queue(request)
        if (others := self._waiting.pop(request.owner, None)) is not None:
            self._waiting[request.owner] = others
        slot = heapq.heappop(self._free)
        request.slot, request.admitted_at, request.spoke_at = slot, now, now
        if not request.started:
            request.idle_since = now
        self._running[slot] = request
        self._held[request.owner] += 1
        self._take_back_at = -math.inf
        self._deadline = min(self._deadline, self._deadline_of(request))
        self._inputs.append(base.StartRequest(slot, request.id, request.options))
        self._inputs += [replace(held, slot=slot) for held in request.text]
        request.text.clear()
        if not request.started:
            request.started = True
            self._events.append(events.RequestStarted(request.id, round((now - request.opened_at) * 1_000)))

    def _expire(self, now: float) -> None:
        """End requests that have been in a slot, or without text, for too long."""
        for request in list(self._requests.values()):
            if request.slot is None and not request.parked:
                continue
            if not request.has_text and now >= request.idle_since + self.policy.text_idle_s:
                message = f"no text for {self.policy.text_idle_s:g} s: append text, or end the context"
                self._finish(request, "error", "starved", message)
            elif request.slot is not None and now >= request.leaves_at(self.policy):
                self._finish(request, "length")

    def _expire_impatient(self, now: float) -> None:
        """Refuse those that may not wait, and have not got the slot that was free when they came."""
        self._impatient = [
            request for request in self._impatient if not request.started and request.id in self._requests
        ]
        if not self._free:
            for request in self._impatient:
                self._refuse(request, "no slot is free", now)
            self._impatient.clear()

    def _expire_waiting(self, now: float) -> None:
        for waiting in list(self._waiting.values()):
            while waiting and now >= waiting[0].waits_since + self.policy.queue_s:
                self._refuse(waiting[0], f"no slot came free within {self.policy.queue_s:g} s", now)

    def _deadline_of(self, request: Request) -> float:
        """The next deadline of a request."""
        idle_at = math.inf if request.has_text else request.idle_since + self.policy.text_idle_s
        if request.slot is not None:
            return min(request.leaves_at(self.policy), idle_at)
        return idle_at if request.parked else request.waits_since + self.policy.queue_s

    def _process(self, request: Request, output: base.StepOutput, now: float) -> None:
        match output:
            case base.FrameOutput(pcm=pcm):
                request.add_frame(now, len(pcm) / BYTES_PER_S)
                request.got_frame = True
                self._hold(request, pcm, now)
                if request.frames >= request.max_frames(self.policy):
                    self._finish(request, "length")
            case base.AlignedOutput(words=words):
                self._events.append(events.RequestWords(request.id, words))
            case base.FlushedOutput():
                self._tell_audio(request)
                if (flush_id := request.flushes.popleft()) is not None:
                    self._events.append(events.RequestFlushed(request.id, flush_id))
            case base.StarvedOutput():
                self._tell_audio(request)
                request.has_text = False
                # A flush for others that said nothing gives no more time.
                if not request.spoken_up or request.spoke_at > request.idle_since:
                    request.idle_since = now
                self._deadline = min(self._deadline, self._deadline_of(request))
                self._take_back_at = min(self._take_back_at, self._idle_at(request))
            case base.DoneOutput(length=length, cut=cut):
                if not cut:
                    self._learn_pace(request)
                self._finish(request, "length" if length else "end", cut=cut)
            case base.FailedOutput(code=code, message=message):
                self._finish(request, "error", code, message)

    def _hold(self, request: Request, pcm: bytes, now: float) -> None:
        """Take a new frame of the request, and tell it with those that are held, unless it may be held, too."""
        request.held.append(pcm)
        until = request.held_until
        if len(request.held) == MAX_HELD or until < now + FRAME_S or request.credit <= 0:
            self._tell_audio(request)
        else:
            self._holding[request.id] = request
            self._held_until = min(self._held_until, until)

    def _tell_audio(self, request: Request) -> None:
        """Tell the frames of the request that are held."""
        if request.held:
            pcm = request.held[0] if len(request.held) == 1 else b"".join(request.held)
            self._events.append(events.RequestAudio(request.id, pcm))
            # The listener's side counts frames by their length.
            request.credit += len(request.held) - -(-len(pcm) // FRAME_BYTES)
            request.held.clear()
        self._holding.pop(request.id, None)

    def _tell_due(self, now: float) -> None:
        """Tell the frames of those whose listeners would run short."""
        for request in [request for request in self._holding.values() if now >= request.held_until]:
            self._tell_audio(request)
        self._held_until = min((request.held_until for request in self._holding.values()), default=math.inf)

    def _refuse(self, request: Request, why: str, now: float) -> None:
        retry_after_ms = self._retry_ms(request.owner, now)
        self._finish(request, "error", "at_capacity", f"{why}: try again", retry_after_ms)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        code: str | None = None,
        message: str = "",
        retry_after_ms: int | None = None,
        *,
        gave_way: bool = False,
        cut: tuple[CutReason, ...] = (),
    ) -> None:
        del self._requests[request.id]
        if request.slot is not None:
            self._left.append(request.admitted_at)
            self._release(request)
        elif request in self._returning:
            self._returning.remove(request)
        elif not request.parked:
            self._leave_queue(request)
        if reason == "cancelled":
            request.held.clear()
        self._tell_audio(request)
        busy_ms = round(request.busy_s * 1_000, 3)
        self._events.append(RequestFinished(request.id, reason, busy_ms, code, message, retry_after_ms, gave_way, cut))

    def _release(self, request: Request) -> None:
        """Free the request's slot, before the `StartRequest` of its next request."""
        assert request.slot is not None
        self._inputs.append(base.ReleaseSlot(request.slot))
        del self._running[request.slot]
        self._held[request.owner] -= 1
        if not self._held[request.owner]:
            del self._held[request.owner]
        heapq.heappush(self._free, request.slot)
        request.slot = None
        self._take_back_at = -math.inf

    def _leave_queue(self, request: Request) -> None:
        waiting = self._waiting.get(request.owner, deque())
        if request in waiting:
            waiting.remove(request)
            if not waiting:
                del self._waiting[request.owner]

    # ------------------------------------------------------------ estimates for refused requests

    def _retry_ms(self, owner: int, now: float) -> int:
        """When a slot would be free for a new request of this owner that waited without a limit."""
        if now >= self._estimated_at + ESTIMATE_S:
            self._estimated_at, self._frees = now, self._when_free(now)
            self._told_ms.clear()
        mine = self._held[owner]
        if mine not in self._told_ms:
            self._told_ms[mine] = retry_ms(self._served_at(mine) - now)
        return self._told_ms[mine]

    def _learn_pace(self, request: Request) -> None:
        """Count a request that has spoken all its text."""
        kept = max(0.0, 1 - request.chars / (4 * CHARS))
        seconds, chars = (kept * total for total in self._spoken)
        self._spoken = (seconds + request.frames * FRAME_S * request.options.speed, chars + request.chars)

    def _served_at(self, mine: int) -> float:
        """When those ahead of a new request have got a slot or waited too long, and one more slot is free.

        Its owner has `mine` slots.

        Ahead are the waiting requests of owners with no more slots.
        """
        ahead = sorted(
            request.waits_since + self.policy.queue_s
            for other, waiting in self._waiting.items()
            if self._held[other] <= mine
            for request in waiting
        )
        frees = self._frees.copy()  # sorted, so a heap
        mean_s = self._forecast.mean_s() or frees[-1] - self._estimated_at
        passed = 0
        while True:
            passed = bisect_right(ahead, frees[0], passed)
            if passed == len(ahead):
                return frees[0]
            passed += 1
            heapq.heapreplace(frees, frees[0] + mean_s)

    def _when_free(self, now: float) -> list[float]:
        """When the slots come free, in order: by their text where it is complete, otherwise by those before them."""
        running = list(self._running.values())
        by_age = self._forecast.left_s([now - request.admitted_at for request in running])
        frees = [now + self._left_s(request, left_s, now) for request, left_s in zip(running, by_age, strict=True)]
        return sorted(frees + [now] * len(self._free))

    def _left_s(self, request: Request, by_age_s: float, now: float) -> float:
        """How long a request keeps its slot."""
        if not request.has_text:
            return 0.0 if self._idle_at(request) <= now else by_age_s  # it will be taken back
        seconds, chars = self._spoken
        frames = request.chars * seconds / chars / request.options.speed / FRAME_S
        left = max(1.0, frames - request.frames, 0.1 * request.frames)
        if request.options.lead_ms is None:
            pace = (now - request.admitted_at) / request.frames if request.frames else FRAME_S
            left_s = left * min(pace, FRAME_S)
        else:
            ahead_s = max(0.0, request.buffered_until - now)
            left_s = max(0.0, left * FRAME_S + ahead_s - request.options.lead_ms / 1_000)
        return left_s if request.ended else max(left_s, by_age_s)


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
