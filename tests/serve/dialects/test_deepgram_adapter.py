"""Deepgram's two streaming protocols as adapters: their clients' messages, and the answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from agent_tts.errors import BadMessage, SpeechError, UnknownType, UnsupportedFormat, from_code
from agent_tts.messages import Append, Audio, Cancel, Cancelled, End, Finished, FinishReason, Started
from agent_tts.protocol.adapter import Close, Command, Drop, Echo, Event, Failed, Later, Update, Updated
from agent_tts.protocol.options import SessionConfig
from agent_tts.protocol.v1 import Message
from agent_tts.serve.dialects.deepgram import AuraAdapter, FluxAdapter
from tests.examples import examples
from tests.support import present

Adapter = AuraAdapter | FluxAdapter
ADAPTERS = [AuraAdapter, FluxAdapter]


class Talk:
    """An adapter with a scripted session; records what both sides get."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.asked: list[Command] = []  # of the session
        self.told: list[Any] = []  # to the client
        self.later: list[Later] = []  # for the end of a context

    def connect(self) -> None:
        self.asked += self.adapter.begin()
        self.hear(Updated(SessionConfig()))

    def say(self, type_: str, **fields: Any) -> None:
        """Decode a client's message; the session gives echoes back."""
        self.obey(self.adapter.decode(json.dumps({"type": type_, **fields})))

    def obey(self, commands: Iterable[Command]) -> None:
        """As the session does."""
        echoes: list[Echo] = []
        for command in commands:
            if isinstance(command, Echo):
                echoes.append(command)
            elif isinstance(command, Later):
                self.later.append(command)
            elif isinstance(command, Drop):
                self.later.clear()
            else:
                self.asked.append(command)
        for echo in echoes:
            self.hear(echo)

    def turn(self, *texts: str) -> None:
        """Each is a turn of its own."""
        for text in texts:
            self.say("Speak", text=text)
            self.say("Flush")

    def hear(self, event: Event) -> None:
        """Encode an event of the session."""
        for data in self.adapter.encode(event):
            self.told.append(json.loads(data) if isinstance(data, str) else data)
        if isinstance(event, Finished):
            due, self.later = self.later, []
            for number, later in enumerate(due, 1):
                assert later.context_id == event.id
                self.obey(later.commands)
                if self.later:  # with what waits again waits all that is behind it
                    self.later += [replace(other, context_id=self.later[0].context_id) for other in due[number:]]
                    break

    def speak(self, context_id: str, audio: bytes = b"ab", reason: FinishReason = "end", audio_ms: int = 100) -> None:
        """The session speaks a whole context."""
        self.hear(Started(context_id, 0))
        self.hear(Audio(context_id, audio))
        self.hear(done(context_id, reason, audio_ms))

    def types(self) -> list[str]:
        """Types of the messages since the last call, audio as its bytes."""
        told, self.told = [m.decode() if isinstance(m, bytes) else m["type"] for m in self.told], []
        return told

    def commands(self) -> list[Command]:
        """Commands since the last call."""
        asked, self.asked = self.asked, []
        return asked


def talk(make: type[Adapter], **query: str) -> Talk:
    """A connection after its greeting."""
    new = Talk(make(query, {}))
    new.connect()
    new.asked.clear()
    new.told.clear()
    return new


@pytest.fixture(params=ADAPTERS)
def peer(request: pytest.FixtureRequest) -> Talk:
    return talk(request.param)


def done(context_id: str, reason: FinishReason = "end", audio_ms: int = 100) -> Finished[str]:
    return Finished(context_id, reason, audio_ms=audio_ms)


def error(code: str, context_id: str | None = None) -> Failed:
    return Failed(context_id, from_code(code, "what was wrong"))


def cancelled(context_id: str, generated_ms: int) -> Cancelled[str]:
    return Cancelled(context_id, 1, generated_ms, "One two", " three.")


# ---------------------------------------------------------------- the query


@pytest.mark.parametrize("make", ADAPTERS)
@pytest.mark.parametrize(
    ("query", "aliases", "wanted"),
    [
        ({}, {}, {"voice": None, "output": {"encoding": "pcm_s16le", "sample_rate": 24_000}}),
        ({"model": "aura-2-thalia-en"}, {}, {"voice": "aura-2-thalia-en"}),
        ({"encoding": "mulaw"}, {}, {"output": {"encoding": "mulaw", "sample_rate": 8_000}}),
        ({"encoding": "alaw", "sample_rate": "16000"}, {}, {"output": {"encoding": "alaw", "sample_rate": 16_000}}),
        ({"speed": "1.25", "mip_opt_out": "true", "tag": "a", "expressivity": "2"}, {}, {"speed": 1.25}),
        # Parameters that Pipecat's and LiveKit's classes send by default.
        ({"model": "flux-alexis-en"}, {}, {"voice": None}),
        ({"model": "aura-2-helena-en"}, {"aura-2-helena-en": "ryan"}, {"voice": "aura-2-helena-en"}),
        ({"model": "aura-2-andromeda-en"}, {"*": "ryan"}, {"voice": "aura-2-andromeda-en"}),
    ],
)
def test_the_query_configures_the_session(
    make: type[Adapter], query: dict[str, str], aliases: dict[str, str], wanted: dict[str, Any]
) -> None:
    (update,) = make(query, aliases).begin()
    assert isinstance(update, Update)
    assert update.fields.items() >= wanted.items()
    SessionConfig().merged(update.fields, 60_000)


@pytest.mark.parametrize("make", ADAPTERS)
@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ({"sample_rate": "secret"}, BadMessage),
        ({"speed": "nan"}, BadMessage),
        ({"model": "m" * 257}, BadMessage),
        ({"encoding": "secret"}, UnsupportedFormat),
        ({"encoding": "mp3"}, UnsupportedFormat),
    ],
)
def test_a_wrong_query_is_refused_without_quoting_it(
    make: type[Adapter], query: dict[str, str], kind: type[SpeechError]
) -> None:
    with pytest.raises(kind) as caught:
        list(make(query, {}).begin())
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("make", ADAPTERS)
def test_a_refusal_is_in_deepgrams_shape_and_closes(make: type[Adapter]) -> None:
    for code, close_code in (("at_capacity", 1013), ("unauthorized", 1008), ("internal", 1011), ("bad_message", 1008)):
        new = Talk(make({}, {}))
        new.hear(error(code))
        assert new.types() == ["Error"]
        assert present(new.adapter.closing)[0] == close_code


def test_the_greeting_has_the_models_name() -> None:
    for make, greeting in ((AuraAdapter, "Metadata"), (FluxAdapter, "Connected")):
        new = Talk(make({"model": "m"}, {}))
        new.connect()
        assert (new.told[0]["type"], new.told[0]["model_name"]) == (greeting, "m")
        assert ("model_uuid" in new.told[0]) is ("model_uuids" not in new.told[0]) is (make is AuraAdapter)


# ---------------------------------------------------------------- turns


def test_a_turn_is_one_context_and_the_next_turn_waits_for_it(peer: Talk) -> None:
    """Fails if what waits is not obeyed at the end."""
    peer.say("Speak", text="One ")
    peer.say("Speak", text="")
    peer.turn("two.", "Three.")
    peer.say("Speak", text="Four.")
    one = [Append("1", "One "), Append("1", "two."), End("1")]
    assert peer.commands() == one
    peer.speak("1")
    assert peer.commands() == [Append("2", "Three."), End("2")]
    peer.say("Speak", text=" Five.")
    assert peer.commands() == []
    peer.speak("2")
    assert peer.commands() == [Append("3", "Four."), Append("3", " Five.")]
    peer.say("Speak", text=" Six.")
    assert peer.commands() == [Append("3", " Six.")]


def test_a_starved_turn_goes_on_in_a_new_context(peer: Talk) -> None:
    peer.say("Speak", text="One ")
    peer.hear(Started("1", 0))
    peer.hear(error("starved", "1"))
    peer.hear(done("1", "error"))
    peer.turn("two.")
    commands = [Append("1", "One "), Append("2", "two."), End("2")]
    assert peer.commands() == commands
    peer.speak("2")
    assert peer.types()[-1] in ("Flushed", "SpeechMetadata")
    assert peer.adapter.closing is None


def test_a_flush_after_a_starved_turn_is_answered_at_once(peer: Talk) -> None:
    peer.say("Speak", text="One ")
    peer.hear(Started("1", 0))
    peer.hear(error("starved", "1"))
    peer.hear(done("1", "error"))
    peer.types()
    peer.say("Flush")
    assert "Flushed" in peer.types()


# ---------------------------------------------------------------- Flux


def test_flux_sends_each_turn_between_its_start_and_its_figures() -> None:
    peer = talk(FluxAdapter)
    peer.turn("One.", "Two.")
    peer.speak("1", b"a", audio_ms=70)
    first = [message for message in peer.told if isinstance(message, dict)]
    peer.speak("2", b"b", audio_ms=30)
    whole = ["SpeechStarted", "a", "Flushed", "SpeechMetadata", "SpeechStarted", "b", "Flushed", "SpeechMetadata"]
    assert peer.types() == whole
    assert len({message["speech_id"] for message in first}) == 1
    assert (first[-1]["audio_duration_ms"], first[-1]["input_character_count"]) == (70, 4)


def test_flux_interrupts_at_a_place_in_the_sessions_audio() -> None:
    """Fails if `_over` does not advance `_position_ms`: the second turn's place is wrong."""
    peer = talk(FluxAdapter)
    peer.turn("Zero.")
    peer.speak("1", audio_ms=1_000)
    peer.turn("One two three.")
    peer.say("Speak", text="Four.")
    peer.hear(Started("2", 0))
    peer.types(), peer.commands()
    peer.say("Interrupt", playback_offset={"type": "time_ms", "value": 1_300})
    assert peer.asked == [Cancel("2", 300.0)]
    peer.hear(Audio("2", b"late"))
    peer.hear(cancelled("2", 900))
    peer.hear(done("2", "cancelled"))
    (told,) = peer.told
    spoken = {"audio_played_ms": 1_300, "text_spoken": "One two", "text_remaining": " three.Four."}
    assert told.items() >= {"type": "SpeechInterrupted", **spoken}.items()
    assert told["metadata"]["audio_duration_ms"] == 900
    peer.types(), peer.commands()
    peer.say("Speak", text="Five.")
    assert peer.commands() == [Append("3", "Five.")]
    peer.say("Interrupt", playback_offset={"type": "time_ms", "value": 1_310})
    assert peer.asked[0] == Cancel("3", 10)
    # Without a place everything made counts as heard, and the text is empty.
    peer.hear(cancelled("3", 90))
    peer.say("Speak", text="Six.")
    peer.types()
    peer.say("Interrupt")
    peer.hear(cancelled("4", 500))
    assert peer.told[0]["audio_played_ms"] == 1_310 + 500
    assert "text_spoken" not in peer.told[0]


def test_flux_warns_of_an_interrupt_without_a_turn() -> None:
    peer = talk(FluxAdapter)
    peer.say("Interrupt")
    assert peer.told[0]["code"] == "NO_ACTIVE_SPEECH"
    peer.say("Speak", text="One.")
    peer.say("Interrupt", playback_offset={"type": "time_ms", "value": 50})
    peer.say("Interrupt")
    assert peer.told[1]["code"] == "INTERRUPT_IN_PROGRESS"
    peer.hear(cancelled("1", 100))
    peer.say("Speak", text="Two.")
    peer.commands()
    peer.say("Interrupt", playback_offset={"type": "time_ms", "value": 49})
    assert peer.told[-1]["code"] == "INVALID_INTERRUPT_OFFSET"
    assert peer.commands() == []


def test_flux_turn_that_ended_before_its_interrupt_counts_as_spoken() -> None:
    peer = talk(FluxAdapter)
    peer.turn("One.")
    peer.hear(Started("1", 0))
    peer.hear(Audio("1", b"a"))
    peer.say("Interrupt")
    peer.hear(done("1", audio_ms=80))
    peer.hear(error("unknown_context", "1"))
    assert peer.types() == ["SpeechStarted", "a", "Flushed", "SpeechMetadata", "Warning"]
    assert peer.adapter.closing is None
    peer.say("Speak", text="Two.")
    peer.say("Interrupt", playback_offset={"type": "time_ms", "value": 90})
    assert peer.asked[-1] == Cancel("2", 10)


def test_flux_reports_a_turn_without_speech() -> None:
    peer = talk(FluxAdapter)
    peer.say("Flush")
    assert peer.told[0]["code"] == "NO_ACTIVE_SPEECH"
    peer.types()
    peer.turn(" ... ")
    peer.hear(done("1", audio_ms=0))
    assert peer.types() == ["Warning", "Flushed", "SpeechMetadata"]


def test_speech_that_is_cut_short_is_a_warning_before_its_end(peer: Talk) -> None:
    peer.turn("One.")
    peer.hear(Started("1", 0))
    peer.told.clear()
    peer.hear(done("1", "length", 1_600))
    assert peer.told[0]["type"] == "Warning"
    assert peer.told[0]["code"] == "TEXT_TOO_LONG"
    assert "cut short after 1.6 s" in peer.told[0]["description"]
    assert peer.told[1]["type"] == "Flushed"


def test_flux_speed() -> None:
    peer = talk(FluxAdapter)
    peer.say("Configure", speed=1.5)
    assert peer.asked == [Update({"speed": 1.5})]
    peer.hear(Updated(SessionConfig(speed=1.5)))
    peer.say("Configure", speed=9)
    success, failure = peer.told
    assert success == {"type": "ConfigureSuccess", "applied": {"speed": 1.5}}
    assert failure.items() >= {"type": "ConfigureFailure", "field": "speed", "value": 9.0}.items()
    assert "0.25 to 4" in failure["description"]
    for wrong in ("fast", True, float("inf")):
        with pytest.raises(BadMessage):
            list(peer.adapter.decode(json.dumps({"type": "Configure", "speed": wrong})))


def test_flux_speaks_the_rest_before_it_closes() -> None:
    peer = talk(FluxAdapter)
    peer.say("Speak", text="One.")
    peer.say("Close")
    peer.say("Speak", text="Never.")
    assert peer.commands() == [Append("1", "One."), End("1")]
    assert peer.adapter.closing is None
    peer.speak("1")
    assert peer.types() == ["SpeechStarted", "ab", "Flushed", "SpeechMetadata", "SessionMetadata"]
    assert present(peer.adapter.closing)[0] == 1_000


def test_flux_closes_at_once_when_idle() -> None:
    peer = talk(FluxAdapter)
    peer.say("Close")
    assert peer.types() == ["SessionMetadata"]
    assert peer.adapter.closing is not None


# ---------------------------------------------------------------- Aura


def test_aura_answers_each_flush_after_its_audio() -> None:
    peer = talk(AuraAdapter)
    peer.say("Flush")
    peer.turn("One.")
    peer.say("Flush")
    peer.turn("Two.")
    peer.speak("1", b"a")
    peer.speak("2", b"b")
    told = [message["sequence_id"] if isinstance(message, dict) else message for message in peer.told]
    assert told == [0, b"a", 1, 2, b"b", 3]


def test_aura_clears_everything_at_once() -> None:
    """Fails if `UtterancesAdapter.encode` does not check `_of`: late audio follows."""
    peer = talk(AuraAdapter)
    peer.turn("One.")
    peer.say("Speak", text="Two.")
    peer.hear(Audio("1", b"a"))
    peer.commands()
    peer.say("Clear")
    assert peer.commands() == [Cancel("1")]
    peer.hear(Audio("1", b"late"))
    peer.say("Speak", text="Three.")
    assert peer.commands() == [Append("2", "Three.")]
    peer.hear(cancelled("1", 100))
    peer.hear(done("1", "cancelled"))
    peer.say("Flush")
    peer.speak("2", b"c")
    assert peer.types() == ["a", "Cleared", "c", "Flushed"]


def test_aura_clear_of_a_turn_that_has_just_ended() -> None:
    peer = talk(AuraAdapter)
    peer.say("Speak", text="One.")
    peer.say("Clear")
    peer.hear(error("unknown_context", "1"))
    assert peer.types() == ["Cleared"]
    assert peer.adapter.closing is None


def test_aura_closes_at_once() -> None:
    peer = talk(AuraAdapter)
    peer.say("Speak", text="One.")
    peer.say("Close")
    assert peer.commands()[-1] == Close()


# ---------------------------------------------------------------- arbitrary input


@pytest.mark.parametrize("make", ADAPTERS)
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"type": "Speak"}, BadMessage),
        ({"type": "Speak", "text": 5}, BadMessage),
        ({"type": "secret"}, UnknownType),
        ({}, UnknownType),
        ({"type": ["secret"]}, UnknownType),
    ],
    ids=str,
)
def test_a_wrong_message_is_refused_without_quoting_it(
    make: type[Adapter], message: Message, kind: type[SpeechError]
) -> None:
    with pytest.raises(kind) as caught:
        list(talk(make).adapter.decode(json.dumps(message)))
    assert "secret" not in caught.value.message


WISHES = st.lists(st.sampled_from(["Speak", "Speak", "Flush", "Interrupt", "Clear", "spoken", "starved"]), max_size=40)


@pytest.mark.parametrize("make", ADAPTERS)
@examples(150)
@given(wishes=WISHES)
def test_every_text_is_spoken_once_in_order_or_dropped(make: type[Adapter], wishes: list[str]) -> None:
    """The session has at most one context, and ends each."""
    peer = talk(make)
    stop = "Clear" if make is AuraAdapter else "Interrupt"
    expected: list[str] = []  # texts still to be spoken
    given = spoken = 0
    alive: str | None = None  # id of the open context
    text_of: dict[str, list[str]] = {}
    ended: set[str] = set()
    for wish in [*wishes, "Flush", *["spoken"] * 40]:
        if wish == "Speak":
            expected.append(f"t{given} ")
            peer.say("Speak", text=expected[-1])
            given += 1
        elif wish == "Flush":
            peer.say("Flush")
        elif wish in ("Interrupt", "Clear"):
            peer.say(stop)
            expected.clear()
        for command in peer.asked:
            if isinstance(command, Append):
                assert alive in (None, command.id), "two contexts at once"
                alive = command.id
                text_of.setdefault(alive, []).append(str(command.content))
            elif isinstance(command, End):
                ended.add(command.id)
            elif isinstance(command, Cancel):
                assert command.id == alive
                alive = None
                peer.hear(cancelled(command.id, 10))
                peer.hear(done(command.id, "cancelled"))
        peer.asked.clear()
        if alive is not None and (wish == "starved" or (wish == "spoken" and alive in ended)):
            if wish == "starved" and alive in ended:
                continue
            texts, context_id, alive = text_of[alive], alive, None
            assert expected[: len(texts)] == texts
            del expected[: len(texts)]
            spoken += len(texts)
            peer.hear(Started(context_id, 0))
            if wish == "starved":
                peer.hear(error("starved", context_id))
            peer.hear(done(context_id, "end" if wish == "spoken" else "error"))
    assert expected == []
    assert peer.adapter.closing is None
