"""Conversations on a node: the parts that a pipeline of Pipecat is built of, and who runs it for each caller.

`pipelines/voice_agent.py` puts them together; copy it and change what you like.
"""

import os
from importlib.util import find_spec

from agent_tts.errors import SettingsError

if find_spec("pipecat") is None:
    raise SettingsError("the agent needs Pipecat: pip install 'agent-tts[agent]'")

# onnxruntime, which runs voice activity and the end of turns, would report on its use to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
