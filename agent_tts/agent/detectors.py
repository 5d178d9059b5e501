"""What finds a voice and the ends of turns: models that are loaded once for all calls, and the level of a voice."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession
from pipecat.audio.turn.base_turn_analyzer import EndOfTurnState
from pipecat.audio.turn.smart_turn.base_smart_turn import BaseSmartTurn, SmartTurnParams
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams, VADState
from pipecat.metrics.metrics import MetricsData

from agent_tts.config.settings import Agent
from agent_tts.system.private_names import require
from agent_tts.system.threads import in_daemon

FALL_DB = 0.64  # of the level, in 32 ms: that of the page's meter
SOFT_DB = 12.0  # by which a voice may be quieter than its loudest vowel
# A probability of a voice that noise does not reach: each such window but the first counts as two of
# `agent.vad_start_s`. 100 sentences begin 151 ms after their first sound at the median and 243 at most, where it would
# be 214 and 593; bursts of noise, breath and hum, 360 of each, begin none.
SURE = 0.8
PIECES_PER_S = 100  # of audio that the turn detector keeps: transports have some of 10 ms or more

require("pipecat-ai", {BaseSmartTurn: "_audio_buffer _process_speech_segment", VADAnalyzer: "_vad_starting_count"})

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


def voice_params(agent: Agent, **others: float) -> VADParams:
    """The parameters of `VoiceDetector` by the settings, but for `others`."""
    return VADParams(**{"start_secs": agent.vad_start_s, "stop_secs": agent.vad_stop_s, "min_volume": 0} | others)


class VoiceDetector(SileroVADAnalyzer):
    """Pipecat's detector, for voices with a peak at `agent.level_db`; one that lasts needs half the probability.

    A voice begins after `agent.vad_start_s`, or about half of it where Silero is sure: whoever interrupts is heard
    60 ms sooner. Pipecat's own measure of loudness is smoothed: after silence it notices a voice 0.1 s later, and
    "No." never. With one probability for beginning and going on, a voice ends within words, most on the telephone, or
    begins in none.

    Args:
        on_pause: is told when a voice pauses, and when it goes on before it has ended.
    """

    def __init__(self, agent: Agent, on_pause: Callable[[bool], Awaitable[None]] | None = None) -> None:
        super().__init__(params=voice_params(agent))
        self._on_pause = on_pause
        # Whether a voice pauses. Silero hears stops of words as voice: of pauses, 3 in 100 last less than 0.06 s.
        self._pauses = False
        self._least_db = agent.level_db
        # The last peak as it falls, dB of full scale.
        self._level_db = -math.inf
        # What was found last, and whether that voice has reached `agent.level_db`.
        self._found, self._is_loud = VADState.QUIET, False

    async def analyze_audio(self, buffer: bytes) -> VADState:
        self._found = state = await super().analyze_audio(buffer)
        if state is not VADState.QUIET and not self._is_loud:
            state = VADState.STARTING  # it may be somebody else's
        paused, self._pauses = self._pauses, state is VADState.STOPPING
        if self._pauses != paused and state is not VADState.QUIET and self._on_pause is not None:
            await self._on_pause(self._pauses)
        return state

    def voice_confidence(self, buffer: bytes) -> float:
        """The probability of a voice in 32 ms; doubled if it lasts, and 0 if it is too quiet."""
        peak = np.abs(np.frombuffer(buffer, "<i2").astype(np.int32)).max()
        self._level_db = max(20 * math.log10(max(peak, 0.5) / 32_768), self._level_db - FALL_DB)
        found = float(np.max(super().voice_confidence(buffer)))
        if found >= max(SURE, self.params.confidence):
            self._vad_starting_count += 1  # Pipecat adds one, too, and sets 1 with the first window
        confidence = found * (1 if self._found is VADState.QUIET else 2)
        self._is_loud = self._level_db >= self._least_db or (self._is_loud and self._found is not VADState.QUIET)
        return confidence if self._level_db >= self._least_db - SOFT_DB else 0.0


class TurnDetector(LocalSmartTurnAnalyzerV3):
    """Pipecat's detector, which would keep and copy all of a turn: it keeps what its model hears, the last seconds.

    They are seconds of audio, not of time: clients of Realtime send recordings as fast as they like.
    """

    # What is found in the pause that may end the voice.
    _ahead: Future[tuple[EndOfTurnState, MetricsData | None]] | None = None

    def __init__(self, silence_s: float) -> None:  # a silence ends what does not sound complete
        super().__init__(params=SmartTurnParams(stop_secs=silence_s))

    def pause(self, pauses: bool) -> None:
        """The voice pauses, so it is judged ahead of its end; or it goes on."""
        judge = partial(super()._process_speech_segment, list(self._audio_buffer))
        self._ahead = in_daemon(judge, "turn detector") if pauses else None

    def _process_speech_segment(self, audio_buffer: Any) -> tuple[EndOfTurnState, MetricsData | None]:
        """In a thread of Pipecat's, when the voice has ended."""
        ahead, self._ahead = self._ahead, None
        return super()._process_speech_segment(audio_buffer) if ahead is None else ahead.result()

    def append_audio(self, buffer: bytes, is_speech: bool) -> EndOfTurnState:
        state = super().append_audio(buffer, is_speech)
        piece = max(len(buffer) // 2, self.sample_rate // PIECES_PER_S)
        most = math.ceil(self.params.max_duration_secs * self.sample_rate / piece)
        self._audio_buffer = self._audio_buffer[-most:]
        return state
