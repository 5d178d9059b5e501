"""ElevenLabs' adapter without a socket: messages of its clients, and the answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

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
from agent_tts.messages import Append, Audio, Cancel, End, Finished, FinishReason, Flush, Open, Word, Words
from agent_tts.protocol.adapter import Close, Command, Echo, Event, Failed, ProtocolAdapter, Update
from agent_tts.protocol.options import SessionConfig
from agent_tts.serve.dialects.elevenlabs import MAX_IDLE_CONTEXTS, MAX_REASON_BYTES, MultiStreamAdapter, StreamAdapter
from agent_tts.serve.dialects.elevenlabs_messages import CharacterTimes
from agent_tts.text.words import words as words_in
from tests.support import NO_DICTIONARIES, present, typed

LIVEKIT = {"auto_mode": "true", "sync_alignment": "true"}
SENTENCES = {"auto_mode": "true"}


def begun(
    query: dict[str, str] | None = None, kind: type[MultiStreamAdapter] = MultiStreamAdapter
) -> MultiStreamAdapter:
    adapter = kind("v", {"output_format": "pcm_24000"} | (query or {}), Limits(), NO_DICTIONARIES)
    list(adapter.begin())
    return adapter


def say(adapter: MultiStreamAdapter, **fields: Any) -> list[Command]:
    return list(adapter.decode(json.dumps(fields)))


def hear(adapter: ProtocolAdapter, event: Event) -> list[dict[str, Any]]:
    return [json.loads(message) for message in adapter.encode(event)]


def audio(frame: int, context_id: str = "1") -> Audio[str]:
    return Audio(context_id, bytes(3_840), frame * 1_920)


def done(context_id: str = "1", reason: FinishReason = "end") -> Finished[str]:
    return Finished(context_id, reason, audio_ms=1_000)


def words(*times: tuple[str, int, int, int], context_id: str = "1") -> Words[str]:
    """Tuples (word, offset in the text, start, end)."""
    return Words(context_id, tuple(Word(text, start, end, at, at + len(text)) for text, at, start, end in times))


def refused(adapter: MultiStreamAdapter, error: SpeechError, **fields: Any) -> list[dict[str, Any]]:
    """The answer when the session refuses the first command of the message."""
    generator = adapter.decode(json.dumps(fields))
    command = next(generator)
    del generator
    return hear(adapter, Failed(typed(Open, command).id, error, ends=True))  # pyrefly: ignore[bad-argument-type]


def configured(adapter: MultiStreamAdapter) -> dict[str, Any]:
    """The fields of the session that the address asks for."""
    (update,) = adapter.begin()
    assert isinstance(update, Update)
    SessionConfig().merged(update.fields, 1_000)
    return update.fields


# ---------------------------------------------------------------- the connection


@pytest.fixture
def adapter() -> MultiStreamAdapter:
    return begun()


def test_the_address_configures_the_session() -> None:
    query = {"model_id": "eleven_flash_v2_5", "output_format": "mp3_22050_32", "language_code": "de", "seed": "7"}
    assert configured(MultiStreamAdapter("anna", query, Limits(), NO_DICTIONARIES)) == {
        "voice": "anna",
        "model": None,
        "language": "de",
        "seed": 7,
        "output": {"encoding": "mp3", "sample_rate": 22_050, "bit_rate": 32_000},
    }


@pytest.mark.parametrize("voice", ["None", "hpp4J3VqNfWAUOO0d1Us"])
def test_a_client_librarys_default_voice_is_the_engines_own(voice: str) -> None:
    session = configured(MultiStreamAdapter(voice, {"model_id": "tts-1"}, Limits(), NO_DICTIONARIES))
    assert (session["voice"], session["model"]) == (None, "tts-1")


@pytest.mark.parametrize(("name", "value"), [("output_format", "mp3_1"), ("seed", "x"), ("auto_mode", "perhaps")])
def test_an_address_that_cannot_be_served_closes_the_connection(name: str, value: str) -> None:
    """When it is used: see `_failure`."""
    adapter = MultiStreamAdapter("v", {name: value}, Limits(), NO_DICTIONARIES)
    assert list(adapter.begin()) == []
    with pytest.raises(SpeechError) as caught:
        list(adapter.decode("{}"))
    assert isinstance(caught.value, UnsupportedFormat | BadMessage)
    (told,) = hear(adapter, Failed(None, caught.value))
    assert (told["error"], told["code"], told["message"]) == (caught.value.code, 1008, caught.value.message)
    assert adapter.closing is not None
    assert adapter.closing[0] == 1008
    assert len(adapter.closing[1].encode()) <= MAX_REASON_BYTES


def test_a_voice_that_the_node_does_not_have_closes_the_connection(adapter: MultiStreamAdapter) -> None:
    assert hear(adapter, Failed(None, UnknownVoice("ä" * 100))) == []
    assert adapter.closing is None
    with pytest.raises(UnknownVoice) as caught:
        list(adapter.decode('{"text": "Hello"}'))
    (told,) = hear(adapter, Failed(None, caught.value))
    assert told["error"] == "unknown_voice"
    assert adapter.closing == (1008, "ä" * 61)


@pytest.mark.parametrize("data", ["", "[]", b"\x00", '{"text":1}', '{"context_id":7,"text":"a"}', '{"flush":"yes"}'])
def test_an_invalid_message_is_an_error(data: str | bytes) -> None:
    with pytest.raises(SpeechError) as caught:
        list(begun().decode(data))
    assert caught.value.status == 400


# ---------------------------------------------------------------- contexts


def test_a_context_is_opened_with_its_first_word(adapter: MultiStreamAdapter) -> None:
    """No slot is held while an LLM thinks."""
    assert say(adapter, text=" ", context_id="a", voice_settings={"stability": 0.5}) == []
    assert say(adapter, text="", context_id="a") == []
    assert say(adapter, text="Hel", context_id="a") == [Open("1", {}), Append("1", "Hel")]
    assert say(adapter, text="lo", context_id="a") == [Append("1", "lo")]


def test_speed_is_the_contexts_own(adapter: MultiStreamAdapter) -> None:
    say(adapter, text=" ", context_id="a", voice_settings={"speed": 1.1, "stability": 0.5})
    assert say(adapter, text="Hello", context_id="a")[0] == Open("1", {"speed": 1.1})


@pytest.mark.parametrize(
    ("query", "text"),
    [(SENTENCES, "Hi there. How are you? "), ({}, "Hi there.How are you? ")],
    ids=["sentences", "tokens"],
)
def test_sentences_in_separate_messages_stay_separate(query: dict[str, str], text: str) -> None:
    adapter = begun(query)
    commands = [say(adapter, text=sentence)[-1] for sentence in ("Hi", " there", ".", "How are you?")]
    assert "".join(str(command.content) for command in commands if isinstance(command, Append)) == text


def test_a_closed_context_is_spoken_to_the_end_if_it_was_flushed(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="Hello. ", context_id="a")
    assert say(adapter, context_id="a", flush=True) == [Flush("1")]
    assert say(adapter, text="", context_id="a") == [Append("1", " ")]
    assert say(adapter, context_id="a", close_context=True) == [End("1")]
    assert say(adapter, context_id="a", close_context=True) == [Cancel("1")]
    assert say(adapter, context_id="a", close_context=True) == []


@pytest.mark.parametrize("flushed", [True, False])
def test_a_context_with_text_after_its_last_flush_is_cut(flushed: bool, adapter: MultiStreamAdapter) -> None:
    say(adapter, text="Hello. ", context_id="a", flush=flushed)
    say(adapter, text="More. ", context_id="a")
    assert say(adapter, context_id="a", close_context=True) == [Cancel("1")]


def test_livekit_flushes_every_sentence_and_once_without_text_at_the_end() -> None:
    closes: list[tuple[dict[str, str], Command]] = [(LIVEKIT, Cancel("1")), (SENTENCES, End("1")), ({}, End("1"))]
    for query, closed in closes:
        adapter = begun(query)
        say(adapter, text="Hello. ", context_id="a", flush=True)
        assert say(adapter, context_id="a", close_context=True) == [closed]
    adapter = begun(LIVEKIT)
    say(adapter, text="Hello. ", context_id="a", flush=True)
    say(adapter, text="", context_id="a", flush=True)
    assert say(adapter, context_id="a", close_context=True) == [End("1")]


def test_a_context_without_a_text_ends_too(adapter: MultiStreamAdapter) -> None:
    """A client would wait for its end for a long time."""
    say(adapter, text=" ", context_id="a")
    say(adapter, text="", context_id="a", flush=True)
    (echo,) = say(adapter, context_id="a", close_context=True)
    (final,) = hear(adapter, typed(Echo, echo))
    assert (final["isFinal"], final["contextId"]) == (True, "a")


def test_a_context_id_can_be_used_again_at_once(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="One. ", context_id="a")
    say(adapter, context_id="a", close_context=True)
    assert say(adapter, text="Two. ", context_id="a") == [Open("2", {}), Append("2", "Two. ")]
    assert [told["contextId"] for told in hear(adapter, done("1", "cancelled"))] == ["a"]
    assert say(adapter, text="Three. ", context_id="a") == [Append("2", "Three. ")]


def test_a_keep_alive_counts_as_text_but_splits_no_word(adapter: MultiStreamAdapter) -> None:
    assert say(adapter, text="", context_id="a") == []
    say(adapter, text="Hel", context_id="a")
    assert say(adapter, text="", context_id="a") == []
    say(adapter, text="lo,", context_id="a")
    assert say(adapter, text="", context_id="a") == [Append("1", " ")]
    assert say(adapter, text="") == []


def test_close_socket_ends_flushed_contexts_and_cancels_the_others(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="One. ", context_id="a", flush=True)
    say(adapter, text="Two. ", context_id="b")
    assert say(adapter, close_socket=True) == [End("1"), Cancel("2")]
    assert say(adapter, text="Three. ", context_id="c") == []
    hear(adapter, done("2", "cancelled"))
    assert adapter.closing is None
    hear(adapter, done("1"))
    assert adapter.closing == (1000, "closed by the client")


def test_close_socket_without_a_context_closes_the_session() -> None:
    assert say(begun(), close_socket=True) == [Close()]


def test_contexts_without_text_are_bounded(adapter: MultiStreamAdapter) -> None:
    for number in range(MAX_IDLE_CONTEXTS + 1):
        say(adapter, text=" ", context_id=f"c{number}")
    assert say(adapter, context_id="c0", close_context=True) == []
    assert say(adapter, context_id="c1", close_context=True) != []


# ---------------------------------------------------------------- audio and times


def test_each_message_has_the_characters_that_start_in_its_audio(adapter: MultiStreamAdapter) -> None:
    """Pipecat adds up the messages' end times."""
    say(adapter, text="ab, c d", context_id="x")
    hear(adapter, words(("ab,", 0, 0, 90), ("c", 4, 150, 200), ("d", 6, 300, 310)))
    told = [message for frame in range(4) for message in hear(adapter, audio(frame))] + hear(adapter, done())
    chars = [message["alignment"] and "".join(message["alignment"]["chars"]) for message in told]
    assert chars == ["ab, ", "c ", None, "d ", None]
    assert told[0]["alignment"] == {
        "chars": ["a", "b", ",", " "],
        "charStartTimesMs": [0, 30, 60, 90],
        "charDurationsMs": [30, 30, 30, 0],
    }
    assert told[1]["alignment"] == {"chars": ["c", " "], "charStartTimesMs": [60, 110], "charDurationsMs": [50, 0]}
    assert told[3]["alignment"]["charStartTimesMs"] == [100, 110]
    assert all(message["normalizedAlignment"] == message["alignment"] for message in told)
    assert all(message["contextId"] == "x" for message in told)
    assert [message["isFinal"] for message in told] == [None] * 4 + [True]
    assert base64.b64decode(told[0]["audio"]) == bytes(3_840)


def test_livekit_gets_times_from_the_contexts_start() -> None:
    adapter = begun(LIVEKIT)
    say(adapter, text="a b ", context_id="x")
    hear(adapter, words(("a", 0, 0, 60), ("b", 2, 100, 160)))
    _, second = (hear(adapter, audio(frame))[0] for frame in range(2))
    assert second["alignment"]["charStartTimesMs"] == [100, 160]


def test_late_words_come_before_the_end(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="a b", context_id="x")
    hear(adapter, audio(0))
    hear(adapter, words(("a", 0, 0, 60), ("b", 2, 100, 160)))
    rest, final = hear(adapter, done())
    assert rest["alignment"]["chars"] == ["a", " ", "b", " "]
    assert final["isFinal"] is True


def test_a_cancelled_context_sends_no_more_words(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="a b ", context_id="x")
    hear(adapter, words(("a", 0, 0, 60)))
    say(adapter, context_id="x", close_context=True)
    (final,) = hear(adapter, done(reason="cancelled"))
    assert final["isFinal"] is True


def test_characters_never_go_back_in_time() -> None:
    characters = CharacterTimes()
    entries = list(words(("ab", 0, 0, 500), ("c", 3, 100, 200), ("d", 5, 600, 550)).words)
    told = characters.of(entries[:1]) + characters.of(entries[1:])
    edges = [edge for each in told for edge in (each.start_ms, each.end_ms)]
    assert edges == sorted(edges)
    assert "".join(each.char for each in told) == "ab c d "


def test_characters_of_scripts_without_spaces_have_none() -> None:
    """Mutation: a space after each word."""
    characters = CharacterTimes("我用iPhone 手机。 สวัสดี")
    told = characters.of([Word(word, 0, 0, at, at + len(word)) for at, word in words_in(characters.spacing.text)])
    assert "".join(each.char for each in told) == characters.spacing.text


# ---------------------------------------------------------------- errors


def test_a_context_that_is_refused_gets_an_error_and_its_end(adapter: MultiStreamAdapter) -> None:
    error, final = refused(adapter, AtCapacity("full"), text="One. ", context_id="a")
    assert (error["error"], error["message"], error["contextId"]) == ("at_capacity", "full", "a")
    assert (final["isFinal"], final["contextId"]) == (True, "a")
    assert say(adapter, text="Two. ", context_id="a") == []
    assert say(adapter, context_id="a", close_context=True) == []
    assert isinstance(say(adapter, text="Three. ", context_id="a")[0], Open)
    assert adapter.closing is None


def test_a_context_that_fails_gets_an_error_and_its_end(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="One. ", context_id="a")
    (error,) = hear(adapter, Failed("1", AtCapacity("full")))
    (final,) = hear(adapter, done(reason="error"))
    assert (error["error"], final["isFinal"]) == ("at_capacity", True)


def test_a_too_long_text_ends_its_context() -> None:
    limits = Limits()
    for first in ("", "One. "):
        adapter = begun()
        if first:
            say(adapter, text=first, context_id="a")
        with pytest.raises(TextTooLong) as caught:
            say(adapter, text="x" * (limits.text_message_chars + 1), context_id="a")
        answer = hear(adapter, Failed(caught.value.context_id, caught.value, ends=not first))
        assert answer[0]["error"] == "text_too_long"
        assert say(adapter, context_id="a", close_context=True) == []


def test_text_for_an_ended_context_is_no_error(adapter: MultiStreamAdapter) -> None:
    say(adapter, text="One. ", context_id="a")
    told, final = hear(adapter, done(reason="length"))
    assert (told["error"], final["isFinal"]) == ("text_too_long", True)
    assert hear(adapter, Failed("1", UnknownContext(""))) == []


# ---------------------------------------------------------------- stream-input


def test_one_text_and_its_final_message() -> None:
    adapter = begun(kind=StreamAdapter)
    assert say(adapter, text=" ", voice_settings=None, generation_config={"chunk_length_schedule": [50]}) == []
    assert say(adapter, text="Hello. ", try_trigger_generation=True) == [Open("1", {}), Append("1", "Hello. ")]
    assert say(adapter, text="") == [End("1")]
    assert say(adapter, text="More. ") == []
    (spoken,) = hear(adapter, audio(0))
    assert "contextId" not in spoken
    (final,) = hear(adapter, done())
    assert final["isFinal"] is True
    assert present(adapter.closing)[0] == 1000


def test_no_text_and_its_final_message() -> None:
    adapter = begun(kind=StreamAdapter)
    (echo,) = say(adapter, text="")
    assert hear(adapter, typed(Echo, echo))[0]["isFinal"] is True
    assert adapter.closing is not None


@pytest.mark.parametrize(("error", "code"), [(AtCapacity("full"), 1013), (UnknownVoice("none"), 1008)])
def test_an_error_closes_the_connection(error: SpeechError, code: int) -> None:
    adapter = begun(kind=StreamAdapter)
    (told,) = refused(adapter, error, text="Hello. ")
    assert (told["error"], told["code"]) == (error.code, code)
    assert adapter.closing == (code, error.message)
