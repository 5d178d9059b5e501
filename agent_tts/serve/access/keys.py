"""The API keys that a node accepts: which one a client has sent, its name, and what its holder may use. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from pydantic import SecretStr

from agent_tts.config.settings import UNNAMED, Auth, Key

_NO_KEY = Key(key=SecretStr(""))


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
