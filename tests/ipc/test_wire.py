"""The frames between front and engine: every message survives any split; anything else is refused."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import struct
import time
import types
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts import messages
from agent_tts.engine_info import EngineInfo, Voice
from agent_tts.ipc import wire
from agent_tts.ipc.wire import MAX_LENGTH, TO_ENGINE, TO_FRONT, Decoder, Setup, WireError, encode
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    Credit,
    EngineCommand,
    EngineEvent,
    EnginePing,
    EnginePong,
    Finished,
    StopEngine,
)
from agent_tts.options import EngineOptions, NamedVoice
from agent_tts.text.entries import Lexicon

COMMANDS: tuple[type, ...] = (Setup, *get_args(EngineCommand))
EVENTS: tuple[type, ...] = get_args(EngineEvent)
MESSAGES = COMMANDS + EVENTS

# Any code points, including lone surrogates and NUL.
text = st.text(st.characters(exclude_categories=()), max_size=40)
u32 = st.integers(0, 2**32 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)


def messages(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a message type, or of the type of one of its fields."""
    args = get_args(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(args)
    if get_origin(hint) is types.UnionType:
        return st.one_of([st.none() if arg is types.NoneType else messages(arg) for arg in args])
    if get_origin(hint) is tuple:
        return st.lists(messages(args[0]), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(text, messages(args[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        packed = {"request_id": u32, "frames": u32}
        fields = {name: packed[name] if name in packed else messages(of) for name, of in get_type_hints(hint).items()}
        return st.builds(cast(type, hint), **fields)
    if hint is Lexicon:  # looked up in the front
        return st.nothing()
    return {str: text, bytes: st.binary(), float: numbers, int: st.integers(), bool: st.booleans()}[hint]


BY_TYPE = {kind: messages(kind) for kind in MESSAGES}


def readers_for(kind: type) -> Any:
    """The table of the end that receives this type."""
    return TO_FRONT if kind in EVENTS else TO_ENGINE


def frame(tag: int, body: bytes) -> bytes:
    """A frame built by hand."""
    return struct.pack("<IB", 1 + len(body), tag) + body


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_survives_a_round_trip(kind: type, data: st.DataObject) -> None:
    """The decoded message equals the encoded one in value and in every type."""
    message = data.draw(BY_TYPE[kind])
    [decoded] = Decoder(readers_for(kind)).feed(encode(message))
    assert decoded == message
    assert repr(decoded) == repr(message)  # 1 and 1.0 are equal, and so are True and 1


SAMPLE: list[EngineCommand] = [
    messages.Open(7, EngineOptions(voice=NamedVoice("tone-440"), language="de", seed=3)),
    Append(7, "Grüße \ud800 \U0001f600\0"),
    messages.Flush(7, "f1"),
    Credit(7, 3),
    Append(8, ""),
    messages.End(7),
    Cancel(8),
    EnginePing(1),
    StopEngine(),
]


def test_split_at_every_byte() -> None:
    """Two pieces, cut anywhere, give the same messages."""
    data = b"".join(map(encode, SAMPLE))
    for cut in range(len(data) + 1):
        decoder = Decoder(TO_ENGINE)
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == SAMPLE


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_split_gives_the_same_messages(cuts: list[int]) -> None:
    """Any number of pieces, empty ones included."""
    data = b"".join(map(encode, SAMPLE))
    edges = [0, *sorted(cuts), len(data)]
    decoder = Decoder(TO_ENGINE)
    decoded = [message for start, end in itertools.pairwise(edges) for message in decoder.feed(data[start:end])]
    assert decoded == SAMPLE


def test_adjacent_surrogates_stay_two_characters() -> None:
    """Two surrogate code points stay two characters, both packed and in JSON."""
    pair = "\ud83d\ude00"
    assert Decoder(TO_ENGINE).feed(encode(Append(1, pair))) == [Append(1, pair)]
    assert Decoder(TO_ENGINE).feed(encode(messages.Flush(1, pair))) == [messages.Flush(1, pair)]


@pytest.mark.parametrize("length", [0, MAX_LENGTH + 1, 2**31, 2**32 - 1])
def test_a_length_outside_its_range_is_refused_at_once(length: int) -> None:
    """No byte of such a frame is awaited or stored."""
    with pytest.raises(WireError, match="bytes"):
        Decoder(TO_ENGINE).feed(struct.pack("<IB", length, 22))


def test_the_longest_frame_passes() -> None:
    """The limit is the last length that works, in both directions."""
    pcm = bytes(MAX_LENGTH - 5)
    assert Decoder(TO_FRONT).feed(encode(Audio(1, pcm))) == [Audio(1, pcm)]
    with pytest.raises(WireError, match="Audio of"):
        encode(Audio(1, pcm + b"\0"))


def test_a_truncated_frame_yields_nothing() -> None:
    """A message is complete with its last byte."""
    data = encode(Append(1, "hello"))
    decoder = Decoder(TO_ENGINE)
    assert decoder.feed(data[:-1]) == []
    assert decoder.feed(data[-1:]) == [Append(1, "hello")]


@pytest.mark.parametrize("tag", [0, 4, 15, 24, 255])
def test_unknown_tags_are_refused(tag: int) -> None:
    """A tag without a message is an error and is not skipped."""
    with pytest.raises(WireError, match="unknown tag"):
        Decoder(TO_ENGINE).feed(frame(tag, b"{}"))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_messages_of_the_other_direction_are_refused(kind: type, data: st.DataObject) -> None:
    """The engine accepts no events, the front no commands."""
    wrong = TO_ENGINE if kind in EVENTS else TO_FRONT
    with pytest.raises(WireError, match="unknown tag"):
        Decoder(wrong).feed(encode(data.draw(BY_TYPE[kind])))


def _json_frame(tag: int, **fields: object) -> bytes:
    return frame(tag, json.dumps(fields).encode())


OPTIONS = json.loads(frame(0, wire.to_json(EngineOptions()))[5:])
MALFORMED = {
    "audio without a stream": (TO_FRONT, frame(1, b"\1\0\0")),
    "credit too short": (TO_ENGINE, frame(2, bytes(7))),
    "credit too long": (TO_ENGINE, frame(2, bytes(9))),
    "text without a stream": (TO_ENGINE, frame(3, b"\1\0\0")),
    "text that is not UTF-8": (TO_ENGINE, frame(3, bytes(4) + b"\xff")),
    "no JSON": (TO_ENGINE, frame(19, b"{")),
    "JSON that is not UTF-8": (TO_ENGINE, frame(19, b'{"request_id":"\xff"}')),
    "JSON deeper than the stack": (TO_ENGINE, frame(19, b"[" * 200_000)),
    "an array for an object": (TO_ENGINE, frame(19, b"[]")),
    "a missing field": (TO_ENGINE, frame(19, b"{}")),
    "an unknown field": (TO_ENGINE, _json_frame(19, id=1, more=1)),
    "a string for an integer": (TO_ENGINE, _json_frame(19, id="1")),
    "a bool for an integer": (TO_ENGINE, _json_frame(19, id=True)),
    "a float for an integer": (TO_ENGINE, _json_frame(19, id=1.0)),
    "an integer for a string": (TO_ENGINE, _json_frame(18, id=1, flush_id=1)),
    "null for a string": (TO_ENGINE, _json_frame(18, id=1, flush_id=None)),
    "an integer of 5 000 digits": (TO_ENGINE, frame(21, b'{"nonce":' + b"9" * 5_000 + b"}")),
    "a string for a dataclass": (TO_ENGINE, _json_frame(17, id=1, owner=0, options="x")),
    "an integer for a bool": (TO_ENGINE, _json_frame(17, id=1, owner=0, options=OPTIONS | {"clean": 1})),
    "a bool for a number": (TO_ENGINE, _json_frame(17, id=1, owner=0, options=OPTIONS | {"speed": True})),
    "not a number": (TO_ENGINE, _json_frame(17, id=1, owner=0, options=OPTIONS | {"speed": float("nan")})),
    "an infinite number": (
        TO_ENGINE,
        _json_frame(17, id=1, owner=0, options=OPTIONS | {"speed": float("inf")}),
    ),
    "a number beyond floats": (TO_ENGINE, _json_frame(17, id=1, owner=0, options=OPTIONS | {"speed": 10**400})),
    "a string for an optional integer": (
        TO_ENGINE,
        _json_frame(17, id=1, owner=0, options=OPTIONS | {"seed": "1"}),
    ),
    "an object for a tuple": (TO_FRONT, _json_frame(34, id=1, words={})),
    "null in a tuple": (TO_FRONT, _json_frame(34, id=1, words=[None])),
    "a value outside its set": (
        TO_FRONT,
        frame(36, wire.to_json(Finished(1, "end"))).replace(b'"end"', b'"bye"'),
    ),
}


@pytest.mark.parametrize(("readers", "data"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bodies_are_refused(readers: Any, data: bytes) -> None:
    """Each field's type is checked; every fault is a `WireError`."""
    with pytest.raises(WireError):
        Decoder(readers).feed(data)


def test_null_in_place_of_an_optional_field_is_none() -> None:
    """The table above refuses null only for required fields."""
    fields = {"request_id": 1, "owner": 0, "waited_ms": 0, "waits": True}
    data = _json_frame(17, **fields, options=OPTIONS | {"seed": None, "speed": 2})
    assert repr(Decoder(TO_ENGINE).feed(data)) == repr([messages.Open(1, EngineOptions(speed=2.0))])


def test_a_dict_keeps_its_value_types() -> None:
    """`EngineReady` carries tables of names."""
    info = EngineInfo("tone", "tone", 1, (Voice("a", ("en",)),), "a", {"german": "de"})
    data = encode(messages.EngineReady(info, 128, 50))
    assert Decoder(TO_FRONT).feed(data) == [messages.EngineReady(info, 128, 50)]
    body = data[5:].replace(b'{"german":"de"}', b'{"german":7}')
    with pytest.raises(WireError):
        Decoder(TO_FRONT).feed(frame(32, body))


@given(junk=st.binary(max_size=200))
def test_junk_is_refused_or_incomplete(junk: bytes) -> None:
    """Arbitrary bytes raise only `WireError` and construct only messages."""
    for readers, kinds in ((TO_ENGINE, COMMANDS), (TO_FRONT, EVENTS)):
        try:
            decoded = Decoder(readers).feed(junk)
        except WireError:
            continue
        assert all(type(message) in kinds for message in decoded)


@given(
    tag=st.sampled_from(sorted({*TO_ENGINE, *TO_FRONT})),
    body=st.binary(max_size=100) | text.map(json.dumps).map(str.encode),
)
def test_junk_bodies_are_refused_or_decoded(tag: int, body: bytes) -> None:
    """The same with a valid frame header."""
    readers: Any = TO_ENGINE if tag in TO_ENGINE else TO_FRONT
    try:
        [message] = Decoder(readers).feed(frame(tag, body))
    except WireError:
        return
    assert type(message) in MESSAGES


def test_a_broken_stream_stays_broken() -> None:
    """After an error the start of the next frame is unknown."""
    decoder = Decoder(TO_ENGINE)
    with pytest.raises(WireError):
        decoder.feed(frame(255, b""))
    with pytest.raises(WireError):
        decoder.feed(encode(StopEngine()))


def test_errors_do_not_quote_the_text() -> None:
    """Errors may be logged; text may not."""
    with pytest.raises(WireError) as caught:
        Decoder(TO_ENGINE).feed(frame(19, b'{"request_id": "a secret word'))
    shown = caught.value
    assert "secret" not in str(shown)
    assert shown.__suppress_context__


@pytest.mark.parametrize(
    "message",
    [
        Credit(1, -1),
        Credit(2**32, 1),
        Append(-1, ""),
        Audio(2**32, b""),
        EnginePong(1, 0, 0, float("nan")),
    ],
    ids=repr,
)
def test_numbers_outside_their_range_are_not_sent(message: EngineCommand | EngineEvent) -> None:
    """The error is raised at the sender."""
    with pytest.raises(WireError, match="range"):
        encode(message)


def _seconds(pieces: list[bytes]) -> float:
    def once() -> float:
        decoder = Decoder(TO_FRONT)
        start = time.thread_time()
        for piece in pieces:
            decoder.feed(piece)
        return time.thread_time() - start

    gc.disable()  # its passes over so many messages would distort the time
    try:
        return min(once() for _ in range(5))
    finally:
        gc.enable()


def test_tiny_pieces_cost_linear_time() -> None:
    """Four times the bytes, one at a time, take about four times as long; quadratic work would take sixteen times."""
    data = encode(Audio(1, bytes(240_000)))
    short, long = ([data[i : i + 1] for i in range(size)] for size in (60_000, 240_000))
    assert _seconds(long) < 9 * _seconds(short)


def test_many_frames_in_one_piece_cost_linear_time() -> None:
    """The buffer is cut once for a piece, not once for a frame."""
    tick = encode(Audio(1, b""))
    assert _seconds([tick * 80_000]) < 9 * _seconds([tick * 20_000])
