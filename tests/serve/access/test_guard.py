from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from agent_tts.config.settings import Settings
from agent_tts.errors import AtCapacity, RateLimited, Unauthorized
from agent_tts.serve.access.guard import Client, Guard
from agent_tts.serve.access.keys import Keys
from agent_tts.serve.telemetry.metrics import Metrics

KEY = "k" * 20
HOST = {"host": "node.example:8100"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock | None = None, **values: Any) -> Guard:
    return Guard(Settings(**values), Metrics(), clock or Clock())


def locked(clock: Clock | None = None, **values: Any) -> Guard:
    return make(clock, auth={"api_keys": [KEY, "other"]}, **values)


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY}"}, {"x-api-key": KEY}], ids=str
)
def test_a_key_is_taken_as_bearer_or_header(headers: dict[str, str]) -> None:
    assert locked().authorize({**HOST, **headers}, {}).key_id


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"x-api-key": "\udcff"},
        {"x-api-key": "ключ"},
    ],
    ids=ascii,
)
def test_a_missing_or_wrong_key_is_unauthorized(headers: dict[str, str]) -> None:
    assert not allows(locked(), {**HOST, **headers})


@pytest.mark.parametrize("key", ["", " ", "two words", "ключ", "a\n"])
def test_an_empty_or_unsendable_key_is_refused(key: str) -> None:
    """An empty key would match a request without a key."""
    with pytest.raises(ValueError, match="visible ASCII"):
        Settings(host="0.0.0.0", auth={"api_keys": [key]})


def test_keys_have_different_labels_that_do_not_show_them() -> None:
    guard = locked()
    one = guard.authorize({**HOST, "x-api-key": KEY}, {})
    two = guard.authorize({**HOST, "x-api-key": "other"}, {})
    assert one != two
    assert KEY not in repr(one)


def test_keys_are_compared_in_constant_time() -> None:
    """Fails with `==` in place of `compare_digest`."""
    tree = ast.parse(inspect.getsource(Keys.find).lstrip().replace("\n    ", "\n"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in calls
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert all("given" not in ast.unparse(node) and "key" not in ast.unparse(node) for node in compared)


def allows(
    guard: Guard,
    headers: dict[str, str],
    params: dict[str, str] | None = None,
    refusal: type[Unauthorized] = Unauthorized,
    **options: Any,
) -> bool:
    try:
        guard.authorize(headers, params or {}, **options)
    except refusal:
        return False
    return True


def issued(guard: Guard, key: str = KEY) -> Client:
    """A client that connects with a new token of this key."""
    token, _ = guard.issue_token(guard.authorize({**HOST, "x-api-key": key}, {}))
    return guard.authorize(HOST, {"token": token}, token_ok=True)


async def test_a_token_replaces_its_key_once() -> None:
    guard = locked()
    client = guard.authorize({**HOST, "x-api-key": KEY}, {})
    token, life_s = guard.issue_token(client)
    assert life_s == 60
    holder = guard.authorize(HOST, {"token": token}, token_ok=True)
    assert holder.key_id == client.key_id
    assert token not in repr(holder)
    with await guard.admit(holder), pytest.raises(Unauthorized):
        await guard.admit(guard.authorize(HOST, {"token": token}, token_ok=True))
    with pytest.raises(Unauthorized):
        await guard.admit(guard.authorize(HOST, {"token": token}, token_ok=True))
    assert guard.sessions == 0


async def test_a_token_without_a_session_is_used_up_by_hand() -> None:
    guard = locked()
    holder = issued(guard)
    await guard.redeem(holder)
    with pytest.raises(Unauthorized):
        await guard.redeem(holder)


async def test_a_token_expires() -> None:
    """Between two questions, too: what the first has checked, the second refuses."""
    clock = Clock()
    guard = locked(clock)
    token, _ = guard.issue_token(guard.authorize({**HOST, "x-api-key": KEY}, {}))
    holder = guard.authorize(HOST, {"token": token}, token_ok=True)
    clock.now = 60.0
    assert not allows(guard, HOST, {"token": token}, token_ok=True)
    with pytest.raises(Unauthorized):
        await guard.admit(holder)


async def test_a_client_secret_opens_sessions_as_tokens_do_until_it_expires() -> None:
    """Mutations: its sessions count as those of its key; a token is taken for a secret."""
    clock = Clock()
    guard = locked(clock, limits={"token_sessions_per_key": 2})
    client = guard.authorize({**HOST, "x-api-key": KEY}, {})
    secret, _ = guard.issue_secret(client, 60.0, b"mine")

    def holder(given: str = secret) -> Client:
        return guard.authorize({**HOST, "authorization": f"Bearer {given}"}, {}, secret_ok=True)

    assert (holder().key_id, holder().carried) == (client.key_id, b"mine")
    with await guard.admit(holder()), await guard.admit(holder()):
        with pytest.raises(AtCapacity):
            await guard.admit(holder())
        with await guard.admit(client):
            pass
    with await guard.admit(holder()):
        pass
    assert not allows(guard, {**HOST, "authorization": f"Bearer {secret}"})
    token, _ = guard.issue_token(client)
    for wrong in ("ek_", f"ek_{token}", secret[:-2], secret + "A"):
        with pytest.raises(Unauthorized):
            holder(wrong)
    assert not allows(guard, HOST, {"token": secret.removeprefix("ek_")}, token_ok=True)
    clock.now = 60.0
    with pytest.raises(Unauthorized):
        holder()
    clock.now = 0.0
    guard.configure(Settings(auth={"api_keys": ["other"]}))
    with pytest.raises(Unauthorized):
        holder()


def test_a_client_secret_of_a_node_without_keys_is_good_until_it_has_some() -> None:
    guard = make()
    secret, _ = guard.issue_secret(Client(None), 60.0, b"")
    headers = {"host": "localhost:8100", "authorization": f"Bearer {secret}"}
    assert guard.authorize(headers, {}, secret_ok=True) == Client(None, None, b"")
    guard.configure(Settings(auth={"api_keys": [KEY]}))
    assert not allows(guard, headers, secret_ok=True)


def test_a_token_counts_only_where_a_browser_connects() -> None:
    guard = locked()
    token, _ = guard.issue_token(guard.authorize({**HOST, "x-api-key": KEY}, {}))
    assert [allows(guard, HOST, {"token": token}, token_ok=ok) for ok in (False, True)] == [False, True]


def test_a_token_is_of_its_node_and_of_a_key_that_is_still_right() -> None:
    guard = locked()
    token, _ = guard.issue_token(guard.authorize({**HOST, "x-api-key": KEY}, {}))
    assert not allows(locked(), HOST, {"token": token}, token_ok=True)
    for keys, allowed in ((["other"], False), (["other", KEY], True)):
        guard.configure(Settings(auth={"api_keys": keys}))
        assert allows(guard, HOST, {"token": token}, token_ok=True) is allowed


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:8100", None, True),
        ("localhost:8100", "http://localhost:8100", True),
        ("[::1]:8100", "http://[::1]:8100", True),
        ("localhost:8100", "http://evil.example", False),
        ("localhost:8100", "http://localhost:9999", False),
        ("localhost:8100", "null", False),
        ("evil.example:8100", None, False),
        ("evil.example", "http://evil.example", False),
        ("app.example", "https://app.example", True),
        ("localhost:8100", "https://app.example", True),
        ("localhost:8100", "HTTPS://APP.example", True),
        ("localhost:8100", "https://app.example.evil", False),
        ("", None, False),
        ("[", None, False),
        ("]:8100", None, False),
        ("localhost:8100", "http://[::1", False),
        ("localhost:8100", "[", False),
    ],
)
def test_origin_and_host_without_keys(host: str, origin: str | None, allowed: bool) -> None:
    guard = make(auth={"allowed_origins": ["https://app.example/"]})
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    assert allows(guard, headers) is allowed
    assert not allowed or guard.authorize(headers, {}) == Client(None)


def test_with_keys_any_host_name_is_the_node_s() -> None:
    locked().authorize({**HOST, "x-api-key": KEY, "origin": "http://node.example:8100"}, {})


async def test_sessions_are_counted_by_key_and_in_total() -> None:
    guard = make(limits={"sessions_per_key": 1, "connections": 2})
    with await guard.admit(Client("a")):
        with pytest.raises(AtCapacity):
            await guard.admit(Client("a"))
        with await guard.admit(Client("b")), pytest.raises(AtCapacity):
            await guard.admit(Client("c"))
    with await guard.admit(Client("a")):
        assert guard.sessions == 1
    assert guard.sessions == 0


async def test_the_operator_may_count_them_as_their_key_s() -> None:
    guard = locked(limits={"sessions_per_key": 1, "token_sessions_per_key": None})
    key = guard.authorize({**HOST, "x-api-key": KEY}, {})
    with await guard.admit(issued(guard)), pytest.raises(AtCapacity):
        await guard.admit(key)
    with await guard.admit(key), pytest.raises(AtCapacity):
        await guard.admit(issued(guard))


async def test_a_place_is_given_back_when_the_session_fails() -> None:
    guard = make(limits={"connections": 1})
    with pytest.raises(ZeroDivisionError), await guard.admit(Client(None)):
        raise ZeroDivisionError
    with await guard.admit(Client(None)):
        pass


async def test_a_permit_is_given_back_once() -> None:
    guard = make()
    permit = await guard.admit(Client(None))
    permit.close()
    permit.close()
    assert guard.sessions == 0


async def test_a_key_sends_so_many_requests() -> None:
    clock = Clock()
    guard = make(clock, auth={"api_keys": [KEY, "other"]}, limits={"requests_per_s": 10})

    async def ask(key: str) -> None:
        headers = [(b"host", b"localhost"), (b"x-api-key", key.encode())]
        await guard.identify(HTTPConnection({"type": "http", "headers": headers, "query_string": b""}))

    for _ in range(50):
        await ask(KEY)
    for _ in range(20):  # what is refused does not count
        with pytest.raises(RateLimited) as refused:
            await ask(KEY)
        assert refused.value.retry_after_ms == 1_000
    await ask("other")
    clock.now += 1
    for _ in range(10):
        await ask(KEY)
    with pytest.raises(RateLimited):
        await ask(KEY)
