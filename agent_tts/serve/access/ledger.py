"""What a node counts as a whole, whichever front has it: sessions, places, used tokens, rates, owners. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from agent_tts.config.settings import Settings
from agent_tts.errors import AtCapacity, RateLimited, Unauthorized, at_capacity
from agent_tts.forecast import Forecast, retry_ms
from agent_tts.ipc.front_messages import Claim, Place, Token
from agent_tts.serve.access.fleet_counts import spend
from agent_tts.serve.access.keys import Keys
from agent_tts.serve.fronts import connections, requests_per_s, rtc_peers
from agent_tts.serve.token_bucket import TokenBucket

MAX_UPLOADS = 4  # bodies with a new voice, received at once; each is kept in memory
MAX_LONG_BODIES = 16  # with a file or a list, that come or wait to be parsed; each is kept in memory
MAX_WHOLE_FILES = 4  # that are sent when they are complete; each is kept in memory
MAX_CLIPS = 5  # that are made into voices, or wait for it; each takes seconds

REQUESTS_BURST_S = 5.0  # of requests at once
REQUESTS_RETRY_MS = 1_000  # or longer: in this time there is room for those who were refused within a second
# A front takes this part of what a key has left, so that it need not ask for each request. What lies unused on other
# fronts is missing to the key: a tenth each leaves most of it where its requests are.
ALLOWANCE = 10

NO_TOKEN = "the token is unknown, used or expired: POST /v1/tokens gives a new one"

# Whose sessions count together: a key's own, those of its tokens, or all where there are no keys.
_Group = tuple[str | None, bool]


class Ledger:
    """The counts of one node, whose fronts are numbers from 0. The caller passes the time, in seconds.

    What is granted belongs to a front, and ends with it.
    """

    def __init__(self, settings: Settings) -> None:
        # What was granted to each front, by number: the claim, and the group of its session, if it has one.
        self._granted: defaultdict[int, dict[int, tuple[Claim, _Group | None]]] = defaultdict(dict)
        # Since when each session is open, oldest first, by front and number; and how long earlier ones lasted.
        self._open: defaultdict[_Group, dict[tuple[int, int], float]] = defaultdict(dict)
        # Sessions and requests that are open on all fronts.
        self.sessions = 0
        self._forecast = Forecast()
        self._places: Counter[Place] = Counter()
        self._places_of: Counter[tuple[Place, str | None]] = Counter()  # by key, too
        # Tokens that were used, by their ids, until they expire. The first to have been used is the first.
        self._used: dict[str, float] = {}
        # Numbers of keys, for the engine, which gets no key; and of sessions without one.
        self._owners: dict[str, int] = {}
        self._numbers = itertools.count(1)
        # What each key may still send: requests, and characters where they are limited.
        self._requests: dict[str | None, TokenBucket] = {}
        self._characters: dict[str | None, TokenBucket] = {}
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the limits of these settings. What is open stays open."""
        self._limits = settings.limits
        self._keys = Keys(settings.auth)
        self._shared = len([*self._keys.ids]) > 1  # there are others than a key
        self._connections = connections(settings)
        self._requests_per_s = requests_per_s(settings)
        # How many places of each kind there are, and the setting that says so.
        self._most: dict[Place, tuple[int, str | None]] = {
            "WebRTC peers": (rtc_peers(settings), "limits.rtc_peers"),
            "calls": (settings.agent.calls, "agent.calls"),
            "new voices": (MAX_UPLOADS, None),
            "clips": (MAX_CLIPS, None),
            "whole files": (MAX_WHOLE_FILES, None),
            "long bodies": (MAX_LONG_BODIES, None),
        }
        self._requests.clear()
        self._characters.clear()

    def shared(self, front: int, number: int) -> tuple[str, int, str] | None:
        """The group of a session that was granted, and how many it may have of what; None where that has no limit."""
        _, group = self._granted[front].get(number, (None, None))
        most, what = (None, "") if group is None else self._limit(group)
        return None if group is None or most is None else (_name(group), most, what)

    def shared_sessions(self) -> dict[str, int]:
        """Open sessions of each group that has a limit."""
        return {
            _name(group): len(sessions) for group, sessions in self._open.items() if self._limit(group)[0] is not None
        }

    def has(self, front: int, number: int) -> bool:
        """Whether a claim is granted now."""
        return number in self._granted[front]

    def taken(self, place: Place, front: int | None = None) -> int:
        """Places of a kind that are taken now, by one front or by all."""
        if front is None:
            return self._places[place]
        return sum(claim.place == place for claim, _ in self._granted[front].values())

    def admit(self, front: int, claim: Claim, now: float) -> int:
        """Grant a claim, whole or not at all, and use up its token. Returns its owner.

        The owner is for `SpeechService.open`: a key with all that its tokens open; without keys, each session.

        Raises:
            AtCapacity: at a limit of the key or the node; the token stays good.
            Unauthorized: the token was used meanwhile.
        """
        if claim.place is not None and not self._has_room(claim.place, claim.key_id):
            raise at_capacity(claim.place, *self._most[claim.place])
        group = self._group_with_room(claim, now) if claim.session else None
        if claim.token is not None:
            self._use(claim.token, now)
        self._granted[front][claim.number] = claim, group
        if claim.place is not None:
            self._places[claim.place] += 1
            self._places_of[claim.place, claim.key_id] += 1
        if group is not None:
            self._open[group][front, claim.number] = now
            self.sessions += 1
        return self._owner(claim.key_id)

    def release(self, front: int, number: int, now: float, *, unused: bool = False) -> None:
        """End what a claim was granted, if it was.

        Args:
            unused: the front had given the claim up before it was granted: its token is good again.
        """
        claim, group = self._granted[front].pop(number, (None, None))
        if claim is None:
            return
        since = self._end(front, claim, group)
        if unused:
            if claim.token is not None:
                self._used.pop(claim.token.id, None)
        elif since is not None:
            self._forecast.ended(now - since)

    def lose(self, front: int) -> None:
        """A front is gone: all that it was granted ends."""
        for claim, group in self._granted.pop(front, {}).values():
            self._end(front, claim, group)

    def requests(self, key_id: str | None, now: float, *, several: bool) -> int:
        """Requests that a key may send now: one, or as many as a front takes at a time.

        Raises `RateLimited` if the key sends too many.
        """
        rate = self._requests_per_s
        bucket = self._requests.setdefault(key_id, TokenBucket(rate, max(1.0, rate * REQUESTS_BURST_S), now))
        count = max(1, int(bucket.left(now)) // ALLOWANCE) if several else 1
        if not bucket.allows(now, count):
            why = f"at most {rate:g} requests a second (limits.requests_per_s): try again"
            wait_ms = math.ceil(1_000 * (1 - bucket.left(now)) / rate)
            raise RateLimited(why, retry_after_ms=max(REQUESTS_RETRY_MS, wait_ms))
        return count

    def spend(self, key_id: str | None, characters: int, now: float) -> float:
        """Count characters of a key. Returns when it has some left again; `now` if it has, or no limit."""
        most = self.characters_per_minute(key_id)
        if most is None:
            return now
        bucket = self._characters.setdefault(key_id, TokenBucket(most / 60, most, now))
        return now + spend(bucket, now, characters, most)

    def characters_per_minute(self, key_id: str | None) -> int | None:
        """The limit of a key, if it has one."""
        return self._keys.quota(key_id).characters_per_minute

    def _has_room(self, place: Place, key_id: str | None) -> bool:
        """The last place of a kind without a setting is for a key that has none: slow uploads of one would fill all."""
        most, setting = self._most[place]
        left = most - self._places[place]
        return left > 1 or (left == 1 and not (setting is None and self._shared and self._places_of[place, key_id]))

    def _group_with_room(self, claim: Claim, now: float) -> _Group:
        """The group of a new session; raises `AtCapacity` if it, or the node, has no room."""
        if self.sessions >= self._connections:
            what = f"{self._connections} sessions are open on this node (limits.connections)"
            raise self._at_capacity(what, self._open.values(), now)
        own = self._keys.quota(claim.key_id).sessions
        by_token = claim.token is not None and own is None and self._limits.token_sessions_per_key is not None
        group = (claim.key_id, by_token)
        most, what = self._limit(group)
        if most is not None and len(self._open[group]) >= most:
            raise self._at_capacity(f"{most} sessions are open {what}", [self._open[group]], now)
        return group

    def _limit(self, group: _Group) -> tuple[int | None, str]:
        """How many sessions a group may have, if there is a limit, and of what that is one."""
        key_id, by_token = group
        if key_id is None:
            return None, ""
        if (own := self._keys.quota(key_id).sessions) is not None:
            return own, f"with this key (auth.keys.{self._keys.name(key_id)}.sessions): close one"
        if by_token:
            return self._limits.token_sessions_per_key, "with tokens of one key (limits.token_sessions_per_key)"
        return self._limits.sessions_per_key, "with this key (limits.sessions_per_key): close one"

    def _at_capacity(self, what: str, in_the_way: Iterable[dict[tuple[int, int], float]], now: float) -> AtCapacity:
        ages_s = [now - since for sessions in in_the_way for since in sessions.values()]
        return AtCapacity(f"{what}, or try again", retry_after_ms=retry_ms(min(self._forecast.left_s(ages_s))))

    def _use(self, token: Token, now: float) -> None:
        # Tokens of one lifetime expire in about the order in which they are used: none is kept much longer than that.
        for used in list(itertools.takewhile(lambda used: self._used[used] <= now, self._used)):
            del self._used[used]
        if token.id in self._used or token.expires_at <= now:
            raise Unauthorized(NO_TOKEN)
        self._used[token.id] = token.expires_at

    def _owner(self, key_id: str | None) -> int:
        if key_id is None:
            return next(self._numbers)
        if key_id not in self._owners:
            self._owners[key_id] = next(self._numbers)
        return self._owners[key_id]

    def _end(self, front: int, claim: Claim, group: _Group | None) -> float | None:
        """Returns since when the session was open, if there was one."""
        if claim.place is not None:
            self._places[claim.place] -= 1
            self._places_of[claim.place, claim.key_id] -= 1
        if group is None:
            return None
        self.sessions -= 1
        return self._open[group].pop((front, claim.number))


def _name(group: _Group) -> str:
    return f"{group[0]}:tokens" if group[1] else f"{group[0]}"
