"""The processes that speak clauses with espeak-ng: started ahead, replaced when they end, kept from deadly texts."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from typing import IO, cast

import espeakng_loader
import numpy as np
from loguru import logger
from numpy.typing import NDArray

from agent_tts.engine.base import Faults
from agent_tts.engine.espeak import worker
from agent_tts.engine.espeak.voices import EspeakLanguage, data_path
from agent_tts.text import lengths
from agent_tts.text.chars import SOUND
from agent_tts.text.words import words as words_in

WORKERS = 2  # one speaks, the other takes over when that one ends, or while it is in a text without end
START_S = 10.0  # for a worker to be ready, and for a job to wait until one is
RESTART_S = 0.1  # between two starts that failed
# A worker that has not answered for so long stands still for another reason than its text, whose processor time
# `worker.CPU_S` bounds.
ANSWER_S = 3.0
REAP_S = 1.0  # for a worker to exit after it has closed its pipe or was killed
MAX_CRASHES = 2  # of workers with the same job: then its text is deadly
MAX_KILLS = 4  # of workers with the same job, from outside, with the crashes
MAX_DEADLY = 4_096  # texts that are remembered; a text takes 100 bytes
ENVIRONMENT: dict[str, str] = {}  # of a worker: the node's may hold secrets
LOG_S = 10.0  # between two lines about ended workers
READ_BYTES = 1 << 20
MAX_REPLY_BYTES = 1 << 27  # `worker.CPU_S` of speech, stretched, is 70 MB

# Words a minute. Faster speech is stretched: espeak-ng does so by itself from 450 on, but what it keeps of a text
# outlasts the synthesis.
RATE_NORMAL, RATE_MIN, RATE_MAX = 175, 80, 350
PITCH_NORMAL, PITCH_MAX = 50, 99

# NUL ends the text, U+0001 starts a command that outlasts the synthesis, and a lone surrogate has no UTF-8. A hyphen
# between a sign and a letter, which is silent, crashes the Vietnamese voices at the start of a clause.
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|(?<=[^\w\s])-(?=[^\W\d_])")


class EspeakError(RuntimeError):
    """espeak-ng refused a call, or cannot be started."""


class TooLong(EspeakError):
    """The audio would be longer than was allowed."""


class NoPhonemes(EspeakError):
    """The text has a word in IPA that the language has no phonemes for."""


class Deadly(EspeakError):
    """The text ended the process that spoke it; it is not spoken."""


@dataclass(frozen=True, slots=True)
class Delivery:
    language: EspeakLanguage
    variant: str | None
    rate: int = RATE_NORMAL  # words a minute, RATE_MIN .. RATE_MAX
    # Where the lowest tones are, 0 .. PITCH_MAX; PITCH_NORMAL is the voice's own, PITCH_MAX an octave higher.
    pitch: int = PITCH_NORMAL
    # It goes from the lowest tones to the highest, 0 .. PITCH_MAX; it is linear, PITCH_NORMAL is the voice's own.
    pitch_range: int = PITCH_NORMAL
    stretch: float = 1.0  # speed beyond what the rate can do


@dataclass(frozen=True, slots=True)
class ClauseWord:
    """A word of the text, by characters, and by samples before the stretch."""

    char: int
    length: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Clause:
    samples: NDArray[np.int16]  # int16[n] at the library's sample rate
    words: tuple[ClauseWord, ...]
    scale: float  # samples of `samples` for one of `words`


@dataclass(slots=True, eq=False)
class Job:
    """A clause to speak: no SSML, no commands; control characters and lone surrogates are spaces."""

    text: str  # with a `SOUND` for each word that `ipa` gives in IPA
    how: Delivery
    _: KW_ONLY
    pause: bool  # whether the pause after the last clause is part of the audio
    most: int | None = None  # longer audio is not computed to its end; in samples, before the stretch
    ipa: tuple[str, ...] = ()
    asked_at: float = field(default_factory=time.monotonic)
    outcome: Clause | EspeakError | None = None  # None until there is one
    crashes: int = 0  # of workers that had it
    deaths: int = 0  # of these and others that had it

    @property
    def key(self) -> int:
        """The same for all jobs with this text and voice. A hash with a secret seed: the text is not kept."""
        return hash((self.how.language.path, self.how.variant, self.text, self.ipa))

    def request(self) -> bytes:
        how = self.how
        path, variant = how.language.path.encode(), (how.variant or "").encode()
        most = -1 if self.most is None else self.most
        head = worker.REQUEST.pack(
            self.pause, how.rate, how.pitch, how.pitch_range, most, how.stretch, len(path), len(variant)
        )
        text = _UNSPEAKABLE.sub(" ", self.text)
        if self.ipa:
            first, *others = (_UNSPEAKABLE.sub(" ", text).replace("[", " ") for text in self.text.split(SOUND))
            words = (f"{worker.IPA_START}{_UNSPEAKABLE.sub(' ', ipa)}{worker.IPA_END}" for ipa in self.ipa)
            text = first + "".join(word + other for word, other in zip(words, others, strict=True))
        body = head + path + variant + text.encode()
        return worker.LENGTH.pack(len(body)) + body

    def take(self, reply: bytes) -> None:
        """Set the outcome. Raises `ValueError` or `struct.error` for what is no reply."""
        status, count, sample_bytes = worker.REPLY.unpack_from(reply)
        body = reply[worker.REPLY.size :]
        if status == worker.TOO_LONG:
            self.outcome = TooLong(f"the audio is longer than {self.most} samples")
        elif status == worker.NO_PHONEMES:
            self.outcome = NoPhonemes("the language lacks a sound")
        elif status == worker.REFUSED:
            self.outcome = EspeakError(str(body, "utf-8", "replace"))
        else:
            marks_end = count * worker.MARK.size
            samples_end = marks_end + sample_bytes
            if len(body) < samples_end:
                raise ValueError("the reply is cut off")
            samples = np.frombuffer(body[marks_end:samples_end], np.int16)
            marks = worker.MARK.iter_unpack(body[:marks_end])
            words = tuple(clause_words(self.text, marks, samples, self.how.language.code))
            stretched = samples if self.how.stretch == 1.0 else np.frombuffer(body[samples_end:], np.int16)
            self.outcome = Clause(stretched, words, len(stretched) / max(1, len(samples)))


class _Worker:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), library_path(), str(data_path())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        self.stdout = cast(IO[bytes], self._process.stdout)
        if sys.platform == "linux":
            import fcntl

            # A reply in one write. It fails above the user's limit.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, worker.PIPE_BYTES)
        # The start of a reply whose end has not come.
        self._unread = bytearray()
        # Hz; None until it is ready.
        self.sample_rate: int | None = None
        # What it speaks, and until when it has to be done.
        self.job: Job | None = None
        self.deadline = time.monotonic() + START_S

    @property
    def idle(self) -> bool:
        return self.sample_rate is not None and self.job is None

    def give(self, job: Job) -> None:
        self.job = job
        self.deadline = time.monotonic() + ANSWER_S
        # If it has ended, `read` will tell. An idle worker has an empty pipe, which takes more than a clause.
        with contextlib.suppress(OSError):
            os.write(cast(IO[bytes], self._process.stdin).fileno(), job.request())

    def read(self) -> bool:
        """Take what it has written; False when it has ended, or its memory is so broken that this is no reply."""
        chunk = os.read(self.stdout.fileno(), READ_BYTES)
        self._unread += chunk
        if len(self._unread) < worker.LENGTH.size:
            return bool(chunk)
        length: int = worker.LENGTH.unpack_from(self._unread)[0]
        if length > MAX_REPLY_BYTES:
            return False
        if len(self._unread) < worker.LENGTH.size + length:
            return bool(chunk)
        reply = bytes(self._unread[worker.LENGTH.size :])
        self._unread.clear()
        try:
            if self.sample_rate is None:
                _, self.sample_rate, _ = worker.REPLY.unpack_from(reply)
            elif self.job is not None:
                self.job.take(reply)
                self.job = None
            else:
                return False
        except (ValueError, struct.error):
            return False
        return len(reply) == length

    def end(self) -> int | None:
        """Kill it, unless it has ended, and reap it. The exit code, or None if it cannot be killed."""
        self._process.kill()
        self.stdout.close()
        with contextlib.suppress(OSError):
            cast(IO[bytes], self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(REAP_S)
        return None


class EspeakWorkers:
    """The workers. One thread uses it.

    Raises:
        EspeakError, OSError: no worker can be started.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        # Keys of the texts that ended a worker, the oldest first: never given to another one.
        self._deadly: dict[int, None] = {}
        # Workers that ended, other than by `close`, and jobs of deadly texts: in all, and those that are reported.
        self._deaths = self._dropped = 0
        self._reported = Faults()
        # No worker is started before this time, and no line is logged.
        self._start_at = self._log_at = 0.0
        try:
            self._start_missing()
            until = time.monotonic() + START_S
            while not any(each.idle for each in self._workers):
                if not self._workers or time.monotonic() > until:
                    raise EspeakError("its process does not start")
                self.poll(until)
        except BaseException:
            self.close()
            raise
        # Hz, of every clause.
        self.sample_rate = next(each.sample_rate for each in self._workers if each.sample_rate is not None)

    def close(self) -> None:
        """End all workers. Idempotent."""
        for each in self._workers:
            self._selector.unregister(each.stdout)
            each.end()
        self._workers.clear()
        self._selector.close()

    def take_faults(self) -> Faults:
        before, self._reported = self._reported, Faults(self._deaths, self._dropped)
        return Faults(self._deaths - before.worker_deaths, self._dropped - before.texts_dropped)

    def speak(self, job: Job, until: float) -> Clause | None:
        """The clause; None when it is not done `until` then (monotonic): call again with the same job.

        A job whose worker ends goes to another one: the worker may have been killed from outside, or a text before this
        one has broken its memory. The text that crashes that one, too, is deadly.

        Raises:
            TooLong: the audio is longer than the job allows.
            Deadly: this text has ended a worker, now or before.
            NoPhonemes: the language lacks a sound of the IPA.
            EspeakError: espeak-ng refused the voice or the text, or no worker has been ready for `START_S`.
        """
        while job.outcome is None:
            if all(each.job is not job for each in self._workers):
                self.poll(0.0)  # idle workers may have ended
                self._assign(job)
            if job.outcome is None and not self.poll(until):
                return None
        if isinstance(job.outcome, Deadly):
            self._dropped += 1
        if isinstance(job.outcome, EspeakError):
            raise job.outcome
        return job.outcome

    def poll(self, until: float) -> bool:
        """Wait for the workers until something happened to one (True), or until then (False)."""
        self._start_missing()
        happened = False
        until = min([until, *(each.deadline for each in self._workers if not each.idle)])
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            happened = True
            if not key.data.read():
                self._bury(key.data)
        now = time.monotonic()
        for each in [each for each in self._workers if each.deadline <= now and not each.idle]:
            happened = True
            self._bury(each)
        return happened

    def _assign(self, job: Job) -> None:
        if job.key in self._deadly:
            job.outcome = Deadly("the text ends espeak-ng")
            return
        for each in self._workers:
            if each.idle:
                each.give(job)
                return
        if time.monotonic() - job.asked_at > START_S:
            job.outcome = EspeakError("its process does not start")

    def _start_missing(self) -> None:
        while len(self._workers) < WORKERS and time.monotonic() >= self._start_at:
            try:
                fresh = _Worker()
            except OSError:
                self._start_at = time.monotonic() + RESTART_S
                return
            self._workers.append(fresh)
            self._selector.register(fresh.stdout, selectors.EVENT_READ, fresh)

    def _bury(self, dead: _Worker) -> None:
        """Take away a worker that has ended or stands still, and start another."""
        self._workers.remove(dead)
        self._selector.unregister(dead.stdout)
        code = dead.end()
        self._deaths += 1
        if dead.sample_rate is None:  # it did not even start: do not try in a loop
            self._start_at = time.monotonic() + RESTART_S
        if dead.job is not None:
            self._judge(dead.job, code)
        if (now := time.monotonic()) >= self._log_at:
            self._log_at = now + LOG_S
            logger.warning("a process of espeak-ng ended ({}), number {}; another takes over", code, self._deaths)
        self._start_missing()

    def _judge(self, job: Job, code: int | None) -> None:
        """Give the job of a dead worker out again, or hold its text guilty."""
        job.deaths += 1
        job.crashes += code not in (None, -signal.SIGKILL)
        if job.crashes < MAX_CRASHES and job.deaths < MAX_KILLS:
            return
        self._deadly[job.key] = None
        if len(self._deadly) > MAX_DEADLY:
            del self._deadly[next(iter(self._deadly))]
        job.outcome = Deadly("the text ended espeak-ng")


def library_path() -> str:
    return str(espeakng_loader.get_library_path())


def clause_words(
    text: str, marks: Iterable[tuple[int, int, int, int]], samples: NDArray[np.int16], language: str = "en"
) -> list[ClauseWord]:
    """Words and parts of words in order, without the silence after them. A word ends where the next starts or its
    clause ends.

    The library reports numbers and spelled words several times and in parts, which are merged here; it omits the length
    of a word before a closing quote, and may report a word's start after that of the next. It reports words that it
    speaks as one ("of the"), and all of a text without spaces, as one word: these share its time.

    Args:
        marks: (type of the event, character, length, sample) of each event.
        language: of the text, as espeak-ng names it.
    """
    spoken: list[tuple[ClauseWord, list[int]]] = []  # and where it and its parts start
    sounding = np.flatnonzero(samples)
    edges = [mark for mark in marks if mark[0] in (worker.WORD, worker.CLAUSE_END)]
    limits = [*(mark[3] for mark in edges), len(samples)][1:]
    for (kind, char, length, start), limit in zip(edges, limits, strict=True):
        if kind != worker.WORD or not 0 <= char < len(text):
            continue
        token = text[char : char + length] if length > 0 else text[char:].partition(" ")[0]
        word, starts = spoken[-1] if spoken else (None, [])
        start = min(max(start, word.end if word else 0), len(samples))
        before = int(np.searchsorted(sounding, limit))  # sounding samples before the limit
        end = max(start, int(sounding[before - 1]) + 1 if before else 0)
        is_mark = unicodedata.category(text[char])[0] == "M"
        if word and (char < word.char + word.length or is_mark or not token.strip()):
            spoken[-1] = replace(word, end=end), starts if is_mark else [*starts, start]
        else:
            spoken.append((ClauseWord(char, max(1, len(token)), start, end), [start]))
    ends = [*(word.char for word, _ in spoken), len(text)][1:]
    return [
        part
        for (word, starts), until in zip(spoken, ends, strict=True)
        for part in _shared(word, starts, text[word.char : until], language)
    ]


def _shared(word: ClauseWord, starts: Sequence[int], text: str, language: str) -> list[ClauseWord]:
    """The words of a text that was reported as one, in parts that start at these samples."""
    pieces: list[tuple[int, int, float]] = []
    for place, token in words_in(text):
        for chars, ms in lengths.length(token, "zh" if language == "cmn" else language).pieces:
            if ms:
                pieces.append((place, chars, ms))
            place += chars
    if len(pieces) < 2:
        return [word]
    # Parts are mostly letters: as many as pieces, or nearly.
    shares = [ms if len(starts) == 1 else 1.0 for *_, ms in pieces]
    at = np.cumsum([0.0, *shares]) * len(starts) / sum(shares)
    edges = np.interp(at, np.arange(len(starts) + 1), [*starts, word.end]).round().astype(int).tolist()
    return [
        ClauseWord(word.char + place, chars, start, end)
        for (place, chars, _), (start, end) in zip(pieces, pairwise(edges), strict=True)
    ]
