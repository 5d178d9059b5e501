"""Pipecat's text-to-speech service on a node: three lines in a pipeline.

    from agent_tts.pipecat import AgentTTSService

    tts = AgentTTSService(url="http://127.0.0.1:8100", settings=AgentTTSService.Settings(voice="vivian"))
    pipeline = Pipeline([transport.input(), stt, user, llm, tts, transport.output(), assistant])

Every token of the LLM is sent to the node at once. The words come back with the audio that speaks them, so the LLM's
context holds exactly what was heard.
"""

from importlib.util import find_spec

from agent_tts.errors import to_install

if find_spec("pipecat") is None:
    raise ModuleNotFoundError(f"agent_tts.pipecat needs Pipecat: {to_install('agent')}", name="pipecat")

from agent_tts.integrations.pipecat.service import AgentTTSService, AgentTTSSettings

__all__ = ["AgentTTSService", "AgentTTSSettings"]
