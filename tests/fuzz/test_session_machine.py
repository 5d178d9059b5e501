"""A protocol session under any order of messages and time, compared with a small model of protocol.md."""

from __future__ import annotations

import json
from typing import Any, get_args, get_origin

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agent_tts import messages
from agent_tts.messages import Audio, EngineReady
from agent_tts.protocol.adapter import Event
from agent_tts.protocol.v1 import NativeAdapter
from tests.examples import examples
from tests.fuzz.conversation import Conversation

IDS = st.sampled_from(["a", "b", "c", "*"])
CODES = {"bad_message", "unknown_type", "unknown_context", "context_exists", "context_limit", "text_too_long"}
CODES |= {"unknown_voice", "unsupported_language", "unsupported_format", "at_capacity", "starved", "slow_consumer"}
CODES |= {"engine_lost", "draining", "internal"}


class SessionMachine(RuleBasedStateMachine):
    """Checks every message against the state of its context."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Conversation()
        self.adapter = NativeAdapter()
        self.session, self.service, self.link = self.talk.session, self.talk.service, self.talk.link
        # The model: contexts by number -> [id, state, next first_sample]; state is open, started, cancelled or done.
        self.contexts: dict[int, list[Any]] = {}
        self.pings = 0

    def tell(self, type_: str, **fields: Any) -> None:
        self.session.receive(self.adapter.decode(json.dumps({"type": type_, **fields})))

    @rule(id_=IDS, lead=st.sampled_from([None, 80, 1_000]), voice=st.sampled_from([None, "tone-660", "nobody"]))
    def open(self, id_: str, lead: int | None, voice: str | None) -> None:
        self.tell("context.open", context_id=id_, lead_ms=lead, voice=voice)

    @rule(id_=IDS, text=st.text(alphabet="ab .", max_size=45))
    def append(self, id_: str, text: str) -> None:
        self.tell("text.append", context_id=id_, text=text)

    @rule(id_=IDS)
    def flush(self, id_: str) -> None:
        self.tell("context.flush", context_id=id_, flush_id="f")

    @rule(id_=IDS)
    def end(self, id_: str) -> None:
        self.tell("context.end", context_id=id_)

    @rule(id_=IDS, played=st.none() | st.integers(0, 5_000))
    def cancel(self, id_: str, played: int | None) -> None:
        self.tell("context.cancel", context_id=id_, played_ms=played)

    @rule(id_=IDS, played=st.integers(0, 5_000))
    def ack(self, id_: str, played: int) -> None:
        self.tell("playback.ack", context_id=id_, played_ms=played)

    @rule()
    def ping(self) -> None:
        self.tell("ping", t=self.pings)
        self.pings += 1

    @rule(junk=st.text(max_size=20) | st.binary(max_size=20))
    def junk(self, junk: str | bytes) -> None:
        self.session.receive(self.adapter.decode(junk))

    @rule(steps=st.integers(1, 5), seconds=st.sampled_from([0.0, 0.08, 1.0, 4.0]))
    def engine(self, steps: int, seconds: float) -> None:
        self.talk.turn(steps, seconds)

    @rule(count=st.integers(1, 20))
    def take(self, count: int) -> None:
        for _ in range(count):
            if (event := self.session.poll()) is None:
                return
            self.see(event)

    @rule()
    def lose_engine(self) -> None:
        self.talk.lose_engine()

    def see(self, event: Event) -> None:
        if isinstance(event, Audio):
            context = self.contexts[event.context_no]
            assert context[1] == "started", f"audio of a {context[1]} context"
            assert event.first_sample == context[2], "a gap in the audio"
            context[2] += len(event.payload) // 2
            return
        for text in self.adapter.encode(event):
            self.see_message(json.loads(text))

    def see_message(self, message: dict[str, Any]) -> None:
        kind, id_ = message["type"], message.get("context_id")
        if kind == "context.started":
            assert message["context_no"] not in self.contexts
            self.contexts[message["context_no"]] = [id_, "started", 0]
        elif kind == "context.done":
            context = self.contexts.setdefault(message["context_no"], [id_, "open", 0])
            assert context[1] != "done", "a second end"
            assert (message["reason"] == "cancelled") or context[1] != "cancelled"
            assert message["audio_ms"] == round(context[2] / 24)
            context[1] = "done"
        elif kind == "context.cancelled":
            live = [c for c in self.contexts.values() if c[0] == id_ and c[1] == "started"]
            assert len(live) <= 1
            for context in live:
                context[1] = "cancelled"
        elif kind == "error":
            assert message["code"] in CODES
            assert message["fatal"] is False
        elif kind in ("words", "context.flushed"):
            live = [c for c in self.contexts.values() if c[0] == id_ and c[1] != "done"]
            assert live, f"{kind} of a closed context"
        else:
            assert kind in ("session.created", "pong")

    @invariant()
    def nothing_piles_up(self) -> None:
        assert len(self.session._contexts) <= 2
        for context in self.session._contexts.values():
            assert len(context._events) <= 50 + 40

    def teardown(self) -> None:
        self.tell("context.cancel", context_id="*")
        for _ in range(10):
            self.link.turn()
        while (event := self.session.poll()) is not None:
            self.see(event)
        assert all(context[1] == "done" for context in self.contexts.values()), "a context did not end"
        assert not self.session._contexts
        assert self.service.speaking == 0
        self.session.close()


def test_the_model_covers_all_engine_events() -> None:
    """The model above knows every kind of event of a request."""
    kinds = {
        messages.Started,
        messages.Audio,
        messages.Words,
        messages.Flushed,
        messages.Finished,
    }
    measured = {messages.Stages}  # for spans alone
    assert {get_origin(kind) or kind for kind in get_args(messages.RequestEvent)} == kinds | measured
    assert EngineReady not in kinds


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = examples(160, stateful_step_count=60)
