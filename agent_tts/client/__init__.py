"""The asyncio client of a node; its names are imported from `agent_tts`."""

from agent_tts.client.connection import ConnectionLost, NodeConnection, NodeInfo, http_url, stream_url
from agent_tts.client.moving import MovingConnection, connect

__all__ = ["ConnectionLost", "MovingConnection", "NodeConnection", "NodeInfo", "connect", "http_url", "stream_url"]
