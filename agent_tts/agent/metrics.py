"""Prometheus metrics of conversations: latency, barge-in, outcomes. They hold no text and no identity."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0)


class AgentMetrics:
    """Registered with the node's own metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = Gauge("agent_tts_agent_calls", "Calls open now.", ["carrier"], registry=registry)
        self.turn = Histogram(
            "agent_tts_agent_turn_seconds",
            "From the end of the user's speech, or from the typed text, to a mark of the answer.",
            ["mark"],  # turn_end, transcript, llm_first_token, audio_first
            buckets=_SECONDS,
            registry=registry,
        )
        self.speech = Histogram(
            "agent_tts_agent_speech_seconds",
            "From the first token of the language model to the first audio.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.hold = Histogram(
            "agent_tts_agent_hold_seconds",
            "From noticing the user's voice during an answer to the last sound of it that is sent.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.page = Histogram(
            "agent_tts_agent_page_seconds",
            "As a page reports it: heard, the first sound of an answer; silent, after an interruption.",
            ["mark"],
            buckets=_SECONDS,
            registry=registry,
        )
        # answered, interrupted, failed
        self.turns = Counter("agent_tts_agent_turns", "Answers ended.", ["outcome"], registry=registry)
        self.resumed = Counter(
            "agent_tts_agent_resumed", "Answers that went on after sounds without a word.", registry=registry
        )
