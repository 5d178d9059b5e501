"""In the place of `agent_tts.voices.model_child`: the arrays of any speaker, at once."""

from __future__ import annotations

import sys

import numpy as np
from safetensors.numpy import save

sys.stdin.buffer.read()
sys.stdout.buffer.write(save({"vector_64": np.ones(64, np.float32)}))
