"""HAProxy as text: its configuration, and the commands and answers of its runtime API. Pure."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agent_tts.cluster.directory import NodeAddress

SOCKET = "haproxy.sock"  # of the runtime API, in the folder that HAProxy runs in
LISTENER = "AGENT_TTS_DOOR"  # environment variable with the descriptor of the listener

PARTS = ("ray", "watching")  # of a machine, as servers that no caller comes to: HAProxy's metrics tell their state

# Seconds. A node looks after its callers by itself: it pings them, and closes idle ones. These are for a machine that
# is gone. A player may take nothing for as long as its longest lead (60 s), so nothing here is shorter but keepalive,
# which asks machines, not programs.
UNTAKEN_S = 90
SILENCE_S = 300
TUNNEL_S = 3_600

# The looks at /ready: one failure is enough, and so is one success.
_CHECK = "check inter 500ms fall 1 rise 1"

# The body that a node gives, too.
_ERROR = '{"error":{"message":"%s","type":"%s","param":null,"code":"%s"}}'
_FULL = _ERROR % ("no node takes new callers now: try again", "server_error", "at_capacity")
_LOST = _ERROR % ("the node is gone: try again", "server_error", "engine_lost")
_MANY = _ERROR % ("too many connections (connections per address): try again", "rate_limit_error", "rate_limited")

# HTTP says why; who sends no request is gone after `timeout http-request`.
_PER_ADDRESS = f"""  stick-table type ipv6 size 200k expire 1m store conn_cur
  tcp-request session track-sc0 src,ipmask(32,64)  # who has IPv6 has a whole /64
  acl many sc0_conn_cur gt %d
  http-request deny deny_status 429 content-type application/json string '{_MANY}' hdr Retry-After 1 if many
"""

_OWN = """.if feature(PROMEX)
frontend own
  bind 127.0.0.1:%d
  http-request use-service prometheus-exporter if { path /metrics }
  http-request deny deny_status 404
.endif
backend machine
""" + "".join(f"  server {part} 127.0.0.1:1\n" for part in PARTS)


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
    proxy = " accept-proxy" if callers.accept_proxy else ""
    limit = "" if callers.connections_per_address is None else _PER_ADDRESS % callers.connections_per_address
    tls = "" if callers.tls_pem is None else f" ssl crt {_quoted(callers.tls_pem)} alpn http/1.1 ssl-min-ver TLSv1.2"
    own = "" if callers.metrics_port is None else _OWN % callers.metrics_port
    return f"""# Of the door at {address}, which writes this file.
.if !version_atleast(2.8)
.alert "HAProxy 2.8 or newer is needed: servers are added while it runs"
.endif
global
  stats socket unix@{SOCKET} mode 600 level admin
  fd-hard-limit 200000  # two a caller, as far as the system allows
  tune.rcvbuf.server 65536  # of a node: what a slow caller has not taken waits there, where it is noticed
defaults
  mode http
  option http-server-close
  option http-no-delay  # audio is sent in parts
  option abortonclose
  option redispatch 1
  retries 2
  option clitcpka
  clitcpka-idle 10s
  clitcpka-intvl 5s
  clitcpka-cnt 3
  option srvtcpka
  srvtcpka-idle 5s
  srvtcpka-intvl 2s
  srvtcpka-cnt 3
  timeout connect 2s
  timeout check 2s
  timeout http-request 5s
  timeout http-keep-alive 10s
  timeout client {SILENCE_S}s
  timeout client-fin 5s
  timeout server {SILENCE_S}s
  timeout tunnel {TUNNEL_S}s
  http-error status 502 content-type application/json string {_quoted(_LOST)} hdr Retry-After 1
  http-error status 503 content-type application/json string {_quoted(_FULL)} hdr Retry-After 1
frontend callers
  bind "fd@${{{LISTENER}}}" tcp-ut {UNTAKEN_S}s{proxy}{tls}
  acl ready path /ready
  acl any nbsrv(nodes) gt 0
  http-request return status 200 content-type application/json string '{{"status":"ok"}}' if ready any
  http-request return status 503 content-type application/json string '{{"status":"no_node"}}' if ready
{limit}  http-request deny deny_status 404 if {{ path,url_dec -m reg ^/+([.]/+)*metrics/*$ }}  # a node decodes it, too
  http-request set-header X-Forwarded-For %[src]
  # The id of a WebRTC call begins with the name of its node.
  acl candidates path /api/agent/offer
  http-request set-var(txn.call) path,field(4,/) if {{ path_beg /v1/rtc/ }} !METH_POST
  http-request wait-for-body time 5s if candidates {{ method PATCH }}
  http-request set-var(txn.call) req.body,json_query('$.pc_id') if candidates {{ method PATCH }}
  default_backend nodes
{own}backend nodes
  balance leastconn
  http-reuse never
  option httpchk GET /ready
  use-server %[var(txn.call),field(1,.)] if {{ var(txn.call) -m found }}
  force-persist if {{ var(txn.call) -m found }}
"""


def server_lines(nodes: Sequence[NodeAddress]) -> str:
    """The end of a configuration: nodes that were servers before, and get callers at once."""
    return "".join(f"  server {node.name} {node.target} {_CHECK}\n" for node in nodes)


def _quoted(text: str) -> str:
    """Text as one word of a configuration. Raises `ValueError` for what cannot be one."""
    if "'" in text or "\n" in text:
        raise ValueError(f"{text!r} has a quote or a line break")
    return f"'{text}'"


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


def new_certificate(path: str, pem: str) -> list[str]:
    """Commands that replace the certificate; each is for a connection of its own."""
    text = "\n".join(line for line in pem.splitlines() if line.strip())  # an empty line would end it
    return [f"set ssl cert {path} <<\n{text}\n", f"commit ssl cert {path}"]
