"""The counts of a node with several fronts: none is exceeded, lost or left behind, whatever happens to the fronts."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_tts.config.settings import Settings
from agent_tts.errors import AtCapacity, RateLimited, Unauthorized
from agent_tts.ipc.front_messages import Claim, Place, Token
from agent_tts.serve.access.keys import Keys
from agent_tts.serve.access.ledger import MAX_CLIPS, MAX_UPLOADS, REQUESTS_RETRY_MS, Ledger
from tests.examples import examples

FRONTS = 3


def make(**values: Any) -> Ledger:
    return Ledger(Settings(**values))


# ---------------------------------------------------------------- by example


@pytest.mark.parametrize("place", ["new voices", "clips", "whole files", "long bodies"])
def test_one_key_leaves_a_place_to_others(place: Place) -> None:
    """Four uploads at 128 KiB/s would keep all others from adding voices."""
    ledger = make(auth={"api_keys": ["a", "b"]})
    most = ledger._most[place][0]
    for number in range(most - 1):
        ledger.admit(0, Claim(number, "a", place=place, session=False), 0.0)
    with pytest.raises(AtCapacity):
        ledger.admit(1, Claim(1, "a", place=place, session=False), 0.0)
    ledger.admit(1, Claim(2, "b", place=place, session=False), 0.0)
    ledger.lose(0)
    assert ledger.taken(place) == 1
    alone = make(auth={"api_keys": ["a"]})
    for number in range(most):
        alone.admit(0, Claim(number, "a", place=place, session=False), 0.0)


def test_a_key_is_the_same_owner_on_all_fronts_and_keyless_sessions_are_one_each() -> None:
    ledger = make()
    numbers = [ledger.admit(front, Claim(1, key), 0.0) for front in range(3) for key in ("a", "b")]
    assert numbers == [numbers[0], numbers[1]] * 3
    assert ledger.admit(0, Claim(9, "a", Token("t", 60.0)), 0.0) == numbers[0]
    others = [ledger.admit(front, Claim(number), 0.0) for front in range(3) for number in (2, 3)]
    assert len({0, *numbers, *others}) == 1 + 2 + 6


def test_a_token_is_good_again_if_its_client_never_heard_that_it_was_taken() -> None:
    ledger, token = make(), Token("t", 60.0)
    ledger.admit(0, Claim(1, "a", token), 0.0)
    ledger.release(0, 1, 1.0, unused=True)
    ledger.admit(1, Claim(1, "a", token), 2.0)


def test_used_tokens_are_kept_until_they_expire_and_not_for_ever() -> None:
    ledger = make()
    for second in range(1_000):
        ledger.admit(0, Claim(second, "a", Token(str(second), second + 60.0), session=False), float(second))
    assert len(ledger._used) <= 61
    ledger.release(0, 0, 1_000.0, unused=True)


@pytest.mark.parametrize(
    ("place", "most", "refused"),
    [
        ("WebRTC peers", 2, r" 2 WebRTC peers .*\(limits.rtc_peers\)"),
        ("calls", 3, r" 3 calls .*\(agent.calls\)"),
        ("new voices", MAX_UPLOADS, " 4 new voices "),
        ("clips", MAX_CLIPS, " 5 clips "),
    ],
)
def test_places_do_not_count_as_sessions(place: Place, most: int, refused: str) -> None:
    ledger = make(limits={"connections": 1, "rtc_peers": 2}, agent={"calls": 3})
    ledger.admit(0, Claim(0), 0.0)
    for number in range(most):
        ledger.admit(number % 2, Claim(number + 1, place=place, session=False), 0.0)
    with pytest.raises(AtCapacity, match=refused):
        ledger.admit(1, Claim(9, place=place, session=False), 0.0)
    assert (ledger.sessions, ledger.taken(place), ledger.taken(place, 1)) == (1, most, most // 2)


def test_a_refused_client_is_told_when_a_session_will_end() -> None:
    """The first of those that are in its way: here the older one, by how long others lasted."""
    ledger = make(limits={"sessions_per_key": 1})
    ledger.admit(0, Claim(1, "a"), 0.0)
    with pytest.raises(AtCapacity) as first:  # it may last as long again
        ledger.admit(0, Claim(2, "a"), 4.0)
    assert first.value.retry_after_ms == 4_000
    ledger = make(limits={"sessions_per_key": 2})
    for number in range(9):
        ledger.admit(0, Claim(number, "a"), 100.0)
        ledger.release(0, number, 110.0)
    ledger.admit(0, Claim(10, "a"), 200.0)
    ledger.admit(0, Claim(11, "a"), 203.0)
    with pytest.raises(AtCapacity) as refused:
        ledger.admit(0, Claim(12, "a"), 204.0)
    assert refused.value.retry_after_ms == 6_000


def test_a_refusal_counts_nothing() -> None:
    """A session that finds its place but not its key's room leaves the place."""
    ledger, token = make(limits={"sessions_per_key": 1, "token_sessions_per_key": None}), Token("t", 60.0)
    ledger.admit(0, Claim(1, "a"), 0.0)
    with pytest.raises(AtCapacity):
        ledger.admit(0, Claim(2, "a", token, "calls"), 0.0)
    assert (ledger.sessions, ledger.taken("calls")) == (1, 0)
    ledger.release(0, 1, 1.0)
    ledger.admit(0, Claim(3, "a", token, "calls"), 1.0)


def test_a_client_of_one_front_gets_its_rate_there() -> None:
    """Others keep what they took before: a tenth of what was left, once."""
    ledger = make(limits={"requests_per_s": 100})
    idle = [ledger.requests("a", 0.0, several=True) for _ in range(7)]
    assert idle == [50, 45, 40, 36, 32, 29, 26]
    assert ledger.requests("a", 0.0, several=False) == 1
    allowed = 0
    for millisecond in range(0, 20_000, 10):
        if not allowed:
            allowed += ledger.requests("a", millisecond / 1_000, several=True)
        allowed -= 1


def test_all_fronts_together_give_a_key_its_rate_and_no_more() -> None:
    ledger = make(limits={"requests_per_s": 100})
    granted = 0
    for millisecond in range(10_000):
        with contextlib.suppress(RateLimited):
            granted += ledger.requests("a", millisecond / 1_000, several=True)
    assert 1_490 <= granted <= 1_500  # 5 s at once, and 10 s


def test_a_key_with_a_low_rate_may_send_one_request_at_once() -> None:
    ledger = make(limits={"requests_per_s": 0.1})
    assert ledger.requests("a", 0.0, several=True) == 1
    with pytest.raises(RateLimited) as refused:
        ledger.requests("a", 0.0, several=True)
    assert refused.value.retry_after_ms == 10_000
    with pytest.raises(RateLimited) as refused:
        ledger.requests("a", 9.99, several=True)
    assert refused.value.retry_after_ms == REQUESTS_RETRY_MS
    assert ledger.requests("a", 10.0, several=True) == 1


@pytest.mark.parametrize(
    ("settings", "rate"), [({}, 512), ({"slots": 880}, 2_640), ({"slots": 880, "engines": 2}, 5_280)]
)
def test_one_key_may_ask_for_all_that_the_engines_have_room_for(settings: dict[str, Any], rate: int) -> None:
    """A service has one key. Those who were refused within a second are let in together when they are told to come."""
    ledger = Ledger(Settings(**settings))
    for _ in range(5 * rate):
        ledger.requests("a", 0.0, several=False)
    for _ in range(rate):
        with pytest.raises(
            RateLimited, match=rf"at most {rate} requests a second \(limits.requests_per_s\)"
        ) as refused:
            ledger.requests("a", 0.0, several=False)
    again = (refused.value.retry_after_ms or 0) / 1_000  # pyrefly: ignore[unbound-name]
    assert again == 1
    for _ in range(rate):
        ledger.requests("a", again, several=False)
    ledger.requests(None, again, several=False)
    ledger.configure(Settings(**settings, limits={"requests_per_s": 1}))
    ledger.requests("a", again, several=False)


def named(**values: Any) -> tuple[Ledger, str]:
    """A ledger with one key, called shop, and its id."""
    limits = {"token_sessions_per_key": 9}  # which does not count for a key with a number of its own
    settings = Settings(auth={"keys": {"shop": {"key": "k", **values}}}, limits=limits)
    (key_id,) = Keys(settings.auth).ids
    return Ledger(settings), key_id


def test_a_key_may_have_all_sessions_unless_the_operator_says_otherwise() -> None:
    ledger = make(limits={"connections": 20})
    for number in range(20):
        ledger.admit(0, Claim(number, "a", Token(str(number), 60.0) if number % 2 else None), 0.0)
    with pytest.raises(AtCapacity, match=r"20 sessions are open on this node \(limits.connections\)"):
        ledger.admit(0, Claim(20, "b"), 0.0)


def test_a_named_key_has_its_own_number_of_sessions_those_of_its_tokens_included() -> None:
    ledger, shop = named(sessions=2)
    ledger.admit(0, Claim(1, shop), 0.0)
    ledger.admit(1, Claim(1, shop, Token("t", 60.0)), 0.0)
    with pytest.raises(AtCapacity, match=r"2 sessions are open with this key \(auth.keys.shop.sessions\)") as refused:
        ledger.admit(2, Claim(1, shop), 0.0)
    assert refused.value.retry_after_ms
    ledger.release(1, 1, 1.0)
    ledger.admit(2, Claim(2, shop), 1.0)


def test_the_tokens_of_a_key_have_a_limit_of_their_own() -> None:
    ledger = make(limits={"sessions_per_key": 1, "token_sessions_per_key": 2})
    ledger.admit(0, Claim(1, "a"), 0.0)
    for number in (2, 3):
        ledger.admit(0, Claim(number, "a", Token(str(number), 60.0)), 0.0)
    for token, setting in ((None, "limits.sessions_per_key"), (Token("4", 60.0), "limits.token_sessions_per_key")):
        with pytest.raises(AtCapacity, match=setting):
            ledger.admit(0, Claim(4, "a", token), 0.0)


def test_the_characters_of_a_key_are_exact_over_a_time() -> None:
    """A text that is longer than what is left is waited for afterwards; the fronts need not know of one another."""
    ledger, shop = named(characters_per_minute=600)
    free_at, spoken, now = 0.0, 0, 0.0
    while now < 3_600:
        if now >= free_at:
            free_at = ledger.spend(shop, 350, now)
            spoken += 350
        now += 0.5
    assert 600 + 60 * 600 <= spoken <= 600 + 60 * 600 + 350
    assert ledger.spend("another", 10**9, now) == now


def test_new_limits_count_from_now_on() -> None:
    ledger = make(limits={"sessions_per_key": 2})
    ledger.admit(0, Claim(1, "a"), 0.0)
    ledger.admit(0, Claim(2, "a"), 0.0)
    ledger.configure(Settings(limits={"sessions_per_key": 1}))
    ledger.release(0, 1, 1.0)
    with pytest.raises(AtCapacity):
        ledger.admit(0, Claim(3, "a"), 1.0)
    ledger.release(0, 2, 1.0)
    ledger.admit(0, Claim(3, "a"), 1.0)


# ---------------------------------------------------------------- by any course of events

LIMITS = {"connections": 6, "sessions_per_key": 2, "token_sessions_per_key": 3, "rtc_peers": 2}
MOST: dict[Place, int] = {"WebRTC peers": 2, "calls": 1, "new voices": MAX_UPLOADS}
SETTINGS = Settings(limits=LIMITS, agent={"calls": 1})

fronts = st.integers(0, FRONTS - 1)
keys = st.sampled_from(["a", "b", None])


class Course(RuleBasedStateMachine):
    """Fronts that ask, give up, end and die; `open` is what they know of themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(SETTINGS)
        self.now = 0.0
        self.numbers = 0
        self.open: list[dict[int, Claim]] = [{} for _ in range(FRONTS)]
        self.tokens = 0
        self.used: set[Token] = set()

    def ask(self, front: int, key: str | None, token: Token | None, place: Place | None, *, session: bool) -> None:
        self.numbers += 1
        claim = Claim(self.numbers, key, token, place, session)
        before = self.counts()
        try:
            self.ledger.admit(front, claim, self.now)
        except AtCapacity:
            assert self.counts() == before
            assert self.is_full(claim)
        except Unauthorized:
            assert self.counts() == before
            assert token in self.used
        else:
            assert token not in self.used
            assert not self.is_full(claim)
            self.open[front][claim.number] = claim
            if token is not None:
                self.used.add(token)

    def counts(self) -> tuple[int, ...]:
        return self.ledger.sessions, *(self.ledger.taken(place) for place in MOST)

    def claims(self) -> list[Claim]:
        return [claim for front in self.open for claim in front.values()]

    def is_full(self, claim: Claim) -> bool:
        """Whether one more claim like this is too many: recounted from what the fronts have."""
        have = self.claims()
        if claim.place is not None and sum(each.place == claim.place for each in have) >= MOST[claim.place]:
            return True
        sessions = [each for each in have if each.session]
        like = [each for each in sessions if (each.key_id, each.token is None) == (claim.key_id, claim.token is None)]
        most = LIMITS["sessions_per_key" if claim.token is None else "token_sessions_per_key"]
        of_key = claim.key_id is not None and len(like) >= most
        return claim.session and (len(sessions) >= LIMITS["connections"] or of_key)

    @rule(front=fronts, key=keys, place=st.sampled_from([None, "WebRTC peers", "calls"]))
    def opens_a_session(self, front: int, key: str | None, place: Place | None) -> None:
        self.ask(front, key, None, place, session=True)

    @rule(front=fronts)
    def takes_a_place(self, front: int) -> None:
        self.ask(front, None, None, "new voices", session=False)

    @rule(front=fronts, key=st.sampled_from(["a", "b"]), again=st.booleans(), data=st.data())
    def comes_with_a_token(self, front: int, key: str, again: bool, data: st.DataObject) -> None:
        if again and self.used:
            token = data.draw(st.sampled_from(sorted(self.used, key=lambda each: each.id)))
        else:
            self.tokens += 1
            token = Token(str(self.tokens), self.now + 60.0)
        self.ask(front, key, token, None, session=True)

    @precondition(lambda self: any(self.open))
    @rule(data=st.data(), unused=st.booleans(), twice=st.booleans())
    def leaves(self, data: st.DataObject, unused: bool, twice: bool) -> None:
        """A client leaves, or had left before the answer came."""
        front = data.draw(st.sampled_from([number for number in range(FRONTS) if self.open[number]]))
        number = data.draw(st.sampled_from(sorted(self.open[front])))
        claim = self.open[front].pop(number)
        if unused and claim.token is not None:
            self.used.remove(claim.token)
        for _ in range(1 + twice):
            self.ledger.release(front, number, self.now, unused=unused)

    @rule(front=fronts)
    def dies(self, front: int) -> None:
        self.ledger.lose(front)
        for number in self.open[front]:
            self.ledger.release(front, number, self.now)
        self.open[front].clear()

    @rule(front=fronts)
    def gives_up_what_was_refused(self, front: int) -> None:
        self.numbers += 1
        self.ledger.release(front, self.numbers, self.now, unused=True)

    @rule(seconds=st.sampled_from([0.0, 0.5, 20.0, 100.0]))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_what_is_open(self) -> None:
        have = self.claims()
        assert self.ledger.sessions == sum(claim.session for claim in have)
        for place in MOST:
            assert self.ledger.taken(place) == sum(claim.place == place for claim in have)

    def teardown(self) -> None:
        for front in range(FRONTS):
            self.dies(front)
        assert not any(self.counts())
        assert not any(self.ledger._open.values())


TestCourse = Course.TestCase
TestCourse.settings = examples(100, stateful_step_count=40)
