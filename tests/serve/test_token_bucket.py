from __future__ import annotations

from agent_tts.serve.token_bucket import TokenBucket


def test_a_burst_may_come_at_once_and_no_more_after_a_long_rest() -> None:
    bucket = TokenBucket(2.0, 4.0, 0.0)
    for now in (0.0, 60.0):
        assert bucket.allows(now, 4)
        assert not bucket.allows(now)
    assert not bucket.allows(60.25)
    assert bucket.allows(60.5)


def test_what_comes_too_early_is_told_in_seconds_and_counts() -> None:
    bucket = TokenBucket(2.0, 4.0, 0.0)
    assert [bucket.take(0.0, count) for count in (3, 1, 1, 1)] == [0.0, 0.0, 0.5, 1.0]
    assert (bucket.take(1.0, 0), bucket.left(1.5)) == (0.0, 1.0)
    bucket.take(2.0)
    assert bucket.left(9.0) == 4.0
