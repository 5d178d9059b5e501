"""Visits: sessions that come at random times, speak once over some carrier, and leave, politely or not.

Each visit is a connection of its own. Visitors are processes of their own; what they ask depends on the plan's seed
alone, not on how many processes ask.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_tts.bench.clients import READY_S, clients_for, jobs
from agent_tts.bench.lag import worst
from agent_tts.bench.serve import MESSAGES_A_REQUEST, TEXTS
from agent_tts.bench.statistics import mean_at_once, most_at_once, percentiles
from agent_tts.bench.workers import Worker, answers, workers

Carrier = Literal["websocket", "http", "rtc"]
Leaving = Literal["heard_out", "barge_in", "fin", "reset"]

TAIL_S = 20.0  # after the last visit has begun: who still listens then interrupts
MARGIN_S = 30.0  # for a process to answer, beyond its visits
BARGE_IN_S = (0.2, 2.0)  # of speech before it
VANISH_S = (0.0, 2.0)  # after the text was sent, whatever has come of it
MODULE = "agent_tts.bench.visits_client"
RTC_MODULE = "agent_tts.bench.visits_rtc"

# The same in eight languages, to be repeated.
LANGUAGES = {
    "en": "The next train to the airport leaves in twelve minutes from platform four. ",
    "de": "Der nächste Zug zum Flughafen fährt in zwölf Minuten von Gleis vier. ",
    "fr": "Le prochain train pour l'aéroport part dans douze minutes de la voie quatre. ",
    "es": "El próximo tren al aeropuerto sale en doce minutos del andén cuatro. ",
    "it": "Il prossimo treno per l'aeroporto parte fra dodici minuti dal binario quattro. ",
    "pt": "O próximo comboio para o aeroporto parte em doze minutos da linha quatro. ",
    "ru": "Следующий поезд в аэропорт отправится через двенадцать минут с четвёртого пути. ",
    "zh": "去机场的下一班火车十二分钟后从四号站台开出。",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """What one visitor does."""

    after_s: float  # since the start
    carrier: Carrier
    text: str
    language: str | None  # None is the voice's
    leaving: Leaving
    patience_s: float  # until it leaves, where it does not hear all of it


@dataclass(frozen=True, slots=True)
class Plan:
    """Who comes, and how often. Shares are of all visits; those that are left use WebSockets, and hear it out."""

    count: int
    rate: float  # visits a second, at random times (open loop)
    http: float = 0.0
    rtc: float = 0.0
    barge_in: float = 0.0
    vanish: float = 0.0  # half of them by a reset, half by closing the connection without a word
    chars: tuple[int, int] | None = (
        None  # of a text, evenly over its logarithm, in eight languages; None: what agents say
    )
    texts: Sequence[str] = TEXTS
    session: dict[str, Any] = field(default_factory=dict)  # voice, lead_ms and the like
    seed: int = 1

    def visits(self) -> Iterator[Visit]:
        """All of them, in the order of their times."""
        draw, after_s = random.Random(self.seed), 0.0
        for _ in range(self.count):
            after_s += draw.expovariate(self.rate)
            carrier = self._carrier(draw.random())
            language, text = self._text(draw)
            leaving, patience_s = self._leaving(draw)
            yield Visit(after_s, carrier, text, language, leaving, patience_s)

    def _carrier(self, share: float) -> Carrier:
        if share < self.http:
            return "http"
        return "rtc" if share < self.http + self.rtc else "websocket"

    def _text(self, draw: random.Random) -> tuple[str | None, str]:
        if self.chars is None:
            return None, draw.choice(self.texts)
        language, phrase = draw.choice(list(LANGUAGES.items()))
        low, high = map(math.log, self.chars)
        length = round(math.exp(draw.uniform(low, high)))
        return language, "".join(itertools.islice(itertools.cycle(phrase), length))

    def _leaving(self, draw: random.Random) -> tuple[Leaving, float]:
        share = draw.random()
        if share < self.barge_in:
            return "barge_in", draw.uniform(*BARGE_IN_S)
        if share < self.barge_in + self.vanish:
            return draw.choice(("fin", "reset")), draw.uniform(*VANISH_S)
        return "heard_out", math.inf


@dataclass(slots=True)
class Sample:
    """One visit, as the visitor saw it. Times are of the monotonic clock."""

    carrier: Carrier
    leaving: Leaving
    begin: float  # when it was to begin
    sent_at: float | None = None  # when its text was sent
    started: bool = False  # whether the node said that it speaks, or spoke
    first_audio_at: float | None = None
    ended_at: float | None = None
    gaps: int = 0  # how often a player that starts a frame after the first chunk ran dry
    gaps_s: float = 0.0
    ends: int = 0  # how often the node said that it is over
    error: str | None = None  # a code of the protocol
    lost: int = 0  # WebRTC: packets
    late_ms: float | None = None  # WebRTC: of 99 of 100 packets against their 20 ms grid

    @property
    def told_once(self) -> bool:
        """Whether the node said exactly once that it is over, to a visitor who was there to hear it.

        A context that was refused before it was opened ends with the error. Over HTTP, a barge-in hangs up.
        """
        stayed = self.leaving == "heard_out" or (self.leaving == "barge_in" and self.carrier != "http")
        refused = self.error is not None and not self.started
        return self.sent_at is None or not stayed or self.ends == 1 or (refused and self.ends == 0)

    @property
    def ttfa_ms(self) -> float | None:
        """From the text to the first audio; None without."""
        if self.first_audio_at is None or self.sent_at is None or self.error is not None:
            return None
        return (self.first_audio_at - self.sent_at) * 1_000


@dataclass(frozen=True, slots=True)
class Paid:
    """What came of all visits."""

    samples: list[Sample]  # in the order of their times
    client_lag_ms: dict[str, float | None]  # of the visitors' event loops


@asynccontextmanager
async def visitors(
    urls: Mapping[str, str], key: str | None, plan: Plan, *, clients: int | None = None
) -> AsyncIterator[Callable[[float], Coroutine[Any, Any, Paid]]]:
    """Processes that are ready to pay all visits, once, from a time on; ended with the block.

    What is called with the start, on the monotonic clock, raises `SpeechError` when one of them fails.

    Args:
        urls: of the node: `ws` of its WebSocket, `http` of the rest.
        clients: processes for the visits over WebSockets and HTTP; None is as many as it takes.

    Raises:
        SpeechError: one of them cannot do its job.
    """
    last_s = max((visit.after_s for visit in plan.visits()), default=0.0)
    parts = clients or clients_for(plan.rate * MESSAGES_A_REQUEST, max(1, round(plan.rate)))
    async with AsyncExitStack() as stack:
        found: list[Worker] = []
        for module, count in ((MODULE, parts), (RTC_MODULE, 1 if plan.rtc else 0)):
            told = [{**job, "urls": dict(urls)} for job in jobs(count, urls["http"], plan)]
            found += await stack.enter_async_context(workers(module, told, key=key, ready_s=READY_S))

        async def pay(start: float) -> Paid:
            asked = await answers(found, {"start": start}, start - time.monotonic() + last_s + TAIL_S + MARGIN_S)
            samples = [Sample(**sample) for answer in asked for sample in answer["samples"]]
            samples.sort(key=lambda sample: sample.begin)
            return Paid(samples, worst([answer["lag_ms"] for answer in asked]))

        yield pay


def figures_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """Figures of all visits."""
    good = [sample for sample in samples if sample.error is None and sample.first_audio_at is not None]
    spans = [(sample.begin, sample.ended_at) for sample in samples if sample.ended_at is not None]
    begin, end = (min((s for s, _ in spans), default=0.0), max((s.begin for s in samples), default=0.0))
    late = [sample.late_ms for sample in samples if sample.late_ms is not None]
    return {
        "visits": len(samples),
        "errors": dict(Counter(sample.error for sample in samples if sample.error is not None)),
        "not_one_end": sum(not sample.told_once for sample in samples),
        "ttfa_ms": percentiles([ms for sample in good if (ms := sample.ttfa_ms) is not None], 50, 95, 99),
        "underruns": sum(sample.gaps > 0 for sample in good),
        "underrun_s": round(sum(sample.gaps_s for sample in good), 3),
        "lost_packets": sum(sample.lost for sample in samples),
        "late_ms": percentiles(late, 50, 100),
        "mean_in_flight": round(mean_at_once(spans, begin, end), 2) if end > begin else 0.0,
        "peak_in_flight": most_at_once(spans, begin, end),
    }


def by_carrier(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Visits of each carrier that there were any of."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.carrier, []).append(sample)
    return found
