"""Chooses the requests of each step: text, credit, pacing, frame caps. Sans-I/O.

A request waits in a queue until a slot is free (`admission`). In its slot it runs when it has text, credit, and less
audio ahead of its listener than its lead allows. It leaves the slot with exactly one `Finished`. Events of a request
that has left it are dropped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent_tts.directives import Pause, Prosody, Say
from agent_tts.engine.admission import Admission
from agent_tts.engine.requests import FRAME_S, Policy, Request, take_held
from agent_tts.engine_info import FRAME_MS, SAMPLE_RATE
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    Credit,
    End,
    Finished,
    Flush,
    Flushed,
    Open,
    OutOfText,
    RequestCommand,
    RequestEvent,
    StepCommand,
    StepEvent,
    Words,
)
from agent_tts.options import within

BYTES_PER_S = 2 * SAMPLE_RATE

# A paced request is urgent when its listener has less than MIN_BUFFER_S of audio ahead, and when its last step gave
# nothing, because frames are held back: it has to come through such steps before the listener has heard all. Others
# wait up to BATCH_WINDOW_S for one another, and as long after the last step that ran all of them: one step serves many,
# and in between the engine is idle, so that a new request starts at once.
MIN_BUFFER_S = 0.070
BATCH_WINDOW_S = 0.040

# A growing request runs GROWING_WINDOW_S after the last step, with those alike and others that add no time to it.
GROWING_WINDOW_S = 0.010

# A full step has at least LEAST_SHARED requests, all that are new or growing, and so many that STEPS_FOR_ALL steps
# serve all that can run: new ones wait for its end, one of twice the size takes half as long again, and the host has to
# read their text meanwhile.
LEAST_SHARED, STEPS_FOR_ALL = 64, 4

# Frames that are told together, because a piece of audio costs the front about as much as its first frame, whatever its
# length; and what the listener must keep ahead meanwhile. Speech starts, and a listener who runs short is served, frame
# by frame.
MAX_HELD = 6
MIN_AHEAD_S = 0.480

# Most requests of a full step that got no frame from their last step: new ones, whose prompts are computed a few at a
# time, and those that wait for a model or for cache blocks. More of them would only displace requests that can speak.
MAX_WITHOUT_FRAME = 32

# Frames after which a request is a runaway: ten (0.8 s) a character, about ten times ordinary speech, which covers
# digits and symbols that are spelled out; the constant covers leading and trailing silence.
CAP_FRAMES = 50
CAP_FRAMES_PER_CHAR = 10


@dataclass(frozen=True, slots=True)
class Step:
    commands: list[StepCommand]
    requests: list[Request]  # those that speak in it

    @property
    def run(self) -> list[int]:
        return [request.id for request in self.requests]


class Scheduler:
    """Commands in, steps out; events of the engine in, events for the front out."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.admission = Admission(policy)
        # When the frames of requests have to be told that may have some that are not, by id; and the first such time,
        # which is recomputed when it is reached.
        self._holding: dict[int, float] = {}
        self._held_until = math.inf
        # Steps so far, the start of the last one, and of the last one with room for all that could run.
        self._steps = 0
        self._last_step_at = -math.inf
        self._last_full_step_at = -math.inf

    @property
    def load(self) -> tuple[int, int]:
        """Requests in slots, and requests that wait for one."""
        return len(self.admission.running), self.admission.queued

    def take(self, command: RequestCommand, now: float) -> None:
        """Take a command. One for an unknown request is ignored: it has finished."""
        if isinstance(command, Open):
            self.admission.open(command, now)
        elif (request := self.admission.requests.get(command.id)) is None:
            return
        elif isinstance(command, Credit):
            request.credit = min(request.credit + command.frames, self.policy.window_frames)
        elif isinstance(command, Cancel):
            self.admission.finish(request, Finished(request.id, "cancelled"))
        elif not request.ended:
            self._take_text(request, command)

    def _take_text(self, request: Request, command: Append[int] | Flush[int] | End[int]) -> None:
        match command:
            case Append(content=str(text)):
                request.chars += len(text)
            case Append(content=Prosody(speed=speed)):
                request.slowest = min(request.slowest, within("speed", request.options.speed * speed))
            case Append(content=Pause(ms=ms)):
                request.rest_frames += math.ceil(ms / FRAME_MS)
            case Append(content=Say() as say):
                request.chars += len(say.alias or say.ipa or say.text)
            case End():
                request.ended = True
        request.has_text = True
        request.spoken_up = False
        request.most_frames = _max_frames(request, self.policy)
        if not request.begun:
            self.admission.begin(request)
        if request.has_slot:
            self.admission.commands.append(command)
        else:
            request.text.append(command)

    # ------------------------------------------------------------ one step

    def schedule(self, now: float) -> Step:
        """The next step: its commands and its requests. Deadlines that have passed take effect."""
        self.admission.settle(now)
        commands, self.admission.commands = self.admission.commands, []
        able = [
            request
            for request in self.admission.running.values()
            if request.has_text and request.credit > request.in_flight and request.runnable_at <= now
        ]
        requests = self._select(able, now)
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
        return Step(commands, requests)

    def update(
        self, events: Iterable[StepEvent], steps: Iterable[Step], now: float, step_s: float
    ) -> list[RequestEvent]:
        """Apply the events of steps; returns all events since the last call.

        Args:
            events: of `steps`, and perhaps of one that is still in flight.
            steps: those that have given all their events.
            step_s: duration of each of them, in seconds.
        """
        for step in steps:
            for request in step.requests:
                request.in_flight -= 1
                request.runnable_at -= FRAME_S
                if not (request.frames or request.in_flight):
                    request.runnable_at = -math.inf  # until an event says otherwise
                request.got_frame = False
                request.busy_s += step_s
        for event in events:
            running = self.admission.running.get(event.id)
            if running is not None:
                self._process(running, event, now)
        for step in steps:
            for request in step.requests:
                request.stall(request.frames > 0 and not request.got_frame)
        if now >= self._held_until:
            self._tell_due(now)
        new, self.admission.events = self.admission.events, []
        return new

    def next_step_at(self, now: float) -> float | None:
        """When the next step is due: at once if not after `now`; None: not before a new command."""
        earliest = min(self.admission.due_at(now), self._held_until)
        if earliest > now:
            for request in self.admission.running.values():
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

    def _select(self, able: list[Request], now: float) -> list[Request]:
        """The requests of the step: all that can run, or new and growing ones with those that add no time to it.

        Where not all fit: new ones, those with a pace first, then the least buffered. So streams without a pace are the
        background of the others, and fill the step. Who comes for the first time waits for urgent ones alone.

        New requests come first, here and in all work of the step.
        """
        new = [request for request in able if not (request.frames or request.in_flight)]
        others = [request for request in able if request.frames or request.in_flight]
        sizes = self.policy.batch_sizes
        most = sizes[-1] if sizes else len(able)
        growing = [request for request in others if now >= request.runnable_at + request.growing_s]
        urgent = sum(now >= _urgent_at(request) for request in growing)
        is_first = any(not request.last_step for request in new)  # later ones wait for a model or for cache blocks
        window_over = not is_first and now >= self._last_full_step_at + BATCH_WINDOW_S
        if urgent or (window_over and any(now >= request.runnable_at + BATCH_WINDOW_S for request in others)):
            first = new + growing
            if not all(request.options.unpaced for request in new):  # the background makes no step longer beside them
                first = [request for request in first if not request.options.unpaced]
            needed = max(LEAST_SHARED, len(able) // STEPS_FOR_ALL, len(first))
            most = next((size for size in sizes if size >= needed), most)
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
        return _most_urgent(selected, min(most, len(selected)))

    def _step_due_at(self, request: Request) -> float:
        """The latest start of a step for a request that has text and credit."""
        runnable_at, full_step_at = request.runnable_at, self._last_full_step_at
        shared_at = (runnable_at if runnable_at > full_step_at else full_step_at) + BATCH_WINDOW_S
        growing_at = runnable_at + request.growing_s
        if shared_at <= growing_at:
            return shared_at
        growing_at = max(growing_at, min(self._last_step_at + GROWING_WINDOW_S, _urgent_at(request)))
        return min(shared_at, growing_at)

    def _process(self, request: Request, event: StepEvent, now: float) -> None:
        if isinstance(event, Audio):
            self._add_frame(request, event, now)
            if request.frames >= request.most_frames:
                self.admission.finish(request, Finished(request.id, "length"))
        elif isinstance(event, Finished):
            if event.reason != "error" and not event.cut:
                self.admission.estimates.learn(request)
            self.admission.finish(request, event)
        else:
            if not isinstance(event, Words):
                self.admission.events += take_held(request)
            if isinstance(event, OutOfText):
                self.admission.starve(request, now)
            elif not (isinstance(event, Flushed) and event.flush_id is None):
                self.admission.events.append(event)

    def _add_frame(self, request: Request, audio: Audio[int], now: float) -> None:
        """Count a new frame of the request, and tell it with those that are held, unless it may be held, too."""
        request.frames += 1
        request.credit -= 1
        request.spoke_at = now
        request.buffered_until = max(request.buffered_until, now) + len(audio.payload) / BYTES_PER_S
        if request.options.lead_ms is not None:
            flying_s = FRAME_S * (1 + request.in_flight)
            request.runnable_at = request.buffered_until + flying_s - request.options.lead_ms / 1_000
        request.got_frame = True
        request.held.append(audio)
        until = _held_until(request)
        if len(request.held) == MAX_HELD or until < now + FRAME_S or request.credit <= 0:
            self.admission.events += take_held(request)
        else:
            self._holding[request.id] = until
            self._held_until = min(self._held_until, until)

    def _tell_due(self, now: float) -> None:
        """Tell the frames of those whose listeners would run short."""
        for request_id in [request_id for request_id, until in self._holding.items() if now >= until]:
            del self._holding[request_id]
            if (request := self.admission.running.get(request_id)) is not None:
                self.admission.events += take_held(request)
        self._held_until = min(self._holding.values(), default=math.inf)


def _urgent_at(request: Request) -> float:
    return request.runnable_at + request.ahead_s - MIN_BUFFER_S


def _held_until(request: Request) -> float:
    """When its listener has no more than `MIN_AHEAD_S` ahead, unless the frames that are held are told."""
    return request.buffered_until - FRAME_S * len(request.held) - MIN_AHEAD_S


def _max_frames(request: Request, policy: Policy) -> int:
    by_text = (CAP_FRAMES + CAP_FRAMES_PER_CHAR * request.chars) / request.slowest
    return min(policy.max_frames, math.ceil(by_text) + request.rest_frames)


def _most_urgent(requests: Sequence[Request], count: int) -> list[Request]:
    """`count` requests in order: some without a frame, those with a pace, and who ran longest ago, first; then the
    least buffered. The engine reads their text in this order, as far as the time of a step allows.
    """
    with_frame = [request for request in requests if request.got_frame]
    without_frame = [request for request in requests if not request.got_frame]
    places = max(min(MAX_WITHOUT_FRAME, count // 2), count - len(with_frame))
    selected = heapq.nsmallest(places, without_frame, key=lambda one: (one.options.unpaced, one.last_step))
    return selected + _least_buffered(with_frame, count - len(selected))


def _least_buffered(requests: Sequence[Request], count: int) -> list[Request]:
    """Those whose listeners run out of audio first; none if `count` is negative."""
    return heapq.nsmallest(count, requests, key=lambda request: request.buffered_until)
