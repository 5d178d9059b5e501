"""Voice agents on a node: components for a Pipecat pipeline, and the server that runs one pipeline for each call.

`pipelines/voice_agent.py` is the default pipeline; copy it to change it.
"""

import os
from importlib.util import find_spec

from agent_tts.errors import SettingsError, to_install

if find_spec("pipecat") is None:
    raise SettingsError(f"the agent needs Pipecat: {to_install('agent')}")

# onnxruntime (voice activity, turn end) sends usage reports otherwise.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
