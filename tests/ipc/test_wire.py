"""The frames between front and engine: every message survives any split; anything else is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
import time
import types
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.directives import Say
from agent_tts.engine_info import EngineInfo, Voice
from agent_tts.ipc import wire
from agent_tts.ipc.wire import MAX_LENGTH, TO_ENGINE, TO_FRONT, Setup, WireError, decode, encode
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    Credit,
    End,
    EngineCommand,
    EngineEvent,
    EnginePing,
    EnginePong,
    EngineReady,
    Finished,
    Flush,
    K,
    O,
    Open,
    StopEngine,
)
from agent_tts.options import EngineOptions, NamedVoice
from tests.examples import examples
from tests.support import uncollected

COMMANDS: tuple[Any, ...] = (Setup, *get_args(EngineCommand))
EVENTS: tuple[Any, ...] = get_args(EngineEvent)
MESSAGES = COMMANDS + EVENTS

# What JSON can say. A packed text may have any code points, also lone surrogates.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
u32 = st.integers(0, 2**32 - 1)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(),
    K: st.integers(),
    bool: st.booleans(),
    Any: text | st.integers() | st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a message type, or of the type of one of its fields."""
    args, origin = get_args(hint), get_origin(hint) or hint
    if origin is Literal:
        return st.sampled_from(args)
    if origin is types.UnionType:
        return st.one_of([st.none() if arg is types.NoneType else values(arg) for arg in args])
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(text, values(args[1]), max_size=3)
    if origin is Audio:
        return st.tuples(u32, st.binary()).map(lambda fields: Audio(*fields))
    if origin is Credit:
        return st.builds(Credit, u32, u32)
    if dataclasses.is_dataclass(origin):
        fields = {name: values(EngineOptions if of is O else of) for name, of in get_type_hints(origin).items()}
        if origin is Append:
            fields["id"] = u32
        return st.builds(cast(type, origin), **fields)
    return PLAIN[hint]


BY_TYPE = {kind: values(kind) for kind in MESSAGES}
by_type = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: (get_origin(kind) or kind).__name__)


def decoded(readers: Any, *pieces: bytes) -> list[Any]:
    rest = bytearray()
    return [message for piece in pieces for message in decode(rest, piece, readers)]


def frame(tag: int, body: bytes) -> bytes:
    """A frame built by hand."""
    return struct.pack("<IB", 1 + len(body), tag) + body


@by_type
@examples(100)
@given(data=st.data())
def test_every_message_survives_a_round_trip(kind: Any, data: st.DataObject) -> None:
    """The decoded message equals the encoded one in value and in every type. The other direction refuses it."""
    message = data.draw(BY_TYPE[kind])
    right, wrong = (TO_FRONT, TO_ENGINE) if kind in EVENTS else (TO_ENGINE, TO_FRONT)
    [found] = decoded(right, encode(message))
    assert found == message
    assert repr(found) == repr(message)  # 1 and 1.0 are equal, and so are True and 1
    with pytest.raises(WireError, match="unknown tag"):
        decoded(wrong, encode(message))


SAMPLE: list[EngineCommand] = [
    Open(7, EngineOptions(NamedVoice("tone-440"), language="de", seed=3)),
    Append(7, "Grüße \ud800 \U0001f600\0"),
    Flush(7, "f1"),
    Credit(7, 3),
    Append(8, "\ud83d\ude00"),  # two characters, which stay two
    End(7),
    Cancel(8),
    EnginePing(1),
    StopEngine(),
]


@examples(100)
@given(cuts=st.lists(st.integers(0, 700), max_size=12))
def test_any_split_gives_the_same_messages(cuts: list[int]) -> None:
    """Any number of pieces, empty ones included."""
    data = b"".join(map(encode, SAMPLE))
    pieces = [data[start:end] for start, end in itertools.pairwise([0, *sorted(cuts), len(data)])]
    assert decoded(TO_ENGINE, *pieces) == decoded(TO_ENGINE, *(data[i : i + 1] for i in range(len(data)))) == SAMPLE


@pytest.mark.parametrize("length", [0, MAX_LENGTH + 1, 2**31, 2**32 - 1])
def test_a_length_outside_its_range_is_refused_at_once(length: int) -> None:
    """No byte of such a frame is awaited or stored."""
    with pytest.raises(WireError, match="bytes"):
        decoded(TO_ENGINE, struct.pack("<IB", length, 22))


def test_the_longest_frame_passes() -> None:
    """The limit is the last length that works, in both directions."""
    pcm = bytes(MAX_LENGTH - 5)
    assert decoded(TO_FRONT, encode(Audio(1, pcm))) == [Audio(1, pcm)]
    with pytest.raises(WireError, match="Audio of"):
        encode(Audio(1, pcm + b"\0"))


@pytest.mark.parametrize("tag", [0, 4, 15, 24, 255])
def test_unknown_tags_are_refused(tag: int) -> None:
    """A tag without a message is an error and is not skipped."""
    with pytest.raises(WireError, match="unknown tag"):
        decoded(TO_ENGINE, frame(tag, b"{}"))


def opened(**options: object) -> bytes:
    return frame(17, json.dumps({"id": 1, "options": options}).encode())


MALFORMED = {
    "audio without an id": (TO_FRONT, frame(1, b"\1\0\0")),
    "credit too short": (TO_ENGINE, frame(2, bytes(7))),
    "credit too long": (TO_ENGINE, frame(2, bytes(9))),
    "text without an id": (TO_ENGINE, frame(3, b"\1\0\0")),
    "text that is not UTF-8": (TO_ENGINE, frame(3, bytes(4) + b"\xff")),
    "no JSON": (TO_ENGINE, frame(19, b"{")),
    "JSON that is not UTF-8": (TO_ENGINE, frame(18, b'{"id":1,"flush_id":"\xff"}')),
    "JSON with a lone surrogate": (TO_ENGINE, frame(18, b'{"id":1,"flush_id":"\xed\xa0\x80"}')),
    "JSON with an escaped one": (TO_ENGINE, frame(18, b'{"id":1,"flush_id":"\\ud800"}')),
    "JSON deeper than the stack": (TO_ENGINE, frame(19, b"[" * 200_000)),
    "an array for an object": (TO_ENGINE, frame(19, b"[]")),
    "a missing field": (TO_ENGINE, frame(19, b"{}")),
    "an unknown field": (TO_ENGINE, frame(19, b'{"id":1,"more":1}')),
    "a string for an integer": (TO_ENGINE, frame(19, b'{"id":"1"}')),
    "a bool for an integer": (TO_ENGINE, frame(19, b'{"id":true}')),
    "a float for an integer": (TO_ENGINE, frame(19, b'{"id":1.0}')),
    "an integer for a string": (TO_ENGINE, frame(18, b'{"id":1,"flush_id":1}')),
    "an integer of 5 000 digits": (TO_ENGINE, frame(21, b'{"nonce":' + b"9" * 5_000 + b"}")),
    "a string for a dataclass": (TO_ENGINE, frame(17, b'{"id":1,"options":"x"}')),
    "an unknown field within": (TO_ENGINE, opened(more=1)),
    "an integer for a bool": (TO_ENGINE, opened(clean=1)),
    "a bool for a number": (TO_ENGINE, opened(speed=True)),
    "not a number": (TO_ENGINE, opened(speed=float("nan"))),
    "an infinite number": (TO_ENGINE, opened(speed=float("inf"))),
    "a number beyond floats": (TO_ENGINE, opened(speed=10**400)),
    "a string for an optional integer": (TO_ENGINE, opened(seed="1")),
    "null for a number": (TO_ENGINE, opened(speed=None)),
    "a voice of no kind": (TO_ENGINE, opened(voice={"name": "a", "prompt": "b"})),
    "an object for a tuple": (TO_FRONT, frame(34, b'{"id":1,"words":{}}')),
    "null in a tuple": (TO_FRONT, frame(34, b'{"id":1,"words":[null]}')),
    "a value outside its set": (TO_FRONT, frame(36, b'{"id":1,"reason":"bye"}')),
}


@pytest.mark.parametrize(("readers", "data"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bodies_are_refused(readers: Any, data: bytes) -> None:
    """Each field's type is checked; every fault is a `WireError`, without content, as errors may be logged."""
    with pytest.raises(WireError) as caught:
        decoded(readers, data)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "9999" not in str(caught.value)


def test_an_integer_is_a_number_and_null_an_optional_field() -> None:
    assert repr(decoded(TO_ENGINE, opened(seed=None, speed=2))) == repr([Open(1, EngineOptions(speed=2.0))])


def test_a_dict_keeps_its_value_types() -> None:
    """`EngineReady` carries tables of names."""
    info = EngineInfo("tone", "tone", 1, (Voice("a", ("en",)),), "a", {"german": "de"})
    data = encode(EngineReady(info, 128, 50))
    body = data[5:].replace(b'{"german":"de"}', b'{"german":7}')
    with pytest.raises(WireError):
        decoded(TO_FRONT, frame(32, body))


@examples(100)
@given(
    tag=st.sampled_from(sorted({*TO_ENGINE, *TO_FRONT})),
    body=st.binary(max_size=100) | text.map(json.dumps).map(str.encode),
    junk=st.binary(max_size=200),
)
def test_junk_is_refused_or_decoded(tag: int, body: bytes, junk: bytes) -> None:
    """Arbitrary bytes, also with a valid head, raise only `WireError` and construct only messages."""
    kinds = tuple(get_origin(kind) or kind for kind in MESSAGES)
    for data in (junk, frame(tag, body)):
        for readers in (TO_ENGINE, TO_FRONT):
            try:
                found = decoded(cast(Any, readers), data)
            except WireError:
                continue
            assert all(isinstance(message, kinds) for message in found)


@pytest.mark.parametrize(
    "message",
    [
        Credit(1, -1),
        Credit(2**32, 1),
        Append(-1, ""),
        Audio(2**32, b""),
        EnginePong(1, 0, 0, float("nan")),
        Open(1, EngineOptions(speed=float("-inf"))),
    ],
    ids=repr,
)
def test_values_outside_their_range_are_not_sent(message: EngineCommand | EngineEvent) -> None:
    """The error is raised at the sender, where it ends one request alone."""
    with pytest.raises(WireError, match="range"):
        encode(message)


def test_lone_surrogates_are_replaced() -> None:
    """Text of a client may have them: its request goes on."""
    assert decoded(TO_ENGINE, encode(Append(1, Say("a \ud800b")))) == [Append(1, Say("a ?b"))]
    assert wire.to_json(["\ud800"]) == b'["?"]'


def test_a_text_may_say_that_it_is_no_number() -> None:
    message: EngineEvent = Finished(1, "error", code="NaN", message="Infinity")
    assert decoded(TO_FRONT, encode(message)) == [message]


def test_settings_are_a_document() -> None:
    setup = Setup({"engine": "tone", "qwen3": {"memory": 0.5, "models": ["a"]}, "slots": None})
    assert wire.to_json(setup) == b'{"settings":{"engine":"tone","qwen3":{"memory":0.5,"models":["a"]},"slots":null}}'


def _seconds(pieces: list[bytes]) -> float:
    def once() -> float:
        start = time.thread_time()
        decoded(TO_FRONT, *pieces)
        return time.thread_time() - start

    with uncollected():
        return min(once() for _ in range(3))


def test_tiny_pieces_and_many_frames_cost_linear_time() -> None:
    """Four times the bytes take about four times as long; quadratic work would take sixteen times."""
    data, tick = encode(Audio(1, bytes(80_000))), encode(Audio(1, b""))
    short, long = ([data[i : i + 1] for i in range(size)] for size in (20_000, 80_000))
    assert _seconds(long) < 9 * _seconds(short)
    assert _seconds([tick * 40_000]) < 9 * _seconds([tick * 10_000])
