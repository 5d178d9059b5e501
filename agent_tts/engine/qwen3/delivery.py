"""How a piece of a text is delivered, and the audio of a row on its way out: its speed, its loudness, its seams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agent_tts.directives import Directive, Language, Prosody, Style
from agent_tts.engine.gain import amplify
from agent_tts.engine.slots import Outlet
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.options import within
from agent_tts.sound.ffmpeg import FilterStream
from agent_tts.sound.silence import AUDIBLE_PEAK

# Speeds of one filter of FFmpeg; others need several. Above the upper one it drops samples.
SLOWEST, FASTEST = 0.5, 2.0

# Samples that fill all of these filters: the last part of what they get is not heard.
DROPPED = SAMPLE_RATE // 5

# Silence that is left on each side of a seam within a sentence.
SEAM_MS = 50


@dataclass(frozen=True, slots=True)
class Manner:
    """How a piece is spoken. Pieces in different manners have different prompts, or different filters."""

    speed: float = 1.0
    volume: float = 1.0
    style: str | None = None  # instructions behind the request's own
    language: str | None = None  # a code; None is the request's own

    def after(self, directive: Directive, speed: float) -> Manner:
        """The manner from a directive on; `speed` is the request's own."""
        match directive:
            case Prosody():
                return replace(self, speed=within("speed", speed * directive.speed), volume=directive.volume)
            case Style(instructions=style):
                return replace(self, style=style)
            case Language(code=code):
                return replace(self, language=code)
        return self


class RowOutlet(Outlet):
    """The audio of a row in pieces, each in its manner."""

    def __init__(self, request_id: int) -> None:
        super().__init__(request_id)
        # What stretches the present piece; None at the model's own speed, and before its first frame.
        self._stretch: TimeStretch | None = None
        self._seam = Seam()

    def speak(self, frames: Sequence[bytes], manner: Manner, *, seam: bool) -> None:
        """Append frames of the model. `seam`: the next piece follows this one within a sentence."""
        for frame in frames:
            if manner.volume != 1:
                frame = np.rint(amplify(np.frombuffer(frame, "<i2"), manner.volume)).astype("<i2").tobytes()
            if manner.speed != 1:
                self._stretch = self._stretch or TimeStretch(manner.speed)
                frame = self._stretch.push(frame)
            self.write(self._seam.push(frame, holds=seam))

    def end_piece(self, *, seam: bool) -> None:
        """The piece has been spoken; `seam`: and the next one follows at once."""
        if self._stretch is not None:
            self.write(self._seam.push(self._stretch.finish(), holds=seam))
            self._stretch = None
        self.write(self._seam.cross() if seam else self._seam.finish())


class Seam:
    """Shortens the silence between two pieces, so that a change of manner within a sentence makes no gap."""

    def __init__(self) -> None:
        # Silence at the end of the audio so far, and how much of it belongs to the piece before.
        self._held = b""
        self._before: int | None = None

    def push(self, pcm: bytes, *, holds: bool) -> bytes:
        """Add pcm_s16le; gives what is certain. `holds`: the piece ends at a seam, so that its last silence waits."""
        if not (holds or self._held or self._before is not None):
            return pcm
        pcm = self._held + pcm
        loud = np.flatnonzero(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > AUDIBLE_PEAK)
        if not len(loud):
            self._held = pcm
            return b""
        start, end = 2 * int(loud[0]), 2 * int(loud[-1]) + 2 if holds else len(pcm)
        self._held = pcm[end:]
        silence = pcm[:start]
        if self._before is not None:
            most = 2 * SEAM_MS * SAMPLE_RATE // 1_000
            after = silence[self._before :]
            silence = silence[: self._before][:most] + after[max(0, len(after) - most) :]
            self._before = None
        return silence + pcm[start:end]

    def cross(self) -> bytes:
        self._before = len(self._held) if self._before is None else self._before
        return b""

    def finish(self) -> bytes:
        """What was held back: no speech follows."""
        held, self._held, self._before = self._held, b"", None
        return held


class TimeStretch:
    """Speech at another speed and the same pitch, streamed: FFmpeg's `atempo` on pcm_s16le.

    It holds back up to 70 ms of its input until more comes or `finish`.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        bound = SLOWEST if speed < 1 else FASTEST
        count = max(1, math.ceil(math.log(speed) / math.log(bound) - 1e-9))
        self._filters = [("atempo", f"{speed ** (1 / count)}")] * count
        self._stream = FilterStream(*self._filters)
        self._in = self._out = 0

    def push(self, pcm: bytes) -> bytes:
        """Add audio; gives what is ready at `speed`."""
        ready = self._stream.push(pcm)
        self._in += len(pcm) // 2
        self._out += len(ready) // 2
        return ready

    def finish(self) -> bytes:
        """The rest, then it starts again. All output is `1 / speed` times as long as the input, longer for a loud end.

        The filter joins parts that fit one another, up to 25 ms from their place, and drops its last one.
        """
        if not self._in:
            return b""
        owed = max(0, round(self._in / self._speed) - self._out)
        rest = self._stream.push(bytes(2 * DROPPED)) + self._stream.push(None)
        self._stream, self._in, self._out = FilterStream(*self._filters), 0, 0
        sound = len(rest.rstrip(b"\0")) + 1 & ~1
        return rest[: max(2 * owed, sound)].ljust(2 * owed, b"\0")
