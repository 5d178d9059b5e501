"""One-time tokens of browsers: signed, so that any front of any node with the secret can issue and check them. Pure.

That a token opens one session only is for the ledger to say, which keeps those that were used until they expire.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import struct
from collections.abc import Iterable

from agent_tts.ipc.front_messages import Token

SECRET_BYTES = 32

# Tag of the key, expiry in seconds of the time of day, a random id.
_BODY = struct.Struct("!8sd16s")
_MAC_BYTES = 16


class Tokens:
    """Issues and checks tokens of the keys with these ids; `secret` is the same on all fronts of a node, or of a fleet.

    A token tells nothing about its key but which other tokens have the same.
    """

    def __init__(self, secret: bytes, key_ids: Iterable[str]) -> None:
        self._secret = secret
        self._keys = {self._tag(key_id): key_id for key_id in key_ids}

    def issue(self, key_id: str | None, now: float, ttl_s: float) -> str:
        """A new token of a key; without keys it counts for nothing."""
        body = _BODY.pack(self._tag(key_id or ""), now + ttl_s, secrets.token_bytes(16))
        return base64.urlsafe_b64encode(body + self._mac(body)).decode()

    def check(self, token: str, now: float) -> tuple[str, Token] | None:
        """The id of its key, and the token; None unless it was issued for one of the keys and has not expired."""
        try:
            signed = base64.b64decode(token.encode(), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        body, mac = signed[: _BODY.size], signed[_BODY.size :]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        tag, expires_at, number = _BODY.unpack(body)
        key_id = self._keys.get(tag)
        return None if key_id is None or now >= expires_at else (key_id, Token(number.hex(), expires_at))

    def _tag(self, key_id: str) -> bytes:
        return hmac.digest(self._secret, b"key" + key_id.encode(), "sha256")[:8]

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, b"token" + body, "sha256")[:_MAC_BYTES]
