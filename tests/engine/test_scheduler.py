"""Rules of the scheduler, one by one and in a hypothesis state machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent_tts.config.settings import Limits
from agent_tts.directives import Directive, Pause, Prosody, Say
from agent_tts.engine.admission import MAX_ADMITTED
from agent_tts.engine.requests import FRAME_S, Policy, Request, take_held
from agent_tts.engine.scheduler import (
    BATCH_WINDOW_S,
    CAP_FRAMES,
    CAP_FRAMES_PER_CHAR,
    GROWING_WINDOW_S,
    MAX_HELD,
    MIN_AHEAD_S,
    MIN_BUFFER_S,
    Step,
    _held_until,
)
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    End,
    EngineLoad,
    EnginePong,
    EngineReady,
    Finished,
    Flush,
    Flushed,
    Open,
    OutOfText,
    RequestEvent,
    Started,
    StepCommand,
    StepEvent,
)
from agent_tts.options import EngineOptions
from tests.engine.scheduling import UNPACED, Commanded
from tests.examples import examples

PCM = bytes(FRAME_BYTES)


class Bench(Commanded):
    """A scheduler with a scripted engine: every slot in a step gives the outputs passed for it."""

    def __init__(self, **policy: Any) -> None:
        super().__init__(Policy(**dict[str, Any](slots=1, queue=1) | policy))
        self.now = 0.0
        self.commands: list[StepCommand] = []
        self.run: list[int] = []
        self.events: list[RequestEvent] = []  # collected by `speak`

    def step(self, *outputs: StepEvent, step_s: float = 0.0) -> list[RequestEvent]:
        return self.update(outputs, [self.plan()], self.now, step_s)

    def plan(self) -> Step:
        step = self.schedule(self.now)
        self.commands, self.run = step.commands, step.run
        return step

    def open_each(self, *requests: int, **how: Any) -> None:
        for request in requests:
            self.open(request, **how)

    def speak(self, able: Collection[int] = range(1_000)) -> list[int]:
        """Step, with a frame for each slot in the step that is `able` to speak; the slots of the step."""
        step = self.plan()
        self.events += self.update([Audio(one, PCM) for one in step.run if one in able], [step], self.now, 0.0)
        return step.run

    def frames(self, count: int, request: int = 1) -> int:
        """Step until `count` frames have run; the number that the scheduler allowed at this time."""
        made = 0
        while made < count and request in self.speak({request}):
            made += 1
        return made

    def go(self, until: float) -> list[list[int]]:
        """Step whenever a step is due, with a frame for each slot in it; the slots of each step."""
        steps = []
        while (due_at := self.next_step_at(self.now)) is not None and due_at <= until:
            self.now = max(self.now, due_at)
            run = self.speak()
            steps += [run] if run else []
            for request in run:
                self.grant_credit(request, 1)
        self.now = until
        return steps


def finished(happened: list[RequestEvent]) -> list[tuple[int, str, str | None]]:
    return [(e.id, e.reason, e.code) for e in happened if isinstance(e, Finished)]


def test_many_free_slots_are_given_in_several_steps_at_once_after_one_another() -> None:
    """All at once would hold a step for the owners who wait, squared. Nobody is refused meanwhile."""
    bench = Bench(slots=512, queue_s=0.001)
    for request_id in range(1, 513):
        bench.open(request_id, owner=request_id)
    given = []
    while bench.load[1]:
        assert bench.next_step_at(bench.now) == bench.now
        happened = bench.step()
        assert not finished(happened)
        given.append(sum(isinstance(one, Open) for one in bench.commands))
        bench.now += 0.005
    assert given == [MAX_ADMITTED] * (512 // MAX_ADMITTED)


def test_a_request_gets_a_free_slot_with_the_text_received_before() -> None:
    bench = Bench()
    bench.open(1, text="Hello")
    bench.end(1)
    assert bench.step() == [Started(1, 0)]
    assert bench.commands == [Open(1, UNPACED), Append(1, "Hello"), End(1)]
    assert bench.run == [1]


def test_directives_keep_their_place_in_the_text() -> None:
    bench = Bench()
    bench.open(1, text="One ")
    bench.append(1, Pause(500))
    bench.append(1, "two")
    bench.step()
    bench.append(1, Say("3", "three"))
    texts = [Append(1, "One "), Append(1, Pause(500)), Append(1, "two")]
    assert bench.commands == [Open(1, UNPACED), *texts]
    bench.step()
    assert bench.commands == [Append(1, Say("3", "three"))]


def test_admission_is_first_in_first_out() -> None:
    bench = Bench(slots=1, queue=3)
    bench.open_each(1, 2, 3)
    assert bench.step() == [Started(1, 0)]
    bench.cancel(1)
    bench.now = 0.5
    assert bench.step() == [Finished(1, "cancelled"), Started(2, 500)]
    assert bench.commands[0] == Cancel(1)
    assert bench.commands[1] == Open(2, UNPACED)


def test_a_full_queue_refuses_at_once() -> None:
    bench = Bench(slots=1, queue=1)
    bench.open_each(1, 2, 3)
    happened = bench.step()
    assert finished(happened) == [(3, "error", "at_capacity")]
    assert happened[0].retry_after_ms  # pyrefly: ignore[missing-attribute]


def test_free_slots_count_as_places_in_the_queue() -> None:
    bench = Bench(slots=2, queue=0)
    bench.open(1)
    bench.open(2)
    assert finished(bench.step()) == []


def test_a_request_that_may_not_wait_starts_at_once_or_is_refused() -> None:
    """A free slot that one waits for is not free. Its time at other engines counts as time in the queue."""
    bench = Bench(slots=2, queue=4)
    bench.open(1)
    bench.open(2, waits=False, waited_ms=250)
    bench.open(3, waits=False)
    happened = bench.step()
    assert finished(happened) == [(3, "error", "at_capacity")]
    assert {e for e in happened if isinstance(e, Started)} == {Started(1, 0), Started(2, 250)}


def test_time_at_other_engines_counts() -> None:
    """For the place in line, and for the longest wait. Fails if the line is by arrival: its head would hide the end."""
    bench = Bench(slots=1, queue=4, queue_s=2.0)
    bench.open(1)
    bench.step()
    bench.open(2)
    bench.open(3, waited_ms=1500)
    bench.step()
    bench.now = 0.5
    assert finished(bench.step()) == [(3, "error", "at_capacity")]
    bench.open(4, UNPACED, 0.5, waited_ms=1000)
    bench.cancel(1)
    assert Started(4, 1_000) in bench.step()


def test_a_request_that_waits_too_long_gets_at_capacity() -> None:
    bench = Bench(slots=1, queue=1, queue_s=2.0)
    bench.open(1, text="Hello")
    bench.open(2)
    bench.frames(bench.policy.window_frames)
    bench.now = 0.6
    bench.step()
    assert bench.next_step_at(0.6) == 2.0
    bench.now = 1.99
    assert finished(bench.step()) == []
    bench.now = 2.0
    assert finished(bench.step()) == [(2, "error", "at_capacity")]


def test_frames_of_an_earlier_request_are_dropped() -> None:
    bench = Bench()
    bench.open(1, text="one")
    bench.step()
    bench.cancel(1)
    bench.open(2, text="two")
    happened = bench.step(Audio(1, PCM), Finished(1, "end"), Audio(2, PCM))
    assert [e for e in happened if isinstance(e, Audio)] == [Audio(2, PCM)]
    assert finished(happened) == [(1, "cancelled", None)]


def told(happened: list[RequestEvent]) -> list[int]:
    return [len(event.payload) // FRAME_BYTES for event in happened if isinstance(event, Audio)]


def test_frames_are_told_together_once_the_listener_has_enough() -> None:
    bench = Bench(window_frames=100)
    bench.open(1, text="one two three")
    assert bench.frames(80) == 80
    alone = round(MIN_AHEAD_S / FRAME_S) + 1
    frames = told(bench.events)
    assert frames[:alone] == [1] * alone
    assert frames[-5:] == [MAX_HELD] * 5
    happened = bench.step(Audio(1, PCM), Finished(1, "end"))
    assert sum(frames + told(happened)) == 81


def held(bench: Bench) -> None:
    bench.open(1, text="one")
    bench.frames(round(MIN_AHEAD_S / FRAME_S) + 1)
    assert told(bench.step(Audio(1, PCM))) == []


@pytest.mark.parametrize(
    "output", [OutOfText(1), Flushed(1, "f"), Finished(1, "end"), Finished(1, "error", code="x", message="")]
)
def test_frames_that_are_held_come_before_what_follows_them(output: StepEvent) -> None:
    bench = Bench()
    held(bench)
    happened = bench.step(output)
    assert told(happened[:1]) == told(happened) == [1]


def test_frames_that_are_held_are_one_piece_which_the_listener_counts_by_its_length() -> None:
    request = Request(Open(1, EngineOptions()), 0.0, credit=5)
    request.held = [Audio(1, PCM), Audio(1, PCM[:100])]
    assert take_held(request) == [Audio(1, PCM + PCM[:100])]
    request.held = [Audio(1, PCM[:60]), Audio(1, PCM[:40])]
    assert take_held(request) == [Audio(1, PCM[:100])]
    assert (request.credit, request.held) == (6, [])


def test_a_lead_is_ahead_of_the_frame_that_is_made() -> None:
    assert Request(Open(1, EngineOptions(lead_ms=1_000)), 0.0, credit=5).ahead_s == 1.0 - FRAME_S


def test_frames_that_are_held_are_dropped_by_a_cancel() -> None:
    bench = Bench()
    held(bench)
    bench.cancel(1)
    assert told(bench.step()) == []


def test_frames_are_not_held_while_the_listener_runs_short() -> None:
    bench = Bench()
    held(bench)
    due_at = _held_until(bench.admission.requests[1])
    assert (bench.next_step_at(bench.now) or 0.0) <= due_at
    bench.now = due_at - 0.001
    assert told(bench.step()) == []
    bench.now = due_at
    assert told(bench.step()) == [1]


def test_the_engine_wakes_to_tell_what_is_held() -> None:
    """Also where the next frame is due later, to be made in one step with those of others."""
    bench = Bench()
    bench.open(1, EngineOptions(lead_ms=1_000), text="one two three")
    request = bench.admission.requests[1]
    while not request.held:
        bench.go(bench.now + FRAME_S / 8)
    bench.now = bench._last_full_step_at = _held_until(request) - BATCH_WINDOW_S / 2
    assert bench._step_due_at(request) > _held_until(request)
    assert bench.next_step_at(bench.now) == _held_until(request)


def test_frames_are_not_held_without_credit() -> None:
    bench = Bench(window_frames=2)
    bench.open(1, text="one")
    for _ in range(10):
        assert bench.frames(2) == 2
        bench.grant_credit(1, 2)
    assert sum(told(bench.events)) == 20


def test_short_frames_cost_the_credit_of_their_length() -> None:
    """The listener's side grants by length. Mutation: each frame costs one, and the credit of short ones is lost."""
    bench = Bench(window_frames=4)
    bench.open(1, text="text")
    made = 0
    for _ in range(50):
        step = bench.plan()
        outputs = [Audio(1, PCM[: FRAME_BYTES // 2])] if bench.run else []
        made += len(outputs)
        for event in bench.update(outputs, [step], bench.now, 0.0):
            if isinstance(event, Audio):
                bench.grant_credit(1, -(-len(event.payload) // FRAME_BYTES))
    assert made == 50
    for event in bench.step(OutOfText(1)):
        if isinstance(event, Audio):
            bench.grant_credit(1, -(-len(event.payload) // FRAME_BYTES))
    assert bench.admission.requests[1].credit == 4


def test_one_that_may_not_wait_is_refused_when_another_gets_the_slot() -> None:
    """The slot was free when it came. A later request of an owner without slots has it."""
    bench = Bench(slots=2)
    for number, owner in enumerate((1, 1, 2), 1):
        bench.open(number, owner=owner, waits=owner == 2, text="text")
    happened = bench.step()
    assert [event.id for event in happened if isinstance(event, Started)] == [1, 3]
    assert finished(happened) == [(2, "error", "at_capacity")]


def test_those_that_may_not_wait_are_forgotten_when_they_have_finished() -> None:
    bench = Bench(slots=2)
    for number in range(1, 100):
        bench.open(number, waits=False)
        bench.step()
        bench.cancel(number)
    bench.step()
    assert not bench.admission._impatient


def test_a_request_without_credit_does_not_run_until_frames_are_taken() -> None:
    bench = Bench(window_frames=3)
    bench.open(1, text="text")
    assert bench.frames(10) == 3
    bench.now = bench.policy.queue_s  # the queue's timeout does not apply to it
    bench.step()
    assert bench.next_step_at(bench.now) == pytest.approx(bench.policy.request_s + 3 * FRAME_S)
    bench.grant_credit(1, 2)
    assert bench.frames(10) == 2


def test_credit_never_exceeds_the_window() -> None:
    bench = Bench(window_frames=3)
    bench.open(1, text="text")
    bench.grant_credit(1, 1_000)
    assert bench.frames(10) == 3


def test_a_paced_request_stays_within_its_lead() -> None:
    bench = Bench()
    bench.open(1, EngineOptions(lead_ms=400), text="text")
    assert bench.frames(100) == 2  # a step that it waits for, and one in flight
    for _ in range(2):  # the initial buffer of the listener
        due_at = bench.next_step_at(bench.now)
        assert due_at == pytest.approx(bench.now + GROWING_WINDOW_S)
        bench.now += GROWING_WINDOW_S + 1e-6
        assert bench.frames(100) == 1
    due_at = bench.next_step_at(bench.now)
    assert due_at is not None
    assert bench.now + GROWING_WINDOW_S < due_at <= bench.now + BATCH_WINDOW_S
    bench.now = due_at
    assert bench.frames(100) == 1
    bench.now = 10.0  # after an underrun the lead restarts: no burst to catch up
    assert bench.frames(100) == 1


def test_well_buffered_requests_share_few_steps() -> None:
    """They are batched, whenever they began, and keep their lead."""
    bench = Bench(slots=8)
    for request in range(1, 9):
        bench.now = request * 0.009
        bench.open(request, EngineOptions(lead_ms=1_000), bench.now, text="text")
        bench.go(bench.now)
    bench.go(2.0)
    steps = bench.go(4.0)
    assert len(steps) <= 2.0 / BATCH_WINDOW_S
    assert sum(map(len, steps)) == pytest.approx(8 * 2.0 / FRAME_S, abs=8)
    running = bench.admission.running
    assert all(0.88 <= request.buffered_until - bench.now <= 1.0 for request in running.values())


def test_a_request_with_little_buffered_runs_at_once() -> None:
    bench = Bench(slots=2)
    bench.open(1, EngineOptions(lead_ms=1_000), text="text")
    bench.go(2.0)
    bench.open(2, EngineOptions(lead_ms=1_000), bench.now, text="text")
    steps = bench.go(bench.now)
    assert [2] in steps  # alone, and as often as needed
    second = bench.admission.running[2]
    assert second.buffered_until - bench.now >= MIN_BUFFER_S
    assert sum(2 in step for step in bench.go(bench.now + 0.019)) <= 1  # buffered enough by now


def test_requests_with_a_minimal_lead_share_a_step_if_they_are_close() -> None:
    bench = Bench(slots=2)
    for request, at in ((1, 0.0), (2, 0.005)):
        bench.now = at
        bench.open(request, EngineOptions(lead_ms=120), at, text="text")
        bench.go(at)
    bench.go(1.0)
    assert all(sorted(step) == [1, 2] for step in bench.go(2.0))


@pytest.mark.parametrize("lead_ms", [400, 800])
def test_a_request_whose_frames_are_held_back_runs_step_by_step(lead_ms: int) -> None:
    """The row holds 64 frames until it knows whether they are speech; meanwhile the listener hears what is ahead."""
    bench, step_s, held = Bench(slots=2), 0.004, 64
    bench.open_each(1, 2, options=EngineOptions(lead_ms=lead_ms), text="text")
    bench.go(2.0)
    given = 0
    while given < held:
        due_at = bench.next_step_at(bench.now)
        assert due_at is not None
        bench.now = max(bench.now, due_at)
        step = bench.plan()
        given += 1 in step.run
        bench.now += step_s
        bench.update([Audio(2, PCM)] if 2 in step.run else [], [step], bench.now, step_s)
        bench.grant_credit(2, 2 in step.run)
        assert bench.admission.running[2].buffered_until > bench.now
    assert bench.admission.running[1].buffered_until > bench.now


@pytest.mark.parametrize("lead_ms", [0, 40, 120, 200])
def test_every_step_has_a_request(lead_ms: int) -> None:
    """A step that is due has a request that can run. A small lead is kept without underruns."""
    bench = Bench(queue_s=2.0)  # at which the engine wakes once, whether somebody waits or not
    bench.open(1, EngineOptions(lead_ms=lead_ms), text="text")
    woken, least = 0, 1.0
    while (due_at := bench.next_step_at(bench.now)) is not None and due_at < 2.0:
        bench.now = max(bench.now, due_at)
        if request := bench.admission.running.get(1):
            least = min(least, request.buffered_until - bench.now)
        woken += 1
        assert bench.frames(1) == 1
        bench.grant_credit(1, 1)
        request = bench.admission.running[1]
        assert request.buffered_until - bench.now <= max(lead_ms / 1_000, FRAME_S) + 1e-9
    assert woken <= 2.0 / FRAME_S + 3
    assert least > (lead_ms - 80) / 2_000 - 0.001 or lead_ms < 80


class TestNewcomers:
    def bench(self, speaking: int, batch_sizes: tuple[int, ...] = (1, 2, 4)) -> Bench:
        """Requests that have been speaking for a while: all can run and wait for a shared step."""
        bench = Bench(slots=8, batch_sizes=batch_sizes)
        bench.open_each(*range(1, speaking + 1), options=EngineOptions(lead_ms=5_000), text="text")
        bench.go(1.0)
        bench.now = bench._last_full_step_at + 0.015
        return bench

    def comes(self, bench: Bench, *requests: int) -> None:
        bench.open_each(*requests, options=EngineOptions(lead_ms=1_000), now=bench.now, text="text")

    def test_a_newcomer_runs_at_once_and_alone(self) -> None:
        bench = self.bench(3)
        assert bench.plan().run == []
        self.comes(bench, 4)
        assert bench.plan().run == [4]

    def test_requests_that_keep_the_batch_size_run_with_newcomers(self) -> None:
        bench = self.bench(2)
        self.comes(bench, 3, 4, 5)
        run = bench.plan().run
        assert run[:3] == [3, 4, 5]
        assert len(run) == 4

    def test_without_batch_sizes_every_request_counts_as_more_cost(self) -> None:
        bench = self.bench(2, batch_sizes=())
        self.comes(bench, 3, 4, 5)
        assert bench.plan().run == [3, 4, 5]

    def test_newcomers_do_not_stop_other_requests(self) -> None:
        """A newcomer may be tried many times while its model is loading."""
        bench = self.bench(2)
        self.comes(bench, 3)
        spoke: set[int] = set()
        for _ in range(40):
            run = bench.speak({1, 2})
            assert 3 in run
            spoke |= {*run}
            bench.now += 0.005
        assert spoke == {1, 2, 3}

    def test_newcomers_come_before_unpaced_requests(self) -> None:
        bench = Bench(slots=8, batch_sizes=(1, 2, 4))
        bench.open_each(1, 2, text="text")
        bench.step(Audio(1, PCM), Audio(2, PCM))
        self.comes(bench, 3)
        assert bench.plan().run == [3, 1, 2]

    def test_newcomers_beyond_the_batch_take_turns(self) -> None:
        bench = Bench(slots=8, queue=8, batch_sizes=(1, 2))
        self.comes(bench, 1, 2, 3)
        steps = [bench.plan() for _ in range(2)]
        assert steps[0].run == [1, 2]
        assert 3 in steps[1].run

    def test_requests_left_out_of_a_full_step_run_in_the_next_one(self) -> None:
        bench = Bench(slots=2, batch_sizes=(1,))
        self.comes(bench, 1, 2)
        bench.go(5.0)
        due_at = bench.next_step_at(bench.now)
        assert due_at is not None
        bench.now = due_at + BATCH_WINDOW_S
        assert sorted(bench.plan().run + bench.plan().run) == [1, 2]

    def test_a_request_with_its_first_frame_in_flight_is_not_a_newcomer(self) -> None:
        """Its next frame is not its first, and waits for those of others."""
        bench = self.bench(2)
        self.comes(bench, 3)
        assert bench.plan().run == [3]
        assert bench.plan().run == []
        bench.now += BATCH_WINDOW_S
        assert sorted(bench.plan().run) == [1, 2, 3]


def test_a_dry_slot_does_not_run_until_text_arrives() -> None:
    bench = Bench()
    bench.open(1, text="text")
    bench.step(OutOfText(1))
    bench.step()
    assert bench.run == []
    bench.append(1, "more")
    bench.step()
    assert bench.run == [1]


def test_a_dry_slot_without_text_starves() -> None:
    bench = Bench(text_idle_s=15.0)
    bench.open(1, text="text")
    bench.now = 3.0
    bench.step(OutOfText(1))
    assert bench.next_step_at(4.0) == 18.0
    bench.now = 18.0
    assert finished(bench.step()) == [(1, "error", "starved")]
    assert bench.load[0] == 0


def test_a_request_opened_without_text_starves_too() -> None:
    bench = Bench(text_idle_s=15.0)
    bench.open(1)
    bench.step()
    bench.now = 15.0
    assert finished(bench.step()) == [(1, "error", "starved")]


@pytest.mark.parametrize(
    ("speed", "contents", "cap"),
    [
        (1.0, ["text"], 90),
        (0.5, ["text"], 180),
        (2.0, ["text"], 90),
        (1.0, [Pause(800), Say("3", "three")], CAP_FRAMES + CAP_FRAMES_PER_CHAR * len("three") + 10),
        (1.0, ["one", Prosody(speed=0.5), Prosody(speed=2)], 2 * (CAP_FRAMES + CAP_FRAMES_PER_CHAR * len("one"))),
        (1.0, ["x" * 1_000], 300),  # no text allows more than `max_frames`
    ],
)
def test_a_runaway_ends_at_a_cap_that_grows_with_the_text(
    speed: float, contents: list[str | Directive], cap: int
) -> None:
    bench = Bench(window_frames=1_000, max_frames=300)
    bench.open(1, EngineOptions(lead_ms=None, speed=speed))
    for content in contents:
        bench.append(1, content)
    assert bench.frames(1_000) == cap
    assert finished(bench.events) == [(1, "length", None)]


def test_a_request_has_a_maximum_duration() -> None:
    bench = Bench(request_s=600.0, window_frames=3)
    bench.open(1, text="text")
    assert bench.frames(10) == 3
    bench.now = 600.1
    assert not finished(bench.step())
    bench.now = 600.25
    assert finished(bench.step()) == [(1, "length", None)]


def test_the_length_of_its_audio_does_not_count_in_the_duration_of_a_request() -> None:
    bench = Bench(request_s=1.0, window_frames=1_000)
    bench.open(1, EngineOptions(lead_ms=200))
    bench.append(1, "x" * 100)
    made = 0
    while bench.now < 8.0:
        made += bench.frames(1)
        bench.now += FRAME_S
    assert made >= 100
    assert not finished(bench.events)


def test_the_default_limits_let_the_longest_text_be_spoken() -> None:
    """Slow speech takes 0.12 s a character, twice that at half the speed."""
    limits = Limits()
    assert limits.max_frames * FRAME_S >= 0.24 * limits.text_context_chars


def test_flush_ids_come_back_in_order() -> None:
    bench = Bench()
    bench.open(1, text="a")
    bench.flush(1, "first")
    bench.flush(1, "second")
    happened = bench.step(Flushed(1, "first"), Flushed(1, "second"))
    assert [e.flush_id for e in happened if isinstance(e, Flushed)] == ["first", "second"]
    assert [type(one) for one in bench.commands[1:]] == [Append, Flush, Flush]


def test_a_failure_ends_one_request_alone() -> None:
    bench = Bench(slots=2)
    bench.open_each(1, 2, text="text")
    happened = bench.step(Finished(1, "error", code="internal", message="not finite"), Audio(2, PCM))
    assert finished(happened) == [(1, "error", "internal")]
    assert bench.load[0] == 1


def test_text_after_the_end_is_ignored() -> None:
    bench = Bench()
    bench.open(1)
    bench.end(1)
    bench.append(1, "late")
    bench.step()
    assert not [one for one in bench.commands if isinstance(one, Append)]


def test_busy_time_is_the_time_of_the_steps_of_a_request() -> None:
    bench = Bench(slots=2)
    bench.open(1, text="text")
    bench.step(Audio(1, PCM), step_s=0.002)
    bench.open(2)
    bench.step(OutOfText(1), step_s=0.003)
    bench.step(step_s=0.5)
    bench.cancel(1)
    (done,) = [e for e in bench.step() if isinstance(e, Finished)]
    assert done.busy_ms == pytest.approx(5.0)


class TestStepsInFlight:
    def test_they_use_credit_and_lead(self) -> None:
        """Neither is used twice."""
        bench = Bench(window_frames=2)
        bench.open(1, text="text")
        steps = [bench.plan() for _ in range(3)]
        assert [step.run for step in steps] == [[1], [1], []]
        bench.update([], steps, 0.0, 0.0)  # without any output
        assert bench.plan().run == [1]

    def test_a_paced_request_counts_them_in_its_lead(self) -> None:
        bench = Bench()
        bench.open(1, EngineOptions(lead_ms=400), text="text")
        assert bench.frames(2) == 2
        runs = []
        for bench.now in (0.041, 0.082, 0.123, 0.164, 0.205, 0.247):
            runs.append(bench.plan().run)
        assert runs == [[1]] * 5 + [[]]

    def test_their_duration_counts_for_each_of_their_requests(self) -> None:
        bench = Bench()
        bench.open(1, text="text")
        steps = [bench.plan(), bench.plan()]
        bench.update([], [], 0.0, 0.5)
        bench.update([], steps[:1], 0.0, 0.006)
        happened = bench.update([Finished(1, "end")], steps[1:], 0.0, 0.004)
        assert [event.busy_ms for event in happened if isinstance(event, Finished)] == [10]


def test_a_full_step_takes_newcomers_and_the_least_buffered() -> None:
    bench = Bench(slots=3, batch_sizes=(2,))
    bench.open_each(1, 2, 3, text="text")
    assert [sorted(bench.speak()) for _ in range(3)] == [[1, 2], [1, 3], [2, 3]]


@pytest.mark.parametrize("options", [UNPACED, EngineOptions(lead_ms=400)])
def test_requests_without_output_do_not_displace_those_that_speak(options: EngineOptions) -> None:
    """Requests whose model is loading, or that wait for cache blocks, give no output when they run."""
    bench, spoke = Bench(slots=4, batch_sizes=(2,)), []
    bench.open_each(1, 2, 3, 4, options=options, text="Hello")
    for _ in range(50):
        for request in {1, 2}.intersection(bench.speak({1, 2})):
            spoke.append(request)
            bench.grant_credit(request, 1)
        bench.now += 0.08
    assert spoke.count(1) > 10
    assert spoke.count(2) > 10


def test_requests_without_output_are_tried_in_turn() -> None:
    bench = Bench(slots=6, batch_sizes=(2,))
    bench.open_each(*range(1, 7), text="Hello")
    assert sorted(one for _ in range(3) for one in bench.speak(())) == [1, 2, 3, 4, 5, 6]


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of commands, engine answers and time."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(slots=3, queue=4, queue_s=2.0, text_idle_s=5.0, window_frames=4, max_frames=30)
        self.scheduler = Commanded(self.policy)
        self.now = 0.0
        self.next_request = 1
        self.open: dict[int, int] = {}  # request -> frames received and not taken
        self.made: Counter[int] = Counter()  # frames of each request that were made and not received
        self.owner: dict[int, int] = {}  # of each request
        self.since: dict[int, float] = {}  # when it began to wait
        self.impatient: set[int] = set()  # requests that may not wait
        self.paced: set[int] = set()  # requests with a pace
        self.begun: set[int] = set()  # requests that have text, a flush or their end
        self.started: list[int] = []
        self.over: set[int] = set()
        self.in_slots: set[int] = set()  # as sent to the engine
        self.under_way: list[tuple[Step, list[int]]] = []  # steps whose outputs have not arrived, and their slots

    def requests(self, data: st.DataObject) -> int:
        return data.draw(st.integers(1, max(1, self.next_request)), label="request")

    @rule(
        lead=st.sampled_from([None, 80, 400, 1_000]),
        owner=st.integers(0, 2),
        waits=st.booleans(),
        waited_s=st.sampled_from([0.0, 0.0, 0.0, 0.3, 1.9, 5.0]),
    )
    def open_request(self, lead: int | None, owner: int, waits: bool, waited_s: float) -> None:
        self.owner[self.next_request] = owner
        self.open[self.next_request] = 0
        self.since[self.next_request] = self.now - waited_s
        options = EngineOptions(lead_ms=lead)
        self.scheduler.open(self.next_request, options, self.now, owner, waits=waits, waited_ms=round(1_000 * waited_s))
        self.impatient |= set() if waits else {self.next_request}
        self.paced |= set() if lead is None else {self.next_request}
        self.next_request += 1

    @rule(data=st.data(), text=st.text(max_size=5))
    def append(self, data: st.DataObject, text: str) -> None:
        request = self.requests(data)
        self.begun |= {request} & self.open.keys()
        self.scheduler.append(request, text)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = self.requests(data)
        self.begun |= {request} & self.open.keys()
        self.scheduler.end(request)

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        request = self.requests(data)
        self.begun |= {request} & self.open.keys()
        self.scheduler.flush(request, "f")

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.scheduler.cancel(self.requests(data))

    @rule(data=st.data(), frames=st.integers(1, 6))
    def take(self, data: st.DataObject, frames: int) -> None:
        request = self.requests(data)
        frames = min(frames, self.open.get(request, 0))
        if frames:
            self.open[request] -= frames
            self.scheduler.grant_credit(request, frames)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.08, 0.5, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        step = self.scheduler.schedule(self.now)
        free = self.policy.slots - self.scheduler.load[0]
        assert not (free and self.scheduler.load[1]), "a slot is free and a request waits"
        waiting = {request.id for queue in self.scheduler.admission.waiting.values() for request in queue}
        assert not self.impatient & waiting - set(self.started), "a request waits that may not"
        for message in step.commands:
            if isinstance(message, Open):
                assert len(self.in_slots) < self.policy.slots, "no slot is free"
                self.in_slots.add(message.id)
            elif isinstance(message, Cancel):
                self.in_slots.remove(message.id)
            else:
                assert message.id in self.in_slots, "text of a request without a slot"
        before = [request.id for step, _ in self.under_way for request in step.requests]
        for request in step.requests:
            assert request.id in self.in_slots
            unheard = self.open[request.id] + self.made[request.id] + before.count(request.id)
            assert unheard < self.policy.window_frames, "ran without credit"
        done, self.under_way = [*self.under_way, (step, step.run)], []
        if data.draw(st.booleans(), label="late"):
            self.under_way = [done.pop()]
        outputs: list[StepEvent] = []
        ended: set[int] = set()
        for speaker in [speaker for _, run in done for speaker in run]:
            kind = data.draw(st.sampled_from(["frame"] * 4 + ["starved", "done", "failed", "nothing"]), label="kind")
            if kind == "frame":
                outputs.append(Audio(speaker, PCM))
                self.made[speaker] += speaker in self.scheduler.admission.requests and speaker not in ended
            elif kind == "starved":
                outputs.append(OutOfText(speaker))
            ended |= {speaker} if kind in ("done", "failed") else set()
            if kind == "done":
                outputs.append(Finished(speaker, "end"))
            elif kind == "failed":
                outputs.append(Finished(speaker, "error", code="internal", message="x"))
            outputs.append(Audio(0, PCM))  # of an earlier speaker
        for event in self.scheduler.update(outputs, [step for step, _ in done], self.now, 0.001):
            self.see(event)

    def see(self, event: RequestEvent) -> None:
        assert not isinstance(event, EngineReady | EnginePong | EngineLoad)
        assert event.id not in self.over, "an event after the end"
        if isinstance(event, Started):
            assert event.id not in self.started, "started twice"
            earlier = [
                other
                for other in self.open.keys() - set(self.started)
                if self.owner[other] == self.owner[event.id]
                and (self.since[other], other) < (self.since[event.id], event.id)
                and (other in self.paced or event.id not in self.paced)  # somebody listens live
            ]
            assert not self.begun.intersection(earlier), "not first in, first out for one owner"
            assert event.id in self.begun or not earlier, "overtaken without text"
            self.started.append(event.id)
        elif isinstance(event, Audio):
            assert event.id in self.started
            frames = len(event.payload) // FRAME_BYTES
            self.open[event.id] += frames
            self.made[event.id] -= frames
            assert frames <= MAX_HELD
        elif isinstance(event, Finished):
            if event.gave_way:
                assert event.code in ("starved", "at_capacity")
                assert event.id in self.started
            if event.code == "at_capacity":
                assert 100 <= (event.retry_after_ms or 0) <= 30_000
            self.over.add(event.id)
            assert event.reason == "cancelled" or not self.made[event.id], "a frame was not told"
            del self.open[event.id]

    @invariant()
    def runnable_at_follows_from_the_lead(self) -> None:
        for request in self.scheduler.admission.running.values():
            lead_ms = request.options.lead_ms
            if lead_ms is None or not (request.frames or request.in_flight):
                assert request.runnable_at == -math.inf
            else:
                due_at = request.buffered_until + FRAME_S * (1 + request.in_flight) - lead_ms / 1_000
                assert request.runnable_at == pytest.approx(due_at, abs=1e-9)

    @invariant()
    def counts_add_up(self) -> None:
        assert 0 <= self.scheduler.load[0] <= self.policy.slots
        assert self.scheduler.load[1] <= self.policy.queue + self.policy.slots
        due_at = self.scheduler.next_step_at(self.now)
        if self.open:
            assert due_at is not None, "a request is open and no step is due"
        holding = [request for request in self.scheduler.admission.running.values() if request.held]
        latest = min(map(_held_until, holding), default=math.inf)
        assert latest == math.inf or (due_at or 0.0) <= latest, "frames are held for too long"
        held = Counter(request.owner for request in self.scheduler.admission.running.values())
        assert held == self.scheduler.admission.held
        waiting = [request for queue in self.scheduler.admission.waiting.values() for request in queue]
        parked = [request for request in self.scheduler.admission.requests.values() if request.parked]
        places = [*self.scheduler.admission.running.values(), *waiting, *parked, *self.scheduler.admission._returning]
        assert sorted(request.id for request in places) == sorted(self.scheduler.admission.requests), (
            "a request has no place"
        )

    def teardown(self) -> None:
        for request in range(1, self.next_request):
            self.scheduler.cancel(request)
        last = self.scheduler.schedule(self.now)
        for event in self.scheduler.update([], [*(step for step, _ in self.under_way), last], self.now, 0.0):
            self.see(event)
        assert self.over == set(range(1, self.next_request)), "not every request ended"
        assert self.scheduler.load[0] == self.scheduler.load[1] == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = examples(80, stateful_step_count=60)
