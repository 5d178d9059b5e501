"""How long a client that has no room is waited for: by the audio that it has taken and is still to play. Pure."""

from __future__ import annotations

# A client that takes audio at this share of real time, in whatever bursts, is never late.
SLOWEST = 0.9


class Pace:
    """The pace of one client.

    What its machine has taken is audio that it may be playing, without room for more, so its silence is allowed until
    the slowest player has played that, and `grace_s` longer. One that plays slower is served as long as it takes
    something within that time.

    Args:
        grace_s: longest silence of a client that has nothing left to play.
    """

    def __init__(self, grace_s: float, now: float) -> None:
        self._grace_s = grace_s
        # Bytes that the client has not taken yet, and the seconds of audio in them. It is spread evenly over them.
        self._bytes = 0
        self._audio_s = 0.0
        # When they were last measured.
        self._looked_at = now
        # When the slowest player will have played what the client has taken, or when it last took anything.
        self._until = now

    def wrote(self, size: int, audio_s: float = 0.0) -> None:
        """`size` bytes with `audio_s` of audio were written to the client."""
        self._bytes += size
        self._audio_s += audio_s

    def look(self, now: float, waiting: int) -> None:
        """`waiting` bytes are not taken by now. Times between looks count against the client: it may have taken them
        right after the last one."""
        taken = self._bytes - waiting
        if taken > 0:
            audio_s = self._audio_s * taken / self._bytes
            self._audio_s -= audio_s
            self._until = max(max(self._until, self._looked_at) + audio_s / SLOWEST, now)
        self._bytes = waiting  # with what else is sent on the connection: heads, pings, a cipher's overhead
        self._looked_at = now

    def deadline(self, since: float) -> float:
        """When a client without room since `since` is late, if it takes nothing more."""
        return max(self._until, since) + self._grace_s

    def unplayed_s(self, now: float) -> float:
        """Seconds until the slowest player has played all that was written."""
        return max(0.0, self._until - now) + self._audio_s / SLOWEST
