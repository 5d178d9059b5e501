"""The Prometheus metrics of a node's engines, for the process that owns them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent_tts import __version__
from agent_tts.engine_info import EngineInfo
from agent_tts.messages import EnginePong
from agent_tts.speech.engine_handle import EngineObserver

# Upper bounds of the buckets of times.
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


class EngineMetrics(EngineObserver):
    """The metrics of a node's engines, in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        gauge("agent_tts_version", "1, with the node's version as its label.", ["version"]).labels(__version__).set(1)
        # They are kept by the engine's number.
        self.engine_up = gauge("agent_tts_engine_up", "Whether it answers.", ["engine"])
        self.engine_starts = counter("agent_tts_engine_starts", "Engine processes started.", ["engine"])
        step = "Longest engine step of each second."
        self.engine_step = Histogram(
            "agent_tts_engine_step_seconds", step, ["engine"], buckets=SECONDS, registry=registry
        )
        self.worker_deaths = counter(
            "agent_tts_worker_deaths", "Processes of espeak-ng that ended; another took over.", ["engine"]
        )
        self.texts_dropped = counter(
            "agent_tts_texts_dropped", "Clauses left out because they end a process of espeak-ng.", ["engine"]
        )
        # A gauge of all engines and one by engine, for each field of `_Engine`; an engine that is down counts 0.
        self._gauges = [
            (gauge(f"agent_tts_{name}", text), gauge(f"agent_tts_engine_{name}", f"{text} By engine.", ["engine"]))
            for name, text in (
                ("slots", "Contexts that may speak at once."),
                ("slots_used", "Slots speaking, as of the last heartbeat."),
                ("contexts_queued", "Contexts waiting for a slot."),
            )
        ]
        # What the gauges of each engine show.
        self._engines: dict[int, _Engine] = {}

    def started(self, engine: int, info: EngineInfo) -> None:
        self.engine_starts.labels(engine).inc()
        self._show(engine, _Engine(info.slots))

    def pulse(self, engine: int, pong: EnginePong) -> None:
        self.engine_step.labels(engine).observe(pong.step_ms / 1_000)
        self.worker_deaths.labels(engine).inc(pong.worker_deaths)
        self.texts_dropped.labels(engine).inc(pong.texts_dropped)
        self._show(engine, _Engine(self._engines[engine].slots, pong.speaking, pong.queued))

    def lost(self, engine: int) -> None:
        self._show(engine, None)

    def _show(self, engine: int, now: _Engine | None) -> None:
        before, after = self._engines.get(engine, _Engine()), now or _Engine()
        self._engines[engine] = after
        self.engine_up.labels(engine).set(now is not None)
        for (of_all, of_each), old, new in zip(self._gauges, before, after, strict=True):
            of_each.labels(engine).set(new)
            of_all.inc(new - old)


class _Engine(NamedTuple):
    """What an engine last reported."""

    slots: int = 0
    speaking: int = 0
    queued: int = 0
