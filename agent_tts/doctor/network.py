"""How clients reach a node: its port, its certificate, and WebRTC."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_tts.config.settings import IceServer, Settings, is_loopback
from agent_tts.doctor.finding import Finding, Verdict
from agent_tts.errors import SettingsError

ANSWER_S = 3.0  # for a STUN or TURN server
EXPIRES_SOON = datetime.timedelta(days=14)


# ---------------------------------------------------------------- the port


def port(settings: Settings) -> Iterator[Finding]:
    """Whether a node can listen on its port; if not, which process does."""
    from agent_tts.serve.server import listen

    try:
        listen(settings).close()
    except SettingsError as error:
        owner = _listener(settings.port)
        held = f" (held by {owner})" if owner else ""
        yield Finding("port", Verdict.BAD, f"{error}{held}", f"end {owner or 'what uses it'}, or choose another --port")
        return
    yield Finding("port", Verdict.GOOD, f"{settings.port} of {settings.host} is free")


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


def tls(settings: Settings) -> Iterator[Finding]:
    """The certificate, or what browsers do without one."""
    from agent_tts.serve.tls import server_context

    try:
        context = server_context(settings.tls)
    except SettingsError as error:
        yield Finding("tls", Verdict.BAD, str(error), "agent-tts serve --tls-cert FILE --tls-key FILE")
        return
    if context is not None:
        yield _certificate(Path(settings.tls.cert or "").expanduser())
    elif is_loopback(settings.host):
        found = "none; browsers give the microphone to localhost and HTTPS only"
        yield Finding("tls", Verdict.GOOD, found)
    else:
        advice = "a reverse proxy with TLS, or --tls-cert and --tls-key; browsers give the microphone to HTTPS only"
        yield Finding("tls", Verdict.NOTE, "none: API keys are sent unencrypted", advice)


def _certificate(path: Path) -> Finding:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    until = f"good until {certificate.not_valid_after_utc:%Y-%m-%d}"
    if left < datetime.timedelta(0):
        return Finding("tls", Verdict.BAD, f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}", "renew it")
    if left < EXPIRES_SOON:
        return Finding("tls", Verdict.NOTE, until, "renew it, then restart the node with SIGTERM: it drains first")
    return Finding("tls", Verdict.GOOD, until)


# ---------------------------------------------------------------- WebRTC


def webrtc(settings: Settings) -> Iterator[Finding]:
    """Addresses for callers, UDP, and each STUN and TURN server of the settings."""
    if not settings.limits.rtc_peers:
        yield Finding("webrtc", Verdict.GOOD, "turned off (limits.rtc_peers)")
        return
    yield _addresses()
    yield _udp()
    kinds = [url.partition(":")[0].removesuffix("s") for server in settings.ice_servers for url in server.urls]
    for server in settings.ice_servers:
        for url in server.urls:
            yield asyncio.run(_ask(url, server))
    if not settings.ice_servers and not is_loopback(settings.host):
        advice = "set a STUN server in ice_servers, and a TURN server for callers behind strict firewalls"
        yield Finding("ice servers", Verdict.NOTE, "none: callers from other networks may get no audio", advice)
    for kind in ("stun", "turn"):
        if kinds.count(kind) > 1:
            advice = "put the nearest one first; browsers get all of them"
            yield Finding("ice servers", Verdict.NOTE, f"of {kinds.count(kind)} {kind} URLs the node uses one", advice)


def _addresses() -> Finding:
    from aioice.ice import get_host_addresses

    found = get_host_addresses(use_ipv4=True, use_ipv6=True)
    if not found:
        return Finding("webrtc", Verdict.NOTE, "no address but loopback", "only this machine can call")
    return Finding("webrtc", Verdict.GOOD, f"callers get {', '.join(found)}")


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
        return Finding("udp", Verdict.GOOD, "works; on any free port")
    return Finding("udp", Verdict.GOOD, f"works; a firewall has to allow {first}-{last}, or callers need TURN")


async def _ask(url: str, server: IceServer) -> Finding:
    """Request a binding from a STUN server, or an allocation from a TURN server."""
    from aioice.stun import TransactionError
    from aiortc.rtcicetransport import parse_stun_turn_uri

    try:
        uri = parse_stun_turn_uri(url)
    except ValueError as error:
        return Finding("ice server", Verdict.BAD, f"{url}: {error}", "stun:HOST:PORT or turn:HOST:PORT?transport=udp")
    is_turn = uri["scheme"].startswith("turn")
    try:
        async with asyncio.timeout(ANSWER_S):
            address = await (_allocate(uri, server) if is_turn else _bind(uri))
    except TimeoutError:
        what = "UDP" if uri.get("transport", "udp") == "udp" else "TCP"
        advice = f"is it running, and does the firewall allow {what} {uri['port']} and its answers?"
        return Finding("ice server", Verdict.NOTE, f"{url}: no answer in {ANSWER_S:g} s", advice)
    except TransactionError as error:
        return Finding("ice server", Verdict.BAD, f"{url}: {_refusal(error)}", "are username and credential right?")
    except OSError as error:
        return Finding(
            "ice server", Verdict.NOTE, f"{url}: {error.strerror or error}", "is the name right, and is it running?"
        )
    return Finding("ice server", Verdict.GOOD, f"{url}: {'relays from' if is_turn else 'sees us as'} {address}")


def _refusal(error: Any) -> str:
    code = getattr(error.response, "attributes", {}).get("ERROR-CODE") if hasattr(error, "response") else None
    return f"refused with {code[0]} {code[1]}" if code else type(error).__name__


class _Stun(asyncio.DatagramProtocol):
    """Waits for one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _bind(uri: dict[str, Any]) -> str:
    from aioice import stun

    request = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(_Stun, remote_addr=(uri["host"], uri["port"]))
    try:
        for _ in range(round(ANSWER_S)):  # a datagram may be lost
            transport.sendto(bytes(request))
            done, _pending = await asyncio.wait([protocol.answer], timeout=1.0)
            if done:
                break
        try:
            answer = stun.parse_message(await protocol.answer)
        except ValueError:
            raise OSError("what answers is not a STUN server") from None
        host, port_ = answer.attributes["XOR-MAPPED-ADDRESS"]
        return f"{host}:{port_}"
    finally:
        transport.close()


async def _allocate(uri: dict[str, Any], server: IceServer) -> str:
    from aioice.turn import create_turn_endpoint

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
