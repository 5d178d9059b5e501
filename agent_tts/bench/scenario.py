"""What is asked of a node: the table of scenarios. What came of it: a sample of each call.

A scenario is carried out by processes of `client`. Its calls depend on its seed alone, not on how many processes make
them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from agent_tts.bench.statistics import Player, most_at_once, percentile
from agent_tts.engine_info import FRAME_MS, SAMPLE_RATE
from agent_tts.sound.silence import audible_at

# health asks for /health; idle connects by TCP and never sends a byte.
Transport = Literal["websocket", "http", "rtc", "health", "idle"]
Leaving = Literal["heard_out", "barge_in", "fin", "reset"]

BYTES_PER_S = 2 * SAMPLE_RATE
LAST = "last"  # of the ping that is sent when a call leaves
BARGE_IN_S = (0.2, 2.0)  # of speech before it
VANISH_S = (0.0, 2.0)  # after the text was sent, whether or not it is spoken

_SPOKEN: dict[str, Any] = json.loads(Path(__file__).with_name("texts.json").read_text("utf-8"))
TEXTS: tuple[str, ...] = tuple(_SPOKEN["sentences"])  # of voice agents, between two and seven seconds each
SHORT_TEXTS: tuple[str, ...] = tuple(_SPOKEN["short"])
LANGUAGES: dict[str, str] = _SPOKEN["languages"]  # the same sentence in eight languages, to be repeated

ENGLISH = "en"  # the language of all other texts
SEED_BITS = 31


@dataclass(frozen=True, slots=True)
class ScenarioCall:
    """One request. What a file has of it is checked."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    after_s: Annotated[float, Field(ge=0, le=86_400)]  # since the start of the scenario
    text: Annotated[str, Field(min_length=1)]
    transport: Transport = "websocket"
    language: str = ENGLISH  # of the text
    seed: int = 0  # of the speech
    leaving: Leaving = "heard_out"
    patience_s: float = math.inf  # until it leaves, unless it hears the speech out
    words_every_ms: Annotated[float, Field(ge=0, le=60_000)] = 0.0  # 0 sends the whole text at once
    session: dict[str, Any] = field(default_factory=dict)  # what is not as in the scenario's

    @property
    def kind(self) -> str:
        """By which calls of a trace are told apart."""
        unpaced = self.transport == "http" or self.session.get("lead_ms", 0) is None
        return f"{self.transport}, no pace" if unpaced else self.transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is asked of the node: calls of an open loop, `rate` and `trace` together, and chains of a closed one."""

    name: str
    rate: float | None = None  # open loop: calls per second, at random times
    count: int | None = None  # of them; None is as many as come before the end
    trace: Sequence[ScenarioCall] = ()  # open loop: these, in the order of their times
    concurrency: int | None = None  # closed loop: chains of calls, each of which begins when the one before has ended
    once: bool = False  # a chain is one call
    in_phase: bool = False  # all chains say the same, and each call begins when the one before has been played
    ramp_s: float = 0.0  # in which the chains begin, evenly
    beside: int = 0  # chains of streams without a pace, which run at the same time and are told apart
    warmup_s: float = 0.0  # not measured
    duration_s: float = 0.0  # measured; 0 with `count`
    hang_up: bool = False  # at the end; otherwise what has begun is heard out
    timeout_s: float | None = None  # a call that takes longer has failed
    tail_s: float | None = None  # after the last call has begun; calls that still listen then interrupt
    transport: Transport = "websocket"
    http: float = 0.0  # share of all calls
    rtc: float = 0.0
    barge_in: float = 0.0
    vanish: float = 0.0  # half of them by a reset, half by closing the connection without a message
    words_every_ms: float = 0.0  # of all calls but those of `trace`
    player_delay_ms: float = 0.0  # of a player that counts gaps, after the first chunk
    texts: Sequence[str] = TEXTS
    chars: tuple[int, int] | None = None  # instead: of a text, evenly over its logarithm, in eight languages
    session: dict[str, Any] = field(default_factory=dict)  # voice, lead_ms and the like
    seed: int = 1
    traced: bool = False  # the node's spans of a call over a WebSocket are in a trace of its own

    @property
    def peers(self) -> int:
        """WebRTC peers that are connected before the start, one for each chain; otherwise a call makes its own."""
        return (self.concurrency or 0) if self.transport == "rtc" else 0

    @property
    def end_s(self) -> float:
        """When the measurement ends, since the start."""
        return self.warmup_s + self.duration_s

    @property
    def last_s(self) -> float:
        """When the last call of an open loop begins, since the start."""
        return max((call.after_s for call in self.calls()), default=0.0)

    @property
    def most_traced(self) -> int:
        """How many calls of the trace go on at once, none of which takes more than 10 s."""
        return most_at_once([(call.after_s, call.after_s + SPOKEN_S) for call in self.trace], 0, math.inf)

    @property
    def streams_beside(self) -> Scenario:
        """The chains of `beside`: whole texts, and audio as fast as it comes."""
        times = {"ramp_s": self.warmup_s / 2, "warmup_s": self.warmup_s, "duration_s": self.duration_s}
        unpaced = {"texts": self.texts, "session": self.session | {"lead_ms": None}}
        return requests(f"{self.beside} beside", concurrency=self.beside, **times, **unpaced)

    def calls(self) -> Iterator[ScenarioCall]:
        """All calls of the open loop, in the order of their times."""
        return heapq.merge(self._at_random(), self.trace, key=lambda call: call.after_s)

    def _at_random(self) -> Iterator[ScenarioCall]:
        if self.rate is None:
            return
        times, draw, after_s = random.Random(self.seed), random.Random(self.seed), 0.0
        for number in itertools.count():
            after_s += times.expovariate(self.rate)
            if number == self.count or (self.count is None and after_s >= self.end_s):
                return
            transport = self._transport(draw)
            language, text = self._text(draw)
            leaving, patience_s = self._leaving(draw)
            how = (draw.getrandbits(SEED_BITS), leaving, patience_s, self.words_every_ms)
            yield ScenarioCall(after_s, text, transport, language, *how)

    def chain(self, number: int) -> Iterator[ScenarioCall]:
        """The calls of one chain of a closed loop."""
        assert self.concurrency is not None
        draw, after_s = random.Random(self.seed + number), self.ramp_s * number / self.concurrency
        words = random.Random(self.seed) if self.in_phase else draw
        while True:
            how = (self.transport, ENGLISH, draw.getrandbits(SEED_BITS))
            yield ScenarioCall(after_s, words.choice(self.texts), *how, words_every_ms=self.words_every_ms)

    def _transport(self, draw: random.Random) -> Transport:
        if not self.http + self.rtc:
            return self.transport
        share = draw.random()
        if share < self.http:
            return "http"
        return "rtc" if share < self.http + self.rtc else self.transport

    def _text(self, draw: random.Random) -> tuple[str, str]:
        if self.chars is None:
            return ENGLISH, draw.choice(self.texts)
        language, phrase = draw.choice(list(LANGUAGES.items()))
        low, high = map(math.log, self.chars)
        length = round(math.exp(draw.uniform(low, high)))
        return language, "".join(itertools.islice(itertools.cycle(phrase), length))

    def _leaving(self, draw: random.Random) -> tuple[Leaving, float]:
        share = draw.random() if self.barge_in + self.vanish else 1.0
        if share < self.barge_in:
            return "barge_in", draw.uniform(*BARGE_IN_S)
        if share < self.barge_in + self.vanish:
            return draw.choice(("fin", "reset")), draw.uniform(*VANISH_S)
        return "heard_out", math.inf


@dataclass(slots=True)
class CallSample:
    """One call, as its client saw it. Times are of the monotonic clock."""

    transport: Transport = "websocket"
    leaving: Leaving = "heard_out"
    caller: int = 0  # of a closed loop the number of its chain, otherwise of the call
    begin: float = 0.0  # when it was to begin
    kind: str = ""  # of the call
    connected_at: float | None = None  # when the node had greeted it; WebSocket
    trace_id: str | None = None  # of a traced call
    sent_at: float | None = None  # when its first text was sent; of an idle connection, when it was made
    send_late_ms: float = 0.0  # most that a word was sent after its time
    started: bool = False  # whether the node said that it speaks, or spoke
    first_audio_at: float | None = None
    audible_at: float | None = None  # when a player that began with the first audio came to the first audible 10 ms
    ended_at: float | None = None
    ends: int = 0  # how often the node said that it is over
    error: str | None = None  # a code of the protocol
    reason: str | None = None  # why the node ended it, for one that it ended
    audio_s: float = 0.0
    measured_audio_s: float = 0.0  # the part of it that came during the measurement
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when its player went on, and how long it was dry
    least_margin_ms: float | None = None  # from a chunk, but the first, until its play time; None of one chunk
    late_ms: list[float] = field(default_factory=list)  # WebRTC: of each packet against its 20 ms grid
    lost: int = 0  # WebRTC: packets

    @property
    def ended_once(self) -> bool:
        """Whether the node said exactly once that it is over, to a client that was there to hear it.

        A context that was refused before it was opened ends with the error. Over HTTP, a barge-in hangs up.
        """
        stayed = self.leaving == "heard_out" or (self.leaving == "barge_in" and self.transport != "http")
        refused = self.error is not None and not self.started
        return self.sent_at is None or not stayed or self.ends == 1 or (refused and self.ends == 0)

    @property
    def ttfa_ms(self) -> float | None:
        """From the first text to the first audio; None for a call that failed or was silent."""
        return self._since_text_ms(self.first_audio_at)

    @property
    def audible_ms(self) -> float | None:
        """From the first text to the first 10 ms above -50 dBFS; None for a call that failed or was silent."""
        return self._since_text_ms(self.audible_at)

    def _since_text_ms(self, at: float | None) -> float | None:
        return None if at is None or self.sent_at is None or self.error is not None else (at - self.sent_at) * 1_000

    @property
    def stay_s(self) -> float | None:
        """From the first text, or the connection, to the end; None before."""
        return None if self.sent_at is None or self.ended_at is None else self.ended_at - self.sent_at

    @property
    def late_p99_ms(self) -> float | None:
        return percentile(self.late_ms, 99)


class CallListener:
    """Listens to one call, and fills in its sample; audio that comes in the window is counted as measured."""

    def __init__(self, sample: CallSample, player_delay_ms: float, window: tuple[float, float]) -> None:
        self.sample = sample
        self._window = window
        self._player = Player(player_delay_ms / 1_000)
        # They are set when speech has begun, or will not; when nothing follows; and by the answer to the last ping.
        self.begun, self.over, self.answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        # When the call has left, a lost connection is no error.
        self.gone = False

    def heard(self, now: float, pcm: bytes | memoryview) -> None:
        """Audio came: pcm_s16le, 24 kHz."""
        sample, seconds = self.sample, len(pcm) / BYTES_PER_S
        if sample.first_audio_at is None:
            sample.first_audio_at, sample.started = now, True
            self.begun.set()
        if sample.audible_at is None:
            at = audible_at(np.frombuffer(pcm, "<i2", len(pcm) // 2), SAMPLE_RATE)
            if at is not None:
                sample.audible_at = max(now, sample.first_audio_at + sample.audio_s) + at / SAMPLE_RATE
        sample.audio_s += seconds
        if self._window[0] <= now < self._window[1]:
            sample.measured_audio_s += seconds
        self._player.take(now, seconds)

    def told(self, now: float, message: dict[str, Any]) -> None:
        """A message about the context came."""
        if self.gone:
            return
        if message["type"] == "error":
            self.sample.error = message["code"]
        elif message["type"] == "context.done":
            self.sample.reason = message["reason"]
        if message["type"] in ("error", "context.done"):
            self.sample.ended_at = now
            self.begun.set()
            self.over.set()

    def saw(self, message: dict[str, Any]) -> None:
        """Any message came."""
        match message["type"]:
            case "context.started":
                self.sample.started = True
            case "context.done":
                self.sample.ends += 1
            case "pong" if message["t"] == LAST:
                self.answered.set()

    def leave(self) -> None:
        """The call has ended, or was given up."""
        self.gone = True
        if self.sample.ended_at is None:
            self.sample.ended_at = time.monotonic()
        self.sample.gaps = self._player.gaps
        if math.isfinite(self._player.least_margin_s):
            self.sample.least_margin_ms = round(self._player.least_margin_s * 1_000, 3)


SPOKEN_S = 10.0  # no request takes longer, but for long texts
MIX_S = 600.0  # a trace may have them
LLM_MS = 40.0  # a word of a language model
REQUEST_S = 60.0  # a request of `bench serve` that takes longer has failed
TAIL_S = 20.0
SESSIONS, SESSION_S = 64, 3.0  # at once, on average; how long one takes, with sentences of voice agents
STORM_CALLS = 100
STORM_S = 12.0  # that a storm is watched
IDLE_CONNECTIONS, IDLE_RAMP_S = 900, 2.0
RTC_STARTS_PER_S = 250.0  # peers that are spoken to first, evenly
RTC_SETTLE_S = 2.0  # after it


def requests(name: str, **fields: Any) -> Scenario:
    """`bench serve` and `bench streams`: requests as strangers make them, each on a new connection."""
    return Scenario(name=name, timeout_s=REQUEST_S, **fields)


def burst(count: int, at_s: float, texts: Sequence[str], seed: int = 1) -> list[ScenarioCall]:
    """`bench serve --burst`: a trace of strangers who come within a second from `at_s` on, a word every 40 ms."""
    draw = random.Random(seed)
    times = sorted(at_s + draw.random() for _ in range(count))
    said = [(at, draw.choice(texts), draw.getrandbits(SEED_BITS)) for at in times]
    return [ScenarioCall(at, text, seed=one, words_every_ms=LLM_MS) for at, text, one in said]


def _listeners(name: str, count: int, **fields: Any) -> Scenario:
    """Calls that begin evenly within the ramp, one in each chain, and stay until the end."""
    return Scenario(name=name, concurrency=count, once=True, hang_up=True, **fields)


def rtc_peers(count: int, seconds: float, words_every_ms: float, session: dict[str, Any]) -> Scenario:
    """`bench rtc`: WebRTC peers that are connected before the start, and spoken to without a pause."""
    ramp_s = count / RTC_STARTS_PER_S
    times: dict[str, Any] = {"ramp_s": ramp_s, "warmup_s": ramp_s + RTC_SETTLE_S, "duration_s": seconds}
    spoken: dict[str, Any] = {"words_every_ms": words_every_ms, "session": session}
    return _listeners(f"{count} peers", count, **times, transport="rtc", **spoken)


def _sessions(name: str, rate: float, count: int, **fields: Any) -> Scenario:
    return Scenario(name=name, rate=rate, count=count, tail_s=TAIL_S, player_delay_ms=FRAME_MS, **fields)


def sessions(seconds: float, session: dict[str, Any]) -> Scenario:
    """`bench load`: 64 WebSocket sessions at once, on average."""
    rate = SESSIONS / SESSION_S
    return _sessions("sessions", rate, round(rate * seconds), session=session)


def mixed(seconds: float, session: dict[str, Any]) -> Scenario:
    """`bench load`: all transports, short and long texts in eight languages, and calls that interrupt."""
    shares: dict[str, Any] = {"http": 0.2, "rtc": 0.2, "barge_in": 0.1, "chars": (5, 2_000)}
    return _sessions("mixed", 2.0, round(2.0 * seconds), session=session, **shares)


def storm(session: dict[str, Any]) -> tuple[Scenario, Scenario, Scenario]:
    """`bench load`: sessions, and what comes at the same time: idle connections, and probes of the node's health."""
    times: dict[str, Any] = {"ramp_s": IDLE_RAMP_S, "duration_s": STORM_S}
    idle = _listeners("idle connections", IDLE_CONNECTIONS, **times, transport="idle")
    health = Scenario(name="health", rate=10.0, duration_s=STORM_S, transport="health")
    return _sessions("storm", 25.0, STORM_CALLS, http=0.2, session=session), idle, health


def soak(contexts: int, rate: float, vanish: float, session: dict[str, Any]) -> Scenario:
    """`bench soak`: short contexts, some of whose clients vanish."""
    return _sessions("soak", rate, contexts, vanish=vanish, texts=SHORT_TEXTS, session=session)


def texts_of(words: int) -> tuple[str, ...]:
    """Sentences of voice agents, cut into texts of so many words each."""
    spoken = " ".join(TEXTS).split()
    return tuple(
        " ".join(itertools.islice(itertools.cycle(spoken), start, start + words)) for start in range(0, len(spoken), 7)
    )
