"""How WebRTC peers of the node find a way to each other."""

from __future__ import annotations

import functools

from aioice import Candidate
from aiortc import RTCIceServer, RTCRtpSender

from agent_tts.config.settings import Settings

GATHER_S = 1  # for answers of STUN and TURN servers; aioice's own 5 s are longer than anybody waits for an answer


def servers(settings: Settings) -> list[RTCIceServer]:
    """The STUN and TURN servers. Never None: aiortc would ask a public one then."""
    return [
        RTCIceServer(
            urls=list(server.urls),
            username=server.username,
            credential=None if server.credential is None else server.credential.get_secret_value(),
        )
        for server in settings.ice_servers
    ]


def told(settings: Settings) -> list[dict[str, object]]:
    """The same as a browser takes them, in `iceServers` of `RTCPeerConnection`."""
    found = [
        {
            "urls": list(server.urls),
            "username": server.username,
            "credential": server.credential and server.credential.get_secret_value(),
        }
        for server in settings.ice_servers
    ]
    return [{name: value for name, value in server.items() if value} for server in found]


def bound_gathering(sender: RTCRtpSender) -> None:
    """Let the transport gather its candidates in bounded time, and on a machine without a network too."""
    connection = sender.transport.transport.iceGatherer._connection
    gather = functools.partial(connection.get_component_candidates, timeout=GATHER_S)

    async def gather_soon(component: int, addresses: list[str]) -> list[Candidate]:
        return await gather(component, addresses or ["127.0.0.1"])

    connection.get_component_candidates = gather_soon  # type: ignore[method-assign,assignment]
