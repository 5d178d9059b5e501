"""Speech in the node's own process has the same metrics and names as other speech."""

from __future__ import annotations

from pipecat.frames.frames import TTSAudioRawFrame

from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.integrations.pipecat.words import REQUEST_ID
from agent_tts.serve.telemetry.metrics import Metrics
from tests.integrations.pipecat.pipeline import running
from tests.support import RunningNode, running_node, until

TEXT = "One two three four five six seven eight nine ten. "
CARRIER = {"carrier": "pipecat"}


def service(node: RunningNode) -> AgentTTSService:
    return AgentTTSService(speech=node.node.service, metrics=node.node.metrics)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_turn_counts_in_the_metrics_of_the_node() -> None:
    async with running_node() as node, running([service(node)]) as pipeline:
        metrics = node.node.metrics
        await pipeline.begin(TEXT)
        await until(lambda: bool(pipeline.down(TTSAudioRawFrame)))
        assert value(metrics, "agent_tts_contexts_active", **CARRIER) == 1
        await pipeline.end()
        await until(lambda: value(metrics, "agent_tts_contexts_total", **CARRIER, reason="end") == 1, 10)
        assert value(metrics, "agent_tts_contexts_active", **CARRIER) == 0
        assert value(metrics, "agent_tts_ttfa_seconds_count", **CARRIER) == 1
        await until(lambda: value(metrics, "agent_tts_audio_seconds_total", **CARRIER) == len(pipeline.pcm()) / 48_000)
        assert value(metrics, "agent_tts_cancel_seconds_count") == 0


async def test_an_interrupted_turn_counts_once_when_its_slot_is_free() -> None:
    """No reader takes its last event.

    Mutation: `speech.waker` not set.
    """
    async with running_node() as node, running([service(node)]) as pipeline:
        metrics = node.node.metrics
        await pipeline.begin(TEXT * 5)
        await until(lambda: bool(pipeline.down(TTSAudioRawFrame)))
        await pipeline.interrupt()
        await until(lambda: node.node.service.speaking == 0)
        assert value(metrics, "agent_tts_contexts_total", **CARRIER, reason="cancelled") == 1
        assert value(metrics, "agent_tts_contexts_active", **CARRIER) == 0
        assert value(metrics, "agent_tts_cancel_seconds_count") == 1
        await pipeline.turn("Clean.")
        assert value(metrics, "agent_tts_contexts_total", **CARRIER, reason="cancelled") == 1
        assert value(metrics, "agent_tts_contexts_total", **CARRIER, reason="end") == 1


async def test_a_finished_turn_that_was_not_read_is_cancelled_once() -> None:
    """Its last event has arrived before it is stopped."""
    async with running_node() as node:
        link = service(node)._client
        utterance = link.begin({"lead_ms": None})
        utterance.write("One.")
        utterance.end()
        await until(lambda: node.node.service.speaking == 0)
        utterance.stop()
        utterance.stop()
        metrics = node.node.metrics
        assert value(metrics, "agent_tts_contexts_total", **CARRIER, reason="cancelled") == 1
        assert value(metrics, "agent_tts_contexts_active", **CARRIER) == 0


async def test_audio_frames_carry_the_id_of_their_request() -> None:
    async with running_node(engines=2) as node, running([service(node)]) as pipeline:
        await pipeline.turn("One.")
        await pipeline.turn("Two.")
        names = {frame.metadata[REQUEST_ID] for frame in pipeline.down(TTSAudioRawFrame)}
    assert len(names) == 2
    assert all(engine in ("0", "1") and int(stream) > 0 for engine, stream in (name.split("/") for name in names))
