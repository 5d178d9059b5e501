"""Who may speak, and how much: keys, one-time browser tokens, origins, counts and rates."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from agent_tts.config.settings import Settings, is_loopback
from agent_tts.errors import RETRY_MS, AtCapacity, Unauthorized
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.telemetry.metrics import Metrics

MAX_TOKENS = 10_000  # unused tokens at once; each lives for a minute


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request."""

    key_id: str | None  # a digest of the API key, to compare and never to log; None without authentication


class TokenBucket:
    """At most `burst` at once and `rate` a second on average. Pure: the caller passes the time, in seconds."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        # What was left of the burst at `_then`; negative while the client is ahead of its rate.
        self._left = burst
        self._then = now

    def take(self, now: float, count: float = 1) -> float:
        """Count some. Returns the seconds by which they came too early: 0 within the limits."""
        self._left = min(self._burst, self._left + (now - self._then) * self._rate) - count
        self._then = now
        return max(0.0, -self._left / self._rate)

    def allows(self, now: float) -> bool:
        """Count one if it is within the limits; returns whether it is."""
        self.take(now, 0)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Guard:
    """Checks and counts the clients of one node."""

    def __init__(self, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        # Digests of the keys: of one length, so that the time to compare them does not tell theirs.
        self._keys = [_digest(key.get_secret_value()) for key in settings.auth.api_keys]
        self._origins = {origin.rstrip("/").lower() for origin in settings.auth.allowed_origins}
        self._token_ttl_s = settings.auth.token_ttl_s
        self._limits = settings.limits
        self._metrics = metrics
        self._clock = clock
        # Unused tokens: digest -> (client, expiry).
        self._tokens: dict[bytes, tuple[Client, float]] = {}
        # Sessions and requests admitted now, by key.
        self._admitted: Counter[str | None] = Counter()

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
            token_ok: whether a one-time token may replace the key; checking a token uses it up.
            key_query: the query parameter that may hold the key itself, if any.

        Raises:
            Unauthorized: the origin is not allowed, or the key or token is missing or wrong.
        """
        self._check_host_and_origin(headers)
        if not self._keys:
            return Client(None)
        token = query.get("token")
        if token_ok and token is not None:
            return self._redeem(token)
        return self._check_key(_key_in(headers) or (query.get(key_query, "") if key_query else ""))

    def identify(self, connection: HTTPConnection, *, token_ok: bool = False, key_query: str | None = None) -> Client:
        """The client behind a request, whose connection counts as a client's from now on.

        Raises `Unauthorized` as `authorize` does, with the same arguments; `AtCapacity` if clients have no place left.
        """
        client = self.authorize(connection.headers, connection.query_params, token_ok=token_ok, key_query=key_query)
        protocol = connection.scope.get("extensions", {}).get(CONNECTION)
        if protocol is not None:  # the server is the node's own
            protocol.recognise()
        return client

    def issue_token(self, client: Client) -> tuple[str, float]:
        """A one-time token for a browser, and its lifetime in seconds. Raises `AtCapacity` if too many are unused."""
        now = self._clock()
        self._tokens = {digest: held for digest, held in self._tokens.items() if held[1] > now}
        if len(self._tokens) >= MAX_TOKENS:
            raise AtCapacity("too many unused tokens: try again", retry_after_ms=RETRY_MS)
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = (client, now + self._token_ttl_s)
        return token, self._token_ttl_s

    def _redeem(self, token: str) -> Client:
        client, expires = self._tokens.pop(_digest(token), (None, 0.0))
        if client is None or self._clock() >= expires:
            raise Unauthorized("the token is unknown, used or expired: POST /v1/tokens gives a new one")
        return client

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
    def admit(self, client: Client) -> Iterator[None]:
        """Count a session or request in the `with` block. Raises `AtCapacity` at a limit of the key or the node."""
        limits = self._limits
        if self._admitted.total() >= limits.connections:
            raise AtCapacity(f"{limits.connections} sessions are open on this node: try again", retry_after_ms=RETRY_MS)
        if client.key_id is not None and self._admitted[client.key_id] >= limits.sessions_per_key:
            message = f"{limits.sessions_per_key} sessions are open with this key: close one, or try again"
            raise AtCapacity(message, retry_after_ms=RETRY_MS)
        self._admitted[client.key_id] += 1
        self._metrics.sessions.inc()
        try:
            yield
        finally:
            self._metrics.sessions.dec()
            self._admitted -= Counter([client.key_id])  # keeps no key without sessions


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
