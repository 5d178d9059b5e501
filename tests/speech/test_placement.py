from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_tts.speech.engine_handle import load
from tests.examples import examples

LOADS = st.lists(st.builds(load, st.integers(0, 300), st.integers(1, 64), st.integers(0, 128)), min_size=1, max_size=8)
KINDS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4)


@examples(200)
@given(LOADS)
def test_the_smallest_share_wins_among_engines_that_are_not_full(loads: list[tuple[bool, float]]) -> None:
    """Fails if only shares are compared, as a long queue makes room at a high share; or counts instead of shares."""
    is_full, chosen = min(loads)
    open_ = [share for is_full, share in loads if not is_full]
    assert is_full is not bool(open_)
    assert not open_ or chosen == min(open_)
    assert chosen < 1 or all(share >= 1 for _, share in loads)


@examples(200)
@given(KINDS)
def test_every_place_is_filled_before_a_request_is_refused(kinds: list[tuple[int, int]]) -> None:
    counts = [0] * len(kinds)
    for _ in range(sum(slots + queue for slots, queue in kinds)):
        loads = [load(count, *kind) for count, kind in zip(counts, kinds, strict=True)]
        is_full, _ = min(loads)
        assert not is_full
        counts[loads.index(min(loads))] += 1
    assert counts == [slots + queue for slots, queue in kinds]


def test_one_of_two_slots_in_use_is_a_share_of_one_half() -> None:
    assert load(2, 4, 8) == load(1, 2, 4) == (False, 0.5)
