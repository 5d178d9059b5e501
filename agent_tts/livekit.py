"""The public name of LiveKit's class; see `agent_tts.integrations.livekit`."""

from agent_tts.integrations.livekit import TTS

__all__ = ["TTS"]
