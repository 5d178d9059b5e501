"""Requests per second, or at once, as a voice agent makes them: text word by word, audio timed as it comes.

Requests are made by processes of their own, and figures are of all their samples together. What is asked of the node
does not depend on how many processes ask.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_tts.bench.clients import READY_S, by_name, clients_for, jobs, start_time
from agent_tts.bench.lag import worst
from agent_tts.bench.node import cpu_percent
from agent_tts.bench.statistics import mean_at_once, most_at_once, percentiles
from agent_tts.bench.workers import answers, workers
from agent_tts.events import FRAME_MS

REQUEST_S = 60.0  # a request that takes longer has failed
MARGIN_S = 30.0  # for a process to answer, beyond its requests
MODULE = "agent_tts.bench.serve_client"

# For the number of processes: what a request and a closed loop come to at most, nearly.
MESSAGES_A_REQUEST = 75  # six seconds of speech
MESSAGES_PER_S_UNPACED = 100  # of each of many requests at once

# What agents say. Between two and seven seconds each.
TEXTS = (
    "Sure, I can help you with that.",
    "Your order left our warehouse this morning and should be with you by Thursday.",
    "One moment please, I am looking that up for you right now.",
    "The next train to the airport leaves in twelve minutes from platform four.",
    "I have moved your appointment to Friday at half past nine. Does that work for you?",
    "It will be mostly sunny today, with a light breeze in the afternoon.",
    "Could you spell your last name for me, please?",
    "Thank you for waiting. I found two rooms that are still free for the weekend, and both have a view of the lake.",
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the node. One of `rate` and `concurrency` is given."""

    rate: float | None = None  # requests per second, at random times (open loop)
    concurrency: int | None = None  # requests at once, each followed by the next (closed loop)
    warmup_s: float = 10.0  # not measured
    duration_s: float = 60.0  # measured
    ramp_s: float = 0.0  # of the warm-up, in which a closed loop's first requests begin, evenly
    words_every_ms: float = 10.0  # 0 sends the whole text at once
    session: dict[str, Any] = field(default_factory=dict)  # voice, lead_ms and the like
    texts: Sequence[str] = TEXTS
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.rate:g}/s" if self.rate is not None else f"{self.concurrency} at once"

    @property
    def clients(self) -> int:
        """Processes that it takes on this machine."""
        if self.rate is not None:
            return clients_for(self.rate * MESSAGES_A_REQUEST, max(1, round(self.rate)))
        return clients_for((self.concurrency or 0) * MESSAGES_PER_S_UNPACED, self.concurrency or 1)

    def arrivals(self, start: float) -> Iterator[tuple[float, str]]:
        """Times of a Poisson process from `start` on, and what is said then; both depend on the seed alone."""
        draw, at = random.Random(self.seed), start
        assert self.rate is not None
        for text in self.sayings(0):
            at += draw.expovariate(self.rate)
            yield at, text

    def sayings(self, number: int) -> Iterator[str]:
        """Texts of one of a closed loop's chains of requests."""
        draw = random.Random(self.seed + number)
        while True:
            yield draw.choice(self.texts)


@dataclass(slots=True)
class Sample:
    """One request, as its listener saw it. Times are of the monotonic clock."""

    begin: float  # when it was to begin
    sent_at: float | None = None  # when its first text was sent
    first_audio_at: float | None = None
    ended_at: float | None = None
    audio_s: float = 0.0
    measured_audio_s: float = 0.0  # what of it came while it was measured
    gaps: int = 0  # how often a player that starts on the first chunk ran dry
    gaps_s: float = 0.0
    error: str | None = None  # a code of the protocol


def texts_of(words: int) -> tuple[str, ...]:
    """What agents say, in texts of so many words each."""
    spoken = " ".join(TEXTS).split()
    return tuple(
        " ".join(itertools.islice(itertools.cycle(spoken), start, start + words)) for start in range(0, len(spoken), 7)
    )


async def measure(
    url: str, key: str | None, load: Load, *, clients: int | None = None, pids: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], list[float]]:
    """Put the load on the node; its figures, and every time to first audio in ms. Cancelling it ends all requests.

    Args:
        clients: processes that make the requests; None is as many as it takes.
        pids: processes whose share of the CPU is told, by name.

    Raises:
        SpeechError: a process of the clients has failed.
    """
    count = clients or load.clients
    if load.concurrency is not None:
        count = min(count, load.concurrency)
    async with workers(MODULE, jobs(count, url, load), key=key, ready_s=READY_S) as found:
        start = start_time()
        window = (start + load.warmup_s, start + load.warmup_s + load.duration_s)
        within_s = window[1] - start + REQUEST_S + MARGIN_S
        asked, cpu = await asyncio.gather(
            answers(found, {"start": start}, within_s), cpu_percent(by_name(pids or {}, found), *window)
        )
    samples = [Sample(**sample) for answer in asked for sample in answer["samples"]]
    figures, ttfa_ms = figures_of(samples, load, window)
    figures["clients"] = count
    figures["client_lag_ms"] = worst([answer["lag_ms"] for answer in asked])
    figures["cpu_percent"] = cpu
    figures["front_us_per_frame"] = us_per_frame(cpu.get("front"), figures["audio_s_per_s"])
    return figures, ttfa_ms


def us_per_frame(percent: float | None, audio_s_per_s: float) -> float | None:
    """CPU time that a process takes for each 80 ms of audio, in microseconds, requests included; None of nothing.

    Args:
        percent: the share of a core that it uses meanwhile.
    """
    if percent is None or not audio_s_per_s:
        return None
    return round(percent / 100 * FRAME_MS * 1_000 / audio_s_per_s, 1)


def figures_of(
    samples: Sequence[Sample], load: Load, window: tuple[float, float]
) -> tuple[dict[str, Any], list[float]]:
    """Figures of the requests that were to begin while it was measured; and their times to first audio in ms.

    Throughput and requests at once are of all that was going on meanwhile, whenever it began.
    """
    begin, end = window
    requests = [sample for sample in samples if begin <= sample.begin < end]
    good = [r for r in requests if r.error is None and r.first_audio_at is not None]
    ttfa_ms = [(r.first_audio_at - r.sent_at) * 1_000 for r in good if r.first_audio_at and r.sent_at]
    spans = [(r.begin, r.ended_at) for r in samples if r.ended_at is not None]
    figures = {
        "load": load.name,
        "requests": len(requests),
        "errors": dict(Counter(r.error for r in requests if r.error is not None)),
        "silent": sum(r.error is None and r.first_audio_at is None for r in requests),
        "ttfa_ms": percentiles(ttfa_ms, 50, 95, 99),
        "underruns": sum(r.gaps > 0 for r in good),
        "underrun_s": round(sum(r.gaps_s for r in good), 3),
        "audio_s_per_s": round(sum(r.measured_audio_s for r in samples) / load.duration_s, 2),
        "request_audio_s": percentiles([r.audio_s for r in good], 0, 50, 100),
        "peak_in_flight": most_at_once(spans, begin, end),
        "mean_in_flight": round(mean_at_once(spans, begin, end), 2),
        # How late requests were sent, the time to connect included.
        "send_lag_ms": percentiles([(r.sent_at - r.begin) * 1_000 for r in requests if r.sent_at], 50, 99),
    }
    return figures, ttfa_ms
