"""ICE servers and the gathering of ICE candidates."""

from __future__ import annotations

import functools
from typing import Any

from aioice import Candidate
from aiortc import RTCIceServer, RTCRtpSender

from agent_tts.config.settings import Settings

GATHER_S = 1  # for answers of STUN and TURN servers; aioice waits 5 s, too long for the answer to an offer


def servers(settings: Settings) -> list[RTCIceServer]:
    """The STUN and TURN servers for aiortc. Never None, for which aiortc uses a public server."""
    return [RTCIceServer(**server) for server in for_browser(settings)]


def for_browser(settings: Settings) -> list[dict[str, Any]]:
    """The STUN and TURN servers for a browser: `iceServers` of `RTCPeerConnection`."""
    known = [
        {
            "urls": list(server.urls),
            "username": server.username,
            "credential": server.credential and server.credential.get_secret_value(),
        }
        for server in settings.ice_servers
    ]
    return [{name: value for name, value in server.items() if value} for server in known]


def bound_gathering(sender: RTCRtpSender) -> None:
    """Bound the time in which the transport gathers candidates; on a machine without a network it uses loopback."""
    connection = sender.transport.transport.iceGatherer._connection
    gather = functools.partial(connection.get_component_candidates, timeout=GATHER_S)

    async def gather_soon(component: int, addresses: list[str]) -> list[Candidate]:
        return await gather(component, addresses or ["127.0.0.1"])

    connection.get_component_candidates = gather_soon  # type: ignore[method-assign,assignment]
