"""A node with Qwen3-TTS through its public interfaces: real sockets, an engine process, tiny checkpoints."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from agent_tts.engine_info import FRAME_BYTES, Model
from tests.engine.qwen3.test_engine import FRAMES, TEXT, assert_same, theirs
from tests.integrations.pipecat.pipeline import running
from tests.model import oracle, tiny
from tests.model.clips import clip
from tests.support import RunningNode, running_node, until
from tests.voices.clips import wav
from tests.wire import Wire, wire

pytestmark = [pytest.mark.node, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

PIPECAT = Path(__file__).parents[2] / "web" / "docs" / "clients" / "pipecat.md"
SLOTS = 3
CLIP = clip(24_000)
TRANSCRIPT = "The quick brown fox."
CONSENT = "I am Bob, and this is my voice."
WORDS = "Hello world, how are you?"
SPOKEN: dict[str, Any] = {"language": "de", "seed": 7}


@dataclass(frozen=True, slots=True)
class Speaker:
    """A node with a voice of every kind, and clients of it."""

    node: RunningNode
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    library: Path
    vector: list[float]  # of the voice `vec`

    @property
    def models(self) -> tuple[Model, ...]:
        """Models for named, designed and cloned voices; and one for cloned voices that almost never ends."""
        return self.node.node.service.routing.info.models

    async def stream(self, *pieces: str, pause_s: float = 0.0, **fields: Any) -> bytes:
        """pcm_s16le of a text over its own WebSocket."""
        async with wire(self.node.ws_url) as peer:
            await begin(peer, **fields)
            for piece in pieces:
                await peer.send("text.append", context_id="c", text=piece)
                await asyncio.sleep(pause_s)
            await peer.send("context.end", context_id="c")
            done = await peer.until("context.done")
            assert done["reason"] == "end", done
            return peer.pcm("c")

    async def request(self, text: str, model: str = "tts-1", voice: str | None = None, **fields: Any) -> bytes:
        """pcm_s16le of a text from OpenAI's client."""
        response = await self.openai.audio.speech.create(
            input=text, model=model, voice="", response_format="pcm", extra_body={"voice": voice, **fields}
        )
        return bytes(response.content)

    async def embed(self, name: str, vector: Sequence[float]) -> None:
        """Add a voice from a vector."""
        body = {"type": "embedding", "name": name, "speaker_embedding": vector, "consent": CONSENT}
        (await self.http.post("/v1/audio/voices", json=body)).raise_for_status()


async def begin(peer: Wire, context_id: str = "c", **fields: Any) -> None:
    """Open a context that is sent as fast as it is generated."""
    await peer.send("context.open", context_id=context_id, **{"lead_ms": None, **SPOKEN, **fields})


async def refusal(speaker: Speaker, **fields: Any) -> dict[str, Any]:
    """The reason why a context cannot be opened."""
    async with wire(speaker.node.ws_url) as peer:
        await begin(peer, **fields)
        return await peer.until("error", "c")


def same(pcm: bytes, other: bytes) -> bool:
    """Whether two pcm_s16le are equal to one step of int16: batches round rows differently."""
    if len(pcm) != len(other):
        return False
    difference = np.frombuffer(pcm, "<i2").astype(int) - np.frombuffer(other, "<i2")
    return bool((np.abs(difference) <= 1).all())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Speaker]:
    library = tmp_path_factory.mktemp("library")
    folders = [tiny.ending(kind) for kind in ("custom_voice", "voice_design", "base")]
    models: list[dict[str, str]] = [{"source": str(folder)} for folder in folders]
    models.append({"source": str(tiny.checkpoint("base")), "load": "first_use"})
    qwen3 = {"models": models, "device": "cpu", "dtype": "float32", "max_model_len": 256}
    close = {"Connection": "close"}  # all connections of the test are closed
    async with (
        running_node(engine="qwen3", slots=SLOTS, qwen3=qwen3, voices={"folder": str(library)}) as node,
        node.http(headers=close, timeout=120) as http,
        openai.AsyncOpenAI(
            base_url=f"{node.url}/v1", api_key="x", max_retries=0, timeout=120, default_headers=close
        ) as client,
    ):
        size = node.node.service.routing.info.models[2].vector_size or 0
        made = Speaker(node, http, client, library, [0.5 - index / size for index in range(size)])
        await add_voices(made)
        yield made


async def add_voices(speaker: Speaker) -> None:
    """`bob` from a clip and its transcript, `narrator` by a description, `vec` and `eve` by a vector.

    The vectors of clips: `tests/voices/test_enroll.py`.
    """
    voices = speaker.openai.audio.voices
    file = ("clip.wav", wav(CLIP.numpy()))
    bob = await voices.create(audio_sample=file, consent=CONSENT, name="bob", extra_body={"ref_text": TRANSCRIPT})
    narrator = await voices.create(type="prompt", name="narrator", prompt="a calm old man")
    assert [voice.id for voice in (bob, narrator)] == ["bob", "narrator"]
    await speaker.embed("vec", speaker.vector)
    await speaker.embed("eve", [-value for value in speaker.vector])


@pytest.mark.slow
async def test_the_page_of_pipecat_clones_a_voice_and_speaks_it(speaker: Speaker, tmp_path: Path) -> None:
    """Its command and its program as they are written, but for the name, which another test has."""
    page = PIPECAT.read_text().replace("bob", "robert").replace("http://127.0.0.1:8100", speaker.node.url)
    (command,) = re.findall(r"^\$ (curl .*?)\n```", page, re.S | re.M)
    (tmp_path / "clip.wav").write_bytes(wav(CLIP.numpy()))
    command = command.replace("localhost:8100", speaker.node.url)
    adding = await asyncio.create_subprocess_shell(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    told, _ = await adding.communicate()
    added = json.loads(told)
    assert (added["name"], added["ref_text"]) == ("robert", "What is said in the clip.")
    shown = (await speaker.http.get("/v1/audio/voices/robert")).json()
    assert shown["consent"]["statement"] == "Bob agrees."
    scope: dict[str, Any] = {}
    for program in re.findall(r"^```python\n(.*?)^```", page, re.S | re.M):
        exec(program, scope)
    async with running([scope["tts"]]) as pipeline:
        await pipeline.turn("Hello", " there.")
        assert pipeline.errors == []
        assert len(pipeline.pcm()) > FRAME_BYTES


# ---------------------------------------------------------------- speaking


@pytest.mark.slow
async def test_every_voice_gives_the_same_audio_over_websocket_and_http_for_any_split(speaker: Speaker) -> None:
    """The voices differ from each other."""
    listed = (await speaker.http.get("/v1/audio/voices")).json()["voices"]
    assert {"ryan", "design", "bob", "eve", "narrator", "vec"} <= {voice["name"] for voice in listed}
    who: list[dict[str, Any]] = [
        *({"voice": name} for name in ("vec", "ryan", "serena", "clone:bob", "narrator")),
        {"voice": "design", "instructions": "a cheerful young woman"},
        {"voice": "eve(0.7)+vec(0.3)"},
        {"speaker_embedding": speaker.vector[::-1]},
    ]
    words = WORDS.replace(" ", "\0 ").split("\0")
    heard: list[bytes] = []
    for fields in who:
        by_word, whole = await asyncio.gather(
            speaker.stream(*words, **fields), speaker.request(WORDS, **SPOKEN, **fields)
        )
        assert len(whole) >= 5 * FRAME_BYTES, fields
        assert same(by_word, whole), fields
        assert not any(same(whole, earlier) for earlier in heard), fields
        heard.append(whole)
    pieces = WORDS[:7], WORDS[7:9], WORDS[9:]
    assert same(await speaker.stream(*pieces, pause_s=0.15, speaker_embedding=speaker.vector), heard[0])  # of `vec`


@pytest.mark.slow
async def test_a_clone_gives_upstreams_audio_for_the_same_clip(speaker: Speaker) -> None:
    """From the uploaded file to the output samples; half a second of silence follows the clip.

    In two parts, `tests/model/test_clone.py` and `tests/engine/qwen3/test_engine.py` compare the same.
    """

    def upstream() -> NDArray[np.float32]:
        model = oracle.load(tiny.checkpoint("base"))
        longer = np.pad(CLIP.numpy(), (0, 12_000))
        (item,), (padded,) = (
            model.create_voice_clone_prompt((samples, 24_000), TRANSCRIPT, x_vector_only_mode=False)
            for samples in (CLIP.numpy(), longer)
        )
        item.ref_code = padded.ref_code
        return theirs(model, "generate_voice_clone", voice_clone_prompt=[item], language="German")

    expected = await asyncio.to_thread(upstream)  # an engine counts as hung while its front does not ask
    async with wire(speaker.node.ws_url) as peer:
        endless = speaker.models[3].name
        await begin(peer, voice="bob", model=endless, clean=False, sampling={"temperature": 0})
        await peer.send("text.append", context_id="c", text=TEXT)
        await peer.send("context.end", context_id="c")
        await peer.until("context.started")
        await peer.until_audio("c", FRAMES)
        pcm = np.frombuffer(peer.pcm("c")[: FRAMES * FRAME_BYTES], "<i2")
    assert_same(pcm.astype(np.float32) / np.float32(32_767), expected)


async def test_all_audio_of_a_text_precedes_the_answer_to_its_flush(speaker: Speaker) -> None:
    alone = await speaker.stream("Hello world.", voice="bob")
    async with wire(speaker.node.ws_url) as peer:
        await begin(peer, voice="bob")
        await peer.send("text.append", context_id="c", text="Hello world.")
        await peer.send("context.flush", context_id="c", flush_id="one")
        flushed = await peer.until("context.flushed")
        assert flushed["flush_id"] == "one"
        assert same(peer.pcm("c"), alone)
        await peer.send("text.append", context_id="c", text=" And you?")
        await peer.send("context.end", context_id="c")
        assert (await peer.until("context.done"))["reason"] == "end"
        assert len(peer.pcm("c")) > len(alone)


async def test_a_cancelled_context_does_not_affect_later_ones(speaker: Speaker) -> None:
    alone = await speaker.stream(WORDS, voice="ryan")
    async with wire(speaker.node.ws_url) as peer:
        for number in range(SLOTS):
            await begin(peer, f"{number}", voice="bob")
            await peer.send("text.append", context_id=f"{number}", text=20 * WORDS)
        for number in range(SLOTS):
            await peer.until_audio(f"{number}", 3)
            await peer.send("context.cancel", context_id=f"{number}")
            assert (await peer.until("context.done", f"{number}"))["reason"] == "cancelled"
        assert speaker.node.node.service.speaking == 0
    after = await asyncio.gather(*(speaker.stream(WORDS, voice="ryan") for _ in range(SLOTS)))
    assert all(same(pcm, alone) for pcm in after)


# ---------------------------------------------------------------- pieces

CLAUSES = ["Well, ", "fine. ", "Now, ", "let ", "me ", "look ", "at ", "it."]  # less text than `bob` wants


async def test_a_cancel_between_early_clauses_leaves_nothing_behind(speaker: Speaker) -> None:
    """While a clause is spoken and the next waits for its turn or its text."""
    alone = await speaker.stream(WORDS, voice="bob")
    async with wire(speaker.node.ws_url) as peer:
        for number in range(4):
            context = f"{number}"
            await begin(peer, context, voice="bob", lead_ms=1_000)
            for clause in CLAUSES[: 4 + number]:
                await peer.send("text.append", context_id=context, text=clause)
            await peer.until_audio(context, 1 + number)
            await peer.send("context.cancel", context_id=context)
            await peer.until("context.cancelled", context)
            heard = peer.pcm(context)
            done = await peer.until("context.done", context)
            assert done["reason"] == "cancelled"
            assert peer.pcm(context) == heard
        await until(lambda: speaker.node.node.service.speaking == 0)
    assert same(await speaker.stream(WORDS, voice="bob"), alone)


# ---------------------------------------------------------------- models


@pytest.mark.slow
async def test_a_request_may_name_its_model(speaker: Speaker) -> None:
    """The named one of the two models that speak the voice is loaded; it almost never ends."""
    *_, cloned, endless = (model.name for model in speaker.models)
    usual = await speaker.request("Hi.", voice="vec", **SPOKEN)
    assert same(await speaker.request("Hi.", voice="vec", model=cloned, **SPOKEN), usual)
    async with wire(speaker.node.ws_url) as peer:
        await peer.say("c", "Hi.", voice="vec", model=endless, lead_ms=None, **SPOKEN)
        done = await peer.until("context.done")
        assert (done["reason"], done["cut"]) == ("end", ["overrun"])


async def test_without_a_voice_a_model_speaks_with_its_own(speaker: Speaker) -> None:
    """Not with that of the first model."""
    for model, voice in zip(speaker.models[:3], ("ryan", "design", "anyone"), strict=True):
        heard = await asyncio.gather(
            speaker.stream("Hello.", model=model.name),
            speaker.request("Hello.", model.name, **SPOKEN),
            speaker.request("Hello.", model.name, voice, **SPOKEN),
        )
        assert all(same(heard[0], other) for other in heard[1:]), model


# ---------------------------------------------------------------- deleted voices


async def test_a_deleted_voice_is_unknown_and_its_name_free(speaker: Speaker) -> None:
    """Running speech in the voice continues."""
    await speaker.embed("gone", speaker.vector)
    alone = await speaker.stream(WORDS, voice="gone")
    async with wire(speaker.node.ws_url) as peer:
        await begin(peer, voice="gone")
        await peer.send("text.append", context_id="c", text=WORDS[:12])
        await peer.until_audio("c")
        await speaker.openai.audio.voices.delete("gone")
        error = await refusal(speaker, voice="gone")
        assert (error["code"], error["fatal"]) == ("unknown_voice", False)
        await peer.send("text.append", context_id="c", text=WORDS[12:])
        await peer.send("context.end", context_id="c")
        assert (await peer.until("context.done"))["reason"] == "end"
        assert same(peer.pcm("c"), alone)
    await speaker.embed("gone", speaker.vector[::-1])
    assert not same(await speaker.stream(WORDS, voice="gone"), alone)
    await speaker.openai.audio.voices.delete("gone")
    with pytest.raises(openai.BadRequestError, match="no such voice"):
        await speaker.request("Hi.", voice="gone")
