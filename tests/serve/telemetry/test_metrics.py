from __future__ import annotations

from prometheus_client import CollectorRegistry

from agent_tts.engine_info import EngineInfo
from agent_tts.messages import EnginePong
from agent_tts.serve.telemetry.metrics import EngineMetrics


def shown(registry: CollectorRegistry, name: str) -> list[float | None]:
    """A gauge of the node, then of its two engines."""
    of_engine = name.replace("agent_tts_", "agent_tts_engine_")
    value = registry.get_sample_value
    return [value(name), *(value(of_engine, {"engine": engine}) for engine in ("0", "1"))]


def info(slots: int) -> EngineInfo:
    return EngineInfo("tone", "tone", slots, (), "tone", {})


def test_each_engine_is_shown_and_their_sum() -> None:
    """The sums are wrong if the lost engine is forgotten, or one is counted twice."""
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    for engine in (0, 1):
        metrics.started(engine, info(4))
    for _ in range(2):
        metrics.pulse(0, EnginePong(1, 3, 0, 1.0))
        metrics.pulse(1, EnginePong(1, 4, 2, 1.0))
    assert shown(registry, "agent_tts_slots") == [8, 4, 4]
    assert shown(registry, "agent_tts_slots_used") == [7, 3, 4]
    assert shown(registry, "agent_tts_contexts_queued") == [2, 0, 2]
    metrics.lost(1)
    assert shown(registry, "agent_tts_slots") == [4, 4, 0]
    assert shown(registry, "agent_tts_slots_used") == [3, 3, 0]
    assert shown(registry, "agent_tts_contexts_queued") == [0, 0, 0]
    up = [registry.get_sample_value("agent_tts_engine_up", {"engine": engine}) for engine in ("0", "1")]
    assert up == [1, 0]
    metrics.started(1, info(4))
    assert shown(registry, "agent_tts_slots_used") == [3, 3, 0]
    assert registry.get_sample_value("agent_tts_engine_starts_total", {"engine": "1"}) == 2
    assert registry.get_sample_value("agent_tts_engine_step_seconds_count", {"engine": "0"}) == 2
