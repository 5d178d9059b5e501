"""When words of a sentence that is still being written are spoken, and how what is spoken of it is joined.

A voice sounds natural when it knows what comes next. All words of the sentence so far are therefore spoken together
again and again, of which those are heard that were not heard before, but for the last one: it waits for its successor,
as long as there is audio to play.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine.base import to_pcm16
from agent_tts.engine.gain import FULL_SCALE, Leveler, amplify
from agent_tts.engine.hibari.speech import HibariVoice
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.sound.silence import skipped
from agent_tts.text.chars import CLAUSE_MARKS, CLOSERS
from agent_tts.text.feed import Unit
from agent_tts.text.units import is_abbreviation

FIRST_WORDS = 3  # words with which a text begins that is still being written
FIRST_WAIT_S = 0.25  # after which it begins with fewer
FIRST_MOST = 7  # words that are spoken together before anything is heard: 20 ms of a core
AHEAD_S = 0.6  # audio left to play below which words are spoken, of a sentence that is not complete
LOW_S = 0.3  # audio left to play below which the last word does not wait for its successor
MAX_CHARS = 240  # of the words that wait; with those before them, `speech.MAX_PHONEMES` of most texts
MAX_BEFORE = 12  # words that were heard and are spoken again, which bounds what a word costs in a long sentence

FADE = round(0.010 * SAMPLE_RATE)  # samples of a cross-fade
SEARCH = round(0.004 * SAMPLE_RATE)  # samples by which it moves to where both sounds are most alike: a period of 125 Hz
NO_SAMPLES = np.zeros(0, np.float32)
# Samples of silence behind the last word so far: in mid-phrase, where a clause ends as at a comma in a whole sentence,
# and where a sentence ends.
TAIL, CLAUSE_PAUSE, SENTENCE_PAUSE = (round(seconds * SAMPLE_RATE) for seconds in (0.040, 0.150, 0.350))

_SENTENCE_ENDS = frozenset(".!?…")
_CLOSERS = "".join(CLOSERS) + " "


def ends_sentence(word: str) -> bool:
    bare = word.rstrip(_CLOSERS)
    return bare[-1:] in _SENTENCE_ENDS and not is_abbreviation(bare)


def ends_clause(word: str) -> bool:
    bare = word.rstrip(_CLOSERS)
    return bare[-1:] in CLAUSE_MARKS and not is_abbreviation(bare)


def pause_behind(word: str) -> int:
    """In samples, behind a word after which nothing is known to come."""
    return SENTENCE_PAUSE if ends_sentence(word) else CLAUSE_PAUSE if ends_clause(word) else TAIL


class Phrase(NamedTuple):
    """The next words of a sentence, as far as they are there."""

    units: tuple[Unit, ...] = ()
    closed: bool = False  # nothing comes that belongs to the sentence

    def followed_by(self, unit: Unit | None) -> Phrase:
        """With what comes behind it; None is what the voice does not speak."""
        if unit is None or (self.units and sum(len(one.text) for one in (*self.units, unit)) > MAX_CHARS):
            return Phrase(self.units, closed=True)
        return Phrase((*self.units, unit), ends_sentence(unit.text))

    def after(self, count: int) -> Phrase:
        """Without its first words."""
        return Phrase(self.units[count:], self.closed)


class Due(NamedTuple):
    together: int = 0  # words to speak together with those before
    heard: int = 0  # of them, the first ones that are heard


def due(phrase: Phrase, *, left_s: float, waited_s: float) -> Due:
    """Which words of a phrase to speak now; none: `Due()`.

    Args:
        left_s: audio that the listener has not heard.
        waited_s: how long the first of the words has waited.
    """
    waiting, closed = len(phrase.units), phrase.closed
    if waiting and left_s <= 0:
        if waiting > FIRST_MOST:
            return Due(FIRST_MOST, FIRST_MOST - 1)
        if not (closed or waiting >= FIRST_WORDS or waited_s >= FIRST_WAIT_S):
            return Due()
    elif not (closed or (waiting > 1 and left_s < AHEAD_S) or (waiting and left_s < LOW_S)):
        return Due()
    all_heard = closed or waiting == 1 or ends_clause(phrase.units[-1].text)
    return Due(waiting, waiting if all_heard else waiting - 1)


class Spoken(NamedTuple):
    pcm: bytes  # what is heard, pcm_s16le
    words: tuple[tuple[int, int], ...]  # where each of the words that are heard sounds, in samples of `pcm`
    over: NDArray[np.float32]  # how the sound would have gone on, to join the next one to


class Wanted(NamedTuple):
    """A part of a sentence to speak: everything that a thread needs."""

    voice: HibariVoice
    before: tuple[str, ...]  # words of the sentence that were heard
    over: NDArray[np.float32]  # how their sound would have gone on
    words: tuple[str, ...]  # those after them
    ipa: tuple[str, ...]  # of each `SOUND` of all these words
    heard: int  # of `words`, the first ones that are heard
    speed: float = 1.0
    pitch: float = 1.0
    volume: float = 1.0
    seed: int = 0
    keep_ms: int | None = 0  # of the silence at its start; None: all
    leveler: Leveler | None = None

    def speak(self) -> Spoken:
        """Raises whatever hibari raises on the text."""
        all_words = self.before + self.words
        samples, words, cuts = self.voice.speak(all_words, self.ipa, speed=self.speed, pitch=self.pitch, seed=self.seed)
        count = len(self.before)
        start = cuts[count - 1] if count else 0
        last = count + self.heard
        end = cuts[last - 1] + (pause_behind(self.words[-1]) if last == len(cuts) else 0)
        made = joined(self.over, samples, start, min(end, len(samples)))
        skips = skipped(_int16(made), SAMPLE_RATE, None if count else self.keep_ms)
        made = made[skips:]
        levelled = self.leveler.apply(_int16(made)) if self.leveler else made
        first = start + skips
        spans = tuple((max(0, word[0] - first), max(0, word[1] - first)) for word in words[count:last])
        pcm = to_pcm16(amplify(levelled, self.volume) / np.float32(FULL_SCALE))
        return Spoken(pcm, spans, samples[end : end + FADE + SEARCH])


def _int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.rint(np.clip(samples, -FULL_SCALE - 1, FULL_SCALE)).astype(np.int16)


def joined(before: NDArray[np.float32], samples: NDArray[np.float32], start: int, end: int) -> NDArray[np.float32]:
    """`samples[start:end]` as the continuation of other samples that would have gone on with `before`.

    The start moves to where the sound is most like `before`, and both are cross-faded.
    """
    fade = min(FADE, len(before), end - start)
    if fade < FADE:
        return samples[start:end].copy()
    low = max(0, start - SEARCH)
    places = np.lib.stride_tricks.sliding_window_view(samples[low : start + SEARCH + fade], fade)
    power = np.sqrt(np.sum(places**2, axis=1)) + 1.0
    start = min(low + int(np.argmax(places @ before[:fade] / power)), end - fade)
    ramp: NDArray[Any] = np.linspace(0.0, 1.0, fade, endpoint=False, dtype=np.float32)
    made = samples[start:end].copy()
    made[:fade] = made[:fade] * ramp + before[:fade] * (1 - ramp)
    return made
