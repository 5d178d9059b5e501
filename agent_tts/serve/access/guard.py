"""Who may speak, and how much: keys, one-time browser tokens, origins; the counts are the ledger's."""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from agent_tts.config.settings import Settings, is_loopback
from agent_tts.errors import Forbidden, RateLimited, SpeechError, Unauthorized
from agent_tts.ipc.front_messages import Claim, Place, Token
from agent_tts.serve.access.fleet_counts import MAX_DEBT, spend
from agent_tts.serve.access.forwarded import forwarded_hosts
from agent_tts.serve.access.keys import CLIENT_SECRET, Keys, Tokens
from agent_tts.serve.access.ledger import NO_TOKEN
from agent_tts.serve.access.ledger_client import NodeLedger
from agent_tts.serve.access.supervisor_client import SupervisorClient
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.telemetry.metrics import Budget, Metrics
from agent_tts.serve.token_bucket import TokenBucket

KEY_AFTER_PROTOCOL = ("token", "bearer")
KEY_IN_PROTOCOL = "openai-insecure-api-key."
_PORTS = {"http": ":80", "https": ":443"}  # that an origin does not name


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request."""

    key_id: str | None  # a digest of the API key, to compare and never to log; None without authentication
    token: Token | None = None  # the one-time token of this key that was given in its place
    carried: bytes | None = None  # by the client secret that was given in its place


class Permit(ExitStack):
    """A place in the node's counts, until it is closed, which is idempotent; in a `with` block, its owner."""

    def __init__(self, owner: int, close: Callable[[], None]) -> None:
        super().__init__()
        self.owner = owner
        self.callback(close)

    def __enter__(self) -> int:  # pyrefly: ignore[bad-override]
        return self.owner


class Guard(Budget):
    """Checks the clients of a front; the node's ledger counts them.

    Args:
        clock: seconds on the machine's monotonic clock, the same for all fronts.
        ledger: of the node; None: this front is the only one.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        ledger: SupervisorClient | None = None,
    ) -> None:
        self._metrics = metrics
        self.ledger = ledger or NodeLedger(settings, clock)
        self._clock = clock
        # The numbers of claims, which are never used again.
        self._numbers = itertools.count()
        # Sessions and requests that this front has admitted.
        self.sessions = 0
        # The key of each owner that has one.
        self._key_of: dict[int, str] = {}
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take the keys, origins and limits of these settings. Sessions of other keys go on; their tokens are void."""
        self._keys = Keys(settings.auth)
        self._characters: dict[str, TokenBucket] = {}  # by key
        for name in settings.auth.keys:
            self._metrics.usage.show(name)
        # Those of browsers that are allowed besides the node's own.
        self.origins = {origin.rstrip("/").lower() for origin in settings.auth.allowed_origins}
        self._proxies = settings.auth.trusted_proxies
        self._token_ttl_s = settings.auth.token_ttl_s
        self._tokens = Tokens(self.ledger.secret, self._keys.ids)
        self.ledger.configure(settings)

    def authorize(
        self,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        *,
        token_ok: bool = False,
        secret_ok: bool = False,
        key_query: tuple[str, ...] = (),
        forwarded: Sequence[str] = (),
    ) -> Client:
        """The client behind a request, from its headers (names in lower case) and query.

        Args:
            forwarded: the hosts that trusted proxies name.
            token_ok: whether a one-time token may replace the key; `admit` or `redeem` uses it up.
            secret_ok: whether a client secret may.
            key_query: query parameters that may hold the key itself.

        Raises:
            Forbidden: the host or origin is not allowed.
            Unauthorized: the key or token is missing or wrong.
        """
        self._check_host_and_origin(headers.get("origin"), [headers.get("host", ""), *forwarded])
        if secret_ok and _key_in(headers).startswith(CLIENT_SECRET):
            return self._check_secret(_key_in(headers))
        if not self._keys:
            return Client(None)
        token = query.get("token")
        if token_ok and token is not None:
            return self._check_token(token)
        return self._check_key(_key_in(headers) or next((query[name] for name in key_query if name in query), ""))

    async def identify(
        self,
        connection: HTTPConnection,
        *,
        token_ok: bool = False,
        secret_ok: bool = False,
        key_query: tuple[str, ...] = (),
    ) -> Client:
        """The client behind a request, whose connection counts as a client's from now on. Cancelling it is safe.

        Raises `Unauthorized` as `authorize` does, with the same arguments; `RateLimited` if the key sends too many
        requests; `AtCapacity` if clients have no place left, or the ledger does not answer.
        """
        headers, peer = connection.headers, connection.client
        client = self.authorize(
            headers,
            connection.query_params,
            token_ok=token_ok,
            secret_ok=secret_ok,
            key_query=key_query,
            forwarded=() if peer is None else forwarded_hosts(headers, peer.host, self._proxies),
        )
        try:
            await self.ledger.request(client.key_id)
        except SpeechError as error:
            self._metrics.usage.refused.labels(self._keys.name(client.key_id), error.code).inc()
            if connection.scope["type"] == "http":  # a WebSocket's route counts its refusals
                self._metrics.refused.labels(error.code).inc()
            raise
        protocol = connection.scope.get("extensions", {}).get(CONNECTION)
        if protocol is not None:  # the server is the node's own
            protocol.recognise()
        connection.state.client = client
        return client

    def issue_token(self, client: Client) -> tuple[str, float]:
        """A one-time token for a browser, and its lifetime in seconds."""
        return self._tokens.issue(client.key_id, self._clock() + _epoch(), self._token_ttl_s), self._token_ttl_s

    def issue_secret(self, client: Client, ttl_s: float, content: bytes) -> tuple[str, float]:
        """A client secret that carries some bytes, and when it expires, in seconds since 1970.

        Who has it may open sessions as the client until then.
        """
        now = self._clock() + _epoch()
        return self._tokens.issue_secret(client.key_id, now, ttl_s, content), now + ttl_s

    def operates(self, client: Client) -> bool:
        """Whether a client may see what all clients do.

        It may with a key whose name has `operator`, with one without a name, and where the node has no keys.
        """
        return client.key_id is None or self._keys.quota(client.key_id).operator

    async def redeem(self, client: Client) -> None:
        """Use up the token that a client has given, if any, for no session.

        Raises `Unauthorized` if it was used meanwhile, `AtCapacity` if the ledger does not answer.
        """
        if client.token is not None:
            (await self._take(Claim(next(self._numbers), client.key_id, client.token, session=False))).close()

    def _check_token(self, token: str) -> Client:
        epoch = _epoch()
        found = self._tokens.check(token, self._clock() + epoch)
        if found is None:
            raise Unauthorized(NO_TOKEN)
        key_id, checked = found
        return Client(key_id, replace(checked, expires_at=checked.expires_at - epoch))

    def _check_secret(self, secret: str) -> Client:
        found = self._tokens.check_secret(secret, self._clock() + _epoch())
        if found is None:
            raise Unauthorized(
                "the client secret is unknown or expired: POST /v1/realtime/client_secrets gives a new one"
            )
        # A token for this one use: the sessions of a secret count as those of tokens.
        token = None if found[0] is None else Token(secrets.token_hex(16), self._clock() + self._token_ttl_s)
        return Client(found[0], token, found[1])

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """The digest of the API key in a request's headers; None without one that is right."""
        return self._keys.find(_key_in(headers))

    def _check_key(self, given: str) -> Client:
        key_id = self._keys.find(given)
        if not given:
            raise Unauthorized("an API key is required: Authorization: Bearer KEY, or X-API-Key")
        if key_id is None:
            raise Unauthorized("the API key is wrong")
        return Client(key_id)

    def _check_host_and_origin(self, origin: str | None, hosts: Sequence[str]) -> None:
        """`hosts`: what the request's `Host` and trusted proxies name. A page cannot set the first one."""
        if not self._keys and not all(map(self._is_known_host, hosts)):
            # DNS rebinding: a foreign name that resolves to loopback gives any web page the same origin.
            raise Forbidden(
                "without API keys the node answers requests to localhost only: set auth.api_keys or auth.keys"
            )
        if origin is None or origin.lower() in self.origins or any(_is_at(origin, host) for host in hosts):
            return
        raise Forbidden(
            "this origin is not allowed: add it to auth.allowed_origins, or have the proxy pass on the page's Host "
            "(X-Forwarded-Host, of auth.trusted_proxies)"
        )

    def _is_known_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or any(_is_at(origin, host) for origin in self.origins)

    async def admit(self, client: Client, place: Place | None = None) -> Permit:
        """Count a session or request until its permit is closed, and use up its token. Cancelling it is safe.

        `place` is what it takes besides. For the permit's owner, and the errors, see `Ledger.admit`; `AtCapacity` also
        says that the ledger does not answer.
        """
        claim = Claim(next(self._numbers), client.key_id, client.token, place)
        name = self._keys.name(client.key_id)
        try:
            owner = await self.ledger.admit(claim)
        except SpeechError as error:
            self._metrics.usage.refused.labels(name, error.code).inc()
            raise
        if client.key_id is not None:
            self._key_of[owner] = client.key_id
        self.sessions += 1
        self._metrics.sessions.inc()
        self._metrics.usage.sessions.labels(name).inc()
        return Permit(owner, partial(self._end, claim.number, name))

    def name(self, owner: int) -> str:
        """The name of an owner's key."""
        return self._keys.name(self._key_of.get(owner))

    def check(self, owner: int, characters: int, *, begins: bool) -> None:
        """Raise `RateLimited` if the owner's key may not speak so many characters now.

        A text that `begins` a context needs as many as it has, or a whole minute's; one that goes on may use up those
        of the next `MAX_DEBT` minutes. So no text is refused for longer than that and a minute.
        """
        key_id = self._key_of.get(owner)
        most = self._keys.quota(key_id).characters_per_minute
        if key_id is None or most is None:
            return
        setting = f"{most} characters a minute (auth.keys.{self.name(owner)}.characters_per_minute)"
        if characters > (1 + MAX_DEBT) * most:
            raise RateLimited(f"this key has {setting}: send at most {(1 + MAX_DEBT) * most} at once")
        bucket, free_at, ahead = self._bucket(key_id, most), self.ledger.free_at(key_id), 0 if begins else MAX_DEBT
        now = self._clock()
        needed = min(characters, most) if begins else characters - MAX_DEBT * most
        wait_s = max(60 * (needed - bucket.left(now)) / most, free_at - now - 60 * ahead)
        if wait_s > 0:
            why = f"this key has used its {setting}: try again in {math.ceil(wait_s)} s"
            raise RateLimited(why, retry_after_ms=math.ceil(wait_s * 1_000))

    def spend(self, owner: int, characters: int) -> None:
        """Count text that is to be spoken for an owner, where its key has a limit."""
        key_id = self._key_of.get(owner)
        if key_id is not None and (most := self._keys.quota(key_id).characters_per_minute) is not None:
            bucket = self._bucket(key_id, most)
            spend(bucket, self._clock(), characters, most)
            self.ledger.spend(key_id, characters)

    def _bucket(self, key_id: str, most: int) -> TokenBucket:
        """What this front knows at once of the characters of a key; what others spend comes by the ledger, later."""
        return self._characters.setdefault(key_id, TokenBucket(most / 60, most, self._clock()))

    async def place(self, place: Place, client: Client) -> Permit:
        """Take a place of this kind, without a session. Raises `AtCapacity`. Cancelling it is safe."""
        return await self._take(Claim(next(self._numbers), client.key_id, place=place, session=False))

    async def _take(self, claim: Claim) -> Permit:
        return Permit(await self.ledger.admit(claim), partial(self.ledger.release, claim.number))

    def _end(self, number: int, name: str) -> None:
        self.sessions -= 1
        self._metrics.sessions.dec()
        self._metrics.usage.sessions.labels(name).dec()
        self.ledger.release(number)


async def authorized(connection: HTTPConnection) -> Client:
    """FastAPI dependency: the client behind a request; raises the errors of `Guard.identify`."""
    guard: Guard = connection.app.state.node.guard
    return await guard.identify(connection)


def _epoch() -> float:
    """The time of day less the machine's monotonic clock, s: tokens expire by what all nodes have."""
    return datetime.now(UTC).timestamp() - time.monotonic()


def _key_in(headers: Mapping[str, str]) -> str:
    """The API key in OpenAI's, Deepgram's, Baseten's, Cartesia's, ElevenLabs' or Vapi's header; empty without one.

    A browser's WebSocket can send none of them: Deepgram's and OpenAI's SDKs offer the key as a subprotocol.
    """
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token", "api-key"):
        return credentials.strip()
    given = [headers.get(name, "") for name in ("x-api-key", "xi-api-key", "x-vapi-secret")]
    offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
    given += [each.removeprefix(KEY_IN_PROTOCOL) for each in offered if each.startswith(KEY_IN_PROTOCOL)]
    given += [key for before, key in itertools.pairwise(offered) if before in KEY_AFTER_PROTOCOL]
    return next(filter(None, given), "")


def _is_at(origin: str, host: str) -> bool:
    """Whether an origin's pages come from a host, whose port may be left out where it is the scheme's own."""
    try:
        scheme, place, *_ = urlsplit(origin.lower())
    except ValueError:
        return False
    return place != "" and place == host.lower().removesuffix(_PORTS.get(scheme, ":"))
