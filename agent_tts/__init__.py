"""The speech node for voice agents: LLM text in word by word, speech out frame by frame.

It exports the client of a node. The names are imported on first use, because every process of a node imports this
package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_tts.client.connection import ConnectionLost, NodeConnection
    from agent_tts.client.moving import MovingConnection, connect
    from agent_tts.client.resuming import ResumableUtterance
    from agent_tts.client.utterance import RemoteUtterance
    from agent_tts.errors import SpeechError
    from agent_tts.messages import Audio, Cancelled, Finished, Flushed, Mark, Word, Words

__version__ = "0.1.0"

__all__ = [
    "Audio",
    "Cancelled",
    "ConnectionLost",
    "Finished",
    "Flushed",
    "Mark",
    "MovingConnection",
    "NodeConnection",
    "RemoteUtterance",
    "ResumableUtterance",
    "SpeechError",
    "Word",
    "Words",
    "__version__",
    "connect",
]

# The module of each name that is not in `messages`.
_HOMES = {
    "ConnectionLost": "client.connection",
    "MovingConnection": "client.moving",
    "NodeConnection": "client.connection",
    "RemoteUtterance": "client.utterance",
    "ResumableUtterance": "client.resuming",
    "SpeechError": "errors",
    "connect": "client.moving",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"agent_tts.{_HOMES.get(name, 'messages')}")
    value = globals()[name] = getattr(home, name)
    return value
