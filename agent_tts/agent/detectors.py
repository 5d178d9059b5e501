"""What finds a voice and the ends of turns: models that are loaded once for all calls, and the level of a voice."""

from __future__ import annotations

import math
from threading import Lock
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams

from agent_tts.config.settings import Agent

WINDOW_S = 0.032  # that the voice detector hears at once
FALL_DB_S = 20.0  # of the level: that of the page's meter
SILENT_DB = -96.0
# Voices so much quieter than the caller's are of others. The caller's level falls while anybody speaks, so that one who
# goes away from the microphone is heard again.
OTHERS_DB, FORGET_DB_S = 10.0, 1.0

_loaded: dict[tuple[object, ...], Any] = {}
_loading = Lock()


def share_models() -> None:
    """Have whoever loads a model's file with onnxruntime get the session that another call has loaded.

    Pipecat loads two for each call, 21 MB. A session computes for any number of threads, and keeps no state of theirs.
    """
    onnxruntime.InferenceSession = _shared


def _shared(model: Any, sess_options: Any = None, providers: Any = None, **more: Any) -> Any:
    if not isinstance(model, str) or more:
        return InferenceSession(model, sess_options, providers, **more)
    threads = getattr(sess_options, "intra_op_num_threads", None)
    with _loading:
        key = model, threads, tuple(providers or ())
        if key not in _loaded:
            _loaded[key] = InferenceSession(model, sess_options, providers)
        return _loaded[key]


class VoiceDetector(SileroVADAnalyzer):
    """Pipecat's detector, for voices whose peaks reach `agent.level_db` and come near those of the call before.

    Pipecat's own measure of loudness is smoothed: after silence it notices a voice 0.1 s later.
    """

    def __init__(self, agent: Agent, sample_rate: int | None = None) -> None:
        super().__init__(sample_rate=sample_rate, params=self.params_of(agent))
        self._least_db = agent.level_db
        # The last peak as it falls, and the caller's, dB of full scale.
        self._level_db = self._caller_db = SILENT_DB

    @staticmethod
    def params_of(agent: Agent, **other: float) -> VADParams:
        """Those of the settings, and others."""
        return VADParams(**{"start_secs": agent.vad_start_s, "stop_secs": agent.vad_stop_s, "min_volume": 0.0} | other)

    def voice_confidence(self, buffer: bytes) -> float:
        """The probability of the caller's voice in 32 ms; 0 if it is too quiet."""
        peak = np.abs(np.frombuffer(buffer, "<i2").astype(np.int32)).max()
        self._level_db = max(20 * math.log10(max(peak, 0.5) / 32_768), self._level_db - FALL_DB_S * WINDOW_S)
        confidence = float(np.max(super().voice_confidence(buffer)))
        least_db = max(self._least_db, self._caller_db - OTHERS_DB)
        if confidence >= self.params.confidence:
            self._caller_db = max(self._level_db, self._caller_db - FORGET_DB_S * WINDOW_S)
        return confidence if self._level_db >= least_db else 0.0
