"""Where each dialect is spoken."""

from __future__ import annotations

from fastapi import APIRouter

from agent_tts.serve.websocket import Dialect

# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {}


def router() -> APIRouter:
    """The HTTP routes of all dialects. Their node is `app.state.node`."""
    return APIRouter()
