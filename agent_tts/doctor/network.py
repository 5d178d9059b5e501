"""How clients reach a node: its port, its certificate, and WebRTC."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_tts.config.settings import IceServer, Settings, is_loopback
from agent_tts.doctor.finding import Finding, bad, good, note
from agent_tts.errors import SettingsError

ANSWER_S = 3.0  # for a STUN or TURN server
TRIES = 3  # requests to a STUN server: a datagram may be lost
EXPIRES_SOON = datetime.timedelta(days=14)


# ---------------------------------------------------------------- the port


def port(settings: Settings) -> list[Finding]:
    """Whether a node can listen on its port; if not, which process does."""
    from agent_tts.serve.processes.listener import listen

    try:
        listen(settings).close()
    except SettingsError as error:
        owner = _listener(settings.port)
        held = f" (held by {owner})" if owner else ""
        return [bad("port", f"{error}{held}", f"end {owner or 'what uses it'}, or choose another --port")]
    return [good("port", f"{settings.port} of {settings.host} is free")]


def _listener(number: int) -> str | None:
    """The process that listens on a port; None when /proc does not show it."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        rows = [line.split() for line in lines]
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == number}
    for fd in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        try:
            if fd.readlink().name.removeprefix("socket:[").removesuffix("]") in inodes:
                return f"{(fd.parents[1] / 'comm').read_text().strip()}, process {fd.parents[1].name}"
        except OSError:  # it has ended, or belongs to another user
            continue
    return None


# ---------------------------------------------------------------- TLS


def tls(settings: Settings) -> list[Finding]:
    """The certificate, or what browsers do without one."""
    from agent_tts.serve.transports.tls import server_context

    try:
        context = server_context(settings.tls)
    except SettingsError as error:
        return [bad("tls", str(error), "agent-tts serve --tls-cert FILE --tls-key FILE")]
    if context is not None:
        return [_certificate(Path(settings.tls.cert or "").expanduser())]
    if is_loopback(settings.host):
        return [good("tls", "none; browsers give the microphone to localhost and HTTPS only")]
    advice = "a reverse proxy with TLS, or --tls-cert and --tls-key; browsers give the microphone to HTTPS only"
    return [note("tls", "none: API keys are sent unencrypted", advice)]


def _certificate(path: Path) -> Finding:
    from cryptography import x509

    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    left = end - datetime.datetime.now(datetime.UTC)
    if left < datetime.timedelta(0):
        return bad("tls", f"expired on {end:%Y-%m-%d}", "renew it")
    until = f"good until {end:%Y-%m-%d}"
    if left < EXPIRES_SOON:
        return note("tls", until, "renew it, then restart the node with SIGTERM: it drains first")
    return good("tls", until)


# ---------------------------------------------------------------- WebRTC


def webrtc(settings: Settings) -> Iterator[Finding]:
    """Addresses for callers, UDP, and each STUN and TURN server of the settings."""
    if settings.limits.rtc_peers == 0:
        yield good("webrtc", "turned off (limits.rtc_peers)")
        return
    yield _addresses()
    yield _udp()
    servers = [(url, server) for server in settings.ice_servers for url in server.urls]
    for url, server in servers:
        yield _ask(url, server)
    if not servers and not is_loopback(settings.host):
        advice = "set a STUN server in ice_servers, and a TURN server for callers behind strict firewalls"
        yield note("ice servers", "none: callers from other networks may get no audio", advice)
    kinds = Counter(url.partition(":")[0].removesuffix("s") for url, _ in servers)
    for kind in ("stun", "turn"):
        if kinds[kind] > 1:
            advice = "put the nearest one first; browsers get all of them"
            yield note("ice servers", f"of {kinds[kind]} {kind} URLs the node uses one", advice)


def _addresses() -> Finding:
    from aioice.ice import get_host_addresses

    found = get_host_addresses(use_ipv4=True, use_ipv6=True)
    if not found:
        return note("webrtc", "no address but loopback", "only this machine can call")
    return good("webrtc", f"callers get {', '.join(found)}")


def _udp() -> Finding:
    """Send a datagram to this process; tell the ports that a firewall has to allow."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(1.0)
        probe.bind(("127.0.0.1", 0))
        probe.sendto(b"?", probe.getsockname())
        probe.recv(1)
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return good("udp", "works; on any free port")
    return good("udp", f"works; a firewall has to allow {first}-{last}, or callers need TURN")


def _ask(url: str, server: IceServer) -> Finding:
    """Request a binding from a STUN server, or an allocation from a TURN server."""
    from aioice.stun import TransactionError
    from aiortc.rtcicetransport import parse_stun_turn_uri

    what = "ice server"
    try:
        uri = parse_stun_turn_uri(url)
    except ValueError as error:
        return bad(what, f"{url}: {error}", "stun:HOST:PORT or turn:HOST:PORT?transport=udp")
    try:
        if uri["scheme"].startswith("turn"):
            return good(what, f"{url}: relays from {asyncio.run(_allocate(uri, server))}")
        return good(what, f"{url}: sees us as {_bind(uri)}")
    except TimeoutError:
        protocol = "UDP" if uri.get("transport", "udp") == "udp" else "TCP"
        advice = f"is it running, and does the firewall allow {protocol} {uri['port']} and its answers?"
        return note(what, f"{url}: no answer in {ANSWER_S:g} s", advice)
    except TransactionError as error:
        return bad(what, f"{url}: {_refusal(error)}", "are username and credential right?")
    except OSError as error:
        return note(what, f"{url}: {error.strerror or error}", "is the name right, and is it running?")


def _refusal(error: Any) -> str:
    code = getattr(error.response, "attributes", {}).get("ERROR-CODE")
    return f"refused with {code[0]} {code[1]}" if code else type(error).__name__


def _bind(uri: dict[str, Any]) -> str:
    """The address that a STUN server sees. Raises OSError, TimeoutError."""
    from aioice import stun

    request = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    family, _, _, _, address = socket.getaddrinfo(uri["host"], uri["port"], type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.settimeout(ANSWER_S / TRIES)
        probe.connect(address)
        for _ in range(TRIES):
            probe.send(bytes(request))
            with contextlib.suppress(TimeoutError):
                data = probe.recv(2_048)
                break
        else:
            raise TimeoutError
    try:
        host, port_ = stun.parse_message(data).attributes["XOR-MAPPED-ADDRESS"]
    except ValueError:
        raise OSError("what answers is not a STUN server") from None
    return f"{host}:{port_}"


async def _allocate(uri: dict[str, Any], server: IceServer) -> str:
    from aioice.turn import create_turn_endpoint

    async with asyncio.timeout(ANSWER_S):
        transport, _ = await create_turn_endpoint(
            asyncio.DatagramProtocol,
            server_addr=(uri["host"], uri["port"]),
            username=server.username,
            password=server.credential.get_secret_value() if server.credential else None,
            ssl=ssl.create_default_context() if uri["scheme"] == "turns" else None,
            transport=uri["transport"],
        )
    host, port_ = transport.get_extra_info("sockname")
    transport.close()
    await asyncio.sleep(0.1 if sys.platform != "win32" else 0)  # for the request that frees the allocation
    return f"{host}:{port_}"
