"""HAProxy as text: its configuration, and the commands and answers of its runtime API. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_tts.cluster.directory import NodeAddress

SOCKET = "haproxy.sock"  # of the runtime API, in the folder that HAProxy runs in
CERTIFICATE = "door.pem"  # in the folder, too: what HAProxy has, whatever becomes of the file that it is from
LISTENER = "AGENT_TTS_DOOR"  # environment variable with the descriptor of the listener

# The looks at /ready: one failure is enough, and so is one success.
_CHECK = "check inter 500ms fall 1 rise 1"

_TEMPLATE = Path(__file__).with_name("haproxy.cfg")
_LINE = re.compile(r"(?!##)(?:(?P<needs>\w+)\? )?(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Callers:
    """Who is let in, and how."""

    # Path of a PEM file with a certificate, its intermediate certificates and the key, read again when it changes.
    tls_pem: str | None = None
    # Port on loopback for `/metrics` of HAProxy itself, where the build has them; None: no such port.
    metrics_port: int | None = None
    # Each connection begins with a header of the PROXY protocol, version 1 or 2, of a load balancer: it tells the
    # address.
    accept_proxy: bool = False
    # Most at once of an IPv4 address, or of 64 bits of an IPv6 address; None: any number.
    connections_per_address: int | None = None


def configuration(address: str, callers: Callers) -> str:
    """The text of `haproxy.cfg`.

    The listener is inherited, so a restarted HAProxy needs no free port, and callers wait meanwhile. The runtime API
    adds servers, by the names of their nodes; text of `server_lines` may follow for those that are known.

    Args:
        address: what the listener is bound to. Told only: a door that wants another one finds that this is not its own.
    """
    tls = "" if callers.tls_pem is None else f" ssl crt {CERTIFICATE} alpn http/1.1 ssl-min-ver TLSv1.2"
    told = {
        "address": address,
        "accept_proxy": " accept-proxy" if callers.accept_proxy else "",
        "tls": tls,
        "connections": callers.connections_per_address,
        "metrics_port": callers.metrics_port,
    }
    lines = (_LINE.fullmatch(line) for line in _TEMPLATE.read_text("utf-8").splitlines())
    wanted = (line for line in lines if line is not None and (line["needs"] is None or told[line["needs"]] is not None))
    text = "".join(f"{line['text']}\n" for line in wanted)
    return re.sub(r"@(\w+)@", lambda name: str(told[name[1]]), text)


def server_lines(nodes: Sequence[NodeAddress]) -> str:
    """The end of a configuration: nodes that were servers before, and get callers at once."""
    return "".join(f"  server {node.name} {node.target} {_CHECK}\n" for node in nodes)


# ---------------------------------------------------------------- runtime API

# Asks for all servers; answered with what `servers` reads.
LOOK = "show servers state nodes; show stat nodes 4 -1"

# Bits of `srv_admin_state`: maintenance and drain, by command; others are inherited or by configuration.
_MAINT, _DRAIN = 0x01, 0x08


@dataclass(frozen=True, slots=True)
class Server:
    """A node, as HAProxy has it."""

    name: str
    host: str
    port: int
    state: Literal["ready", "drain", "maint"]  # as commanded
    up: bool  # its last check was answered with 200
    check: str  # how the last one ended: L7OK, L7STS (503 for example), L7TOUT, L4CON, L4TOUT ...
    sessions: int  # requests and WebSockets that are open

    @property
    def gone(self) -> bool:
        """Whether nothing took the last connection to it."""
        return self.check in ("L4CON", "L4TOUT")


def servers(answer: str) -> list[Server]:
    """All servers, from the answer to `LOOK`. Raises `ValueError` or `KeyError` for anything else."""
    version, state, stat = answer.split("# ")
    if version.strip() != "1":
        raise ValueError(f"HAProxy says {version.strip()}")
    stats = {row["svname"]: row for row in csv.DictReader(stat.splitlines())}
    found = []
    for row in csv.DictReader(state.strip().splitlines(), delimiter=" "):
        about, admin = stats[row["srv_name"]], int(row["srv_admin_state"])
        found.append(
            Server(
                row["srv_name"],
                row["srv_addr"],
                int(row["srv_port"]),
                "maint" if admin & _MAINT else "drain" if admin & _DRAIN else "ready",
                row["srv_op_state"] != "0",
                about["check_status"].removeprefix("* "),
                int(about["scur"]),
            )
        )
    return found


def commands(have: Iterable[Server], wanted: Sequence[NodeAddress], lost: Collection[str] = ()) -> list[str]:
    """What to say next, so that HAProxy has the wanted nodes; nothing when it has.

    A new one gets callers once its check is answered. One that is not wanted drains. It goes when it has no sessions
    and is gone: a node that still runs may have WebRTC calls, whose signalling has to find it.

    Args:
        lost: names of servers that have been gone so long that their callers are told. The kernel keeps a connection to
            a machine without power for a quarter of an hour, if it has something to send.
    """
    there = {server.name: server for server in have}
    said = [f"shutdown sessions server nodes/{name}" for name in lost if name in there and there[name].sessions]
    for node in wanted:
        server, path = there.pop(node.name, None), f"nodes/{node.name}"
        if server is None:
            said += [f"add server {path} {node.target} {_CHECK}", f"enable health {path}"]
            said += [f"set server {path} health down", f"set server {path} state ready"]
            continue
        if (server.host, server.port) != (node.host, node.port):
            said.append(f"set server {path} addr {node.host} port {node.port}")
        if server.state != "ready":
            said.append(f"set server {path} state ready")
    for server in there.values():
        path = f"nodes/{server.name}"
        if server.state == "ready":
            said.append(f"set server {path} state drain")
        elif server.state == "drain" and server.sessions == 0 and server.gone:
            said.append(f"set server {path} state maint")
        elif server.state == "maint":
            said.append(f"del server {path}" if server.sessions == 0 else f"set server {path} state drain")
    return said


def part_is(part: str, is_whole: bool) -> str:
    """The command by which `haproxy_server_status` of a part is UP, or MAINT while it is not whole."""
    return f"set server machine/{part} state {'ready' if is_whole else 'maint'}"


# Answers of commands that did what they say.
_DONE = ("New server registered.", "Server deleted.", "IP changed", "port changed", "no need to change")


def complaints(answer: str) -> list[str]:
    """What an answer to `commands` has besides what is usual."""
    return [line for line in answer.splitlines() if line.strip() and not line.startswith(_DONE)]


def new_certificate(pem: str) -> list[str]:
    """Commands that replace the certificate; each is for a connection of its own. The last is answered `ACCEPTED`."""
    text = "\n".join(line for line in pem.splitlines() if line.strip())  # an empty line would end it
    return [f"set ssl cert {CERTIFICATE} <<\n{text}\n", f"commit ssl cert {CERTIFICATE}"]


ACCEPTED = "Success!"
