"""When a refused request may come again: by the text of those that speak, and by how long earlier ones lasted."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_tts.engine.estimates import Estimates, Slots
from agent_tts.engine.requests import Policy, Request
from agent_tts.messages import Open
from agent_tts.options import EngineOptions

NOW = 10.0
TEXT = {"chars": 200, "ended": True, "has_text": True}  # 13 s of speech, if nothing is known of it


def request(speed: float = 1.0, lead_ms: int | None = None, **fields: Any) -> Request:
    made = Request(Open(1, EngineOptions(speed=speed, lead_ms=lead_ms)), 0.0, 1)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def make(*running: Request, idle_at: float = NOW + 1, queue_s: float = 60.0, free: int = 0) -> tuple[Estimates, Any]:
    slots = SimpleNamespace(policy=Policy(1, 1, queue_s=queue_s), running=dict(enumerate(running)), waiting={})
    slots.held, slots.free, slots.idle_at = Counter(), free, lambda idle: idle_at if idle in running else 0.0
    return Estimates(cast(Slots, slots)), slots


@pytest.mark.parametrize(
    ("fields", "wait_ms"),
    [
        (TEXT, 13_000),
        (TEXT | {"frames": 100}, 5_000),  # no faster than it was heard
        (TEXT | {"frames": 100, "admitted_at": 5.0}, 3_125),  # as fast as it was made
        (TEXT | {"speed": 2.0}, 6_500),
        (TEXT | {"lead_ms": 1_000, "buffered_until": NOW + 0.5}, 12_500),
        (TEXT | {"lead_ms": 1_000, "buffered_until": 0.0}, 12_000),
        (TEXT | {"lead_ms": 20_000}, 100),
        (TEXT | {"chars": 10, "frames": 100}, 800),  # a tenth longer than it is
        (TEXT | {"chars": 1, "frames": 4}, 100),
        (TEXT | {"chars": 30, "ended": False}, 10_000),  # as long again as it has lasted
        (TEXT | {"ended": False}, 13_000),
        ({"idle": NOW}, 100),
        ({"idle": NOW + 1, "admitted_at": 4.0}, 6_000),
    ],
)
def test_a_slot_comes_free_when_its_text_is_spoken(fields: dict[str, Any], wait_ms: int) -> None:
    fields = dict(fields)
    idle_at = fields.pop("idle", NOW + 1)
    estimates, _ = make(request(**fields), request(**TEXT | {"chars": 400}), idle_at=idle_at)
    assert estimates.retry_ms(1, NOW) == wait_ms


@pytest.mark.parametrize(
    ("chars", "frames", "speed", "wait_ms"),
    [(500, 625, 1.0, 17_000), (2_000, 2_500, 1.0, 20_000), (4_000, 2_500, 2.0, 20_000)],
)
def test_the_speech_of_a_character_is_that_of_the_last_texts(
    chars: int, frames: int, speed: float, wait_ms: int
) -> None:
    """100 ms of speech a character; the four times `CHARS` characters count."""
    estimates, _ = make(request(**TEXT))
    estimates.learn(request(speed, chars=chars, frames=frames))
    assert estimates.retry_ms(1, NOW) == wait_ms


def test_those_ahead_are_served_first_unless_they_give_up_or_have_more() -> None:
    for ahead, queue_s, held, kept, wait_ms in (
        (1, 60.0, 0, (5.0,), 18_000),
        (3, 60.0, 0, (5.0,), 28_000),
        (1, 60.0, 0, (), 26_000),
        (1, 2.0, 0, (5.0,), 13_000),
        (1, 60.0, 1, (5.0,), 13_000),
    ):
        estimates, slots = make(request(**TEXT), queue_s=queue_s)
        for seconds in kept:
            estimates.forecast.ended(seconds)
        slots.waiting[2] = deque([request(waits_since=9.0)] * ahead)
        slots.held[2] = held
        assert estimates.retry_ms(1, NOW) == wait_ms


def test_a_slot_that_is_free_is_for_the_one_ahead() -> None:
    estimates, slots = make(request(**TEXT), free=1)
    slots.waiting[2] = deque([request(waits_since=9.0)])
    assert estimates.retry_ms(1, NOW) == 13_000 - 6_500  # the one ahead speaks as long as a slot is taken, on average


def test_each_of_several_is_told_to_come_for_another_slot() -> None:
    """Within one estimate and over several, until they come. Mutation: the first slot that comes free, for all."""
    running = [request(**TEXT | {"chars": chars}) for chars in (100, 200, 300)]
    for seconds in (0.0, 0.2):
        estimates, slots = make(*running)
        slots.policy = replace(slots.policy, queue=10)
        estimates._coming = deque(maxlen=10)
        for _ in running:
            estimates.forecast.ended(20.0)
        told = [estimates.retry_ms(1, NOW + seconds * count) for count in range(5)]
        assert told == [6_500, 13_000, 19_500, 26_500, 30_000]
    assert estimates.retry_ms(1, NOW + 40.0) == 6_500, "those who were told have come, or never will"


def test_those_who_do_not_come_again_are_counted_up_to_all_places() -> None:
    """Someone in a loop makes nobody wait for longer, and one who has more slots makes nobody with fewer wait."""
    estimates, slots = make(request(**TEXT), queue_s=60.0)
    slots.policy = replace(slots.policy, slots=3, queue=2)
    estimates = Estimates(cast(Slots, slots))
    for _ in range(3):
        estimates.forecast.ended(1.0)
    for _ in range(100):
        estimates.retry_ms(7, NOW)
    assert estimates.retry_ms(1, NOW + 0.1) <= 13_000 + 6 * 1_000
    slots.held[7] = 1
    estimates.retry_ms(7, NOW + 0.2)
    assert estimates.retry_ms(1, NOW + 0.4) == 13_000 + 1_000, "behind itself alone"


def test_the_shortest_end_first_so_the_first_ends_tell_little() -> None:
    """Mutation: their mean, as soon as there is one."""
    estimates, _ = make(*[request(**TEXT)] * 4)
    estimates.forecast.ended(0.2)
    told = [estimates.retry_ms(1, NOW) for _ in range(5)]
    assert told == [13_000] * 4 + [26_000]
