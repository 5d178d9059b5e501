"""Word times for a text while its audio is made: measured for the past, estimated for the future. Pure.

The text is a sequence of marks with nominal lengths. A *pin* fixes the start of a mark: at a gap in the audio, a
flush or the end. Between two pins the marks share the time in proportion to their lengths. After the last pin they
follow the pace learned so far.

Which pause of the text a gap is may become clear only later. A beam search keeps the best guesses.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.speech.words.peaks import BLOCK_MS
from agent_tts.text.lengths import SENTENCE_PAUSE_MS

# Weight of the initial pace, as ms of speech heard at that pace; and of the initial pauses, as their number.
PRIOR_MS = 1_500.0
PRIOR_PAUSES = 1.0

# Cost of a guess. Speech between two pins costs ((real - expected ms) / (OFF_MS + share * expected ms))^2. The share
# falls from OFF_SHARE + OFF_EARLY at the start to OFF_SHARE as more speech is heard.
OFF_MS, OFF_SHARE, OFF_EARLY = 80.0, 0.1, 0.2
# Cost of a gap of twice or half the expected length of its pause.
DOUBLE = 1.0
# Cost of a pause without a gap; a gap without a pause costs (ms / STRAY_MS)^2, at most STRAY_MOST.
SKIPPED_SENTENCE, SKIPPED_CLAUSE = 4.0, 1.0
STRAY_MS, STRAY_MOST = 150.0, 6.0

GUESSES = 4  # size of the beam
OPEN_PINS = 8  # pins of a guess that may still change; older ones are final
LOOK_AHEAD = 6  # pauses of the text that are tried for a gap
HOPELESS = 36.0  # above this cost of a pause that is too late, later pauses are not tried

# A pause that is later than (ms, share of the speech before it) is taken as absent. Sentences nearly always end in a
# pause, so theirs may be later.
LATE_CLAUSE = (150.0, 0.2)
LATE_SENTENCE = (400.0, 0.6)

# Silence is below this share of the loudest peak so far (-30 dB). A gap lasts at least GAP_MS, longer than the closure
# of a "p" or a "t".
QUIET = 0.03
LOUD = 200  # peak of 32 767; anything softer is silence
GAP_MS = 100


class Pin(NamedTuple):
    """The fixed start of a mark."""

    mark: int
    end_ms: float  # end of the mark before it
    start_ms: float


class ExpectedPause(NamedTuple):
    mark: int  # the mark after the pause
    nominal_ms: float
    skipped: float  # cost if there is no gap for it


@dataclass(frozen=True, slots=True)
class Guess:
    """One assignment of gaps in the audio to pauses of the text."""

    pins: tuple[Pin, ...]  # the last pins; never empty
    spoken: tuple[float, float]  # (nominal, real) ms of speech between pins
    paused: tuple[float, float]  # (nominal, real) ms of pauses
    cost: float = 0.0

    @property
    def last(self) -> Pin:
        return self.pins[-1]

    @property
    def pace(self) -> float:
        """Real ms / nominal ms of speech."""
        return self.spoken[1] / self.spoken[0]

    @property
    def rest(self) -> float:
        """Real ms / nominal ms of pauses."""
        return self.paused[1] / self.paused[0]


class Fit:
    """Marks in, audio in, times out; for a requested speed and a voice's pace (real time / nominal time at speed 1)."""

    def __init__(self, speed: float = 1.0, pace: float = 1.0) -> None:
        self._speed = speed
        # Nominal ms of speech, and of pauses, before each mark, float64 [marks + 1].
        self._speech = array("d", [0.0])
        self._silence = array("d", [0.0])
        # They are in text order, so sorted by mark.
        self._pauses: list[ExpectedPause] = []
        self._silences = Silences()
        # Gaps not placed yet: placing is expensive and waits until a time is requested.
        self._gaps: list[Gap] = []
        # Incremented when the times of existing marks may change.
        self.revision = 0
        # The best guess first. All guesses share the pins in `_certain`, which precede theirs.
        rest_ms = PRIOR_PAUSES * SENTENCE_PAUSE_MS
        start = Guess((Pin(0, 0.0, 0.0),), (PRIOR_MS, PRIOR_MS * pace / speed), (rest_ms, rest_ms / speed))
        self._guesses = [start]
        self._certain: list[Pin] = []
        # Earliest starts of marks whose text arrived late; after the pins of the best guess.
        self._floors: list[Pin] = []
        # All pins of the best guess and the floors after them, sorted by mark.
        self._pins = [start.last]

    def __len__(self) -> int:
        return len(self._speech) - 1

    @property
    def heard_ms(self) -> float:
        return self._silences.heard_ms

    @property
    def pace(self) -> float:
        """Learned pace of the voice: real time / nominal time at speed 1."""
        self._place_gaps()
        return self._guesses[0].pace * self._speed

    def add(self, ms: float, pause_ms: float) -> None:
        """Append a mark of `ms` nominal length with a pause of `pause_ms` (nominal) after it."""
        mark, heard_ms = len(self), self.heard_ms
        if heard_ms > self.span(mark)[0]:
            self.revision += 1
            floor = Pin(mark, heard_ms, heard_ms)
            self._floors.append(floor)
            self._pins.append(floor)
        self._speech.append(self._speech[-1] + ms)
        self._silence.append(self._silence[-1] + pause_ms)
        if pause_ms:
            skipped = SKIPPED_SENTENCE if pause_ms >= SENTENCE_PAUSE_MS else SKIPPED_CLAUSE
            self._pauses.append(ExpectedPause(mark + 1, pause_ms, skipped))

    def span(self, mark: int) -> tuple[float, float]:
        """Start and end of a mark, in ms. The mark after the last has its start twice."""
        self._place_gaps()
        at = _first_after(self._pins, mark) - 1
        pin = self._pins[at]
        first = self._speech[mark] - self._speech[pin.mark]
        last = self._speech[min(mark + 1, len(self))] - self._speech[pin.mark]
        if at + 1 < len(self._pins):
            following = self._pins[at + 1]
            nominal = self._speech[following.mark] - self._speech[pin.mark]
            pace = max(0.0, following.end_ms - pin.start_ms) / max(1.0, nominal)
            return pin.start_ms + first * pace, pin.start_ms + last * pace
        guess = self._guesses[0]
        start_ms = pin.start_ms + (self._silence[mark] - self._silence[pin.mark]) * guess.rest
        return start_ms + first * guess.pace, start_ms + last * guess.pace

    def may_start(self, mark: int) -> bool:
        """Whether a mark can have started: not during silence, and not before the expected pause before it."""
        self._place_gaps()
        pin = self._pins[-1]
        if mark < pin.mark:
            return True
        if self._silences.silent:
            return False
        at = _first_after(self._pauses, pin.mark)
        if at == len(self._pauses) or self._pauses[at].mark > mark:
            return True
        pause = self._pauses[at]
        due_ms = self.span(pause.mark - 1)[1]
        late_ms, share = LATE_SENTENCE if pause.nominal_ms >= SENTENCE_PAUSE_MS else LATE_CLAUSE
        return self.heard_ms > due_ms + late_ms + share * (due_ms - pin.start_ms)

    # ------------------------------------------------------------ what is heard

    def hear(self, samples: int, peaks: bytes) -> None:
        """Take the next piece of audio; see `Silences.hear`."""
        if gaps := self._silences.hear(samples, peaks):
            self._gaps += gaps
            self.revision += 1

    def reach(self, mark: int, audio_ms: float, *, sounds: bool = False) -> None:
        """Exactly the marks before `mark` lie in the first `audio_ms` of audio, part of which may not be heard yet.

        `sounds`: there is no silence at the end of it, or none that belongs to these marks.
        """
        self._place_gaps()
        sounded_ms = self._silences.sounded_until_ms
        is_heard = audio_ms < self.heard_ms + 1 and not sounds  # audio_ms is in whole ms
        end_ms = min(sounded_ms, audio_ms) if is_heard and sounded_ms is not None else audio_ms
        able = [guess for guess in self._guesses if guess.last.mark < mark and guess.last.start_ms < end_ms]
        if able:
            best = min(able, key=lambda guess: guess.cost + self._off(guess, mark, end_ms) + self._skipped(guess, mark))
            best = self._pinned_to(best, Pin(mark, end_ms, audio_ms))
            self._certain += best.pins[:-1]
            self._guesses = [replace(best, pins=best.pins[-1:])]
            self._choose()

    def _place_gaps(self) -> None:
        """Extend the guesses by the gaps heard since the last call."""
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            self._keep([extended for guess in self._guesses for extended in self._extended(guess, gap)])

    def _extended(self, guess: Guess, gap: Gap) -> Iterator[Guess]:
        """The guess with each meaning of a gap: no pause, or one of the next pauses."""
        last = guess.last
        if gap.end_ms < last.start_ms:  # it lies before what the engine has told
            yield guess
            return
        if gap.start_ms <= last.start_ms:  # silence after a flush or before the first sound
            yield replace(guess, pins=(last._replace(start_ms=gap.end_ms),))
            return
        length_ms = gap.end_ms - gap.start_ms
        yield replace(guess, cost=guess.cost + min(STRAY_MOST, (length_ms / STRAY_MS) ** 2))
        cost, rest = guess.cost, guess.rest
        first = _first_after(self._pauses, last.mark)
        for pause in self._pauses[first : first + LOOK_AHEAD]:
            off = self._off(guess, pause.mark, gap.start_ms)
            if off > HOPELESS and self._expected(guess, pause.mark) > gap.start_ms - last.start_ms:
                return  # later pauses are further off
            off += DOUBLE * math.log2(length_ms / (pause.nominal_ms * rest)) ** 2
            yield self._pinned_to(guess, Pin(pause.mark, gap.start_ms, gap.end_ms), pause, cost + off)
            cost += pause.skipped

    def _expected(self, guess: Guess, mark: int) -> float:
        """Expected real ms of speech from the last pin to a mark."""
        return (self._speech[mark] - self._speech[guess.last.mark]) * guess.pace

    def _off(self, guess: Guess, mark: int, end_ms: float) -> float:
        """Cost of the speech before `mark` ending at `end_ms`."""
        expected = self._expected(guess, mark)
        share = OFF_SHARE + OFF_EARLY * PRIOR_MS / guess.spoken[0]
        return ((end_ms - guess.last.start_ms - expected) / (OFF_MS + share * expected)) ** 2

    def _skipped(self, guess: Guess, mark: int) -> float:
        """Cost of the pauses before a mark that had no gap."""
        first, end = _first_after(self._pauses, guess.last.mark), _first_after(self._pauses, mark)
        return sum(pause.skipped for pause in self._pauses[first:end])

    def _pinned_to(self, guess: Guess, pin: Pin, pause: ExpectedPause | None = None, cost: float = 0.0) -> Guess:
        """The guess with one more pin, at a pause or at the end of the text."""
        last, paused = guess.last, guess.paused
        nominal, real = self._speech[pin.mark] - self._speech[last.mark], pin.end_ms - last.start_ms
        if pause is not None:
            paused = (paused[0] + pause.nominal_ms, paused[1] + pin.start_ms - pin.end_ms)
        return Guess((*guess.pins, pin), (guess.spoken[0] + nominal, guess.spoken[1] + real), paused, cost)

    def _keep(self, guesses: list[Guess]) -> None:
        """Keep the best guesses, one per last pin, because earlier pins do not affect later costs."""
        best: dict[Pin, Guess] = {}
        for guess in sorted(guesses, key=lambda guess: guess.cost):
            best.setdefault(guess.last, guess)
        kept = list(best.values())[:GUESSES]
        while len(kept[0].pins) > OPEN_PINS:
            first = kept[0].pins[0]
            self._certain.append(first)
            kept = [replace(guess, pins=guess.pins[1:]) for guess in kept if guess.pins[0] == first and guess.pins[1:]]
        self._guesses = kept
        self._choose()

    def _choose(self) -> None:
        self.revision += 1
        last = self._guesses[0].last
        self._floors = [floor for floor in self._floors if floor.mark > last.mark and floor.start_ms > last.start_ms]
        self._pins = [*self._certain, *self._guesses[0].pins, *self._floors]


def _first_after(sorted_by_mark: Sequence[tuple[float, ...]], mark: int) -> int:
    """Index of the first pin or pause after a mark."""
    return bisect_right(sorted_by_mark, (mark, math.inf))


class Gap(NamedTuple):
    """Silence between two sounds, in ms of the audio."""

    start_ms: float
    end_ms: float


class Silences:
    """Peaks of audio in, the gaps in it out."""

    def __init__(self) -> None:
        self._samples = 0
        self._loudest = LOUD
        # Where the last sound ended; None before the first.
        self.sounded_until_ms: float | None = None

    @property
    def heard_ms(self) -> float:
        return self._samples * 1_000 / SAMPLE_RATE

    @property
    def silent(self) -> bool:
        """Whether there was no sound in the last `GAP_MS`, or none at all."""
        return self.sounded_until_ms is None or self.heard_ms - self.sounded_until_ms >= GAP_MS

    def hear(self, samples: int, peaks: bytes) -> list[Gap]:
        """Take the next piece; returns the gaps that end in it. The first gap starts at 0 and may have any length.

        Args:
            samples: its length, at 24 kHz.
            peaks: see `agent_tts.speech.words.peaks.peaks`.
        """
        begin_ms, until_ms = self.heard_ms, self.sounded_until_ms
        self._samples += samples
        loud = memoryview(peaks).cast("h").tolist()
        if not loud:
            return []
        self._loudest = max(self._loudest, max(loud))
        quiet = max(LOUD, QUIET * self._loudest)
        if min(loud) >= quiet and until_ms is not None and begin_ms - until_ms < GAP_MS:
            self.sounded_until_ms = begin_ms + len(loud) * BLOCK_MS
            return []
        gaps: list[Gap] = []
        for number, peak in enumerate(loud):
            if peak >= quiet:
                at_ms = begin_ms + number * BLOCK_MS
                if until_ms is None or at_ms - until_ms >= GAP_MS:
                    gaps.append(Gap(until_ms or 0.0, at_ms))
                until_ms = at_ms + BLOCK_MS
        self.sounded_until_ms = until_ms
        return gaps
