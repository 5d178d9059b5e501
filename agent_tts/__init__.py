"""The speech node for voice agents: LLM text in word by word, speech out frame by frame.

What a program needs to speak through a node is here; the names are imported when they are first used, because every
process of a node imports this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_tts.client import ConnectionLost, NodeConnection, connect
    from agent_tts.errors import SpeechError
    from agent_tts.remote import Audio, Cancelled, Done, Flushed, RemoteSpeech, Word, Words

__version__ = "0.1.0"

__all__ = [
    "Audio",
    "Cancelled",
    "ConnectionLost",
    "Done",
    "Flushed",
    "NodeConnection",
    "RemoteSpeech",
    "SpeechError",
    "Word",
    "Words",
    "__version__",
    "connect",
]

_CLIENT = ("ConnectionLost", "NodeConnection", "connect")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "client" if name in _CLIENT else "errors" if name == "SpeechError" else "remote"
    value = globals()[name] = getattr(import_module(f"agent_tts.{home}"), name)
    return value
