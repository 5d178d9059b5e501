"""The user's audio of a realtime session: turned into 16 kHz, kept since the last turn, and watched for turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import soxr
from pipecat.audio.turn.base_turn_analyzer import EndOfTurnState
from pipecat.audio.vad.vad_analyzer import VADState

from agent_tts.agent.call import IN_RATE
from agent_tts.agent.detectors import TurnDetector, VoiceDetector, voice_params
from agent_tts.agent.realtime.conversation import MAX_TURN_MS, Detection
from agent_tts.agent.realtime.shapes import RealtimeFormat, SemanticVad
from agent_tts.config.settings import Agent
from agent_tts.serve.node import Aside
from agent_tts.speech.audio.encoding import g711_samples

WINDOW = 512 * 2  # bytes that the voice detector takes at once: 32 ms
PER_MS = IN_RATE * 2 // 1_000  # bytes
# Silence that ends a turn which does not sound complete, s.
PATIENCE_S = {"low": 8.0, "medium": 4.0, "auto": 4.0, "high": 2.0}


class Resampler:
    """Turns audio of a format into pcm_s16le at `IN_RATE`, piece by piece."""

    def __init__(self, form: RealtimeFormat) -> None:
        self._form = form
        self._stream = soxr.ResampleStream(form.hz, IN_RATE, 1, dtype="int16", quality="MQ")
        self._rest = b""  # half of a sample

    def push(self, audio: bytes, *, last: bool = False) -> bytes:
        if self._form.encoding == "pcm_s16le":
            audio = self._rest + audio
            whole = len(audio) & ~1
            audio, self._rest = audio[:whole], audio[whole:]
            samples = np.frombuffer(audio, "<i2")
        else:
            samples = g711_samples(self._form.encoding)[np.frombuffer(audio, np.uint8)]
        made: bytes = self._stream.resample_chunk(samples, last=last).tobytes()
        return made


class DetectorTurns:
    """In which the detectors of all sessions work, and their long messages are parsed: each thread keeps the event loop
    waiting for Python's lock."""

    def __init__(self) -> None:
        # One looks for a voice, for about 1 ms; one judges whether a turn is complete, or is loaded, for 0.1 s or more.
        self.short, self.long = asyncio.Semaphore(1), asyncio.Semaphore(1)
        self.parsing = Aside(1)  # not the node's place: bodies of others take seconds there


class Ear:
    """Hears one session. Its turn detectors run in threads of their own until `close`."""

    def __init__(self, settings: Agent, turns: DetectorTurns) -> None:
        self._settings = settings
        self._turns = turns
        self._resampler: tuple[RealtimeFormat, Resampler] | None = None
        # Audio at `IN_RATE`: not watched yet, less than a window; and since the last turn.
        self._unseen = bytearray()
        self._kept = bytearray()
        # All audio that was watched, ms.
        self.position_ms = 0.0
        # How turns are detected; None: not at all.
        self._detection: Detection | None = None
        # The detectors of voice and of complete turns; None until they are needed.
        self._vad: VoiceDetector | None = None
        self._complete: TurnDetector | None = None
        # Whether they are set for `_detection`.
        self._is_prepared = False
        # Whether there is a voice, and whether a turn has started.
        self._is_voiced = False
        self._in_turn = False

    async def detect(self, detection: Detection | None) -> None:
        """Detect turns in this way from now on."""
        if detection == self._detection:
            return
        self._detection, self._is_prepared = detection, False
        self._is_voiced = self._in_turn = False
        await self._close_complete()

    async def hear(self, audio: bytes, form: RealtimeFormat) -> AsyncIterator[tuple[bool, float]]:
        """Take audio. Yields (whether a turn starts or ends, ms of the session) where one does.

        Between two of them the caller may `take` what was heard.
        """
        if self._detection is not None and not self._is_prepared:
            async with self._turns.long:
                await self._prepare(self._detection)
        if self._resampler is None or self._resampler[0] != form:
            self._resampler = form, Resampler(form)
        self._unseen += self._resampler[1].push(audio)
        while len(self._unseen) >= WINDOW:
            window = bytes(self._unseen[:WINDOW])
            del self._unseen[:WINDOW]
            self._kept += window
            self.position_ms += WINDOW / PER_MS
            if self._detection is None:
                continue
            was_in_turn = self._in_turn
            await self._watch(window)
            if not was_in_turn and not self._in_turn:
                self._trim(self._detection)
            elif was_in_turn != self._in_turn:
                start_ms = self.position_ms - len(self._kept) / PER_MS
                yield self._in_turn, start_ms if self._in_turn else self.position_ms
        if self._detection is None:
            del self._kept[: -MAX_TURN_MS * PER_MS]

    def take(self) -> bytes:
        """What was heard since the last turn, at `IN_RATE`."""
        taken = bytes(self._kept + self._unseen)
        self.forget()
        return taken

    def forget(self) -> None:
        self._kept.clear()
        self._unseen.clear()
        self._in_turn = False
        if self._complete is not None:
            self._complete.clear()

    async def close(self) -> None:
        """Idempotent."""
        await self._close_complete()
        vad, self._vad = self._vad, None
        if vad is not None:
            await vad.cleanup()

    async def _prepare(self, detection: Detection) -> None:
        """Load the detectors, which a session of text alone does not need."""
        self._is_prepared = True
        settings = self._settings
        if self._vad is None:
            self._vad = await asyncio.to_thread(VoiceDetector, settings)
            self._vad.set_sample_rate(IN_RATE)
        if isinstance(detection, SemanticVad):
            voice = voice_params(settings)
            self._complete = await asyncio.to_thread(TurnDetector, PATIENCE_S[detection.eagerness])
            self._complete.set_sample_rate(IN_RATE)
        else:
            stop_s = detection.silence_duration_ms / 1_000
            voice = voice_params(settings, confidence=detection.threshold, stop_secs=stop_s)
        self._vad.set_params(voice)

    async def _watch(self, window: bytes) -> None:
        """Set `_in_turn` after this window."""
        assert self._vad is not None
        async with self._turns.short:
            state = await self._vad.analyze_audio(window)
        was_voiced = self._is_voiced
        self._is_voiced = state is VADState.SPEAKING or (was_voiced and state is VADState.STOPPING)
        is_complete = not self._is_voiced
        if self._complete is not None:
            found = self._complete.append_audio(window, self._is_voiced)
            if was_voiced and not self._is_voiced and found is not EndOfTurnState.COMPLETE:
                async with self._turns.long:
                    found, _ = await self._complete.analyze_end_of_turn()
            is_complete = found is EndOfTurnState.COMPLETE
        if not self._in_turn:
            self._in_turn = self._is_voiced
        elif is_complete or len(self._kept) > MAX_TURN_MS * PER_MS:
            self._in_turn = False

    def _trim(self, detection: Detection) -> None:
        """Keep what a turn that starts now would begin with."""
        padding_ms = 300 if isinstance(detection, SemanticVad) else detection.prefix_padding_ms
        del self._kept[: -round(padding_ms + self._settings.vad_start_s * 1_000) * PER_MS]

    async def _close_complete(self) -> None:
        complete, self._complete = self._complete, None
        if complete is not None:
            await complete.cleanup()
