"""Where the nodes of a cluster are. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

NAME = re.compile(r"[a-z0-9-]{1,63}")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where one node is reached from the other machines. Raises `ValueError` for what cannot be one."""

    name: str  # unique, [a-z0-9-]{1,63}; the node has it as its setting `fleet.node`
    host: str  # an IPv4 or IPv6 address, not a name: no machine may need a name server to reach a node
    port: int
    version: str = ""  # of agent_tts

    def __post_init__(self) -> None:
        if NAME.fullmatch(self.name) is None:
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
