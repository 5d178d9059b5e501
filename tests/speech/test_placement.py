"""Which engine takes a new stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_tts.speech.placement import Load, least_loaded

LOADS = st.lists(st.builds(Load, st.integers(0, 300), st.integers(1, 64), st.integers(0, 128)), min_size=1, max_size=8)
KINDS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4)


@given(LOADS)
def test_a_full_engine_is_chosen_only_when_all_are(loads: list[Load]) -> None:
    """Compare shares alone to see it fail: a long queue makes room at a high share."""
    chosen = loads[least_loaded(loads)]
    assert not chosen.is_full or all(load.is_full for load in loads)


@given(LOADS)
def test_no_stream_waits_while_a_slot_is_free(loads: list[Load]) -> None:
    """Compare counts instead of shares to see it fail."""
    chosen = loads[least_loaded(loads)]
    assert chosen.share < 1 or all(load.share >= 1 for load in loads)


@given(LOADS)
def test_among_those_that_are_not_full_the_smallest_share_is_chosen(loads: list[Load]) -> None:
    place = least_loaded(loads)
    open_ = [load.share for load in loads if not load.is_full]
    assert not open_ or loads[place].share == min(open_)


@given(KINDS)
def test_one_stream_after_the_other_fills_every_place_before_one_is_refused(kinds: list[tuple[int, int]]) -> None:
    counts = [0] * len(kinds)
    for _ in range(sum(slots + queue for slots, queue in kinds)):
        loads = [Load(count, *kind) for count, kind in zip(counts, kinds, strict=True)]
        place = least_loaded(loads)
        assert not loads[place].is_full
        counts[place] += 1
    assert counts == [slots + queue for slots, queue in kinds]


def test_of_equals_the_first_is_chosen() -> None:
    assert least_loaded([Load(2, 4, 8), Load(1, 2, 4)]) == 0
