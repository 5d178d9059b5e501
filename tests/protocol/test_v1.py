from __future__ import annotations

import json
import struct
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from agent_tts.errors import BadMessage, SpeechError, UnknownType, UnsupportedFormat
from agent_tts.messages import Append, Cancel, End, Flush, Open
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Close, Command, Ping, Played, Update
from agent_tts.protocol.options import OutputFormat, SamplingFields, SessionConfig
from tests.examples import examples


def parse(data: str | bytes) -> Command:
    return protocol.check(protocol.load(data))[0]


MESSAGES: list[dict[str, Any]] = [
    {"type": "session.update", "session": {"voice": "vivian", "output": {"encoding": "opus"}}},
    {"type": "context.open", "context_id": "t1", "voice": "clone:bob"},
    {"type": "text.append", "context_id": "t1", "text": " Hello"},
    {"type": "context.flush", "context_id": "t1", "flush_id": "f1"},
    {"type": "context.end", "context_id": "t1"},
    {"type": "context.cancel", "context_id": "*", "played_ms": 1970},
    {"type": "playback.ack", "context_id": "t1", "played_ms": 1200.5},
    {"type": "ping", "t": 1},
    {"type": "session.close"},
]


def test_every_message_of_the_protocol_is_a_command() -> None:
    assert [parse(json.dumps(message)) for message in MESSAGES] == [
        Update(MESSAGES[0]["session"]),
        Open("t1", {"voice": "clone:bob"}),
        Append("t1", " Hello"),
        Flush("t1", "f1"),
        End("t1"),
        Cancel("*", 1970),
        Played("t1", 1200.5),
        Ping(1),
        Close(),
    ]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m["type"])
def test_unknown_fields_of_a_message_are_dropped_and_told(message: dict[str, Any]) -> None:
    taken, unknown = protocol.check(protocol.load(json.dumps({**message, "later_version": 1})))
    assert (taken, unknown) == (parse(json.dumps(message)), ["later_version"])


def test_unknown_fields_are_found_in_every_object_of_a_session() -> None:
    session = {"voise": 1, "output": {"gain": 1, "encoding": "opus"}, "sampling": {"min_p": {"top_k": 1}}, "speed": 2}
    update, unknown = protocol.check({"type": "session.update", "session": session, "then": 1})
    assert update == parse('{"type":"session.update","session":{"output":{"encoding":"opus"},"sampling":{},"speed":2}}')
    assert unknown == ["session.voise", "session.output.gain", "session.sampling.min_p", "then"]
    opened, unknown = protocol.check({"type": "context.open", "context_id": "t1", **session})
    assert isinstance(update, Update)
    assert opened == Open("t1", update.fields)
    assert unknown == protocol.unknown_fields(session) == ["voise", "output.gain", "sampling.min_p"]


def test_unknown_names_are_told_in_short_printable_ascii() -> None:
    names = ["x" * 1_000, "\n\x1b[2J", "\u202e" * 100, "\ud800", *map(str, range(1_000))]
    _, unknown = protocol.check({"type": "ping", **dict.fromkeys(names)})
    assert len(unknown) == protocol.MAX_UNKNOWN
    assert unknown[0] == "x" * 64
    assert all(len(name) <= 64 and name.isascii() and name.isprintable() for name in unknown)


def test_the_features_are_the_types_fields_and_formats() -> None:
    assert {"playback.ack", "breaks", "output.bit_rate", "sampling.top_k", "mp3", "base64"} <= set(protocol.FEATURES)
    assert len(set(protocol.FEATURES)) == len(protocol.FEATURES)


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        "",
        "nonsense",
        "[]",
        "1",
        '"ping"',
        "null",
        "[" * 60_000,
        '{"type":"playback.ack","context_id":"a","played_ms":NaN}',
        '{"type":"playback.ack","context_id":"a","played_ms":1e999}',
        '{"type":"playback.ack","context_id":"a","played_ms":-1}',
        '{"type":"playback.ack","context_id":"a","played_ms":"1"}',
        '{"type":"playback.ack","context_id":"a"}',
        '{"type":"text.append","context_id":"a"}',
        '{"type":"text.append","context_id":"a","text":1}',
        '{"type":"text.append","context_id":"a","text":null}',
        '{"type":"text.append","context_id":1,"text":"x"}',
        '{"type":"text.append","context_id":"","text":"x"}',
        '{"type":"text.append","text":"x"}',
        '{"type":"text.append","context_id":"' + "i" * 129 + '","text":"x"}',
        '{"type":"session.update"}',
        '{"type":"session.update","session":[]}',
        '{"type":"ping","t":' + "9" * 5_000 + "}",
        '{"type":"ping","t":1e999}',
        '{"type":"context.open","context_id":"*"}',
        '{"type":"text.append","context_id":"*","text":"x"}',
    ],
    ids=lambda data: repr(data[:70]),
)
def test_malformed_messages_are_bad_messages(data: str | bytes) -> None:
    with pytest.raises(BadMessage):
        parse(data)


@pytest.mark.parametrize("type_", ["nope", "", None, 3, "session.created", ["ping"], {}])
def test_unknown_types_are_refused_with_the_known_ones(type_: Any) -> None:
    with pytest.raises(UnknownType, match=r"session\.update, context\.open, text\.append") as refused:
        parse(json.dumps({"type": type_}))
    assert "nope" not in refused.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"voice": 3},
        {"language": 3},
        {"lead_ms": -1},
        {"lead_ms": "fast"},
        {"lead_ms": 1.5},
        {"seed": -1},
        {"seed": 2**63},
        {"timestamps": "letters"},
        {"speed": 5},
        {"speed": 0.1},
        {"sampling": {"temperature": -1}},
        {"sampling": {"top_p": 0}},
        {"sampling": 1},
        {"instructions": "x" * 2_001},
        {"voise": "x"},
        {"sampling": {"temprature": 1}},
        {"speaker_embedding": []},
        {"speaker_embedding": [float("nan")]},
        {"speaker_embedding": [0.5] * 2_049},
    ],
    ids=str,
)
def test_wrong_session_fields_are_bad_messages(fields: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        SessionConfig().merged(fields, 60_000)


@pytest.mark.parametrize(
    "output",
    [
        {"encoding": "mp2"},
        {"sample_rate": 11_025},
        {"encoding": "opus", "sample_rate": 44_100},
        {"encoding": "ogg_opus", "sample_rate": 24_000},
        {"encoding": "mp3", "bit_rate": 0},
        {"framing": "hex"},
        {"sample_rate": "24000"},
        5,
    ],
    ids=str,
)
def test_wrong_outputs_are_unsupported_formats_with_the_allowed_values(output: Any) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        SessionConfig().merged({"output": output}, 60_000)
    assert "output" in caught.value.message


def test_a_misspelt_field_is_answered_with_the_known_fields() -> None:
    with pytest.raises(BadMessage, match="lead_ms"):
        SessionConfig().merged({"lead": 1}, 60_000)


def test_merging_keeps_unmentioned_fields() -> None:
    config = SessionConfig().merged({"output": {"encoding": "opus"}, "sampling": {"top_k": 1}}, 60_000)
    config = config.merged({"output": {"sample_rate": 48_000}, "voice": "vivian"}, 60_000)
    assert config.output.encoding == "opus"
    assert config.output.sample_rate == 48_000
    assert config.options().sampling.top_k == 1
    assert config.options().sampling.temperature is None
    assert config.voice == "vivian"


def test_a_voice_and_a_speaker_embedding_replace_each_other() -> None:
    config = SessionConfig().merged({"voice": "vivian"}, 60_000).merged({"speaker_embedding": [0.5, 1]}, 60_000)
    assert (config.options().voice, config.options().speaker_embedding) == (None, (0.5, 1.0))
    config = config.merged({"speed": 2}, 60_000)
    assert config.options().speaker_embedding == (0.5, 1.0)
    config = config.merged({"voice": "vivian"}, 60_000)
    assert (config.options().voice, config.options().speaker_embedding) == ("vivian", None)


def test_null_is_the_default_language_and_an_unpaced_lead() -> None:
    config = SessionConfig().merged({"language": None, "lead_ms": None, "seed": None}, 60_000)
    assert (config.language, config.lead_ms) == ("auto", None)


def test_null_of_other_fields_is_their_default() -> None:
    config = SessionConfig(speed=2).merged({"speed": None, "output": {"bit_rate": None}, "sampling": None}, 60_000)
    assert (config.speed, config.output, config.sampling) == (1.0, OutputFormat(), SamplingFields())


@pytest.mark.parametrize(("asked", "given_"), [(0, 120), (80, 120), (500, 500), (10**7, 60_000)])
def test_lead_is_at_least_a_frame_and_at_most_the_limit(asked: int, given_: int) -> None:
    assert SessionConfig().merged({"lead_ms": asked}, 60_000).lead_ms == given_


def test_the_audio_header_is_sixteen_bytes_little_endian() -> None:
    assert struct.unpack("<BBHIQ", protocol.header(7, 2**40, 3)) == (1, 1, 3, 7, 2**40)
    assert len(protocol.header(1, 0, 0)) == 16


def test_lone_surrogates_survive_a_round_trip() -> None:
    message = protocol.dump(protocol.build("x", text="\ud800"))
    assert json.loads(message.encode()) == {"type": "x", "text": "\ud800"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(["type", "context_id", "text", "played_ms", "session", "flush_id", "t", "voice"])
values = json_values | st.sampled_from([message["type"] for message in MESSAGES])
mutated = st.builds(lambda base, change: {**base, **change}, st.sampled_from(MESSAGES), st.dictionaries(fields, values))


known_names = {name for path in protocol.FEATURES for name in path.split(".")} | {"type", "context_id", "flush_id"}
known_names |= {"text", "played_ms", "session", "t"}
unknown = st.dictionaries(st.text(max_size=80).filter(lambda name: name not in known_names), json_values, max_size=3)


def outcome(message: dict[str, Any]) -> object:
    try:
        return protocol.check(message)[0]
    except SpeechError as error:
        return error.code, error.message


def later(message: dict[str, Any], extra: list[dict[str, Any]]) -> dict[str, Any]:
    """The message with more fields in itself, its session, and the objects in them."""
    nested = {
        name: later(inner, extra[1:] or [{}])
        for name, inner in message.items()
        if name in ("session", "output", "sampling") and isinstance(inner, dict)
    }
    return {**message, **nested, **extra[0]}


@examples(800)
@given(mutated, st.lists(unknown, min_size=1, max_size=3))
@example({"type": "session.update", "session": {"output": {"encoding": "mp3"}, "sampling": {}}}, [{"a": 1}] * 3)
def test_any_message_with_unknown_fields_acts_as_without(message: dict[str, Any], extra: list[dict[str, Any]]) -> None:
    assert outcome(later(message, extra)) == outcome(message)


@examples(800)
@given(mutated.map(json.dumps) | st.text() | st.binary() | json_values.map(json.dumps))
@example('{"type":"context.open","context_id":"a","output":{"encoding":{}}}')
def test_any_message_is_a_command_or_a_documented_error(data: str | bytes) -> None:
    code = None
    try:
        message = parse(data)
        if isinstance(message, Open | Update):
            SessionConfig().merged(message.options if isinstance(message, Open) else message.fields, 60_000)
    except SpeechError as error:
        code = error.code
    assert code in (None, "bad_message", "unknown_type", "unsupported_format")
