"""The host that a request was sent to before proxies changed it: `Forwarded` (RFC 7239), `X-Forwarded-Host`. Pure.

Whoever sends a request may write these headers, and proxies append to what they got. So they are read from their end:
the last entry is the peer's, and one before it counts as far as the entry behind it was written for a trusted proxy.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network
from itertools import islice, zip_longest

from starlette.datastructures import Headers

MAX_HOPS = 16  # that are read of a list; each takes some microseconds

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LIST = re.compile(rf'(?:[^"]|{_QUOTED})*')
_ELEMENT = re.compile(rf'(?:[^,"]|{_QUOTED})+')
_PAIR = re.compile(rf'(?:^|;)\s*([^\s;="]+)\s*=\s*({_QUOTED}|[^\s;"]*)')
_NODE = re.compile(r"\[(.*)\](?::.*)?|([^:]*)(?::[^:]*)?|(.*)")  # [IPv6]:port, IPv4:port, IPv6


def forwarded_hosts(headers: Headers, peer: str, trusted: Sequence[IPv4Network | IPv6Network]) -> list[str]:
    """The host next to the client that trusted proxies tell, once for each of the two kinds of header that names one.

    None of a peer that is not trusted. A header that cannot be read gives a host that nobody has.
    """
    found = []
    for hops in (_forwarded(headers), _x_forwarded(headers)) if _is_trusted(peer, trusted) else ():
        host = ""
        for client, told in islice(hops, MAX_HOPS):
            host = told or host
            if not _is_trusted(client, trusted):
                break
        if host:
            found.append(host)
    return found


def _forwarded(headers: Headers) -> Iterator[tuple[str, str]]:
    """What each proxy tells, the peer first: whom it got the request from, for which host; empty: it does not say."""
    for line in reversed(headers.getlist("forwarded")):
        if not _LIST.fullmatch(line):
            yield "", "?"
            return
        for element in reversed(_ELEMENT.findall(line)):
            pairs = {name.lower(): value for name, value in reversed(_PAIR.findall(element))}
            client, host = (re.sub(r'^"|"$|\\(.)', r"\1", pairs.get(name, "")) for name in ("for", "host"))
            yield client, host


def _x_forwarded(headers: Headers) -> Iterator[tuple[str, str]]:
    clients, hosts = (
        reversed([one.strip() for line in headers.getlist(name) for one in line.split(",")])
        for name in ("x-forwarded-for", "x-forwarded-host")
    )
    return zip_longest(clients, hosts, fillvalue="")


def _is_trusted(node: str, trusted: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Whether an address, which may have a port, is a trusted proxy's. No name is."""
    match = _NODE.fullmatch(node)
    try:
        address = ipaddress.ip_address("" if match is None else next(filter(None, match.groups()), ""))
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in trusted)
