"""What the machines of a cluster know of each other: nodes, and the counts of their keys. Pure; an actor has one."""

from __future__ import annotations

import re
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


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node's replica tells each second."""

    name: str
    host: str
    port: int
    version: str
    ray_node: str  # Ray's id of its machine
    state: str  # what `/ready` says
    used: float = 0.0  # slots
    slots: float = 0.0
    waiting: float = 0.0
    first_audio_s: float = 0.0


def address_of(report: dict[str, Any]) -> NodeAddress:
    """Where a node of any version is."""
    return NodeAddress(report["name"], report["host"], report["port"], report["version"])


class Directory:
    """The nodes by their last reports. Plain values go in and come out. The caller passes the time, in seconds."""

    def __init__(self) -> None:
        # Each node's last report and when it came. Its fields are those of the node's version, which may be another.
        self._reports: dict[str, tuple[dict[str, Any], float]] = {}
        self._counts = Counts()

    def tell(self, report: dict[str, Any], now: float) -> None:
        """Take a node's report."""
        self._reports[report["name"]] = report, now

    def leave(self, name: str) -> None:
        """A node has ended."""
        self._reports.pop(name, None)

    def nodes(self, now: float) -> list[dict[str, Any]]:
        """The last report of each node that has told one lately, by name."""
        self._reports = {name: known for name, known in self._reports.items() if known[1] > now - FORGET_S}
        return [report for _, (report, _) in sorted(self._reports.items())]

    def exchange(self, batch: dict[str, Any], now: float) -> tuple[list[int], list[int]]:
        """See `agent_tts.serve.access.fleet_counts.Counts`."""
        return self._counts.exchange(Batch(**batch), now * 1_000)
