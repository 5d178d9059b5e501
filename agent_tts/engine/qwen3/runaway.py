"""Detects speech that has left its text: a loop, silence without an end, speech that goes on after its text.

A few requests in a thousand never draw the end of speech. Frames that may belong to such speech are held back until it
is certain: they are made many times faster than they are played, so the listener hears neither them nor the wait.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine_info import FRAME_MS
from agent_tts.text.lengths import length

SILENT_PEAK = 33  # of int16: -60 dB
# Silent frames in a row: 0.8 s, longer than most pauses in speech; 3 s, longer than any.
SILENT_HELD, SILENT_FRAMES = 10, 38
# Frames in a row whose first code, which holds what is said, is that of one and the same time before: 0.5 s and 2.4 s.
LOOP_HELD, LOOP_FRAMES = 6, 30
LOOP_PERIODS = 16  # frames of the longest loop that is detected
# Frames of a text that takes n frames at the voice's pace: 1 s and half of it more, 2 s and 1.5 times of it more.
TEXT_HELD, TEXT_FRAMES = (12, 1.5), (25, 2.5)
# Frames that are held at most, so that the listener need not wait: 0.4 s at 64 rows on an H200, of 1 s of audio ahead.
MOST_HELD = 64
# Frames of a text are at least so many a token, whatever is known of its signs.
LEAST_FRAMES_PER_TOKEN = 1.0
# What may be said letter by letter, sign by sign, or drawn out: a letter alone, capitals, letters without a vowel,
# three equal ones, and signs. A text takes so many frames more for each.
SPELLED = re.compile(
    r"(?<![^\W\d_])[^\W\d_](?![^\W\d_])|[A-ZÀ-ÖØ-ÞА-Я]{2,}|[b-df-hj-np-tv-xz]{5,}|([^\W\d_])\1{2,}|[#-&*+/<=>@\\^-`|~]"
)
SPELLED_FRAMES = 2.0
# Speech that has less than this share of the frames that its text takes has left some of it out.
SHORT = 0.3

# What is known of an unknown voice counts as so much speech; the last MEMORY_S of a voice count most.
UNKNOWN_S, MEMORY_S = 5.0, 60.0
FASTEST, SLOWEST = 0.7, 3.0  # paces of voices: real time / nominal time
MAX_VOICES = 1_000


class FrameVerdict(IntEnum):
    """What the last frame of a row belongs to."""

    GOOD = 0
    HELD = 1  # perhaps to one of the following
    LOOP = 2
    SILENCE = 3
    OVERRUN = 4  # speech after its text


class RunawayDetector:
    """Judges the frames of every row."""

    def __init__(self, rows: int) -> None:
        # int16[rows, periods]: the first code of the last frames of each row; that of frame t is at t % periods.
        self._last = np.full((rows, LOOP_PERIODS), -1, np.int16)
        # int64[rows, periods]: how many frames in a row were equal to the one `period` frames before.
        self._repeats = np.zeros((rows, LOOP_PERIODS), np.int64)
        # int64[rows]: silent frames in a row, and frames so far.
        self._silent = np.zeros(rows, np.int64)
        self.frames = np.zeros(rows, np.int64)
        # [rows]: frames of the row's text from which on they are held back, and of speech that is certainly too long.
        self._held_from = np.full(rows, np.inf)
        self._most = np.full(rows, np.inf)

    def begin(self, row: int) -> None:
        """The row begins a piece of its text, whose end is not known yet."""
        self._last[row] = -1
        self._repeats[row] = self._silent[row] = self.frames[row] = 0
        self._held_from[row] = self._most[row] = np.inf

    def expect(self, row: int, frames: float) -> None:
        """The whole piece is known, and takes about so many frames."""
        self._held_from[row], self._most[row] = (base + share * frames for base, share in (TEXT_HELD, TEXT_FRAMES))

    def see(self, rows: Sequence[int], codes: NDArray[np.integer], pcm: NDArray[np.int16]) -> NDArray[np.int8]:
        """Add a frame to each of n different rows; int8[n]: the `FrameVerdict` on each.

        Args:
            codes: [n, codebooks].
            pcm: int16[n, samples].
        """
        index = np.asarray(rows, np.int64)
        now, first = self.frames[index], codes[:, 0]
        silent = (pcm.max(-1) < SILENT_PEAK) & (pcm.min(-1) > -SILENT_PEAK)
        # Column p is the frame p + 1 frames ago.
        ago = (now[:, None] - 1 - np.arange(LOOP_PERIODS)) % LOOP_PERIODS
        equal = (self._last[index[:, None], ago] == first[:, None]) & ~silent[:, None]
        repeats = self._repeats[index] = np.where(equal, self._repeats[index] + 1, 0)
        self._last[index, now % LOOP_PERIODS] = first
        quiet = self._silent[index] = np.where(silent, self._silent[index] + 1, 0)
        now = self.frames[index] = now + 1
        looped = repeats.max(-1)
        held = (looped >= LOOP_HELD) | (quiet >= SILENT_HELD) | (now >= self._held_from[index])
        # `FrameVerdict.GOOD` and `FrameVerdict.HELD`; of the others the first that holds.
        found: NDArray[np.int8] = held.astype(np.int8)
        found[now >= self._most[index]] = FrameVerdict.OVERRUN
        found[quiet >= SILENT_FRAMES] = FrameVerdict.SILENCE
        found[looped >= LOOP_FRAMES] = FrameVerdict.LOOP
        return found


def nominal_frames(text: str, language: str) -> float:
    """Frames that a text takes at the pace of a usual voice; `language` is a code."""
    lengths = [length(word, language) for word in text.split()]
    return sum(sum(ms for _, ms in each.pieces) + each.pause_ms for each in lengths) / FRAME_MS


def spelled_frames(text: str) -> float:
    """Frames that a text may take beyond `nominal_frames`, for what may be spelled in it."""
    return SPELLED_FRAMES * sum(len(found[0]) for found in SPELLED.finditer(text))


class FramePaces:
    """How fast voices have spoken: real time / nominal time, by voice and language."""

    def __init__(self) -> None:
        # Real and nominal frames, those of long ago counting less; the voice used last at the end.
        self._spoken: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def of(self, voice: Hashable) -> float:
        """The pace of a voice in a language; near 1 until it has spoken for some seconds."""
        frames, nominal = self._spoken.get(voice, (0.0, 0.0))
        unknown = UNKNOWN_S * 1_000 / FRAME_MS
        return (unknown + frames) / (unknown + nominal)

    def learn(self, voice: Hashable, frames: float, nominal: float) -> None:
        kept = max(0.0, 1 - nominal * FRAME_MS / 1_000 / MEMORY_S)
        before = self._spoken.pop(voice, (0.0, 0.0))
        frames = min(max(frames, FASTEST * nominal), SLOWEST * nominal)
        self._spoken[voice] = (kept * before[0] + frames, kept * before[1] + nominal)
        if len(self._spoken) > MAX_VOICES:
            self._spoken.popitem(last=False)
