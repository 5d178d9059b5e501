"""Cartesia's adapter without a socket, and its errors on a real one."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from agent_tts.config.settings import Limits
from agent_tts.errors import (
    AtCapacity,
    BadMessage,
    SpeechError,
    TextTooLong,
    UnknownContext,
    UnknownVoice,
    UnsupportedFormat,
)
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    Cancelled,
    End,
    Finished,
    Flush,
    Flushed,
    Open,
    Started,
    Word,
    Words,
)
from agent_tts.protocol.adapter import Command, Created, Event, Failed, Pong, Updated
from agent_tts.protocol.options import SessionConfig
from agent_tts.protocol.v1 import Message
from agent_tts.serve.dialects import text as text_module
from agent_tts.serve.dialects.cartesia import MAX_REMEMBERED, CartesiaAdapter
from agent_tts.serve.dialects.text import spaced
from tests.examples import CUTS, examples, split
from tests.support import NO_DICTIONARIES, running_node, typed

OUTPUT = {"encoding": "pcm_s16le", "sample_rate": 24_000, "framing": "binary"}
DEFAULTS = {"output": OUTPUT, "language": None, "timestamps": "none"}
PLAIN = Open("a", {**DEFAULTS, "voice": None})
END = End("a")


def adapter(**limits: int) -> CartesiaAdapter:
    return CartesiaAdapter(Limits(**limits), NO_DICTIONARIES)


def into(one: CartesiaAdapter, **fields: Any) -> list[Command]:
    return list(one.decode(json.dumps({"context_id": "a", **fields})))


def opening(one: CartesiaAdapter, **fields: Any) -> Message:
    """The fields with which a context is opened."""
    opened: Any = typed(Open, next(one.decode(json.dumps({"context_id": "a", **fields}))))
    return dict(opened.options)


def texts(commands: list[Command]) -> list[Any]:
    return [command.content for command in commands if isinstance(command, Append)]


def out(one: CartesiaAdapter, event: Event) -> list[Message]:
    return [json.loads(each) for each in one.encode(event)]


def sound(one: CartesiaAdapter, payload: bytes, first_sample: int = 0) -> list[Message]:
    return out(one, Audio("a", payload, first_sample))


def failed(one: CartesiaAdapter, error: SpeechError, context_id: str = "a") -> list[Message]:
    return out(one, Failed(context_id, error))


def begun(**fields: Any) -> CartesiaAdapter:
    one = adapter()
    into(one, transcript="Hello", **{"continue": True}, **fields)
    return one


# ---------------------------------------------------------------- from the client


def test_a_whole_text_is_a_context() -> None:
    assert into(adapter(), transcript="Hello.") == [PLAIN, Append("a", "Hello."), END]


def test_continued_texts_are_one_context() -> None:
    one = adapter()
    assert into(one, transcript="Hel", **{"continue": True}) == [PLAIN, Append("a", "Hel")]
    assert into(one, transcript="lo", **{"continue": True}) == [Append("a", "lo")]
    assert into(one, transcript="", flush=True, **{"continue": True}) == [Flush("a")]
    assert into(one, transcript="", **{"continue": False}) == [END]
    assert into(one, transcript="", **{"continue": False}) == []  # Pipecat ends some contexts twice


@pytest.mark.parametrize(
    ("fields", "opened"),
    [
        ({"voice": "nova"}, {"voice": "nova"}),
        ({"voice": {"mode": "id", "id": "nova"}}, {"voice": "nova"}),
        ({"voice": {"mode": "id", "id": None}}, {"voice": None}),
        ({"voice": {"mode": "embedding", "embedding": [0.5, 1]}}, {"speaker_embedding": (0.5, 1.0)}),
        ({"voice": {"id": "a", "__experimental_controls": {"speed": "fast"}}}, {"voice": "a", "speed": 1.25}),
        ({"voice": {"id": "a", "__experimental_controls": {"speed": -1.0}}}, {"voice": "a", "speed": 0.6}),
        ({"voice": {"id": "a", "__experimental_controls": {"speed": 1}}}, {"voice": "a", "speed": 1.5}),
        ({"language": "de"}, {"voice": None, "language": "de"}),
        ({"locale": "en-GB"}, {"voice": None, "language": "en-GB"}),
        ({"add_timestamps": True}, {"voice": None, "timestamps": "word"}),
        ({"speed": "slow"}, {"voice": None, "speed": 0.8}),
        ({"generation_config": {"speed": 1.5, "volume": 2, "emotion": "sad"}}, {"voice": None, "speed": 1.5}),
        ({"generation_config": {"emotion": "neutral"}}, {"voice": None}),
        ({"normalization": "en-IN"}, {"voice": None, "normalize": True}),
        *(
            ({"output_format": {"encoding": theirs, "sample_rate": 44_100}}, {"voice": None, "output": ours})
            for theirs, ours in (
                ("pcm_s16le", OUTPUT | {"sample_rate": 44_100}),
                ("pcm_f32le", {"encoding": "pcm_f32le", "sample_rate": 44_100, "framing": "binary"}),
                ("pcm_mulaw", {"encoding": "mulaw", "sample_rate": 44_100, "framing": "binary"}),
                ("pcm_alaw", {"encoding": "alaw", "sample_rate": 44_100, "framing": "binary"}),
            )
        ),
        (
            {"model_id": "sonic-3", "normalization": "off", "add_phoneme_timestamps": True},
            {"voice": None, "normalize": False},
        ),
    ],
    ids=str,
)
def test_fields_of_a_request_become_fields_of_the_context(fields: Message, opened: Message) -> None:
    options = opening(adapter(), transcript="Hello.", **fields)
    emotion = options.pop("instructions", None)
    assert options == DEFAULTS | opened
    assert (emotion == "Emotion: sad.") == ("volume" in str(fields))


def test_a_client_librarys_default_voice_is_the_nodes_own() -> None:
    assert "voice" not in opening(adapter(), transcript="x", voice={"id": "f786b574-daa5-4673-aa0c-cbe3e8534c02"})


def test_a_cancel_reaches_an_open_context_once() -> None:
    one = begun()
    assert into(one, cancel=True) == [Cancel("a")]
    assert into(one, cancel=True) == []
    assert into(one, transcript="late", **{"continue": True}) == []
    assert [each["type"] for each in out(one, Finished("a", "cancelled"))] == ["done"]
    assert into(one, cancel=True) == []
    assert into(one, transcript="Anew.") == [PLAIN, Append("a", "Anew."), END]


@pytest.mark.parametrize(
    ("said", "is_whole", "given"),
    [
        ("It is nice today.", True, "It is nice today. "),
        ("It costs 3.", True, "It costs 3. "),
        ('"Yes!"', True, '"Yes!" '),
        ("<p>It is nice.</p>", True, "<p>It is nice.</p> "),
        ('Yes.<break time="1.5s"/>', True, 'Yes.<break time="1.5s"/> '),
        ('<speed ratio="1.5', True, '<speed ratio="1.5'),
        ("and then", True, "and then"),
        ("It is nice today.", False, "It is nice today. "),
        ("Is it?", False, "Is it?" + " "),
        ("Yes.", False, "Yes."),
        ("3.", False, "3."),
        ("It costs 3.", False, "It costs 3."),
        ("in the U.S.", False, "in the U.S."),
        ("", True, ""),
    ],
)
def test_sentences_stay_separate(said: str, is_whole: bool, given: str) -> None:
    assert spaced(said, is_whole=is_whole) == given
    one = adapter()
    commands = into(one, transcript=said, max_buffer_delay_ms=0 if is_whole else 3_000)
    assert texts(commands) == ([given] if given else [])


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_end_of_a_long_text_is_looked_for_at_its_end(monkeypatch: pytest.MonkeyPatch, is_whole: bool) -> None:
    """In all of 64 kB it takes 20 ms of the event loop."""
    sizes: list[int] = []

    class Counted:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self._pattern = pattern

        def search(self, text: str) -> re.Match[str] | None:
            sizes.append(len(text))
            return self._pattern.search(text)

    for name in ("_END", "_PLAIN_END"):
        monkeypatch.setattr(text_module, name, Counted(getattr(text_module, name)))
    said = "Hello there. " * 5_000
    assert spaced(said.rstrip(), is_whole=is_whole) == said
    assert spaced("x" * 64_000, is_whole=is_whole) == "x" * 64_000
    assert sizes == [text_module.END_CHARS] * 2


# ---------------------------------------------------------------- to the client


def test_audio_comes_with_the_words_starting_in_it() -> None:
    one = begun(add_timestamps=True)
    words = Word("Hello", 0, 100, 0, 5), Word("you.", 100, 250, 6, 10), Word("Bye.", 400, 500, 11, 15)
    assert out(one, Words("a", words, "estimated")) == []
    first, chunk = sound(one, bytes(2 * 2_400))
    assert first["word_timestamps"] == {"words": ["Hello"], "start": [0.0], "end": [0.1]}
    assert base64.b64decode(chunk["data"]) == bytes(2 * 2_400)
    assert (chunk["type"], chunk["context_id"], chunk["done"], chunk["status_code"]) == ("chunk", "a", False, 206)
    second, _ = sound(one, bytes(2), 2_400)
    assert second["word_timestamps"]["words"] == ["you."]
    rest, done = out(one, Finished("a", "end"))
    assert rest["word_timestamps"]["words"] == ["Bye."]
    assert (done["type"], done["done"], done["status_code"]) == ("done", True, 200)


def test_phones_in_the_place_of_a_word_have_no_time() -> None:
    """Pipecat's class expects none; with one its LLM would read the phones."""
    one = begun(add_timestamps=True)
    into(one, transcript=" << you <<w|ɪ>>. Bye")
    sent = "Hello << you <<w|ɪ>>. Bye"
    told = {"Hello": "Hello", "<<": "<<", "you": "you", "wɪ.": "<<w|ɪ>>.", "Bye": "Bye"}
    starts = {word: sent.index(raw) for word, raw in told.items()}
    out(one, Words("a", tuple(Word(word, 0, 9, at, at + len(told[word])) for word, at in starts.items())))
    timestamps, _ = sound(one, bytes(4_800))
    assert timestamps["word_timestamps"]["words"] == ["Hello", "<<", "you", "Bye"]


def test_times_are_those_of_the_encoding() -> None:
    one = begun(output_format={"encoding": "pcm_f32le", "sample_rate": 44_100})
    out(one, Words("a", (Word("x", 999, 1_000, 0, 1),), "estimated"))
    assert [each["type"] for each in sound(one, bytes(4 * 44_000))] == ["chunk"]
    assert [each["type"] for each in sound(one, bytes(4 * 100), 44_000)] == ["timestamps", "chunk"]


def test_flushes_are_numbered() -> None:
    one = begun()
    assert sound(one, b"ab")[0]["flush_id"] == 1
    assert [out(one, Flushed("a", None))[0]["flush_id"] for _ in range(2)] == [1, 2]
    assert sound(one, b"ab")[0]["flush_id"] == 3


def test_messages_without_an_equivalent_are_not_sent() -> None:
    one = begun()
    created, updated = Created("s", None, None, {}, {}), Updated(SessionConfig())
    for event in (created, updated, Started("a", 0), Cancelled("a", 0, 0, "", ""), Pong(None, None)):
        assert out(one, event) == []
    assert failed(one, UnknownContext("gone")) == []


# ---------------------------------------------------------------- errors


def test_an_error_ends_its_context() -> None:
    """Fails if the failed id is forgotten: the next token opens a context in the middle of the text."""
    one = begun()
    told, done = failed(one, AtCapacity("full"))
    assert (told["type"], told["done"], told["status_code"]) == ("error", False, 503)
    assert (done["type"], done["done"], done["context_id"]) == ("done", True, "a")
    assert (told["context_id"], told["error_code"], told["message"]) == ("a", "at_capacity", "full")
    assert sound(one, b"ab") == []
    assert out(one, Finished("a", "error")) == []
    assert into(one, transcript=" and on", **{"continue": True}) == []
    assert into(one, transcript="", **{"continue": False}) == []
    for error in (UnknownVoice("no"), UnknownVoice("no")):  # of whole texts, whose id is not kept
        assert into(one, transcript="Anew.") == [PLAIN, Append("a", "Anew."), END]
        failed(one, error)


def test_a_too_long_context_is_not_opened_again() -> None:
    one = begun()
    told = out(one, Finished("a", "length", audio_ms=1_000))
    ends = [(each["type"], each["done"], each["status_code"]) for each in told]
    assert ends == [("error", False, 413), ("done", True, 413)]
    assert into(one, transcript=" and on", **{"continue": True}) == []


def refusal(one: CartesiaAdapter, **fields: Any) -> tuple[list[Command], SpeechError]:
    """The commands, and the error that follows."""
    commands = one.decode(json.dumps({"context_id": "a", **fields}))
    told: list[Command] = []
    with pytest.raises(SpeechError) as caught:
        told.extend(commands)
    return told, caught.value


def test_an_error_names_its_context() -> None:
    told, error = refusal(adapter(), transcript=5)
    assert isinstance(error, BadMessage)
    assert (told, error.context_id) == ([], "a")
    told, error = refusal(begun(), transcript=5)
    assert (told, error.context_id) == ([Cancel("a")], "a")


@pytest.mark.parametrize(
    ("fields", "kind", "about"),
    [
        ({"transcript": 5}, BadMessage, "transcript"),
        ({"transcript": "x", "output_format": {"encoding": "flac"}}, UnsupportedFormat, "pcm_s16le"),
        ({"transcript": "x", "output_format": {"sample_rate": 11_025}}, UnsupportedFormat, "22050"),
        ({"transcript": "x", "output_format": {"container": "mp3"}}, UnsupportedFormat, "raw"),
        ({"transcript": "x", "speed": "warp"}, BadMessage, "normal"),
        ({"transcript": "x", "context_id": "*"}, BadMessage, "every context"),
        ({"cancel": True, "context_id": None}, BadMessage, "context_id"),
        ({"transcript": "x" * 41}, TextTooLong, "40"),
    ],
    ids=str,
)
def test_a_refusal_says_what_is_allowed(fields: Message, kind: type[SpeechError], about: str) -> None:
    _, error = refusal(adapter(text_message_chars=40), **fields)
    assert type(error) is kind
    assert about in error.message


def test_text_beyond_the_limit_cancels_its_context() -> None:
    one = adapter(text_context_chars=10)
    into(one, transcript="Hello", **{"continue": True})
    told, error = refusal(one, transcript="Hello, you", **{"continue": True})
    assert isinstance(error, TextTooLong)
    assert told == [Cancel("a")]


def test_text_after_the_end_is_refused() -> None:
    one = adapter()
    into(one, transcript="Hello.")
    _, error = refusal(one, transcript="More.")
    assert "another context_id" in error.message


def test_remembered_failed_ids_are_bounded() -> None:
    one = adapter()
    for number in range(2 * MAX_REMEMBERED):
        list(one.decode(json.dumps({"context_id": f"c{number}", "transcript": "x", "continue": True})))
        failed(one, AtCapacity("full"), f"c{number}")
    assert len(one._failed) == MAX_REMEMBERED


# ---------------------------------------------------------------- arbitrary input


@examples(100)
@given(whole=st.text(max_size=60), cuts=CUTS)
def test_tokens_are_passed_on_verbatim(whole: str, cuts: list[int]) -> None:
    """For any split; only a space is added after a certain end of a sentence."""
    one, given_on = adapter(), ""
    pieces = split(whole, cuts)
    for piece in pieces:
        given_on += "".join(texts(into(one, transcript=piece, **{"continue": True})))
    assert given_on == "".join(spaced(piece, is_whole=False) for piece in pieces)


# ---------------------------------------------------------------- on a node


@pytest.mark.node
async def test_a_wrong_key_is_an_error_of_cartesias() -> None:
    async with running_node(auth={"api_keys": ["right"]}) as running:
        url = running.url.replace("http", "ws", 1) + "/tts/websocket?cartesia_version=2025-04-16&api_key="
        async with connect(f"{url}wrong", proxy=None) as socket:
            refused = json.loads(await socket.recv())
            assert (refused["type"], refused["status_code"], refused["context_id"]) == ("error", 401, None)
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert socket.close_code == 1008
        async with connect(f"{url}right", proxy=None) as socket:
            await socket.send(json.dumps({"context_id": "a", "transcript": "Hi.", "voice": "nobody"}))
            told = json.loads(await socket.recv())
            assert (told["error_code"], told["context_id"]) == ("unknown_voice", "a")
