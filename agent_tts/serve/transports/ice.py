"""ICE servers."""

from __future__ import annotations

from typing import Any

from aiortc import RTCIceServer

from agent_tts.config.settings import Settings


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
