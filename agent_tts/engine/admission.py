"""Who has a slot: owners, the queue, and slots that are taken back. Pure: all times are arguments, in seconds.

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
from collections import Counter, deque
from dataclasses import replace

from agent_tts.engine.estimates import Estimates
from agent_tts.engine.requests import FRAME_S, Policy, Request, take_held
from agent_tts.messages import Cancel, Finished, Flush, Open, RequestEvent, Started, StepCommand
from agent_tts.options import EngineOptions

# While others wait: the longest pause in the text of a request that keeps its slot, longer than those of a language
# model between two words; and how long an owner has fewer slots before one is taken from a request that speaks, longer
# than slots usually take to come free. Both are at most these shares of the longest wait for a slot.
IDLE_S, IDLE_SHARE = 1.0, 0.6
PATIENCE_S, PATIENCE_SHARE = 1.0, 0.6
MAX_TAKEN_BACK = 8  # slots a step: each takes a look at all of them, and the step waits meanwhile

# Free slots that are given in a step: each takes a look at all owners who wait, and the engine 0.1 ms.
MAX_ADMITTED = 32
# Of one owner, requests with a pace come before those without one that came so much earlier: somebody listens live.
BACKGROUND_S = 0.25


class Admission:
    """The requests of an engine: which of them have slots, which wait, and how each ends.

    What it decides is in `commands`, for the engine, and in `events`, for the front.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        # Every request that has not finished, by id; and those that have a slot.
        self.requests: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        # Requests that wait for a slot, oldest first, by owner; of these, the one who got a slot last is last. No owner
        # without a request.
        self.waiting: dict[int, deque[Request]] = {}
        # Parked requests whose text has begun since the last step.
        self._returning: list[Request] = []
        # Requests that may not wait and have not started.
        self._impatient: list[Request] = []
        # How many slots each owner has, and how many are free.
        self.held: Counter[int] = Counter()
        self.free = policy.slots
        # Commands of the next step, and events that were not told yet, in order.
        self.commands: list[StepCommand] = []
        self.events: list[RequestEvent] = []
        # No deadline of a request is earlier; recomputed when it is reached.
        self._deadline = math.inf
        # Since when an owner who waits has had fewer slots than another, while none came free for it.
        self._short_since: dict[int, float] = {}
        # No slot can be taken back for a waiting request earlier; recomputed when it is reached.
        self._take_back_at = -math.inf
        self._idle_s = min(IDLE_S, IDLE_SHARE * policy.queue_s)
        # Without a queue there is no time to wait.
        self._patience_s = min(PATIENCE_S, PATIENCE_SHARE * policy.queue_s) if policy.queue else 0.0
        # Since when those had a slot that have left it since the last step.
        self._left: list[float] = []
        self.estimates = Estimates(self)

    @property
    def queued(self) -> int:
        return sum(map(len, self.waiting.values()))

    @property
    def waits(self) -> bool:
        return bool(self.waiting or self._returning)

    def open(self, opened: Open[int, EngineOptions], now: float) -> None:
        """Take a new request, or refuse one at once: when the queue is full, or it may not wait and no slot is free."""
        waited_s = opened.waited_ms / 1_000
        request = Request(opened, opened_at=now - waited_s, credit=self.policy.window_frames)
        self.requests[request.id] = request
        if opened.waits or self.queued < self.free:
            self._enqueue(request, now, waited_s)
            if not opened.waits:
                self._impatient.append(request)
        else:
            self._refuse(request, "no slot is free", now)

    def begin(self, request: Request) -> None:
        request.begun = True
        if request.parked:
            request.parked = False
            self._returning.append(request)
        self._take_back_at = -math.inf

    def starve(self, request: Request, now: float) -> None:
        """The engine has nothing to speak of the request until more text comes."""
        request.has_text = False
        # A flush for others that said nothing gives no more time.
        if not request.spoken_up or request.spoke_at > request.idle_since:
            request.idle_since = now
        self._deadline = min(self._deadline, self._deadline_of(request))
        self._take_back_at = min(self._take_back_at, self.idle_at(request))

    def settle(self, now: float) -> None:
        """Before a step: give free slots and those that may be taken back; deadlines that have passed take effect."""
        for since in self._left:
            self.estimates.forecast.ended(now - since)
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
            if not self.free:
                self._expire_waiting(now)
            self._deadline = min(map(self._deadline_of, self.requests.values()), default=math.inf)

    def due_at(self, now: float) -> float:
        """When `settle` has something to do, or a step its commands: at once if not after `now`."""
        if self.commands or self.events or self._returning or (self.waiting and self.free):
            return now
        return min(self._deadline, self._take_back_at) if self.waiting else self._deadline

    def finish(self, request: Request, event: Finished[int]) -> None:
        """End a request: its slot is free, and its last event is told."""
        del self.requests[request.id]
        if request.has_slot:
            self._left.append(request.admitted_at)
            self._release(request)
        elif request in self._returning:
            self._returning.remove(request)
        elif not request.parked:
            self._leave_queue(request)
        if event.reason != "cancelled":
            self.events += take_held(request)
        request.held = []
        self.events.append(replace(event, busy_ms=round(request.busy_s * 1_000, 3)))

    # ------------------------------------------------------------ the queue

    def _enqueue(self, request: Request, now: float, waited_s: float = 0.0) -> None:
        """Have a request wait for a slot. If the queue is full, this one or one that waits is refused."""
        request.waits_since = now - waited_s
        if self.queued >= self.free + self.policy.queue:
            refused = self._free_place(request, now)
            if refused is not None:
                self._refuse(refused, f"all {self.policy.slots} slots are in use, the queue is full (queue)", now)
            if refused is request:
                return
        waiting = self.waiting.setdefault(request.owner, deque())
        place = len(waiting)
        while place and _turn(waiting[place - 1]) > _turn(request):
            place -= 1
        waiting.insert(place, request)
        self._take_back_at = -math.inf
        self._deadline = min(self._deadline, request.waits_since + self.policy.queue_s)

    def _free_place(self, request: Request, now: float) -> Request | None:
        """Make room for one more in a full queue; returns the request to refuse for it, perhaps this one."""
        used = {owner: self.held[owner] + len(waiting) for owner, waiting in self.waiting.items()}
        mine = used.get(request.owner, self.held[request.owner])
        most = max(used, key=used.__getitem__, default=request.owner)
        if used.get(most, 0) > mine + 1:
            return self.waiting[most][-1]
        if (victim := self._victim(request, mine, now)) is None:
            return request
        self._give_back(victim, now)
        return None

    def _fill(self, now: float) -> None:
        """Give slots to requests that wait: free ones, then those that may be taken back."""
        # Owners who wait, a heap: of those with the fewest slots, the one whose turn is next comes first. Where there
        # are slots for all, those with a pace do.
        waiting = self.waiting if self.free else {}
        for_all = self.free >= self.queued

        def is_later(owner: int) -> bool:
            return for_all and self.waiting[owner][0].options.unpaced

        owners = [(self.held.get(owner, 0), is_later(owner), turn, owner) for turn, owner in enumerate(waiting)]
        heapq.heapify(owners)
        for last_turn in range(len(owners), len(owners) + min(MAX_ADMITTED, self.free, self.queued)):
            held, _, _, owner = owners[0]
            self._admit(self.waiting[owner][0], now)
            if owner in self.waiting:
                heapq.heapreplace(owners, (held + 1, is_later(owner), last_turn, owner))
            else:
                heapq.heappop(owners)
        taken_back = 0
        while self.waiting and not self.free:
            if now < self._take_back_at or taken_back == MAX_TAKEN_BACK or (taker := self._take_back(now)) is None:
                return
            self._admit(taker, now)
            taken_back += 1
        if not self.waiting:
            self._short_since.clear()

    def _admit(self, request: Request, now: float) -> None:
        """Give a free slot to a request that waits; its owner's turn comes last now."""
        self._leave_queue(request)
        if (others := self.waiting.pop(request.owner, None)) is not None:
            self.waiting[request.owner] = others
        self.free -= 1
        request.has_slot, request.admitted_at, request.spoke_at = True, now, now
        if not request.started:
            request.idle_since = now
        self.running[request.id] = request
        self.held[request.owner] += 1
        self._take_back_at = -math.inf
        self._deadline = min(self._deadline, self._deadline_of(request))
        self.commands += [request.opened, *request.text]
        request.text.clear()
        if not request.started:
            request.started = True
            self.events.append(Started(request.id, round((now - request.opened_at) * 1_000)))

    def _release(self, request: Request) -> None:
        """Free the request's slot, before the `Open` of its next request."""
        self.commands.append(Cancel(request.id))
        del self.running[request.id]
        self.held[request.owner] -= 1
        if not self.held[request.owner]:
            del self.held[request.owner]
        self.free += 1
        request.has_slot = False
        self._take_back_at = -math.inf

    def _leave_queue(self, request: Request) -> None:
        waiting = self.waiting.get(request.owner, deque())
        if request in waiting:
            waiting.remove(request)
            if not waiting:
                del self.waiting[request.owner]

    def _refuse(self, request: Request, why: str, now: float, *, gave_way: bool = False) -> None:
        retry_after_ms = self.estimates.retry_ms(request.owner, now)
        message = f"{why}: try again"
        self.finish(request, Finished(request.id, "error", (), "at_capacity", message, retry_after_ms, gave_way))

    # ------------------------------------------------------------ slots that are taken back

    def _take_back(self, now: float) -> Request | None:
        """Free a slot for a waiting request and return that; if none may have one yet, set `_take_back_at`."""
        held = self.held
        most = max(held.values())
        self._short_since = {
            owner: self._short_since.get(owner, now) for owner in self.waiting if held.get(owner, 0) + 1 < most
        }
        idle_times = [idle_at for other in self.running.values() if (idle_at := self.idle_at(other)) < math.inf]
        next_times = [idle_at for idle_at in idle_times if idle_at > now]
        if len(next_times) < len(idle_times):
            self._flush_idle(now)
        elif not self._short_since:  # the usual case, and the cheapest: nobody can take one
            self._take_back_at = min(next_times, default=math.inf)
            return None
        for request in (self._first(begun=True), self._first(begun=False)):
            if request is None:
                continue
            if (victim := self._victim(request, held[request.owner], now)) is not None:
                self._give_back(victim, now)
                return request
            if (patient_at := self._short_since.get(request.owner, -math.inf) + self._patience_s) > now:
                next_times.append(patient_at)
        self._take_back_at = min(next_times, default=math.inf)
        return None

    def _first(self, *, begun: bool) -> Request | None:
        """The request that gets the next free slot, of all that wait or of those whose text has begun; None: none."""
        firsts = (next((one for one in waiting if one.begun or not begun), None) for waiting in self.waiting.values())
        return min((one for one in firsts if one is not None), key=lambda one: self.held[one.owner], default=None)

    def idle_at(self, request: Request) -> float:
        """From when on a request in a slot has been without text for too long, if others wait."""
        if request.has_text:
            return math.inf
        if not request.begun:
            return request.admitted_at
        return request.spoke_at + (0.0 if request.spoken_up else self._idle_s)

    def _flush_idle(self, now: float) -> None:
        """Have idle requests speak the words that more text could have changed, as many as wait for their slots."""
        idle = [other for other in self.running.values() if other.begun and self.idle_at(other) <= now]
        for other in sorted(idle, key=self._readiness, reverse=True)[: self.queued]:
            if not (other.spoken_up or other.ended):
                self.commands.append(Flush(other.id))
                other.has_text = True
            other.spoken_up = True

    def _readiness(self, request: Request) -> tuple[int, bool, float]:
        """The greatest gives way first: of the owner with the most slots, before its text, idle the longest."""
        return self.held[request.owner], not request.begun, -request.spoke_at

    def _victim(self, request: Request, mine: int, now: float) -> Request | None:
        """The request whose slot this one may have now, by the rules at the top.

        Args:
            mine: slots that count as those of this one's owner.
        """
        held, fair = self.held, mine + 1
        idle = [other for other in self.running.values() if self.idle_at(other) <= now]
        ready = [other for other in idle if other.spoken_up or not other.begun]
        victim = max(ready, key=self._readiness, default=None)
        if victim is not None and (request.begun or held[victim.owner] > fair):
            return victim
        patient = now >= self._short_since.get(request.owner, now) + self._patience_s
        if patient and (request.begun or not self.policy.queue) and max(held.values(), default=0) > fair:
            return max(
                self.running.values(),
                key=lambda other: (held[other.owner], self.idle_at(other) <= now, other.admitted_at),
            )
        return None

    def _give_back(self, victim: Request, now: float) -> None:
        """Free the slot of a request for one that waits."""
        if not victim.begun:
            self._release(victim)
            victim.parked = True
        elif victim.has_text:
            why = f"others wait, and this client has the most of {self.policy.slots} slots (slots)"
            self._refuse(victim, why, now, gave_way=True)
        else:
            why = f"no text for {now - victim.spoke_at:.1f} s while others wait: send the next text in a new context"
            self.finish(victim, Finished(victim.id, "error", code="starved", message=why, gave_way=True))

    # ------------------------------------------------------------ deadlines

    def _expire(self, now: float) -> None:
        """End requests that have been in a slot, or without text, for too long."""
        for request in list(self.requests.values()):
            if not (request.has_slot or request.parked):
                continue
            if not request.has_text and now >= request.idle_since + self.policy.text_idle_s:
                why = f"no text for {self.policy.text_idle_s:g} s (limits.text_idle_s): append some, or end the context"
                self.finish(request, Finished(request.id, "error", code="starved", message=why))
            elif request.has_slot and now >= self._leaves_at(request):
                self.finish(request, Finished(request.id, "length"))

    def _expire_impatient(self, now: float) -> None:
        self._impatient = [one for one in self._impatient if not one.started and one.id in self.requests]
        if not self.free:
            for request in self._impatient:
                self._refuse(request, "no slot is free", now)
            self._impatient.clear()

    def _expire_waiting(self, now: float) -> None:
        for waiting in list(self.waiting.values()):
            while waiting and now >= waiting[0].waits_since + self.policy.queue_s:
                self._refuse(waiting[0], f"no slot came free within {self.policy.queue_s:g} s (timeouts.queue_s)", now)

    def _deadline_of(self, request: Request) -> float:
        idle_at = math.inf if request.has_text else request.idle_since + self.policy.text_idle_s
        if request.has_slot:
            return min(self._leaves_at(request), idle_at)
        return idle_at if request.parked else request.waits_since + self.policy.queue_s

    def _leaves_at(self, request: Request) -> float:
        """When it has had its slot for too long: speech takes its time to be heard, so only time beyond it counts."""
        return request.admitted_at + request.frames * FRAME_S + self.policy.request_s


def _turn(request: Request) -> float:
    """Whose turn is earlier, of requests of one owner."""
    return request.waits_since + (BACKGROUND_S if request.options.unpaced else 0.0)
