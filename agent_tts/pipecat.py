"""The public name of Pipecat's service; see `agent_tts.integrations.pipecat`."""

from agent_tts.integrations.pipecat import AgentTTSService, AgentTTSSettings

__all__ = ["AgentTTSService", "AgentTTSSettings"]
