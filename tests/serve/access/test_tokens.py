"""Tokens are good on every front of their node, and nowhere else."""

from __future__ import annotations

import base64

import pytest

from agent_tts.serve.access.keys import SECRET_BYTES, Tokens
from tests.support import present

SECRET = bytes(SECRET_BYTES)


def test_a_token_of_one_front_is_good_on_another() -> None:
    token = Tokens(SECRET, ["a", "b"]).issue("a", now=100.0, ttl_s=60.0)
    key_id, found = present(Tokens(SECRET, ["b", "a"]).check(token, now=159.9))
    assert (key_id, found.expires_at) == ("a", 160.0)


def test_every_token_has_its_own_id() -> None:
    tokens = Tokens(SECRET, ["a"])
    found = [tokens.check(tokens.issue("a", 0.0, 60.0), 1.0) for _ in range(100)]
    assert len({each[1].id for each in found if each is not None}) == 100


def test_no_changed_bit_is_accepted() -> None:
    """Fails if the expiry, the key or the id were not signed."""
    tokens = Tokens(SECRET, ["a"])
    signed = base64.urlsafe_b64decode(tokens.issue("a", 0.0, 60.0))
    for bit in range(8 * len(signed)):
        changed = bytearray(signed)
        changed[bit // 8] ^= 1 << bit % 8
        assert tokens.check(base64.urlsafe_b64encode(changed).decode(), 1.0) is None


@pytest.mark.parametrize("token", ["", "x", "ключ", "\udcff", "A" * 64, "A" * 10_000, "=" * 64, " " * 64], ids=ascii)
def test_what_is_no_token_is_refused(token: str) -> None:
    assert Tokens(SECRET, ["a"]).check(token, 0.0) is None


def test_a_token_shows_nothing_of_its_key() -> None:
    """The id is the start of the key's digest: who has it may guess weak keys."""
    key_id = "0123456789abcdef"
    signed = base64.urlsafe_b64decode(Tokens(SECRET, [key_id]).issue(key_id, 0.0, 60.0))
    assert bytes.fromhex(key_id) not in signed
    assert key_id.encode() not in signed
