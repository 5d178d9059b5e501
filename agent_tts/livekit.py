"""LiveKit's text-to-speech on a node: a plugin class for its agents.

    from agent_tts.livekit import TTS

    session = AgentSession(stt=..., llm=..., tts=TTS("http://127.0.0.1:8100", voice="vivian"))

Every token of the LLM is sent to the node at once, and the words come back with the audio that speaks them.
"""

from importlib.util import find_spec

from agent_tts.errors import to_install

if find_spec("livekit") is None or find_spec("livekit.agents") is None:
    raise ModuleNotFoundError(f"agent_tts.livekit needs livekit-agents: {to_install('livekit')}", name="livekit")

from agent_tts.integrations.livekit.tts import TTS

__all__ = ["TTS"]
