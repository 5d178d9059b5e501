"""Which connection closes when there are too many: strangers before clients, idle ones before busy ones."""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

from agent_tts.errors import at_capacity

# Key in `scope["extensions"]` under which an endpoint finds its `HttpProtocol` or `WebSocketProtocol`.
CONNECTION = "agent_tts.connection"

# Places that clients do not get, for newcomers: each is a stranger at first, and some ask for /health and /ready.
STRANGERS = 64

C = TypeVar("C")


class Standing(IntEnum):
    """What a connection is, in the order in which connections give way. A client has shown a key that is right."""

    IDLE_STRANGER = 0  # its requests are answered
    NEW_STRANGER = 1  # it has sent no request yet
    BUSY_STRANGER = 2
    IDLE_CLIENT = 3
    BUSY_CLIENT = 4  # never gives way


_OF_STRANGERS = (Standing.IDLE_STRANGER, Standing.NEW_STRANGER, Standing.BUSY_STRANGER)


class ConnectionTable(Generic[C]):
    """The open connections, at most `room` of them. Pure: the caller closes what gives way.

    At most `room - STRANGERS` are clients, so that a newcomer always gets a place.
    """

    def __init__(self, room: int) -> None:
        self.room = room  # may change; nothing gives way before the next newcomer
        self._standing: dict[C, Standing] = {}
        # The connections of each standing, the one that has it longest first.
        self._by_standing: dict[Standing, dict[C, None]] = {standing: {} for standing in Standing}

    def __len__(self) -> int:
        return len(self._standing)

    @property
    def strangers(self) -> int:
        """The connections that have shown no key."""
        return sum(len(self._by_standing[standing]) for standing in _OF_STRANGERS)

    def enter(self, connection: C, *, crowded: bool = False) -> tuple[C, Standing] | None:
        """Add a new connection. Returns the one that gives way and what it was, if there is no room.

        It is `crowded` if there is none, whatever the count says.
        """
        leaving = self._leave() if crowded or len(self) >= self.room else None
        self._put(connection, Standing.NEW_STRANGER)
        return leaving

    def recognise(self, connection: C) -> tuple[C, Standing] | None:
        """A connection has shown a key: it is a client from now on. Returns what gives way; see `enter`.

        Raises `AtCapacity` if all clients' places are taken by busy ones.
        """
        if self._standing.get(connection, Standing.BUSY_CLIENT) >= Standing.IDLE_CLIENT:  # or it has given way
            return None
        leaving = None
        if len(self) - self.strangers >= self.room - STRANGERS:
            leaving = self._oldest(Standing.IDLE_CLIENT)
            if leaving is None:
                raise at_capacity("connections", self.room - STRANGERS, "limits.connections")
        self._put(connection, Standing.BUSY_CLIENT)
        return leaving

    def busy(self, connection: C) -> None:
        """A request has come."""
        self._become(connection, Standing.BUSY_STRANGER, Standing.BUSY_CLIENT)

    def idle(self, connection: C) -> None:
        """All requests are answered."""
        self._become(connection, Standing.IDLE_STRANGER, Standing.IDLE_CLIENT)

    def remove(self, connection: C) -> None:
        """It is closed, or will be. Idempotent."""
        standing = self._standing.pop(connection, None)
        if standing is not None:
            del self._by_standing[standing][connection]

    def _become(self, connection: C, stranger: Standing, client: Standing) -> None:
        if connection in self._standing:  # it has not given way
            self._put(connection, client if self._standing[connection] >= Standing.IDLE_CLIENT else stranger)

    def _put(self, connection: C, standing: Standing) -> None:
        self.remove(connection)
        self._standing[connection] = standing
        self._by_standing[standing][connection] = None

    def _leave(self) -> tuple[C, Standing] | None:
        choices = _OF_STRANGERS if self.strangers >= STRANGERS else (Standing.IDLE_CLIENT,)
        return next((found for standing in choices if (found := self._oldest(standing)) is not None), None)

    def _oldest(self, standing: Standing) -> tuple[C, Standing] | None:
        """Remove the connection that has had this standing longest."""
        for connection in self._by_standing[standing]:
            self.remove(connection)
            return connection, standing
        return None
