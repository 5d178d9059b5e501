"""What the machines of a cluster know of each other: nodes, and the counts of their keys."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from agent_tts.serve.access.fleet_counts import Batch, Counts

NAME, NAMESPACE = "directory", "agent-tts"  # of the actor
TELL_S = 1.0  # between two reports of a node
FORGET_S = 10.0  # after its last report a node is not told any more

_NODE = re.compile(r"[a-z0-9-]{1,63}")  # name of a node


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where one node is reached from the other machines. Raises `ValueError` for what cannot be one."""

    name: str  # unique, [a-z0-9-]{1,63}; the node has it as its setting `fleet.node`
    host: str  # an IPv4 or IPv6 address, not a name: no machine may need a name server to reach a node
    port: int
    version: str = ""  # of agent_tts

    def __post_init__(self) -> None:
        if _NODE.fullmatch(self.name) is None:
            raise ValueError(f"{self.name!r} is not the name of a node: [a-z0-9-]{{1,63}}")
        ip_address(self.host)
        if not 0 < self.port < 65_536:
            raise ValueError(f"{self.port} is not a port")

    @property
    def target(self) -> str:
        """See `host_port`."""
        return host_port(self.host, self.port)


def host_port(host: str, port: int) -> str:
    """`HOST:PORT`, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(report: dict[str, Any]) -> NodeAddress:
    """Where a node of any version is."""
    return NodeAddress(report["name"], report["host"], report["port"], report["version"])


class Directory:
    """The nodes by their last reports. Plain values go in and come out: it is an actor of Ray's, one in a cluster.

    When it starts anew it knows all within `TELL_S`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Each node's last report and when it came. Its fields are those of the node's version, which may be another.
        self._reports: dict[str, tuple[dict[str, Any], float]] = {}
        self._counts = Counts()

    def tell(self, report: dict[str, Any]) -> None:
        """Take what a node's replica tells each second: see `app.Replica`."""
        self._reports[report["name"]] = report, self._clock()

    def leave(self, name: str) -> None:
        """A node has ended."""
        self._reports.pop(name, None)

    def nodes(self) -> list[dict[str, Any]]:
        """The last report of each node that has told one lately, by name."""
        since = self._clock() - FORGET_S
        self._reports = {name: known for name, known in self._reports.items() if known[1] > since}
        return [report for _, (report, _) in sorted(self._reports.items())]

    def exchange(self, batch: dict[str, Any]) -> tuple[list[int], list[int]]:
        """See `agent_tts.serve.access.fleet_counts.Counts`."""
        return self._counts.exchange(Batch(**batch), self._clock() * 1_000)
