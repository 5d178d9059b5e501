"""Which host counts, of what proxies and strangers write into `Forwarded` and `X-Forwarded-Host`."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from agent_tts.config.settings import Auth
from agent_tts.errors import Forbidden
from agent_tts.serve.access.forwarded import MAX_HOPS, forwarded_hosts
from tests.serve.access.test_guard import allows, locked, make

DEFAULT = Auth().trusted_proxies
TRUSTED = (*DEFAULT, ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
PROXY, CLIENT = "10.1.2.3", "198.51.100.7"


def hosts(*lines: tuple[str, str], peer: str = PROXY) -> list[str]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in lines]
    return forwarded_hosts(Headers(raw=raw), peer, TRUSTED)


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        (PROXY, True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:10.1.2.3", True),  # of a node that listens on ::
        ("2001:db8::7", True),
        (CLIENT, False),
        ("2001:db9::7", False),
        ("11.0.0.1", False),
        ("", False),
        ("testclient", False),
    ],
)
def test_only_trusted_peers_are_believed(peer: str, trusted: bool) -> None:
    for line in (("X-Forwarded-Host", "a.example"), ("Forwarded", "host=a.example")):
        assert hosts(line, peer=peer) == ["a.example"] * trusted


@pytest.mark.parametrize(
    ("value", "host"),
    [
        ("host=a.example", "a.example"),
        ("for=198.51.100.7;proto=https;host=a.example:8443", "a.example:8443"),
        ('for="[2001:db8:cafe::17]:4711";host="a.example:8443";proto=https', "a.example:8443"),
        ("FOR=x;Host=a.example", "a.example"),
        ("for=x; host = a.example ; proto=http", "a.example"),
        (r'host="a\.exam\ple"', "a.example"),
        ('ext="x,host=evil.example;host=evil.example";host=a.example', "a.example"),
        (r'ext="\",host=evil.example";host=a.example', "a.example"),
        ("by=10.0.0.1;for=x", None),
        ("", None),
        (",, ,", None),
        # What a stranger has sent stands before what the proxy appends.
        ("host=evil.example, for=198.51.100.7;host=a.example", "a.example"),
        ("for=10.0.0.9;host=evil.example, for=198.51.100.7;host=a.example", "a.example"),
        ("host=evil.example, for=unknown;host=a.example", "a.example"),
        ("host=evil.example, for=_hidden;host=a.example", "a.example"),
        ("host=evil.example, host=a.example", "a.example"),
        # The one that it names is a proxy that is trusted, too.
        ("for=198.51.100.7;host=a.example, for=10.0.0.9;host=inner.example", "a.example"),
        ('for=198.51.100.7;host=a.example, for="[2001:db8::9]:80";host=inner.example', "a.example"),
        ("for=198.51.100.7;host=a.example, for=10.0.0.9:4711", "a.example"),
        ("host=evil.example, for=198.51.100.7;host=a.example, for=10.0.0.9", "a.example"),
        # A quote that a stranger leaves open would hide what the proxy says.
        ('x=", for=198.51.100.7;host=a.example', "?"),
        ('x=", for=198.51.100.7;host="a.example:8443"', "?"),
        ('x="\\, for=198.51.100.7;host="a.example:8443"', "?"),
    ],
)
def test_forwarded_is_read_from_its_end(value: str, host: str | None) -> None:
    assert hosts(("Forwarded", value)) == [host] * (host is not None)


@pytest.mark.parametrize(
    ("values", "clients", "host"),
    [
        (["a.example"], [], "a.example"),
        ([" a.example:8443 "], [CLIENT], "a.example:8443"),
        (["evil.example, a.example"], [CLIENT], "a.example"),
        (["evil.example", "a.example"], [CLIENT], "a.example"),
        (["evil.example, a.example"], ["10.0.0.9, 198.51.100.7"], "a.example"),
        (["evil.example,a.example"], [], "a.example"),
        (["a.example, inner.example"], ["198.51.100.7, 10.0.0.9"], "a.example"),
        (["a.example, inner.example"], ["198.51.100.7", "10.0.0.9:80"], "a.example"),
        (["a.example, inner.example"], ["198.51.100.7", "[2001:db8::9]:80"], "a.example"),
        (["a.example, inner.example"], ["198.51.100.7", "2001:db8::9"], "a.example"),
        (["a.example"], ["198.51.100.7, 10.0.0.9"], "a.example"),
        (["evil.example, a.example, inner.example"], ["x, 198.51.100.7, 10.0.0.9"], "a.example"),
        ([""], [CLIENT], None),
        ([], [CLIENT], None),
    ],
)
def test_lists_and_several_headers_of_x_forwarded_host(values: list[str], clients: list[str], host: str | None) -> None:
    lines = [("X-Forwarded-Host", value) for value in values] + [("X-Forwarded-For", value) for value in clients]
    assert hosts(*lines) == [host] * (host is not None)


def test_several_headers_and_both_kinds() -> None:
    """A proxy that sets one kind passes on a stranger's other one: without keys both have to be known."""
    assert hosts(("Forwarded", "host=evil.example"), ("Forwarded", "for=x;host=a.example")) == ["a.example"]
    assert hosts(("Forwarded", 'x="'), ("Forwarded", "for=x;host=a.example")) == ["a.example"]
    both = ("Forwarded", "host=evil.example"), ("X-Forwarded-Host", "a.example")
    assert hosts(*both) == ["evil.example", "a.example"]


@given(st.text(st.characters(max_codepoint=255)), st.text(st.characters(max_codepoint=255)))
def test_nothing_that_a_stranger_sends_first_changes_what_the_proxy_says(sent: str, other: str) -> None:
    for name, said in (("Forwarded", "for=198.51.100.7;host=a.example"), ("X-Forwarded-Host", "a.example")):
        for lines in ([(name, f"{sent},{other}, {said}")], [(name, sent), (name, other), (name, said)]):
            assert hosts(*lines) in (["a.example"], ["?"]), lines


def test_no_more_hops_are_read_than_any_chain_has() -> None:
    """Mutation: the price of a list is its sender's choice."""
    hop = ", for=10.0.0.9"
    assert hosts(("Forwarded", "host=far.example" + (MAX_HOPS - 1) * hop)) == ["far.example"]
    assert hosts(("Forwarded", "host=far.example" + MAX_HOPS * hop)) == []


@pytest.mark.parametrize(
    ("host", "forwarded", "origin", "allowed"),
    [
        ("127.0.0.1:8100", [], "https://speech.example", False),
        ("127.0.0.1:8100", ["speech.example"], "https://speech.example", True),
        ("127.0.0.1:8100", ["Speech.Example"], "https://SPEECH.example", True),
        ("127.0.0.1:8100", ["speech.example:443"], "https://speech.example", True),
        ("127.0.0.1:8100", ["speech.example:80"], "http://speech.example", True),
        ("127.0.0.1:8100", ["speech.example:80"], "https://speech.example", False),
        ("127.0.0.1:8100", ["speech.example:8443"], "https://speech.example:8443", True),
        ("127.0.0.1:8100", ["speech.example"], "https://speech.example:8443", False),
        ("127.0.0.1:8100", ["[2001:db8::1]:443"], "https://[2001:db8::1]", True),
        ("127.0.0.1:8100", ["speech.example"], "https://evil.example", False),
        ("127.0.0.1:8100", ["speech.example"], "null", False),
        ("127.0.0.1:8100", ["?"], "https://speech.example", False),
        ("127.0.0.1:8100", [""], "null", False),
        ("speech.example:443", [], "https://speech.example", True),
    ],
)
def test_a_page_of_the_forwarded_host_is_the_node_s_own(
    host: str, forwarded: list[str], origin: str, allowed: bool
) -> None:
    headers = {"host": host, "x-api-key": "other", "origin": origin}
    assert allows(locked(), headers, refusal=Forbidden, forwarded=forwarded) is allowed


@pytest.mark.parametrize(
    ("host", "forwarded", "allowed"),
    [
        ("localhost:8100", [], True),
        ("localhost:8100", ["localhost:5173"], True),
        ("localhost:8100", ["app.example"], True),
        ("localhost:8100", ["app.example:443"], True),
        ("localhost:8100", ["speech.example"], False),
        ("localhost:8100", ["app.example", "evil.example"], False),
        ("localhost:8100", ["?"], False),
        ("evil.example", ["localhost"], False),  # DNS rebinding: such a page can send any header but Host
        ("evil.example", ["app.example"], False),
    ],
)
def test_without_keys_every_host_has_to_be_known(host: str, forwarded: list[str], allowed: bool) -> None:
    guard = make(auth={"allowed_origins": ["https://app.example"]})
    assert allows(guard, {"host": host}, refusal=Forbidden, forwarded=forwarded) is allowed
