"""API keys: which one a client has sent, its name, what its holder may use; and one-time tokens of browsers. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable

from pydantic import SecretStr

from agent_tts.config.settings import UNNAMED, Auth, Key
from agent_tts.ipc.front_messages import Token

_NO_KEY = Key(key=SecretStr(""))

SECRET_BYTES = 32

# Tag of the key, expiry in seconds of the time of day, a random id.
_BODY = struct.Struct("!8sd16s")
_MAC_BYTES = 16

CLIENT_SECRET = "ek_"  # what a client secret begins with, as OpenAI's do: its clients look for it


class Keys:
    """The keys of some settings, by their ids: digests, to compare and never to log or show."""

    def __init__(self, auth: Auth) -> None:
        # Digests of the keys: of one length, so that the time to compare them does not tell theirs.
        self._digests: list[bytes] = []
        self._known: dict[str, tuple[str, Key]] = {}  # name and key, by id
        for name, key in auth.accepted():
            digest = _digest(key.key.get_secret_value())
            self._digests.append(digest)
            self._known[_id_of(digest)] = name, key

    def __bool__(self) -> bool:
        """Whether a client needs a key."""
        return bool(self._digests)

    @property
    def ids(self) -> Iterable[str]:
        """The ids of all keys."""
        return self._known

    def find(self, given: str) -> str | None:
        """The id of a key that was sent; None if it is not accepted."""
        if not given:
            return None
        # Every key is compared, so that timing does not tell which one was nearly right.
        digest = _digest(given)
        matches = [hmac.compare_digest(key, digest) for key in self._digests]
        return _id_of(digest) if any(matches) else None

    def name(self, key_id: str | None) -> str:
        """What metrics call a key; one of few names, whoever asks."""
        return self._of(key_id)[0]

    def quota(self, key_id: str | None) -> Key:
        """What the holder of a key may use; without limits if it has no name."""
        return self._of(key_id)[1]

    def _of(self, key_id: str | None) -> tuple[str, Key]:
        return self._known.get(key_id or "", (UNNAMED, _NO_KEY))


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def _id_of(digest: bytes) -> str:
    return digest.hex()[:16]


class Tokens:
    """Issues and checks tokens of keys with these ids; `secret` is the same on all fronts of a node, or of a fleet.

    They are signed, so that any front with the secret can check them, and tell nothing about a key but which other
    tokens have the same. The ledger keeps those that were used until they expire.
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
        body = self._signed(token, b"token")
        if body is None or len(body) != _BODY.size:
            return None
        tag, expires_at, number = _BODY.unpack(body)
        key_id = self._keys.get(tag)
        return None if key_id is None or now >= expires_at else (key_id, Token(number.hex(), expires_at))

    def issue_secret(self, key_id: str | None, now: float, ttl_s: float, content: bytes) -> str:
        """A new client secret of a key, or of none: it can be used until it expires, and carries some bytes."""
        body = _BODY.pack(self._tag(key_id or ""), now + ttl_s, secrets.token_bytes(16)) + content
        return CLIENT_SECRET + base64.urlsafe_b64encode(body + self._mac(body, b"secret")).decode().rstrip("=")

    def check_secret(self, secret: str, now: float) -> tuple[str | None, bytes] | None:
        """The id of its key, and the bytes; as `check`. One that was issued for no key is good while there is none."""
        text = secret.removeprefix(CLIENT_SECRET)
        body = self._signed(text + "=" * (-len(text) % 4), b"secret")
        if body is None or len(body) < _BODY.size:
            return None
        tag, expires_at, _ = _BODY.unpack_from(body)
        known: dict[bytes, str | None] = dict(self._keys) or {self._tag(""): None}
        return (known[tag], body[_BODY.size :]) if tag in known and now < expires_at else None

    def _signed(self, text: str, kind: bytes) -> bytes | None:
        """What was signed as a token of this kind; None if it was not."""
        try:
            signed = base64.b64decode(text.encode(), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        body, mac = signed[:-_MAC_BYTES], signed[-_MAC_BYTES:]
        return body if hmac.compare_digest(mac, self._mac(body, kind)) else None

    def _tag(self, key_id: str) -> bytes:
        return hmac.digest(self._secret, b"key" + key_id.encode(), "sha256")[:8]

    def _mac(self, body: bytes, kind: bytes = b"token") -> bytes:
        return hmac.digest(self._secret, kind + body, "sha256")[:_MAC_BYTES]
