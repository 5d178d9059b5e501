"""When the packets of WebRTC peers leave: each 20 ms, by a few timers that all peers share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

PACKET_MS = 20
PACKET_S = PACKET_MS / 1_000
PACKET_TICKS = 960  # of the 48 kHz RTP clock of Opus (RFC 7587)

# After a packet later than this the grid moves on: the listener hears a pause instead of a lasting delay. Packets less
# late catch up, at no more than twice the rate.
RESYNC_S = 0.2

# Grids of 20 ms, 4 ms apart: whole ms, because uvloop's timers have no finer ones. One more is used when each has some
# peers, whose packets take the event loop about 1 ms: more grids wake it more often, fewer make packets late.
GRIDS = 5
PEERS = 10

# Sends the packet of a peer: its RTP timestamp, and when it was due. Must not raise.
Send = Callable[[int, float], None]


class Pacer:
    """The time grid of packets. Pure: `now` is an argument, in seconds of a monotonic clock."""

    def __init__(self, due: float) -> None:
        self._due = due
        # The next packet must not leave before this, however late it is: a burst would only fill the jitter buffer.
        self._not_before = due
        self._pts = 0

    def wait_s(self, now: float) -> float:
        """Seconds until the next packet leaves; not negative."""
        return max(0.0, max(self._due, self._not_before) - now)

    def leave(self, now: float) -> tuple[int, float]:
        """A packet leaves now; returns its RTP timestamp, and when it was due."""
        due, late_s = self._due, now - self._due
        if late_s > RESYNC_S:
            skipped = int(late_s / PACKET_S)
            self._due += skipped * PACKET_S
            self._pts += skipped * PACKET_TICKS
        pts = self._pts
        self._pts += PACKET_TICKS
        self._due += PACKET_S
        self._not_before = now + PACKET_S / 2
        return pts, due


class PacketClock:
    """When the packets of all peers of an event loop leave."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._grids = [_Grid(clock, number * PACKET_S / GRIDS) for number in range(GRIDS)]

    def join(self, send: Send) -> Callable[[], None]:
        """Call `send` every 20 ms, for the first time within 20 ms; returns what ends that, which is idempotent."""
        grid = min(self._grids, key=lambda one: max(PEERS, len(one.sends) + 1))
        grid.add(send)
        return lambda: grid.remove(send)


class _Grid:
    def __init__(self, clock: Callable[[], float], offset_s: float) -> None:
        self._clock = clock
        self._offset_s = offset_s
        self.sends: dict[Send, None] = {}
        # Made for the first peer; the timer for the next packets, None without peers.
        self._pacer = Pacer(0.0)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, send: Send) -> None:
        if self._timer is None:
            periods = math.ceil((self._clock() - self._offset_s) / PACKET_S)
            self._pacer = Pacer(periods * PACKET_S + self._offset_s)
            self._wait()
        self.sends[send] = None

    def remove(self, send: Send) -> None:
        self.sends.pop(send, None)
        if not self.sends and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pacer.wait_s(self._clock()), self._leave)

    def _leave(self) -> None:
        pts, due = self._pacer.leave(self._clock())
        self._wait()
        for send in list(self.sends):
            send(pts, due)
