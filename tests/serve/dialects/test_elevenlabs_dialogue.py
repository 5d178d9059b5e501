"""ElevenLabs' text-to-dialogue without its clients: its messages, several voices, and what ends them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent_tts.config.settings import Limits
from agent_tts.errors import AtCapacity, BadMessage, EngineLost, SpeechError, Starved, UnknownVoice
from agent_tts.messages import Append, End, Finished, Flush, Open
from agent_tts.protocol.adapter import Command, Failed, Later
from agent_tts.serve.dialects.elevenlabs import MAX_IDLE_CONTEXTS
from agent_tts.serve.dialects.elevenlabs_dialogue import DialogueAdapter
from agent_tts.serve.dialects.elevenlabs_messages import MAX_INPUTS, MAX_VOICES
from tests.serve.dialects.test_elevenlabs_adapter import audio, hear, words
from tests.speech.audio.test_files import decode
from tests.support import NO_DICTIONARIES, NOT_KEPT, RunningNode, dominant_hz, present, running_node, typed, until

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

LIMIT_S = 20.0
LOW, HIGH = "tone-440", "tone-880"
PCM = "?output_format=pcm_24000&sync_alignment=true&model_id=eleven_v4_turbo"


def line(text: str, voice: str | None = LOW, **fields: Any) -> dict[str, Any]:
    return {"text": text, "voice_id": voice, **fields}


# ---------------------------------------------------------------- the adapter alone


def begun(**query: str) -> DialogueAdapter:
    given = {"output_format": "pcm_24000", "sync_alignment": "true"} | query
    adapter = DialogueAdapter(None, given, Limits(), NO_DICTIONARIES)
    list(adapter.begin())
    return adapter


def say(adapter: DialogueAdapter, name: str | None = "a", **fields: Any) -> list[Command]:
    """Commands; a name of None leaves the context out."""
    return list(adapter.decode(json.dumps(fields if name is None else fields | {"context_id": name})))


async def test_a_context_is_opened_with_its_first_word_and_its_own_voice() -> None:
    """No slot is held while an LLM thinks, nor by the context that Pipecat keeps its connection alive with."""
    adapter = begun()
    assert say(adapter, voices=[LOW], voice_settings={"stability": 0.5}) == []
    assert say(adapter, keep_alive=True) == []
    assert say(adapter, inputs=[line("  "), line("")]) == []
    opened = say(adapter, inputs=[line("Hi ", new_turn=True)], flush=True)
    assert opened == [Open("1", {"voice": LOW}), Append("1", "Hi "), Flush("1")]
    assert say(adapter, inputs=[line("there."), line("")])[0] == Append("1", "there.")
    assert say(adapter, close_context=True) == [End("1")]
    assert say(adapter, close_context=True) == []


async def test_the_names_that_mean_any_voice() -> None:
    for voice in (None, "hpp4J3VqNfWAUOO0d1Us"):
        adapter = begun()
        assert say(adapter, voices=[voice], inputs=[line("Hi.", voice)])[0] == Open("1", {"voice": None})


async def test_audio_is_not_paced() -> None:
    """An interrupted reply cannot be cancelled: paced, it would hold its slot for as long as it takes to say it."""
    adapter = DialogueAdapter(None, {}, Limits(), NO_DICTIONARIES)
    (update,) = adapter.begin()
    assert update.fields["lead_ms"] is None  # pyrefly: ignore[missing-attribute]


@pytest.mark.parametrize("second", [line("Yes.", HIGH), line("Yes.", new_turn=True)])
async def test_a_line_of_another_voice_or_turn_waits_for_the_one_before(second: dict[str, Any]) -> None:
    adapter = begun()
    commands = say(adapter, voices=[LOW, HIGH], inputs=[line("Hi."), second], close_context=True)
    assert commands[:3] == [Open("1", {"voice": LOW}), Append("1", "Hi."), End("1")]
    later = [typed(Later, command) for command in commands[3:]]
    assert [(each.context_id, each.chars) for each in later] == [("1", 4), ("1", 0)]
    assert hear(adapter, Finished("1", "end", audio_ms=80)) == [{"is_final_audio_for_turn": True, "context_id": "a"}]
    assert list(later[0].commands) == [Open("2", {"voice": second["voice_id"]}), Append("2", "Yes.")]
    assert list(later[1].commands) == [End("2")]
    assert hear(adapter, Finished("2", "end", audio_ms=80)) == [{"is_final": True, "context_id": "a"}]


async def test_times_count_from_the_audio_and_add_up() -> None:
    """LiveKit adds times to the audio before their message, Pipecat to the sum of the ends before: both are right."""
    adapter = begun()
    say(adapter, voices=[LOW], inputs=[line("ab, cd e")])
    hear(adapter, words(("ab,", 0, 40, 100), ("cd", 4, 500, 560), ("e", 7, 570, 640)))
    told = [message for number in range(8) for message in hear(adapter, audio(number))]
    told += hear(adapter, Finished("1", "end", audio_ms=640))
    by_audio, by_sum, text = [], [], ""
    audio_ms = sum_ms = 0.0
    for message in told:
        if alignment := message.get("alignment"):
            starts, durations = alignment["char_start_times_ms"], alignment["char_durations_ms"]
            by_audio += [audio_ms + start for start in starts]
            by_sum += [sum_ms + start for start in starts]
            sum_ms += starts[-1] + durations[-1]
            text += "".join(alignment["chars"])
        audio_ms += len(base64.b64decode(message.get("audio") or "")) / 48
    assert text == "ab, cd e "
    begins = [text.index(char) for char in "ace"]
    assert [by_audio[at] for at in begins] == [40, 500, 570]
    assert [by_sum[at] for at in begins] == [40, 500, 570]
    assert audio_ms == sum_ms == 640
    assert all(message["normalized_alignment"] is None for message in told if "audio" in message)


async def test_times_begin_anew_with_each_voice() -> None:
    adapter = begun()
    commands = say(adapter, voices=[LOW, HIGH], inputs=[line("a"), line("b", HIGH)])
    hear(adapter, words(("a", 0, 0, 60)))
    for number in range(3):
        hear(adapter, audio(number))
    hear(adapter, Finished("1", "end", audio_ms=240))
    list(typed(Later, commands[-1]).commands)
    hear(adapter, words(("b", 0, 10, 60), context_id="2"))
    (message,) = hear(adapter, audio(0, "2"))
    assert message["alignment"]["char_start_times_ms"] == [10]


async def test_no_times_come_unless_they_are_asked_for() -> None:
    adapter = begun(sync_alignment="false")
    say(adapter, voices=[LOW], inputs=[line("a b")])
    hear(adapter, words(("a", 0, 0, 60), ("b", 2, 70, 120)))
    told = [*hear(adapter, audio(0)), *hear(adapter, audio(1)), *hear(adapter, Finished("1", "end", audio_ms=160))]
    assert [message.get("alignment") for message in told] == [None] * 3


async def test_a_pause_of_the_llm_is_no_error() -> None:
    """What was said so far has been spoken; the vendor waits 20 s, and then ends the context without a word."""
    adapter = begun()
    say(adapter, voices=[LOW], inputs=[line("Hi. ")])
    assert hear(adapter, Failed("1", Starved("no text"))) == []
    assert [*hear(adapter, Finished("1", "error"))][-1] == {"is_final_audio_for_turn": True, "context_id": "a"}
    assert say(adapter, inputs=[line("Still there? ")]) == [Open("2", {"voice": LOW}), Append("2", "Still there? ")]
    say(adapter, close_context=True)
    assert hear(adapter, Finished("2", "end", audio_ms=80))[-1] == {"is_final": True, "context_id": "a"}


@pytest.mark.parametrize(("error", "ends"), [(AtCapacity("full"), True), (EngineLost("lost"), False)])
async def test_a_dialogue_that_fails_ends_once_and_its_lines_are_not_spoken(error: SpeechError, ends: bool) -> None:
    adapter = begun()
    commands = say(adapter, voices=[LOW, HIGH], inputs=[line("Hi."), line("Yes.", HIGH)])
    told = hear(adapter, Failed("1", error, ends=ends))
    if not ends:
        assert hear(adapter, audio(0)) == []
        told += hear(adapter, Finished("1", "error"))
    (said, final) = told
    assert (said["error"], said["message"], said["context_id"]) == (error.code, error.message, "a")
    assert final == {"is_final": True, "context_id": "a"}
    assert list(typed(Later, commands[-1]).commands) == []
    assert say(adapter, inputs=[line("More.")], flush=True) == []
    assert say(adapter, close_context=True) == []
    assert say(adapter, voices=[LOW], inputs=[line("Again.")])[0] == Open("2", {"voice": LOW})
    assert adapter.closing is None


@pytest.mark.parametrize(
    "message",
    [
        {"inputs": [line("Hi.")]},
        {"voices": []},
        {"voices": "tone-440"},
        {"voices": [5]},
        {"voices": [LOW] * (MAX_VOICES + 1)},
        {"voices": [LOW], "inputs": {}},
        {"voices": [LOW], "inputs": ["Hi."]},
        {"voices": [LOW], "inputs": [{"text": "Hi."}]},
        {"voices": [LOW], "inputs": [{"text": None, "voice_id": LOW}]},
        {"voices": [LOW], "inputs": [line("Hi.", new_turn="yes")]},
        {"voices": [LOW], "inputs": [line("x")] * (MAX_INPUTS + 1)},
        {"voices": [LOW], "flush": "yes"},
        {"voices": [LOW], "context_id": 5},
    ],
)
async def test_a_wrong_message_is_an_error(message: dict[str, Any]) -> None:
    adapter = begun()
    with pytest.raises(BadMessage) as caught:
        list(adapter.decode(json.dumps({"context_id": "a"} | message)))
    (told,) = hear(adapter, Failed(None, caught.value))
    assert set(told) == {"message", "error", "code"}
    assert (told["error"], told["code"]) == ("bad_message", 1008)
    assert present(adapter.closing)[0] == 1008


async def test_lines_behind_a_close_are_an_error() -> None:
    adapter = begun()
    say(adapter, voices=[LOW], inputs=[line("Hi.")], close_context=True)
    with pytest.raises(BadMessage, match="close"):
        say(adapter, inputs=[line("More.")])


async def test_nulls_are_as_what_is_not_there() -> None:
    adapter = begun()
    fields = ("inputs", "flush", "close_context", "close_socket", "keep_alive", "voice_settings")
    assert say(adapter, voices=[LOW], **dict.fromkeys(fields)) == []
    assert say(adapter, voices=None, inputs=[line("Hi.", new_turn=None)])[-1] == Append("1", "Hi.")


async def test_contexts_that_are_never_closed_are_bounded() -> None:
    adapter = begun()
    for number in range(2 * MAX_IDLE_CONTEXTS):
        say(adapter, f"c{number}", voices=[LOW])
    assert len(adapter._dialogues) == MAX_IDLE_CONTEXTS


# ---------------------------------------------------------------- on a node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[RunningNode]:
    async with running_node() as made:
        yield made


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []

    async def say(self, name: str | None = "a", **fields: Any) -> None:
        await self.socket.send(json.dumps(fields if name is None else fields | {"context_id": name}))

    async def final(self, name: str | None = "a") -> bytes:
        """Everything up to the end of a context; returns its audio."""
        async with asyncio.timeout(LIMIT_S):
            while not any(each.get("is_final") and each["context_id"] == name for each in self.told):
                self.told.append(json.loads(await self.socket.recv()))
        own = [each for each in self.told if each["context_id"] == name]
        return b"".join(base64.b64decode(each.get("audio") or "") for each in own)


@asynccontextmanager
async def connected(node: RunningNode, way: str = "multi-stream-input", query: str = PCM) -> AsyncIterator[Client]:
    url = f"{node.url.replace('http', 'ws', 1)}/v1/text-to-dialogue/{way}{query}"
    async with connect(url, proxy=None) as socket:
        yield Client(socket)


def tones(pcm: bytes) -> list[int]:
    """The frequency of each 80 ms that is not silent, each once in a row, to 40 Hz."""
    samples = np.frombuffer(pcm, "<i2")
    pieces = [samples[at : at + 1_920] for at in range(0, len(samples) - 1_919, 1_920)]
    heard = [round(dominant_hz(piece) / 40) * 40 for piece in pieces if np.abs(piece).max() > 1_000]
    return [hz for at, hz in enumerate(heard) if not at or heard[at - 1] != hz]


async def test_voices_follow_each_other_in_one_stream(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.say(voices=[LOW, HIGH])
        await client.say(inputs=[line("One two."), line("Three four.", HIGH), line("Five six.")])
        await client.say(inputs=[line("Seven.", HIGH)], close_context=True)
        assert tones(await client.final()) == [440, 880, 440, 880]
        assert sum(each.get("is_final_audio_for_turn", False) for each in client.told) == 3
        assert client.told[-1] == {"is_final": True, "context_id": "a"}
        text = "".join(char for each in client.told for char in (each.get("alignment") or {"chars": []})["chars"])
        assert text.split() == ["One", "two.", "Three", "four.", "Five", "six.", "Seven."]


async def test_two_contexts_at_once(node: RunningNode) -> None:
    async with connected(node) as client:
        for name, voice in (("a", LOW), ("b", HIGH)):
            await client.say(name, voices=[voice], inputs=[line("One two three.", voice)])
        for name in "ba":
            await client.say(name, close_context=True)
        assert tones(await client.final("a")) == [440]
        assert tones(await client.final("b")) == [880]


async def test_a_tag_that_is_split_across_messages_is_not_spoken(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.say(voices=[LOW])
        for text in ("One [lau", "ghs] two [whi", "spers] three."):
            await client.say(inputs=[line(text)])
        await client.say(close_context=True)
        await client.final()
        text = "".join(char for each in client.told for char in (each.get("alignment") or {"chars": []})["chars"])
        assert text.split() == ["One", "two", "three."]


@pytest.mark.parametrize("way", ["stream-input", "multi-stream-input"])
async def test_close_socket_speaks_everything_and_closes(node: RunningNode, way: str) -> None:
    """Mid-dialogue: the second voice waits for the first."""
    async with connected(node, way) as client:
        await client.say(None, voices=[LOW, HIGH], inputs=[line("One two three."), line("Four.", HIGH)])
        await client.say(None, close_socket=True)
        assert tones(await client.final(None)) == [440, 880]
        with pytest.raises(ConnectionClosed) as closed:
            await client.socket.recv()
        assert present(closed.value.rcvd).code == 1000


async def test_a_context_without_a_text_ends_too(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.say(voices=[LOW])
        await client.say(inputs=[line("")], flush=True)
        await client.say(close_context=True)
        assert await client.final() == b""


async def test_one_voice_that_is_not_known_among_several(node: RunningNode) -> None:
    """The others are heard up to it; another context goes on."""
    async with connected(node) as client:
        await client.say("b", voices=[HIGH], inputs=[line("Five.", HIGH)])
        await client.say(voices=[LOW, "nobody"], inputs=[line("One."), line("Two.", "nobody"), line("Three.")])
        assert tones(await client.final()) == [440]
        error = next(each for each in client.told if "error" in each)
        assert (error["error"], error["context_id"], error["code"]) == (UnknownVoice.code, "a", 1008)
        await client.say("b", inputs=[line("Six.", HIGH)], close_context=True)
        assert tones(await client.final("b")) == [880]


async def test_leaving_frees_the_slots_and_drops_what_waits(node: RunningNode) -> None:
    long = "One two three four five six seven eight nine ten. " * 60
    async with connected(node) as client:
        await client.say(voices=[LOW, HIGH], inputs=[line(long), line(long, HIGH)])
        await client.socket.recv()
    async with (
        node.http(trust_env=False, limits=NOT_KEPT) as http,
        http.stream("POST", "/v1/text-to-dialogue", json={"inputs": [line(long), line(long, HIGH)]}) as answer,
    ):
        await anext(answer.aiter_bytes())
    await until(lambda: node.node.service.speaking == 0, 5)


async def test_a_dialogue_has_ten_voices_at_most(node: RunningNode) -> None:
    asked = {"inputs": [line("One.", f"voice-{number}") for number in range(11)]}
    async with node.http() as http:
        answer = await http.post("/v1/text-to-dialogue", json=asked)
    assert answer.is_client_error
    assert "at most 10 voices" in answer.text


@pytest.mark.parametrize(("name", "kind"), [("mp3_22050_32", "mp3"), ("opus_48000_32", "ogg"), ("pcm_16000", "pcm")])
async def test_formats_of_several_voices(node: RunningNode, name: str, kind: str) -> None:
    """A stream of one after the other, which a decoder plays to its end; over HTTP one file."""
    lines = [line("One two three."), line("Four five six.", HIGH)]
    async with connected(node, query=f"?output_format={name}") as client:
        await client.say(voices=[LOW, HIGH], inputs=lines, close_context=True)
        streamed = await client.final()
    async with node.http(trust_env=False, limits=NOT_KEPT) as http:
        asked = {"inputs": lines, "model_id": "eleven_v3", "language_code": None, "seed": None}
        answer = await http.post("/v1/text-to-dialogue", json=asked, params={"output_format": name})
    seconds = []
    for data in (streamed, answer.content):
        samples, rate = (np.frombuffer(data, "<i2"), 16_000) if kind == "pcm" else decode(data, kind)
        middle = len(samples) // 4
        assert dominant_hz(np.asarray(samples[:middle], np.int16), rate) == pytest.approx(440, abs=15)
        assert dominant_hz(np.asarray(samples[-middle:], np.int16), rate) == pytest.approx(880, abs=15)
        seconds.append(len(samples) / rate)
    assert seconds[0] == pytest.approx(seconds[1], abs=0.25)


@pytest.mark.parametrize("path", ["", "/stream", "/with-timestamps", "/stream/with-timestamps"])
@pytest.mark.parametrize("texts", [["", "One."], ["One.", "", " ", "Two.", ""]])
async def test_a_line_without_text_is_passed_over(path: str, texts: list[str]) -> None:
    """Fails if it is waited for, as for the text of a stream, until its context is starved."""
    async with running_node() as node, node.http(trust_env=False) as http:
        full = await http.post(f"/v1/text-to-dialogue{path}", json={"inputs": [line(text) for text in texts]})
        only = await http.post(f"/v1/text-to-dialogue{path}", json={"inputs": [line(each) for each in texts if each]})
    assert full.status_code == 200
    assert abs(len(full.content) - len(only.content)) < 2_000


async def test_a_line_that_finds_no_place_cuts_the_answer() -> None:
    """Fails if a file that lacks a line looks complete."""
    async with running_node(slots=1, queue=0) as node, node.http(trust_env=False, limits=NOT_KEPT) as http:
        opened = node.node.service.open
        calls = iter((True, False))

        def once(*args: Any, **kwargs: Any) -> Any:
            if next(calls):
                return opened(*args, **kwargs)
            raise AtCapacity("full")

        node.node.service.open = once
        with pytest.raises(httpx.TransportError):
            await http.post("/v1/text-to-dialogue", json={"inputs": [line("One."), line("Two.", HIGH)]})


@pytest.mark.parametrize(
    "how",
    [{"xi-api-key": "right"}, {"Authorization": "Bearer right"}, {"Authorization": "Api-Key right"}, "?authorization="],
)
async def test_the_key(how: dict[str, str] | str) -> None:
    async with running_node(auth={"api_keys": ["right"]}) as node:
        for key, status in (("right", 101), ("wrong", 401)):
            headers = {} if isinstance(how, str) else {name: each.replace("right", key) for name, each in how.items()}
            query = f"{how}{key}" if isinstance(how, str) else ""
            url = f"{node.url.replace('http', 'ws', 1)}/v1/text-to-dialogue/multi-stream-input{query}"
            try:
                async with connect(url, proxy=None, additional_headers=headers):
                    found = 101
            except InvalidStatus as refused:
                found = refused.response.status_code
            assert found == status
