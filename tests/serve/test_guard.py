"""Keys, tokens, origins and session counts."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from agent_tts.config.settings import Settings
from agent_tts.errors import AtCapacity, RateLimited, Unauthorized
from agent_tts.serve import guard as guard_module
from agent_tts.serve.guard import MAX_TOKENS, Client, Guard
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
    return make(clock, auth={"api_keys": [KEY, "other"], **values})


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
    with pytest.raises(Unauthorized):
        locked().authorize({**HOST, **headers}, {})


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
    tree = ast.parse(inspect.getsource(guard_module.Guard._known).lstrip().replace("\n    ", "\n"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "hmac.compare_digest" in calls
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    assert all("given" not in ast.unparse(node) and "key" not in ast.unparse(node) for node in compared)


def issued(guard: Guard, key_id: str = "a") -> Client:
    """A client that connects with a new token of this key."""
    token, _ = guard.issue_token(Client(key_id))
    return guard.authorize(HOST, {"token": token}, token_ok=True)


def test_a_token_replaces_its_key_once() -> None:
    guard = locked()
    client = guard.authorize({**HOST, "x-api-key": KEY}, {})
    token, life_s = guard.issue_token(client)
    assert life_s == 60
    holder = guard.authorize(HOST, {"token": token}, token_ok=True)
    assert holder.key_id == client.key_id
    assert token not in repr(holder)
    with guard.admit(holder), pytest.raises(Unauthorized):
        guard.authorize(HOST, {"token": token}, token_ok=True)
    with pytest.raises(Unauthorized):
        guard.authorize(HOST, {"token": token}, token_ok=True)


def test_two_connections_with_one_token_open_one_session() -> None:
    guard = locked()
    holder = issued(guard)
    with guard.admit(holder), pytest.raises(Unauthorized), guard.admit(holder):
        pass
    assert guard.sessions == 0


def test_a_token_without_a_session_is_used_up_by_hand() -> None:
    guard = locked()
    holder = issued(guard)
    guard.redeem(holder)
    with pytest.raises(Unauthorized):
        guard.redeem(holder)


def test_a_refused_session_does_not_use_up_its_token() -> None:
    guard = make(auth={"api_keys": [KEY]}, limits={"connections": 1})
    holder = issued(guard)
    with guard.admit(Client("b")), pytest.raises(AtCapacity), guard.admit(holder):
        pass
    with guard.admit(holder):
        pass


def test_a_token_expires() -> None:
    clock = Clock()
    guard = locked(clock)
    token, _ = guard.issue_token(Client("a"))
    clock.now = 60.0
    with pytest.raises(Unauthorized):
        guard.authorize(HOST, {"token": token}, token_ok=True)


def test_a_token_counts_only_where_a_browser_connects() -> None:
    guard = locked()
    token, _ = guard.issue_token(Client("a"))
    with pytest.raises(Unauthorized):
        guard.authorize(HOST, {"token": token})
    guard.authorize(HOST, {"token": token}, token_ok=True)


def test_unused_tokens_of_a_key_are_bounded() -> None:
    """With one bound for all keys, one key's tokens refuse every key's."""
    clock = Clock()
    guard = locked(clock)
    for _ in range(MAX_TOKENS):
        guard.issue_token(Client("a"))
        clock.now = 35.0
    with pytest.raises(AtCapacity) as caught:
        guard.issue_token(Client("a"))
    assert caught.value.retry_after_ms == 25_000  # when the oldest expires
    assert guard.authorize(HOST, {"token": guard.issue_token(Client("b"))[0]}, token_ok=True).key_id == "b"
    clock.now = 60.0
    guard.issue_token(Client("a"))
    with pytest.raises(AtCapacity):
        guard.issue_token(Client("a"))


def test_a_used_token_makes_room() -> None:
    guard = locked()
    for _ in range(MAX_TOKENS + 10):
        with guard.admit(issued(guard)):
            pass


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
    if allowed:
        assert guard.authorize(headers, {}) == Client(None)
    else:
        with pytest.raises(Unauthorized):
            guard.authorize(headers, {})


def test_a_foreign_origin_is_refused_even_with_a_key() -> None:
    with pytest.raises(Unauthorized):
        locked().authorize({**HOST, "x-api-key": KEY, "origin": "https://evil.example"}, {})


def test_with_keys_any_host_name_is_the_node_s() -> None:
    locked().authorize({**HOST, "x-api-key": KEY, "origin": "http://node.example:8100"}, {})


def test_sessions_are_counted_by_key_and_in_total() -> None:
    guard = make(limits={"sessions_per_key": 1, "connections": 2})
    with guard.admit(Client("a")):
        with pytest.raises(AtCapacity), guard.admit(Client("a")):
            pass
        with guard.admit(Client("b")), pytest.raises(AtCapacity), guard.admit(Client("c")):
            pass
    with guard.admit(Client("a")):
        pass
    assert guard.sessions == 0


def test_what_tokens_open_is_not_their_key_s_session() -> None:
    guard = make(auth={"api_keys": [KEY]}, limits={"sessions_per_key": 1, "token_sessions_per_key": 2})
    with guard.admit(Client("a")), guard.admit(issued(guard)), guard.admit(issued(guard)):
        with pytest.raises(AtCapacity, match="tokens"), guard.admit(issued(guard)):
            pass
        with guard.admit(issued(guard, "b")):
            pass


def test_the_operator_may_count_them_as_their_key_s() -> None:
    guard = make(auth={"api_keys": [KEY]}, limits={"sessions_per_key": 1, "token_sessions_per_key": None})
    with guard.admit(issued(guard)), pytest.raises(AtCapacity), guard.admit(Client("a")):
        pass
    with guard.admit(Client("a")), pytest.raises(AtCapacity), guard.admit(issued(guard)):
        pass


def test_a_key_and_its_tokens_are_one_owner_and_keyless_sessions_one_each() -> None:
    guard = locked()
    with guard.admit(Client("a")) as one, guard.admit(issued(guard)) as same, guard.admit(Client("b")) as other:
        assert one == same != other
        assert 0 not in (one, other)  # the node itself
    with guard.admit(Client("a")) as again:
        assert again == one
    with guard.admit(Client(None)) as first, guard.admit(Client(None)) as second:
        assert len({one, other, first, second}) == 4


def test_a_refused_client_is_told_when_a_session_will_have_ended() -> None:
    clock = Clock()
    guard = make(clock, limits={"sessions_per_key": 1})

    def wait_ms() -> int:
        with pytest.raises(AtCapacity) as caught, guard.admit(Client("a")):
            pass
        return caught.value.retry_after_ms or 0

    with guard.admit(Client("a")):  # the first: it may last as long again
        clock.now += 4.0
        assert wait_ms() == 4_000
    for _ in range(20):
        with guard.admit(Client("a")):
            clock.now += 10.0
    with guard.admit(Client("a")):
        clock.now += 7.0
        assert wait_ms() == 3_000


def test_a_place_is_given_back_when_the_session_fails() -> None:
    guard = make(limits={"connections": 1})
    with pytest.raises(ZeroDivisionError), guard.admit(Client(None)):
        raise ZeroDivisionError
    with guard.admit(Client(None)):
        pass


def test_without_keys_only_the_node_s_limit_counts() -> None:
    guard = make(limits={"sessions_per_key": 1, "connections": 2})
    with guard.admit(Client(None)), guard.admit(Client(None)):
        pass


def test_a_key_sends_so_many_requests() -> None:
    clock = Clock()
    guard = make(clock, auth={"api_keys": [KEY, "other"]}, limits={"requests_per_s": 10})

    def ask(key: str) -> None:
        headers = [(b"host", b"localhost"), (b"x-api-key", key.encode())]
        guard.identify(HTTPConnection({"type": "http", "headers": headers, "query_string": b""}))

    for _ in range(50):
        ask(KEY)
    for _ in range(20):  # what is refused does not count
        with pytest.raises(RateLimited) as refused:
            ask(KEY)
        assert refused.value.retry_after_ms == 1_000
    ask("other")
    clock.now += 1
    for _ in range(10):
        ask(KEY)
    with pytest.raises(RateLimited):
        ask(KEY)
