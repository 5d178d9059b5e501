"""The rules of a realtime session, without I/O; its messages are checked by the SDK's own types."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime.realtime_server_event import RealtimeServerEvent
from pydantic import TypeAdapter, ValidationError

from agent_tts.agent.realtime.conversation import (
    MAX_INPUT,
    MAX_ITEMS,
    MAX_MESSAGE,
    MAX_PENDING,
    Answer,
    Conversation,
    Detect,
    Hush,
    Recognise,
    Stop,
    read,
)
from agent_tts.agent.realtime.shapes import NewItem, ResponseExtras, SessionSettings
from agent_tts.errors import UnknownVoice
from agent_tts.integrations.pipecat.words import SpokenWord
from tests.support import typed
from tests.work import work

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
SECOND = bytes(48_000)  # of 24 kHz pcm_s16le
HALF_SECOND = base64.b64encode(SECOND[:24_000]).decode()


def voices(name: str) -> None:
    if name != "anna":
        raise UnknownVoice(f"there is no voice {name}")


class Talk:
    """A conversation and what it has told."""

    def __init__(self, *, deaf: str | None = None, beta: bool = False, plays: bool = False) -> None:
        numbers = itertools.count()
        self.rules = Conversation(
            SessionSettings(), voices, deaf, lambda kind: f"{kind}_{next(numbers)}", beta=beta, plays=plays
        )
        self.all: list[dict[str, Any]] = []
        self.rules.begin()
        self.told()
        self.rules.orders.clear()

    def send(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        self.rules.receive(read(json.dumps({"type": kind, "event_id": "mine"} | fields)))
        return self.told()

    def told(self) -> list[dict[str, Any]]:
        """Messages since the last call."""
        found = list(self.rules.events)
        self.rules.events.clear()
        self.all += found
        return found

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.told()]

    def orders(self) -> list[Any]:
        found = list(self.rules.orders)
        self.rules.orders.clear()
        return found

    def write(self, text: str, role: str = "user", **fields: Any) -> str:
        part = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": part, "text": text}]}
        told = self.send("conversation.item.create", item=item, **fields)
        return str(told[0]["item"]["id"])

    def prompt(self) -> list[tuple[str, str]]:
        """What the next response asks the language model, which is then cancelled."""
        self.orders()
        asked = self.ask()
        self.send("response.cancel")
        self.orders()
        return [(each["role"], each.get("content", "")) for each in asked.messages]

    def ask(self, **fields: Any) -> Answer:
        """What a response asks the language model at once, as the only order."""
        self.send("response.create", **fields)
        (asked,) = self.orders()
        return typed(Answer, asked)

    def recognise(self, words: str) -> None:
        """The words of the turn that the only order is about."""
        (heard,) = self.orders()
        self.rules.recognised(typed(Recognise, heard).item_id, words)

    def turn(self, start_ms: int = 0, end_ms: int = 900) -> None:
        """A voice is detected."""
        self.rules.speech_started(start_ms)
        self.rules.speech_stopped(end_ms)

    def answer(self, *words: str, finish: bool = True) -> str:
        """A response of half a second for each word; returns the id of its item."""
        self.send("response.create")
        for at, word in enumerate(words):
            self.rules.spoken([SpokenWord(word, at / 2, False)], SECOND[:24_000])
        if finish:
            self.rules.answered()
        self.orders()
        return str(next(e["item"]["id"] for e in self.told() if e["type"] == "response.output_item.added"))


def error(told: list[dict[str, Any]]) -> dict[str, Any]:
    (event,) = told
    assert event["type"] == "error", event
    found: dict[str, Any] = event["error"]
    return found


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_a_typed_turn_is_spoken(talk: Talk) -> None:
    talk.write("Hello?")
    asked = talk.ask(response={"metadata": {"mine": "1"}})
    assert asked.messages == [{"role": "user", "content": "Hello?"}]
    talk.rules.spoken([SpokenWord("Good", 0.0, False)], SECOND)
    talk.rules.spoken([SpokenWord("day.", 0.9, False)], b"")
    talk.rules.answered()
    told = talk.told()
    assert [event["type"] for event in told] == [
        *("response.output_item.added", "conversation.item.added", "response.content_part.added"),
        *("response.output_audio_transcript.delta", "response.output_audio.delta"),
        *("response.output_audio_transcript.delta", "response.output_audio.done"),
        *("response.output_audio_transcript.done", "response.content_part.done", "response.output_item.done"),
        *("conversation.item.done", "response.done"),
    ]
    assert "".join(e["delta"] for e in told if e["type"].endswith("transcript.delta")) == "Good day."
    assert told[-1]["response"]["status"] == "completed"
    assert told[-1]["response"]["metadata"] == {"mine": "1"}
    assert talk.prompt() == [("user", "Hello?"), ("assistant", "Good day.")]


def test_a_truncated_answer_keeps_the_words_that_were_heard(talk: Talk) -> None:
    item = talk.answer("One", "two", "three", "four.")
    (told,) = talk.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=1_100)
    assert told == told | {"type": "conversation.item.truncated", "item_id": item, "audio_end_ms": 1_100}
    (told,) = talk.send("conversation.item.retrieve", item_id=item)
    assert told["item"]["content"] == [{"type": "output_audio", "transcript": "One two three"}]
    assert talk.prompt() == [("assistant", "One two three")]
    long = talk.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=1_200)
    assert error(long)["param"] == "audio_end_ms"
    talk.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=0)
    assert talk.prompt() == []


def test_a_truncation_in_the_middle_of_the_answer_ends_it(talk: Talk) -> None:
    item = talk.answer("One", "two", finish=False)
    kinds = [e["type"] for e in talk.send("conversation.item.truncate", item_id=item, audio_end_ms=400)]
    assert kinds[-2:] == ["response.done", "conversation.item.truncated"]
    assert Stop() in talk.orders()
    assert talk.prompt() == [("assistant", "One")]


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_voice_interrupts_if_it_may(interrupts: bool, talk: Talk) -> None:
    detection = {"type": "server_vad", "interrupt_response": interrupts}
    talk.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    talk.answer("One", finish=False)
    talk.rules.speech_started(100)
    told = talk.told()
    assert (Stop() in talk.orders()) is interrupts
    assert told[0] == told[0] | {"type": "input_audio_buffer.speech_started", "audio_start_ms": 100}
    if interrupts:
        assert told[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    else:
        assert len(told) == 1


def test_a_detected_turn_is_answered_when_its_words_are_known(talk: Talk) -> None:
    talk.send("session.update", session={"audio": {"input": {"transcription": {"model": "whisper-1"}}}})
    talk.orders()
    talk.turn()
    assert talk.kinds() == [
        *("input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed"),
        *("conversation.item.added", "conversation.item.done"),
    ]
    talk.recognise("Hello.")
    assert talk.kinds() == ["conversation.item.input_audio_transcription.completed", "response.created"]
    (asked,) = talk.orders()
    assert asked.messages == [{"role": "user", "content": "Hello."}]


def test_a_turn_beside_a_response_that_goes_on_is_not_answered(talk: Talk) -> None:
    detection = {"type": "server_vad", "interrupt_response": False}
    talk.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    talk.answer("One", finish=False)
    talk.turn()
    talk.recognise("Hm.")
    assert "response.created" not in talk.kinds()


def test_a_detected_turn_without_words_is_not_answered(talk: Talk) -> None:
    talk.turn()
    talk.recognise("")
    assert talk.rules.response is None
    assert talk.orders() == []


def test_a_manual_turn_is_answered_on_request_and_waits_for_its_words(talk: Talk) -> None:
    talk.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
    assert talk.orders() == [Detect(None)]
    assert error(talk.send("input_audio_buffer.commit"))["code"] == "input_audio_buffer_commit_empty"
    talk.send("input_audio_buffer.append", audio=HALF_SECOND)
    talk.send("input_audio_buffer.clear")
    assert error(talk.send("input_audio_buffer.commit"))["code"] == "input_audio_buffer_commit_empty"
    talk.send("input_audio_buffer.append", audio=HALF_SECOND)
    talk.send("input_audio_buffer.commit")
    talk.send("response.create")
    *_, heard = talk.orders()
    talk.rules.recognised(typed(Recognise, heard).item_id, "Hello.")
    (asked,) = talk.orders()
    assert asked.messages == [{"role": "user", "content": "Hello."}]
    assert talk.kinds() == []  # nobody asked for transcripts


def test_functions_are_the_clients(talk: Talk) -> None:
    tool = {"type": "function", "name": "door", "description": "Opens it.", "parameters": {"type": "object"}}
    talk.send("session.update", session={"tools": [tool]})
    talk.write("Open the door.")
    talk.send("response.create")
    talk.rules.called("door", "call_a", '{"wide":true}')
    talk.rules.called("door", "call_b", "{}")
    talk.rules.answered()
    done = talk.told()[-1]["response"]
    assert [(item["name"], item["arguments"]) for item in done["output"]] == [("door", '{"wide":true}'), ("door", "{}")]
    result = {"type": "function_call_output", "call_id": "call_a", "output": "open"}
    talk.send("conversation.item.create", item=result)
    talk.orders()
    asked = talk.ask()
    assert [tool.name for tool in asked.settings.tools] == ["door"]
    function = {"name": "door", "arguments": '{"wide":true}'}
    assert asked.messages == [  # the call without a result is left out: chat completions refuse it
        {"role": "user", "content": "Open the door."},
        {"role": "assistant", "tool_calls": [{"id": "call_a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_a", "content": "open"},
    ]


def test_items_stand_where_the_client_puts_them(talk: Talk) -> None:
    first = talk.write("first")
    talk.write("third")
    talk.write("second", previous_item_id=first)
    talk.write("zeroth", previous_item_id="root")
    talk.write("Be brief.", role="system", previous_item_id="root")
    assert [text for _, text in talk.prompt()] == ["zeroth", "first", "second", "third"]
    talk.send("conversation.item.delete", item_id=first)
    assert [text for _, text in talk.prompt()] == ["zeroth", "second", "third"]
    unknown = talk.send("conversation.item.create", item={"type": "message", "role": "user"}, previous_item_id="x")
    assert error(unknown)["code"] == "item_create_invalid_previous_item_id"


def test_system_messages_at_the_beginning_are_instructions(talk: Talk) -> None:
    talk.send("session.update", session={"instructions": "Be brief."})
    talk.write("Be kind.", role="system")
    talk.write("Hello.")
    talk.write("Be quick.", role="system")
    talk.orders()
    asked = talk.ask()
    assert asked.instructions == "Be brief.\n\nBe kind."
    assert [each["role"] for each in asked.messages] == ["user", "system"]


def test_a_response_beside_the_conversation_leaves_nothing_in_it(talk: Talk) -> None:
    talk.write("Hello.")
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which mood?"}]}
    settings = {"conversation": "none", "output_modalities": ["text"], "instructions": "Classify.", "input": [item]}
    asked = talk.ask(response=settings)
    assert asked.instructions == "Classify."
    assert not asked.settings.speaks
    assert asked.messages == [{"role": "user", "content": "Which mood?"}]
    talk.rules.written("Good.")
    talk.rules.answered()
    told = talk.told()
    assert "conversation.item.added" not in [event["type"] for event in told]
    assert told[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": "Good."}]
    assert talk.prompt() == [("user", "Hello.")]


def test_what_is_not_supported_is_told_in_openais_form() -> None:
    talk = Talk(deaf="There is no speech recognition.")

    def code(kind: str, **fields: Any) -> tuple[str, str | None]:
        found = error(talk.send(kind, **fields))
        assert found["type"] == "invalid_request_error"
        assert found["event_id"] == "mine"
        return found["code"], found["param"]

    image = {"type": "input_image", "image_url": "data:image/png;base64,"}
    item = {"type": "message", "role": "user", "content": [image]}
    assert code("conversation.item.create", item=item) == ("invalid_value", "item.content.0.type")
    assert code("session.update", session={"type": "transcription"}) == ("invalid_value", "session.type")
    assert code("session.update", session={"tools": [{"type": "mcp"}]})[1] == "session.tools.0.type"
    assert code("session.update") == ("missing_required_parameter", "session")
    voice = {"audio": {"output": {"voice": "berta"}}}
    assert code("session.update", session=voice) == ("unknown_voice", "session.audio.output.voice")
    assert code("response.cancel") == ("response_cancel_not_active", None)
    assert code("input_audio_buffer.append", audio="&")[0] == "invalid_value"
    assert code("input_audio_buffer.append", audio=HALF_SECOND)[0] == "speech_recognition_unavailable"
    assert talk.send("input_audio_buffer.append", audio=HALF_SECOND) == []  # once is enough
    assert code("conversation.item.delete", item_id="x") == ("item_delete_invalid_item_id", "item_id")
    assert code("transcription_session.update") == ("invalid_value", "type")
    talk.send("response.create")
    assert code("response.create")[0] == "conversation_already_has_active_response"
    assert code("session.update", session={"instructions": "x" * MAX_MESSAGE})[0] == "string_above_max_length"
    talk.rules.receive(read("[]"))
    assert error(talk.told())["code"] == "invalid_json"


VAD: dict[str, Any] = {"type": "server_vad", "threshold": 0.7, "prefix_padding_ms": 100, "silence_duration_ms": 700}
VAD |= {"create_response": False, "interrupt_response": True, "idle_timeout_ms": 6_000}


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"silence_duration_ms": 900}, VAD | {"silence_duration_ms": 900}),
        ({"type": "server_vad", "threshold": 0.2}, VAD | {"threshold": 0.2}),
        ({"type": "server_vad", "threshold": None, "idle_timeout_ms": None}, VAD | {"idle_timeout_ms": None}),
        ({"type": None, "prefix_padding_ms": None}, VAD),
        ({}, VAD),
        (None, None),
        ({"type": "semantic_vad"}, None),
        ({"type": "semantic_vad", "eagerness": "high"}, None),
    ],
)
def test_a_part_of_turn_detection_changes_that_part(given: Any, known: Any, talk: Talk) -> None:
    """A null is a field that is not given, where it is no value. Another kind begins with its defaults."""

    def update(**fields: Any) -> dict[str, Any]:
        (told,) = talk.send("session.update", session={"audio": {"input": fields}})
        found: dict[str, Any] = told["session"]["audio"]["input"]
        return found

    update(turn_detection=VAD, transcription={"model": "whisper-1", "language": "de"})
    found = update(turn_detection=given)
    if given and given.get("type") == "semantic_vad":
        assert (
            found["turn_detection"]
            == {"create_response": True, "interrupt_response": True, "eagerness": "auto"} | given
        )
        assert update(turn_detection={"eagerness": "low"})["turn_detection"]["eagerness"] == "low"
    else:
        assert found["turn_detection"] == known
    assert update(turn_detection=None)["turn_detection"] is None
    fresh = update(turn_detection={"silence_duration_ms": 300})["turn_detection"]
    assert (fresh["type"], fresh["silence_duration_ms"], fresh["threshold"]) == ("server_vad", 300, 0.5)
    assert found["transcription"] == {"model": "whisper-1", "language": "de", "prompt": None}
    partly = update(transcription={"language": None})["transcription"]
    assert partly == {"model": "whisper-1", "language": None, "prompt": None}
    assert update(transcription=None)["transcription"] is None


def test_a_silence_behind_the_answer_is_answered_once(talk: Talk) -> None:
    """It counts on the clock of the user's audio, from the end of the answer's sound and of each voice.

    Mutation: it counts from `response.done`, while the user still listens.
    """
    idle = {"type": "server_vad", "idle_timeout_ms": 5_000}
    talk.send("session.update", session={"audio": {"input": {"turn_detection": idle}}})
    talk.rules.heard_until(60_000)  # nobody has answered yet
    talk.answer("One", "two", "three", "four")  # two seconds
    for at_ms in (61_000, 66_900):
        talk.rules.heard_until(at_ms)
    talk.rules.speech_started(66_950)
    talk.rules.heard_until(67_500)
    talk.rules.speech_stopped(67_600)
    (heard,) = talk.orders()
    talk.rules.heard_until(67_700)
    talk.rules.recognised(heard.item_id, "")
    talk.told()
    talk.rules.heard_until(72_600)
    assert talk.kinds() == []
    talk.rules.heard_until(72_700)
    told = talk.told()
    assert [event["type"] for event in told] == [
        *("input_audio_buffer.timeout_triggered", "input_audio_buffer.committed", "conversation.item.added"),
        *("conversation.item.done", "response.created"),
    ]
    assert (told[0]["audio_start_ms"], told[0]["audio_end_ms"]) == (67_700, 72_700)
    assert told[0]["item_id"] == told[1]["item_id"]
    talk.recognise("")
    (asked,) = talk.orders()
    assert asked.messages[-1]["role"] == "assistant"
    talk.rules.failed("no answer")
    talk.rules.heard_until(200_000)
    assert "input_audio_buffer.timeout_triggered" not in talk.kinds()


def test_a_slow_transcript_leaves_a_later_turn_out_of_an_answer(talk: Talk) -> None:
    """What is committed after a response was asked for is not its. Mutation: it waits for all words, and has them."""
    talk.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
    for _ in range(2):
        talk.send("input_audio_buffer.append", audio=HALF_SECOND)
        talk.send("input_audio_buffer.commit")
        if talk.rules.response is None:
            talk.send("response.create")
    first, second = (order for order in talk.orders() if isinstance(order, Recognise))
    talk.rules.recognised(first.item_id, "What is the time?")
    (asked,) = talk.orders()
    assert asked.messages == [{"role": "user", "content": "What is the time?"}]
    talk.rules.written("Ten.")
    talk.rules.recognised(second.item_id, "And the day?")
    talk.rules.answered()
    assert [text for _, text in talk.prompt()] == ["What is the time?", "And the day?", "Ten."]


def test_what_the_assistant_says_in_a_row_is_one_message(talk: Talk) -> None:
    talk.send("response.create")
    talk.rules.spoken([SpokenWord("Wait.", 0.0, False)], SECOND)
    talk.rules.called("look", "a", "{}")
    talk.rules.answered()
    talk.send("conversation.item.create", item={"type": "function_call_output", "call_id": "a", "output": "Ten."})
    talk.write("It is", "assistant")
    talk.write("ten.", "assistant")
    talk.orders()
    asked = talk.ask()
    (first, result, last) = asked.messages
    assert (first["content"], len(first["tool_calls"]), result["role"]) == ("Wait.", 1, "tool")
    assert last == {"role": "assistant", "content": "It is\nten."}


def test_a_result_is_asked_once_however_many_calls_have_its_id(talk: Talk) -> None:
    """Otherwise 60 kB in a result were 12 MB of a request that is written on the event loop."""
    for _ in range(200):
        talk.send("conversation.item.create", item={"type": "function_call", "call_id": "a", "name": "look"})
    talk.send("conversation.item.create", item={"type": "function_call_output", "call_id": "a", "output": "x" * 60_000})
    talk.orders()
    asked = talk.ask()
    (call, result) = asked.messages
    assert (len(call["tool_calls"]), result["content"]) == (1, "x" * 60_000)


def test_sound_that_is_played_is_told_and_cut_where_it_was_heard() -> None:
    """Two answers wait: the first is being played, of the second nothing was."""
    talk = Talk(plays=True)
    first, second = talk.answer("One", "two"), talk.answer("three", "four", finish=False)
    ids = {event["response"]["id"]: None for event in talk.all if event["type"] == "response.created"}
    assert "response.output_audio.delta" not in {event["type"] for event in talk.all}
    talk.rules.speech_started(100)
    assert [type(order) for order in talk.orders()] == [Hush, Stop]
    talk.rules.hushed({next(iter(ids)): 600})
    told = [event for event in talk.told() if event["type"] == "conversation.item.truncated"]
    assert [(event["item_id"], event["audio_end_ms"]) for event in told] == [(first, 600), (second, 0)]
    assert talk.prompt() == [("assistant", "One two")]
    talk.answer("five")
    *_, last = (event["response"]["id"] for event in talk.all if event["type"] == "response.created")
    talk.rules.played(last)
    talk.rules.played(last)
    assert talk.kinds() == ["output_audio_buffer.stopped"]
    talk.send("output_audio_buffer.clear")
    assert talk.orders() == []  # nothing is played


@pytest.mark.parametrize("name", ["anna", "marin", None])
def test_openais_voices_and_the_nodes_are_taken(name: str | None, talk: Talk) -> None:
    (told,) = talk.send("session.update", session={"audio": {"output": {"voice": name}}})
    assert told["type"] == "session.updated"
    assert told["session"]["audio"]["output"]["voice"] == name


@pytest.mark.parametrize("kind", ["audio/pcmu", "audio/pcma"])
def test_g711_has_a_byte_for_each_sample_at_8_khz(kind: str, talk: Talk) -> None:
    form = {"type": kind}
    talk.send("session.update", session={"audio": {"output": {"format": form}, "input": {"format": form}}})
    talk.answer("One", "two")
    audio = [base64.b64decode(e["delta"]) for e in talk.all if e["type"] == "response.output_audio.delta"]
    assert len(b"".join(audio)) == pytest.approx(8_000, abs=16)


def test_old_items_are_forgotten(talk: Talk) -> None:
    for number in range(MAX_ITEMS + 5):
        talk.write(str(number))
    prompt = talk.prompt()
    assert len(prompt) == MAX_ITEMS
    assert prompt[0] == ("user", "5")


def test_the_beta_has_its_own_names() -> None:
    talk = Talk(beta=True)
    assert [event["type"] for event in talk.all] == ["session.created", "conversation.created"]
    flat = {"modalities": ["text", "audio"], "voice": "anna", "input_audio_format": "g711_ulaw", "turn_detection": None}
    (told,) = talk.send("session.update", session=flat)
    assert told["session"] == told["session"] | flat | {"modalities": ["audio", "text"]}
    assert told["session"]["output_audio_format"] == "pcm16"
    item = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Yes."}]}
    (told,) = talk.send("conversation.item.create", item=item)
    assert told["type"] == "conversation.item.created"
    assert told["item"]["content"] == [{"type": "text", "text": "Yes."}]
    talk.answer("One")
    kinds = {event["type"] for event in talk.all}
    assert {"response.audio.delta", "response.audio_transcript.delta", "response.audio.done"} <= kinds
    assert not any("output_audio." in kind for kind in kinds)


# ------------------------------------------------------------ any order of messages

TEXT = st.text(max_size=8)
IDS = st.sampled_from([f"item_{number}" for number in range(1, 8)])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
SERVER_VAD = {"type": "server_vad"}
DETECTION = st.sampled_from(
    [None, SERVER_VAD | {"idle_timeout_ms": 5_000}, {"type": "semantic_vad"}, SERVER_VAD | {"create_response": False}]
)
MESSAGES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda d: {"type": "session.update", "session": {"audio": {"input": {"turn_detection": d}}}}, DETECTION),
    st.builds(lambda v: {"type": "session.update", "session": v}, JSON),
    st.just({"type": "input_audio_buffer.append", "audio": HALF_SECOND}),
    st.sampled_from(["input_audio_buffer.commit", "input_audio_buffer.clear", "response.cancel"]).map(
        lambda kind: {"type": kind}
    ),
    st.builds(
        lambda text, role, before: {
            "type": "conversation.item.create",
            "item": {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]},
            "previous_item_id": before,
        },
        TEXT,
        st.sampled_from(["user", "assistant", "system"]),
        st.none() | IDS,
    ),
    st.builds(lambda v: {"type": "conversation.item.create", "item": v}, JSON),
    st.builds(lambda i: {"type": "conversation.item.delete", "item_id": i}, IDS),
    st.builds(lambda i: {"type": "conversation.item.retrieve", "item_id": i}, IDS),
    st.builds(
        lambda i, ms: {"type": "conversation.item.truncate", "item_id": i, "content_index": 0, "audio_end_ms": ms},
        IDS,
        st.integers(0, 3_000),
    ),
    st.sampled_from([{}, {"output_modalities": ["text"]}, {"conversation": "none"}, {"input": []}]).map(
        lambda response: {"type": "response.create", "response": response}
    ),
    st.builds(lambda v: {"type": "response.create", "response": v}, JSON),
    JSON.map(lambda v: {"type": v}),
)
Step = Callable[[Conversation], None]
STEPS: st.SearchStrategy[Step] = st.one_of(
    MESSAGES.map(lambda message: lambda rules: rules.receive(read(json.dumps(message)))),
    st.builds(lambda word: lambda rules: rules.spoken([SpokenWord(word, 0.1, False)], SECOND[:9_600]), TEXT),
    TEXT.map(lambda text: lambda rules: rules.written(text)),
    st.just(lambda rules: rules.called("door", "call_1", "{}")),
    st.just(lambda rules: rules.answered()),
    TEXT.map(lambda text: lambda rules: rules.failed(text)),
    st.just(lambda rules: rules.speech_started(10)),
    st.just(lambda rules: rules.speech_stopped(20)),
    st.integers(0, 60_000).map(lambda at_ms: lambda rules: rules.heard_until(at_ms)),
    st.integers(0, 900).map(lambda ms: lambda rules: rules.hushed(dict.fromkeys(["resp_1", "resp_2"], ms))),
    st.builds(lambda i, text: lambda rules: rules.recognised(i, text), IDS, TEXT),
)


@given(st.lists(STEPS, max_size=25), st.booleans(), st.booleans())
def test_whatever_comes_the_messages_are_openais_and_each_response_ends_once(
    steps: list[Step], is_deaf: bool, plays: bool
) -> None:
    numbers = itertools.count(1)
    rules = Conversation(
        SessionSettings(), voices, "None." if is_deaf else None, lambda kind: f"{kind}_{next(numbers)}", plays=plays
    )
    rules.begin()
    for step in steps:
        step(rules)
    rules.answered()
    active: str | None = None
    ids: set[str] = set()
    for event in rules.events:
        SERVER_EVENT.validate_json(json.dumps(event))
        assert event["event_id"] not in ids
        ids.add(event["event_id"])
        if event["type"] == "response.created":
            assert active is None
            active = event["response"]["id"]
        elif event["type"] == "response.done":
            assert event["response"]["id"] == active
            active = None
        elif event["type"].startswith("response."):
            assert event["response_id"] == active
    assert active is None
    assert sum(isinstance(order, Stop | Answer) for order in rules.orders) <= 2 * len(steps)


def spoken(item_id: str, audio: str = HALF_SECOND) -> dict[str, Any]:
    content = [{"type": "input_audio", "audio": audio}]
    return {"id": item_id, "type": "message", "role": "user", "content": content}


def test_as_many_turns_are_recognised_as_may_wait_whatever_becomes_of_their_items(talk: Talk) -> None:
    for number in range(40):
        talk.send("conversation.item.create", item=spoken(f"item_{number}"))
        talk.send("conversation.item.delete", item_id=f"item_{number}")
    assert sum(isinstance(order, Recognise) for order in talk.orders()) == MAX_PENDING
    talk.rules.recognised("item_0", "Hello.")
    (told,) = talk.send("response.create", response={"input": [spoken("a"), spoken("b")]})
    assert told["error"]["code"] == "rate_limit_exceeded"
    assert talk.orders() == []
    talk.send("conversation.item.create", item=spoken("c"))
    assert [order.item_id for order in talk.orders()] == ["c"]


def test_turns_that_wait_for_recognition_have_four_minutes_together(talk: Talk) -> None:
    """One session held 61 MB of them; turns of the detector, of commits and of items count alike."""
    seconds = base64.b64encode(bytes(40 * 48_000)).decode()  # 40 s

    def commit(times: int) -> list[dict[str, Any]]:
        for _ in range(times):
            talk.send("input_audio_buffer.append", audio=seconds)
        return talk.send("input_audio_buffer.commit")

    assert "error" not in [event["type"] for event in commit(2) + commit(2)]
    talk.rules.speech_started(0.0)
    talk.send("input_audio_buffer.append", audio=seconds)
    talk.rules.speech_stopped(40_000.0)
    assert talk.rules.events[-1]["type"] != "error"
    talk.send("conversation.item.create", item=spoken("forty", seconds))
    waiting = [order.item_id for order in talk.orders() if isinstance(order, Recognise)]
    assert len(waiting) == 4
    for told in (
        *talk.send("conversation.item.create", item=spoken("more")),
        *talk.send("response.create", response={"input": [spoken("more")]}),
        commit(4)[-1],
    ):
        assert told["error"]["code"] == "rate_limit_exceeded"
    talk.rules.recognised(waiting[0], "Hello.")
    assert commit(0)[0]["type"] == "error"  # what was heard is longer than what was recognised
    talk.rules.recognised(waiting[1], "Hello.")
    assert commit(0)[0]["type"] == "input_audio_buffer.committed"  # 120 s at most are kept of a turn
    assert sum(isinstance(order, Recognise) for order in talk.orders()) == 1


def test_what_a_response_names_is_as_long_as_a_conversation(talk: Talk) -> None:
    """A message of 57 kB asked the language model for 82 million characters."""
    long = talk.write("x" * 50_000, "system")
    ask = partial(talk.send, "response.create")
    told = ask(response={"input": [{"type": "item_reference", "id": long}] * 9})
    assert error(told)["code"] == "string_above_max_length"
    ask(response={"input": [{"type": "item_reference", "id": long}] * 8})
    assert [len(order.instructions) for order in talk.orders() if isinstance(order, Answer)] == [400_014]


def test_long_conversations_cost_what_their_messages_do(talk: Talk) -> None:
    """An item that pushes out a thousand others, and a thousand references, are looked up once each."""
    for _ in range(990):
        talk.write("x")
    last = talk.write("x")
    reference, new = {"type": "item_reference", "id": last}, {"type": "message", "role": "user"}
    for named in ([reference] * MAX_INPUT, [new] * MAX_INPUT):
        assert work(lambda named=named: talk.send("response.create", response={"input": named})) < 200_000
        assert talk.rules.response is not None
        talk.send("response.cancel")
    many = [reference] * 1_300
    assert work(lambda: talk.send("response.create", response={"input": many})) < 400_000  # of which most is JSON
    assert talk.all[-1]["error"]["code"] == "array_above_max_length"
    for _ in range(6):
        talk.write("x" * 60_000)
    assert work(lambda: talk.write("x" * 60_000)) < 500_000


def test_a_refused_item_is_not_recognised(talk: Talk) -> None:
    """Its words would be those of the item that has its id."""
    talk.send("conversation.item.create", item=spoken("mine"))
    talk.orders()
    (told,) = talk.send("conversation.item.create", item=spoken("mine"))
    assert told["error"]["code"] == "item_create_duplicate_item_id"
    assert talk.orders() == []


def test_a_message_may_have_more_audio_than_text(talk: Talk) -> None:
    long = base64.b64encode(3 * SECOND).decode()
    assert talk.send("conversation.item.create", item=spoken("long", long))[0]["type"] == "conversation.item.added"
    (told,) = talk.send("conversation.item.create", item=spoken("x" * MAX_MESSAGE, long))
    assert told["error"]["code"] == "string_above_max_length"


def test_only_audio_of_the_user_is_not_counted(talk: Talk) -> None:
    """What else has its name is text: of tools and metadata, which are told again."""
    parameters = {"type": "object", "properties": {"audio": {"description": "x"}}, "audio": HALF_SECOND}
    tool = {"type": "function", "name": "f", "parameters": parameters}
    assert talk.send("session.update", session={"tools": [tool]})[0]["session"]["tools"][0]["parameters"] == parameters
    parameters["audio"] = "x" * MAX_MESSAGE
    for kind, field in (("session.update", "session"), ("response.create", "response")):
        (told,) = talk.send(kind, **{field: {"tools": [tool]}})
        assert told["error"]["code"] == "string_above_max_length"
    told = talk.send("response.create", response={"metadata": {"audio": HALF_SECOND}})[0]
    assert told["response"]["metadata"]["audio"] == HALF_SECOND


@pytest.mark.parametrize("audio", [5, None, [], {"a": 1}, "nonsense!"])
def test_what_is_no_audio_is_refused_wherever_it_may_stand(talk: Talk, audio: object) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
    sent = [("input_audio_buffer.append", {"audio": audio})]
    if audio is not None:
        sent += [("conversation.item.create", {"item": item}), ("response.create", {"response": {"input": [item]}})]
    for kind, fields in sent:
        (told,) = talk.send(kind, **fields)
        assert told["error"]["code"] in ("invalid_value", "missing_required_parameter")
        assert "audio" in told["error"]["param"]


def test_an_item_at_the_beginning_of_a_full_conversation_stays(talk: Talk) -> None:
    items = [talk.write("Hello.") for _ in range(MAX_ITEMS)]
    first = talk.write("First.", previous_item_id="root")
    assert talk.send("conversation.item.retrieve", item_id=first)[0]["type"] == "conversation.item.retrieved"
    assert talk.send("conversation.item.retrieve", item_id=items[0])[0]["type"] == "error"


def test_ids_have_a_length(talk: Talk) -> None:
    item = {"type": "function_call_output", "call_id": "c" * 65, "output": "1"}
    (told,) = talk.send("conversation.item.create", item=item, event_id="e" * 513)
    assert (told["type"], told["error"]["event_id"]) == ("error", None)


def test_a_user_who_speaks_on_is_not_talked_over(talk: Talk) -> None:
    """His last words are recognised when the next have begun; both are answered once, after the next."""
    talk.turn()
    talk.rules.speech_started(1_000)
    first, *_ = talk.orders()
    talk.rules.recognised(first.item_id, "My train")
    assert talk.rules.response is None
    talk.rules.speech_stopped(1_900)
    talk.recognise("leaves at seven.")
    (asked,) = talk.orders()
    assert [each["content"] for each in asked.messages] == ["My train", "leaves at seven."]
    assert talk.kinds().count("response.created") == 1


@pytest.mark.parametrize("end", ["cough", "clear", "no detection", "a response beside"])
def test_words_are_answered_if_nothing_follows_them(end: str, talk: Talk) -> None:
    talk.turn()
    talk.rules.speech_started(1_000)
    first, *_ = talk.orders()
    talk.rules.recognised(first.item_id, "Hello?")
    if end == "clear":
        talk.send("input_audio_buffer.clear")
    elif end == "no detection":
        talk.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
    else:
        if end == "a response beside":
            talk.send("response.create", response={"conversation": "none"})
        talk.rules.speech_stopped(1_900)
        second = talk.orders()[-1]
        talk.rules.recognised(second.item_id, "")
        if end == "a response beside":
            assert talk.orders() == []
            talk.rules.answered()
    asked = typed(Answer, talk.orders()[-1])
    assert asked.messages == [{"role": "user", "content": "Hello?"}]


def test_a_response_does_not_wait_for_words_that_were_forgotten(talk: Talk) -> None:
    talk.send("conversation.item.create", item=spoken("old"))
    talk.orders()
    talk.send("response.create")
    for _ in range(MAX_ITEMS):
        talk.write("Hm.")
    talk.rules.recognised("old", "Hello.")
    (asked,) = talk.orders()
    assert isinstance(asked, Answer)


def test_what_is_deleted_while_a_response_waits_is_neither_waited_for_nor_asked(talk: Talk) -> None:
    for name in ("first", "second"):
        talk.send("conversation.item.create", item=spoken(name))
    talk.send("response.create")
    talk.send("conversation.item.delete", item_id="first")
    talk.orders()
    talk.rules.recognised("second", "Hello.")
    (asked,) = talk.orders()
    assert asked.messages == [{"role": "user", "content": "Hello."}]


def test_an_answer_that_is_cut_short_is_incomplete(talk: Talk) -> None:
    talk.answer("One", finish=False)
    talk.rules.cut("max_output_tokens")
    talk.rules.answered()
    done = SERVER_EVENT.validate_python(talk.told()[-1]).response
    assert (done.status, done.status_details.reason) == ("incomplete", "max_output_tokens")
    assert done.output[0].status == "incomplete"


def test_a_list_is_refused_for_its_first_wrong_value() -> None:
    """A message has 4 096 values, and an error for each takes 20 ms."""
    for shape, field in ((NewItem, "content"), (SessionSettings, "tools"), (ResponseExtras, "input")):
        with pytest.raises(ValidationError) as refused:
            shape.model_validate({"type": "message", field: [{}] * 100})
        assert len([error for error in refused.value.errors() if error["loc"][0] == field]) < 3
