"""Who may speak, and how much: keys, one-time browser tokens, origins, counts and rates."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from agent_tts.config.settings import Settings, is_loopback
from agent_tts.errors import AtCapacity, RateLimited, Unauthorized
from agent_tts.forecast import Forecast, retry_ms
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.serve.token_bucket import TokenBucket

MAX_TOKENS = 2_000  # unused ones of a key at once: several times the sessions that a node admits


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request."""

    key_id: str | None  # a digest of the API key, to compare and never to log; None without authentication
    token: bytes | None = None  # a digest of the one-time token of this key that was given in its place


_NO_TOKEN = "the token is unknown, used or expired: POST /v1/tokens gives a new one"

# Whose sessions count together: a key's own, those of its tokens, or all where there are no keys.
_Group = tuple[str | None, bool]


REQUESTS_BURST_S = 5.0  # of requests at once
REQUESTS_RETRY_MS = 1_000


class Guard:
    """Checks and counts the clients of one node."""

    def __init__(self, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        # Numbers of keys, for the engine, which gets no key; and of sessions without one.
        self._owners: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._metrics = metrics
        self._clock = clock
        # Unused tokens by key: digest -> expiry, the first to expire first.
        self._tokens: defaultdict[str | None, dict[bytes, float]] = defaultdict(dict)
        # Since when each session or request is admitted, oldest first, by its number; and how long earlier ones lasted.
        self._admitted: defaultdict[_Group, dict[int, float]] = defaultdict(dict)
        self._sessions = itertools.count()
        self._forecast = Forecast()
        # Of requests, by key.
        self._requests: dict[str | None, TokenBucket] = {}
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the keys, origins and limits of these settings. Sessions of other keys go on; their tokens are void."""
        # Digests of the keys: of one length, so that the time to compare them does not tell theirs.
        self._keys = [_digest(key.get_secret_value()) for key in settings.auth.api_keys]
        self._origins = {origin.rstrip("/").lower() for origin in settings.auth.allowed_origins}
        self._token_ttl_s = settings.auth.token_ttl_s
        self._limits = settings.limits
        self._requests.clear()
        known = {None, *(key.hex()[:16] for key in self._keys)}
        for key_id in self._tokens.keys() - known:
            del self._tokens[key_id]

    def authorize(
        self,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        *,
        token_ok: bool = False,
        key_query: str | None = None,
    ) -> Client:
        """The client behind a request, from its headers (names in lower case) and query.

        Args:
            token_ok: whether a one-time token may replace the key; `admit` or `redeem` uses it up.
            key_query: the query parameter that may hold the key itself, if any.

        Raises:
            Unauthorized: the origin is not allowed, or the key or token is missing or wrong.
        """
        self._check_host_and_origin(headers)
        if not self._keys:
            return Client(None)
        token = query.get("token")
        if token_ok and token is not None:
            return self._check_token(_digest(token))
        return self._check_key(_key_in(headers) or (query.get(key_query, "") if key_query else ""))

    def identify(self, connection: HTTPConnection, *, token_ok: bool = False, key_query: str | None = None) -> Client:
        """The client behind a request, whose connection counts as a client's from now on.

        Raises `Unauthorized` as `authorize` does, with the same arguments; `RateLimited` if the key sends too many
        requests; `AtCapacity` if clients have no place left.
        """
        client = self.authorize(connection.headers, connection.query_params, token_ok=token_ok, key_query=key_query)
        try:
            self._count_request(client)
        except RateLimited as error:
            if connection.scope["type"] == "http":  # a WebSocket's route counts its refusals
                self._metrics.refused.labels(error.code).inc()
            raise
        protocol = connection.scope.get("extensions", {}).get(CONNECTION)
        if protocol is not None:  # the server is the node's own
            protocol.recognise()
        return client

    def _count_request(self, client: Client) -> None:
        now, rate = self._clock(), self._limits.requests_per_s
        bucket = self._requests.get(client.key_id)
        if bucket is None:
            bucket = self._requests[client.key_id] = TokenBucket(rate, max(1.0, rate * REQUESTS_BURST_S), now)
        if not bucket.allows(now):
            raise RateLimited(f"at most {rate:g} requests a second: try again", retry_after_ms=REQUESTS_RETRY_MS)

    def issue_token(self, client: Client) -> tuple[str, float]:
        """A one-time token for a browser, and its lifetime in seconds. Raises `AtCapacity` at `MAX_TOKENS` of a key."""
        now, held = self._clock(), self._tokens[client.key_id]
        for digest in list(itertools.takewhile(lambda digest: held[digest] <= now, held)):
            del held[digest]
        if len(held) >= MAX_TOKENS:
            message = f"{MAX_TOKENS} tokens of this key are unused: try again"
            raise AtCapacity(message, retry_after_ms=retry_ms(next(iter(held.values())) - now))
        token = secrets.token_urlsafe(32)
        held[_digest(token)] = now + self._token_ttl_s
        return token, self._token_ttl_s

    def redeem(self, client: Client) -> None:
        """Use up the token that a client has given, if any. Raises `Unauthorized` if it was used meanwhile."""
        if client.token is not None and self._tokens[client.key_id].pop(client.token, None) is None:
            raise Unauthorized(_NO_TOKEN)

    def _check_token(self, digest: bytes) -> Client:
        for key_id, held in self._tokens.items():
            if self._clock() < held.get(digest, 0.0):
                return Client(key_id, digest)
        raise Unauthorized(_NO_TOKEN)

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """The digest of the API key in a request's headers; None without one that is right."""
        return self._known(_key_in(headers))

    def _check_key(self, given: str) -> Client:
        key_id = self._known(given)
        if not given:
            raise Unauthorized("an API key is required: Authorization: Bearer KEY, or X-API-Key")
        if key_id is None:
            raise Unauthorized("the API key is wrong")
        return Client(key_id)

    def _known(self, given: str) -> str | None:
        # Every key is compared, so that timing does not tell which one was nearly right.
        digest = _digest(given)
        matches = [hmac.compare_digest(key, digest) for key in self._keys]
        return digest.hex()[:16] if any(matches) else None

    def _check_host_and_origin(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "").lower()
        if not self._keys and not self._is_known_host(host):
            # DNS rebinding: a foreign name that resolves to loopback gives any web page the same origin.
            raise Unauthorized("without API keys the node answers requests to localhost only: set auth.api_keys")
        origin = headers.get("origin")
        if origin is None:
            return
        origin = origin.lower()
        if _netloc(origin) != host and origin not in self._origins:
            raise Unauthorized("this origin is not allowed: add it to auth.allowed_origins")

    def _is_known_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or any(_netloc(origin) == host for origin in self._origins)

    @contextmanager
    def admit(self, client: Client) -> Iterator[int]:
        """Count a session or request in the `with` block, and use up its token; yields its owner.

        The owner is for `SpeechService.open`: a key with all that its tokens open; without keys, each session.

        Raises:
            AtCapacity: at a limit of the key or the node; the token stays good.
            Unauthorized: the token was used meanwhile.
        """
        limits, group = self._limits, (client.key_id, client.token is not None)
        if self.sessions >= limits.connections:
            raise self._at_capacity(f"{limits.connections} sessions are open on this node", None)
        most, what = limits.sessions_per_key, "with this key: close one"
        if client.token is not None:
            if limits.token_sessions_per_key is None:
                group = (client.key_id, False)
            else:
                most, what = limits.token_sessions_per_key, "with tokens of one key"
        if client.key_id is not None and len(self._admitted[group]) >= most:
            raise self._at_capacity(f"{most} sessions are open {what}", group)
        self.redeem(client)
        number, began = next(self._sessions), self._clock()
        self._admitted[group][number] = began
        self._metrics.sessions.inc()
        try:
            yield next(self._numbers) if client.key_id is None else self._owner(client.key_id)
        finally:
            self._metrics.sessions.dec()
            del self._admitted[group][number]
            self._forecast.ended(self._clock() - began)

    @property
    def sessions(self) -> int:
        """Sessions and requests admitted now."""
        return sum(map(len, self._admitted.values()))

    def _owner(self, key_id: str) -> int:
        if key_id not in self._owners:
            self._owners[key_id] = next(self._numbers)
        return self._owners[key_id]

    def _at_capacity(self, what: str, group: _Group | None) -> AtCapacity:
        """A refusal, and when the first session that is in the way ends."""
        now = self._clock()
        in_the_way = self._admitted.values() if group is None else [self._admitted[group]]
        ages_s = [now - since for sessions in in_the_way for since in sessions.values()]
        return AtCapacity(f"{what}, or try again", retry_after_ms=retry_ms(min(self._forecast.left_s(ages_s))))


async def authorized(connection: HTTPConnection) -> Client:
    """FastAPI dependency: the client behind a request; raises the errors of `Guard.identify`."""
    # A coroutine, although it never waits: FastAPI runs plain functions in a thread.
    guard: Guard = connection.app.state.node.guard
    return guard.identify(connection)


def _key_in(headers: Mapping[str, str]) -> str:
    """The API key in OpenAI's, Deepgram's, Cartesia's or ElevenLabs' header; empty without one."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token"):
        return credentials.strip()
    return headers.get("x-api-key") or headers.get("xi-api-key", "")


def _netloc(origin: str) -> str | None:
    """Host and port of an origin, if it has any."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
