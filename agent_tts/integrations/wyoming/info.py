"""A node's description for Home Assistant, and the session of an event. Pure."""

from __future__ import annotations

from typing import Any

from agent_tts import __version__
from agent_tts.events import SAMPLE_RATE
from agent_tts.serve.routes.openai import VoiceList

FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}  # of all audio: pcm_s16le

_ATTRIBUTION = {"name": "agent_tts", "url": "https://pypi.org/project/agent-tts/"}


def describe(voices: VoiceList) -> dict[str, Any]:
    """Data of the `info` event: one program with every voice of the node, the default first."""
    ordered = sorted(voices.voices, key=lambda voice: voice.name != voices.default)
    return {
        "tts": [
            {
                **_artifact("agent-tts", "speech while the text is written"),
                "supports_synthesize_streaming": True,
                "voices": [
                    {**_artifact(voice.name, voice.description), "languages": voice.languages} for voice in ordered
                ],
            }
        ]
    }


def session(data: dict[str, Any]) -> dict[str, Any]:
    """Session fields of a context for an event's data: a voice by its name, or a language."""
    voice = data.get("voice")
    asked = voice if isinstance(voice, dict) else {}
    return {
        "voice": asked.get("name"),
        "language": None if asked.get("name") else asked.get("language"),
        "timestamps": "none",
        "lead_ms": None,  # Home Assistant buffers
    }


def _artifact(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "attribution": _ATTRIBUTION,
        "installed": True,
        "description": description or name,
        "version": __version__,
    }
