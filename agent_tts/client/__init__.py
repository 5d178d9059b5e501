"""The asyncio client of a node; its names are imported from `agent_tts`."""

from agent_tts.client.connection import ConnectionLost, NodeConnection, NodeInfo, connect, http_url, stream_url

__all__ = ["ConnectionLost", "NodeConnection", "NodeInfo", "connect", "http_url", "stream_url"]
