"""Voices of the library over HTTP: real requests, a real library, a tiny Base checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from safetensors.numpy import load_file

from agent_tts.bench.checkpoint import write
from agent_tts.engine_info import Model
from agent_tts.errors import UnknownVoice
from agent_tts.options import SpeechOptions
from agent_tts.serve.access.guard import Client
from agent_tts.serve.access.ledger import MAX_CLIPS
from agent_tts.voices import enroll
from tests.fronts import running_fronts
from tests.serve.processes.test_server import raw, read_all
from tests.serve.routes.test_http import error_of
from tests.small_disk import NEEDS_ROOT, small_disk
from tests.support import (
    RunningNode,
    app_with,
    ended,
    present,
    running_app,
    running_node,
    settings_of,
    taken,
    until,
    with_models,
)
from tests.voices.clips import KINDS, encoded, tone
from tests.voices.encoder import without_torch

pytestmark = pytest.mark.node

CONSENT = "I am Bob, and this is my voice."
CLIP = encoded(KINDS["wav"], tone())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A Base checkpoint, which can clone voices."""
    folder = tmp_path_factory.mktemp("base") / "checkpoint"
    encoder = present(write(folder, model_type="base").speaker_encoder)
    return Model("base-tiny", "cloned", str(folder), encoder.enc_dim)


DESIGN = Model("design-tiny", "designed", "nowhere")
OLD = {"type": "prompt", "name": "old", "prompt": "a calm old man"}


@asynccontextmanager
async def voices_of(
    folder: Path, *models: Model, **limits: float
) -> AsyncIterator[tuple[RunningNode, httpx.AsyncClient]]:
    """A node with these models and an empty library with these limits, and a client of its voices."""
    settings = settings_of(voices={"folder": str(folder / "library"), **limits})
    async with running_app(app_with(settings, with_models(*models))) as node:
        async with httpx.AsyncClient(base_url=f"{node.url}/v1/audio", timeout=60) as http:
            yield node, http


def openai_client(node: RunningNode) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{node.url}/v1", api_key="x", max_retries=0, timeout=60)


def clone(http: httpx.AsyncClient, clip: bytes = CLIP, **fields: str) -> Any:
    form = {"name": "bob", "consent": CONSENT, **fields}
    return http.post("/voices", data=form, files={"audio_sample": ("bob.wav", clip, "audio/wav")})


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def names(http: httpx.AsyncClient) -> list[str]:
    listed = (await http.get("/voices")).json()["voices"]
    return [voice["name"] for voice in listed if not voice["name"].startswith("tone-")]


# ---------------------------------------------------------------- adding and deleting


async def test_a_clone_is_made_listed_shown_routed_and_deleted(tmp_path: Path, base: Model) -> None:
    """With the official client. It keeps who consented when, and to what."""
    async with voices_of(tmp_path, base, DESIGN) as (node, http), openai_client(node) as client:
        fields = {"ref_text": "A tone.", "description": "a tone", "consent_by": "Bob Smith"}
        made = await client.audio.voices.create(
            audio_sample=("b.wav", CLIP), consent=CONSENT, name="bob", extra_body=fields
        )
        assert (made.id, made.object, made.name, made.type) == ("bob", "audio.voice", "bob", "audio_sample")
        told = made.model_dump()
        assert told["frames"] > 2.0 / 0.08  # the clip, and silence after it
        assert told["live_chars"] == 4 * told["frames"] - len("A tone.")
        assert CONSENT not in made.model_dump_json()
        assert await names(http) == ["bob"]
        assert (await http.get("/voices")).json()["clones"] is True
        shown = (await http.get("/voices/bob")).json()
        recorded = datetime.fromisoformat(shown["consent"].pop("recorded_at"))
        digest = hashlib.sha256(CLIP).hexdigest()
        assert shown["consent"] == {"statement": CONSENT, "by": "Bob Smith", "clip_sha256": digest}
        assert 0 <= (datetime.now(UTC) - recorded).total_seconds() < 600
        assert (shown["kind"], shown["transcript"], shown["vector_sizes"]) == ("cloned", "A tone.", [base.vector_size])
        resolved = node.node.service.resolve(SpeechOptions(voice="bob"))
        assert (resolved.voice, resolved.options.model) == ("bob", "base-tiny")
        again = await clone(http)
        assert (again.status_code, error_of(again)["code"]) == (409, "voice_exists")
        deleted = await http.delete("/voices/bob")
        assert deleted.json() == {"id": "bob", "object": "audio.voice.deleted", "deleted": True}
        assert await names(http) == []
        assert (await http.delete("/voices", params={"name": "bob"})).status_code == 404
    assert {path.name for path in (tmp_path / "library").iterdir()} <= {".lock"}


@pytest.mark.real_time
async def test_a_deleted_voice_is_gone_from_all_fronts_and_files(
    tmp_path: Path, base: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the clip, nor its words, nor the speaker's vector is left in a file, wherever a process put one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    library = tmp_path / "library"
    async with (
        running_fronts(engine=with_models(base), voices={"folder": str(library)}) as found,
        contextlib.AsyncExitStack() as closing,
    ):
        one, other = [
            await closing.enter_async_context(httpx.AsyncClient(base_url=f"{front.url}/v1/audio", timeout=60))
            for front in found.fronts
        ]
        (await clone(one, ref_text="Words of nobody else.")).raise_for_status()
        vector = load_file(library / "bob" / "voice.safetensors")[f"vector_{base.vector_size}"].tobytes()
        await until(lambda: bool(found.fronts[1].node.service.library.known))  # pyrefly: ignore[missing-attribute]
        assert await names(other) == ["bob"]
        assert (await other.delete("/voices/bob")).status_code == 200
        for front in found.fronts:  # each has a thread that looks
            await until(lambda: front.node.service.library.known == ())  # pyrefly: ignore[missing-attribute]  # noqa: B023
        for http in (one, other):
            assert await names(http) == []
            assert (await http.get("/voices/bob")).status_code == 404
        for front in found.fronts:
            service = front.node.service
            with pytest.raises(UnknownVoice):
                service.resolve(SpeechOptions(voice="bob"))
            assert "nobody else" not in repr((vars(present(service.library)), vars(service.routing)))
    left = [path.read_bytes() for path in files_below(tmp_path)]
    for secret in (CLIP[1_000:2_000], b"Words of nobody else", vector, vector[:64]):
        assert not any(secret in content for content in left)


async def test_designs_and_embeddings_are_sent_as_json(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base, DESIGN) as (_, http):
        designed = await http.post("/voices", json=OLD)
        assert (designed.status_code, designed.json()["prompt"]) == (200, "a calm old man")
        embedded = await http.post("/voices", json=vector_of(base, CONSENT))
        assert (embedded.status_code, embedded.json()["type"]) == (200, "embedding")
        assert await names(http) == ["old", "vec"]
        shown = (await http.get("/voices/old")).json()
        assert (shown["prompt"], shown["consent"]) == ("a calm old man", None)


# ---------------------------------------------------------------- recorded consents


def vector_of(base: Model, consent: str) -> dict[str, Any]:
    """A voice from a vector, which takes no time."""
    vector = [0.25] * (base.vector_size or 0)
    return {"type": "embedding", "name": "vec", "speaker_embedding": vector, "consent": consent}


async def test_a_voice_is_made_with_a_recorded_consent_as_at_openai(tmp_path: Path, base: Model) -> None:
    """With the official client, unmodified, and the recording as the application sends it. The voice keeps it.

    From a clip, by the program of the page below.
    """
    recording, name = encoded(KINDS["mp3"], tone()), "Zoë's consent 同意 " + "x" * 180
    async with voices_of(tmp_path, base) as (node, _), openai_client(node) as client:
        made = await client.audio.voice_consents.create(
            name=name, language="en-US", recording=("c.mp3", recording, "audio/mpeg")
        )
        assert (made.object, made.name, made.language) == ("audio.voice_consent", name, "en-US")
        assert made.id.startswith("cons_")
    async with voices_of(tmp_path, base) as (node, http), openai_client(node) as client:  # whoever has the folder
        assert await client.audio.voice_consents.retrieve(made.id) == made
        (await http.post("/voices", json=vector_of(base, made.id))).raise_for_status()
        digest = hashlib.sha256(recording).hexdigest()
        said = f"{name}: recording in en-US, SHA-256 {digest}, at {made.created_at} s of Unix time"
        assert (await http.get("/voices/vec")).json()["consent"]["statement"] == said
        assert not any(recording[200:400] in path.read_bytes() for path in files_below(tmp_path))


async def test_recorded_consents_are_listed_renamed_and_deleted_as_at_openai(tmp_path: Path, base: Model) -> None:
    """With the official client, in pages. A deleted one clones nothing more; what was cloned keeps what it said."""
    async with voices_of(tmp_path, base, limit=3) as (node, http), openai_client(node) as client:
        consents = client.audio.voice_consents
        recording = ("c.wav", CLIP, "audio/wav")
        assert [each async for each in await consents.list()] == []
        made = [await consents.create(name=name, language="de", recording=recording) for name in ("a", "b", "c")]
        with pytest.raises(openai.BadRequestError, match="no more than 3"):
            await consents.create(name="d", language="de", recording=recording)
        listed = await consents.list(limit=2)
        assert (len(listed.data), listed.has_more) == (2, True)
        every = [each async for each in listed]  # by the client's own pages
        assert sorted(every, key=lambda each: each.name) == made
        assert every == sorted(every, key=lambda each: (each.created_at, each.id), reverse=True)
        assert [each async for each in await consents.list(after=every[1].id)] == every[2:]
        (await http.post("/voices", json=vector_of(base, made[0].id))).raise_for_status()
        renamed = await consents.update(made[0].id, name="Bob 同意")
        assert renamed == made[0].model_copy(update={"name": "Bob 同意"}) == await consents.retrieve(made[0].id)
        assert sorted([each.name async for each in await consents.list()]) == ["Bob 同意", "b", "c"]
        deleted = await consents.delete(made[0].id)
        assert (deleted.id, deleted.object, deleted.deleted) == (made[0].id, "audio.voice_consent", True)
        gone: list[Callable[[], Awaitable[Any]]] = [
            lambda: consents.retrieve(made[0].id),
            lambda: consents.update(made[0].id, name="x"),
            lambda: consents.delete(made[0].id),
            lambda: consents.list(after=made[0].id),
        ]
        for call in gone:
            with pytest.raises(openai.NotFoundError) as error:
                await call()
            assert error.value.code == "unknown_consent"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.audio.voices.create(audio_sample=("b.wav", CLIP), consent=made[0].id, name="rob")
        assert refused.value.param == "consent"
        assert (await http.get("/voices/vec")).json()["consent"]["statement"].startswith("a: recording in de")
        assert await names(http) == ["vec"]
        for wrong in ({"limit": 0}, {"limit": 101}, {"limit": "x"}):
            assert (await http.get("/voice_consents", params=wrong)).status_code == 400
        for body in ({}, {"name": " "}, {"name": "x" * 201}, {"name": "x", "language": "de"}, {"name": None}):
            assert (await http.post(f"/voice_consents/{made[1].id}", json=body)).status_code == 400
        assert await consents.retrieve(made[1].id) == made[1]


@pytest.mark.real_time
async def test_all_fronts_know_a_recorded_consent(tmp_path: Path, base: Model) -> None:
    async with (
        running_fronts(engine=with_models(base), voices={"folder": str(tmp_path)}) as found,
        contextlib.AsyncExitStack() as closing,
    ):
        one, other = [await closing.enter_async_context(openai_client(front)) for front in found.fronts]
        made = await one.audio.voice_consents.create(name="a", language="de", recording=("c.wav", CLIP, "audio/wav"))
        assert [each async for each in await other.audio.voice_consents.list()] == [made]
        await other.audio.voice_consents.update(made.id, name="b")
        assert (await one.audio.voice_consents.retrieve(made.id)).name == "b"
        await one.audio.voice_consents.delete(made.id)
        assert [each async for each in await other.audio.voice_consents.list()] == []


async def test_the_program_of_the_page_on_moving_from_openai_runs(
    tmp_path: Path, base: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "web/docs/moving-from-openai.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    for name in ("consent.wav", "clip.wav"):
        (tmp_path / name).write_bytes(CLIP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(enroll, "run_module", without_torch)
    async with voices_of(tmp_path / "library", base) as (node, http):

        def run() -> None:
            with openai.OpenAI(base_url=f"{node.url}/v1", api_key="x", max_retries=0) as client:
                exec(program, {"client": client})

        await asyncio.to_thread(run)
        kept = (await http.get("/voices/bob")).json()["consent"]
        assert "Bob agrees: recording in en-US" in kept["statement"]
        assert kept["clip_sha256"] == hashlib.sha256(CLIP).hexdigest()


WRONG_IDS = ("cons_1234", "cons_", "cons_" + "W1tb" * 400, "cons_" + "0" * 20, "cons_é", "cons_..")


async def test_consents_are_refused_with_the_reason(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base) as (_, http):

        def send(clip: bytes = CLIP, **fields: str) -> Any:
            form = {"name": "Bob", "language": "en-US"} | fields
            return http.post("/voice_consents", data=form, files={"recording": ("c.wav", clip, "audio/wav")})

        for answer, param in (
            (await send(name=" "), "name"),
            (await send(name="x" * 201), "name"),
            (await send(language="the English"), "language"),
            (await send(b"no sound"), "recording"),
            (await send(encoded(KINDS["wav"], tone(0.2))), "recording"),
            (await send(voice="x"), None),
            (await http.post("/voice_consents", data={"name": "x", "language": "en", "recording": "text"}), None),
            *[(await clone(http, consent=wrong), "consent") for wrong in WRONG_IDS],
        ):
            assert (answer.status_code, error_of(answer)["param"]) == (400, param), answer.text
        for wrong in (*WRONG_IDS, "nobody"):
            assert (await http.get(f"/voice_consents/{wrong}")).status_code == 404
    assert not files_below(tmp_path)


async def test_a_node_that_clones_no_voices_records_no_consents() -> None:
    async with running_node() as node, httpx.AsyncClient(base_url=f"{node.url}/v1/audio") as http:
        answer = await http.post("/voice_consents", data={"name": "x", "language": "en"}, files={"recording": CLIP})
        assert (answer.status_code, error_of(answer)["code"]) == (400, "unsupported")


# ---------------------------------------------------------------- refusals

# Changes to the request for a designed voice; ... removes a field.
EMBEDDING = {"type": "embedding", "speaker_embedding": [1.0] * 64, "consent": CONSENT, "prompt": ...}
REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"name": "B ob"}, "name", "pattern"),
    ({"name": "con"}, "name", "device"),
    ({"name": "alloy"}, "name", "voice of the engine"),
    ({"name": "tone-440"}, "name", "voice of the engine"),
    ({"name": "design"}, "name", "voice of the engine"),
    ({"name": None}, "name", "string"),
    ({"type": "song"}, "type", "audio_sample, prompt, embedding"),
    ({"type": ["prompt"]}, "type", "audio_sample, prompt, embedding"),
    ({"type": "audio_sample", "audio_sample": "UklGRg=="}, "audio_sample", "a file in multipart/form-data"),
    ({"prompt": " "}, "prompt", "pattern"),
    ({"prompt": "x" * 2_001}, "prompt", "2000"),
    ({"promt": "x"}, None, "fields are name, description, type, prompt"),
    (EMBEDDING | {"speaker_embedding": [0.5]}, "speaker_embedding", "value"),
    (EMBEDDING | {"speaker_embedding": []}, "speaker_embedding", "at least 1"),
    (EMBEDDING | {"consent": ...}, "consent", "required"),
]


async def test_refusals_name_the_allowed_values_and_leave_no_files(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base, DESIGN) as (_, http):
        for fields, param, says in REFUSED:
            body = OLD | fields
            response = await http.post("/voices", json={key: value for key, value in body.items() if value is not ...})
            error = error_of(response)
            assert (response.status_code, error["code"], error["param"]) == (400, "bad_message", param), fields
            assert says in error["message"]
        for raw in (b"", b"{", b"[]", b"\xff", b"[" * 50_000, b'{"type":"embedding","speaker_embedding":[NaN]}'):
            response = await http.post("/voices", content=raw)
            assert response.status_code == 400, raw
            error_of(response)
    assert not (tmp_path / "library").exists()


CLIPS: list[tuple[dict[str, Any], str]] = [
    ({"clip": b"no audio at all"}, "audio_sample"),
    ({"clip": encoded(KINDS["wav"], tone(0.5))}, "audio_sample"),
    ({"clip": encoded(KINDS["wav"], tone(3.0))}, "audio_sample"),
    ({"clip": encoded(KINDS["wav"], tone(peak=0.0))}, "audio_sample"),
    ({"consent": " "}, "consent"),
    ({"ref_text": "x" * 1_001}, "ref_text"),
]


async def test_invalid_clips_are_refused_and_leave_no_files(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base, clip_s=2.5) as (_, http):
        for fields, param in CLIPS:
            response = await clone(http, **fields)
            assert (response.status_code, error_of(response)["param"]) == (400, param), fields
        without = await http.post("/voices", data={"name": "bob", "consent": CONSENT}, files={"other": b"x"})
        assert error_of(without)["param"] in (None, "audio_sample")
    assert not (tmp_path / "library").exists()


async def test_a_voice_without_a_model_is_refused_with_the_missing_model(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base) as (_, http):
        response = await http.post("/voices", json=OLD)
        assert error_of(response)["code"] == "unsupported"
        assert "Qwen3-TTS-12Hz-1.7B-VoiceDesign" in error_of(response)["message"]
    async with voices_of(tmp_path, DESIGN) as (_, http):
        response = await clone(http)
        assert error_of(response)["code"] == "unsupported"
        assert "Qwen3-TTS-12Hz-1.7B-Base" in error_of(response)["message"]


@NEEDS_ROOT
async def test_a_full_disk_is_507(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        (tmp_path / "all of it").write_bytes(bytes(1 << 16))
        async with voices_of(tmp_path, DESIGN) as (_, http):
            answer = await http.post("/voices", json=OLD)
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full"), answer.text
            assert await names(http) == []
            (tmp_path / "all of it").unlink()
            assert (await http.post("/voices", json=OLD)).status_code == 200


async def test_a_voice_of_the_engine_is_shown_by_any_of_its_names_and_cannot_be_deleted(
    tmp_path: Path, base: Model
) -> None:
    async with voices_of(tmp_path, base) as (_, http):
        own = (await http.get("/voices/tone-440")).json()
        assert (own["name"], own["kind"], own["created_at"]) == ("tone-440", "own", None)
        assert (await http.get("/voices/nobody")).status_code == 404
        alias = (await http.get("/voices/alloy")).json()
        assert (alias["name"].partition("-")[0], alias["kind"]) == ("tone", "own"), alias
        for name in ("tone-440", "alloy"):
            response = await http.delete(f"/voices/{name}")
            assert (response.status_code, error_of(response)["param"]) == (400, "name")
        for name in ("..%2F..%2Fetc", "%00", "x" * 100):
            assert (await http.delete(f"/voices/{name}")).status_code in (400, 404)


# ---------------------------------------------------------------- bounds


async def test_an_upload_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base, clip_bytes=200_000) as (node, http):
        head = "POST /v1/audio/voices HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n"
        async with raw(node, head.encode()) as sock:
            answer = await read_all(sock)
        assert answer.startswith(b"HTTP/1.1 413 ")
        within = await clone(http, clip=bytes(199_000))
        assert error_of(within)["param"] == "audio_sample"


async def test_clips_that_wait_are_bounded(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base) as (node, http):
        with contextlib.ExitStack() as places:
            for _ in range(MAX_CLIPS):
                places.enter_context(await node.node.guard.place("clips", Client(None)))
            refused = await clone(http)
            assert (refused.status_code, error_of(refused)["code"]) == (503, "at_capacity")
        assert (await clone(http, b"no audio at all")).status_code == 400


async def test_a_disconnect_cancels_the_enrolment(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base) as (node, http):
        request = asyncio.create_task(clone(http))
        await until(lambda: node.node.enrolment is not None and taken(node, "new voices") == 0)
        await asyncio.sleep(0.2)  # in the middle of it
        await ended(request)
        admitted = node.node.metrics.registry.get_sample_value
        await until(lambda: admitted("agent_tts_sessions") == 0)
        assert await names(http) == []


async def test_a_draining_node_accepts_no_voices(tmp_path: Path, base: Model) -> None:
    async with voices_of(tmp_path, base) as (node, http):
        node.node.service.draining = True
        assert (await clone(http)).status_code == 503


# ---------------------------------------------------------------- speaker embeddings in requests


async def test_a_speaker_embedding_of_the_largest_model_fits_into_a_message(tmp_path: Path) -> None:
    vector = [-1.2345678901234567e-05] * 2_048
    large = Model("base", "cloned", "nowhere", 2_048)
    async with voices_of(tmp_path, large) as (node, http):
        body = json.dumps({"input": "Hi", "speaker_embedding": vector})
        assert len(body) < node.node.settings.limits.message_bytes
        response = await http.post("/speech", content=body)
        assert response.status_code == 200
        assert "x-voice" not in response.headers
        short = await http.post("/speech", json={"input": "Hi", "speaker_embedding": [0.5]})
        assert (short.status_code, error_of(short)["param"]) == (400, "speaker_embedding")
        assert "allowed are 2048" in error_of(short)["message"]


async def test_a_json_body_has_the_limit_of_other_messages(tmp_path: Path) -> None:
    """It contains no clip, and parsing long arrays would delay all listeners."""
    async with voices_of(tmp_path, DESIGN) as (_, http):
        answer = await http.post("/voices", json=OLD | {f"k{n}": 0 for n in range(10_000)})
        assert (answer.status_code, error_of(answer)["code"]) == (413, "text_too_long")


async def test_a_voice_has_a_lexicon(tmp_path: Path) -> None:
    async with voices_of(tmp_path, DESIGN) as (_, http):
        assert (await http.post("voices", json=OLD | {"name": "ann"})).is_success
        assert (await http.get("voices/ann/lexicon")).json() == {}
        mapping = {"nginx": "engine x", "GIF": {"ipa": "dʒɪf"}}
        assert (await http.put("voices/ann/lexicon", json=mapping)).json() == mapping
        assert (await http.get("voices/ann/lexicon")).json() == mapping
        pls = "<lexicon><lexeme><grapheme>a</grapheme><alias>b</alias></lexeme></lexicon>"
        assert (await http.put("voices/ann/lexicon", content=pls)).json() == {"a": "b"}
        for wrong in ("", "[]", '{"a": 5}', "<speak/>", "[" * 100_000):
            answer = await http.put("voices/ann/lexicon", content=wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lexicon")
        assert (await http.put("voices/eve/lexicon", json=mapping)).status_code == 404
        assert (await http.get("voices/ann/lexicon")).json() == {"a": "b"}
        assert (await http.put("voices/ann/lexicon", json={})).json() == {}
