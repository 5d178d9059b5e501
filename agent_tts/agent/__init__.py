"""Conversations on a node: the parts that a pipeline of Pipecat is built of, and who runs it for each caller.

`pipelines/voice_agent.py` puts them together; copy it and change what you like.
"""

from importlib.util import find_spec

from agent_tts.errors import SettingsError

if find_spec("pipecat") is None:
    raise SettingsError("the agent needs Pipecat: pip install 'agent-tts[agent]'")
