"""`/v1/audio/voices`, in OpenAI's format, and `/v1/audio/detect`: what is made of clips and kept, or not."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from dataclasses import fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from agent_tts.errors import BadMessage, Draining, InvalidRequest, UnknownConsent, UnknownVoice, Unsupported
from agent_tts.protocol import validation
from agent_tts.protocol.options import SpeakerEmbedding, Strict
from agent_tts.serve import openai
from agent_tts.serve.access.guard import Client
from agent_tts.serve.node import Node
from agent_tts.serve.routes import multipart
from agent_tts.serve.routes.http import ERRORS, Authorized, Here, body_of, json_body, read_as, read_fields, told_aside
from agent_tts.serve.transports.writer import disconnected
from agent_tts.system.records import JsonRecords
from agent_tts.text.entries import MAX_ENTRIES, Entry, Lexicon
from agent_tts.text.pls import read_pls
from agent_tts.voices import enroll
from agent_tts.voices.detection import Detection, detect
from agent_tts.voices.library import CONSENT_ID, FOLLOW_S, Consent, RecordedConsent, StoredVoice, VoiceLibrary

T = TypeVar("T")

LEXICON_BYTES = 1 << 20  # of an uploaded lexicon


def _is_file(value: object) -> object:
    if not isinstance(value, bytes):
        raise ValueError(f"should be a file in {multipart.CONTENT_TYPE}")
    return value


class NewVoice(Strict):
    """Fields of every new voice."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", description="the name for requests")
    description: str = Field("", max_length=enroll.MAX_DESCRIPTION_CHARS, description="for the list of voices")


ConsentText = Annotated[
    str,
    Field(
        pattern=r"\S",
        max_length=enroll.MAX_CONSENT_CHARS,
        description="how the speaker agreed, and to what; kept with the voice",
    ),
]
ConsentBy = Annotated[
    str | None, Field(max_length=enroll.MAX_CONSENT_BY_CHARS, description="who gave the consent; kept with the voice")
]


class NewClone(NewVoice):
    """A voice cloned from a clip."""

    type: Literal["audio_sample"] = "audio_sample"
    audio_sample: Annotated[
        bytes,
        BeforeValidator(_is_file),
        Field(description="an audio file of one speaker: 3 to 10 s with ref_text, up to 30 s without"),
    ]
    consent: ConsentText
    consent_by: ConsentBy = None
    ref_text: str | None = Field(
        None, max_length=enroll.MAX_TRANSCRIPT_CHARS, description="the words of the clip, for a closer likeness"
    )


class NewDesign(NewVoice):
    """A voice designed from a description."""

    type: Literal["prompt"]
    prompt: str = Field(pattern=r"\S", max_length=enroll.MAX_PROMPT_CHARS, description="how the voice should sound")


class NewEmbedding(NewVoice):
    """A voice from a speaker embedding that was made elsewhere."""

    type: Literal["embedding"]
    speaker_embedding: SpeakerEmbedding
    consent: ConsentText
    consent_by: ConsentBy = None


class ConsentName(Strict):
    """What a client calls a consent."""

    name: str = Field(pattern=r"\S", max_length=200, description="the client's name for it")


class NewConsent(ConsentName):
    """A recording in which a speaker consents."""

    language: str = Field(pattern=r"^[A-Za-z0-9]{1,8}([-_][A-Za-z0-9]{1,8}){0,7}$", description="BCP 47, such as en-US")
    recording: Annotated[bytes, BeforeValidator(_is_file), Field(description="an audio file, which is not kept")]


_TYPES: dict[str, type[NewVoice]] = {"audio_sample": NewClone, "prompt": NewDesign, "embedding": NewEmbedding}


def parse(content_type: str, body: bytes) -> NewClone | NewDesign | NewEmbedding:
    """The request in a form or JSON. Raises `BadMessage`, which does not quote the body."""
    given: dict[str, Any]
    if _is_form(content_type):
        given = multipart.parse(content_type, body)
    else:
        given = validation.parse(body, f"the body must be {multipart.CONTENT_TYPE}, or one JSON object in UTF-8")
    kind = given.get("type", "audio_sample")
    model = _TYPES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidRequest(f"type: must be one of {', '.join(_TYPES)}", "type")
    return validation.check_fields(model, given)  # pyrefly: ignore[bad-return]


def _is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == multipart.CONTENT_TYPE


CHARS_PER_TOKEN = 4  # of a text in a European language; a frame of a clip has a token beside it


class VoiceAdded(BaseModel):
    """An added voice."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    created_at: int  # Unix time, in seconds
    name: str
    type: Literal["audio_sample", "prompt", "embedding"]
    prompt: str | None = None
    description: str
    ref_text: str | None = None
    frames: int  # of the clip that are stored as codes, 80 ms each; 0 when only the speaker embedding is
    # Characters that a live text has beside the clip, about; while fewer are there, it is spoken clause by clause.
    live_chars: int = 0

    @classmethod
    def of(cls, voice: StoredVoice, type_: Literal["audio_sample", "prompt", "embedding"]) -> Self:
        return cls(
            id=voice.name,
            created_at=int(voice.created_at.timestamp()),
            name=voice.name,
            type=type_,
            prompt=voice.prompt,
            description=voice.description,
            ref_text=voice.transcript,
            frames=voice.frames,
            live_chars=max(0, CHARS_PER_TOKEN * voice.frames - len(voice.transcript or "")),  # without frames it is 0
        )


class VoiceDetails(BaseModel):
    """All that the node keeps of a voice, apart from its vectors and codes."""

    name: str
    kind: Literal["own", "designed", "cloned"]  # own: one of the engine's
    languages: list[str]
    description: str
    prompt: str | None = None  # of a designed voice
    transcript: str | None = None  # of the clip, with its codes; null: only the speaker's vectors are kept
    frames: int = 0  # of codes, 80 ms each
    vector_sizes: list[int] = []  # hidden sizes of the models that can speak it
    adapter: bool = False  # whether it has a LoRA adapter
    created_at: datetime | None = None  # null for an engine's own
    consent: Consent | None = None  # of a cloned voice

    @classmethod
    def of(cls, voice: StoredVoice, languages: list[str]) -> Self:
        known = {name: getattr(voice, name) for name in cls.model_fields if name != "languages"}
        return cls(**known, languages=languages)


class ConsentList(BaseModel):
    """Recorded consents, the newest first."""

    object: Literal["list"] = "list"
    data: list[RecordedConsent]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConsentDeleted(BaseModel):
    """A deleted consent."""

    id: str
    object: Literal["audio.voice_consent"] = "audio.voice_consent"
    deleted: Literal[True] = True


class VoiceDeleted(BaseModel):
    """A deleted voice."""

    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Literal[True] = True


routes = APIRouter(prefix="/v1/audio", responses=ERRORS)


def _one_of(*models: type[Strict]) -> dict[str, Any]:
    return {"schema": {"oneOf": [model.model_json_schema() for model in models]}}


_LEXICON = body_of({"application/json": {"schema": {"type": "object"}}, "application/pls+xml": {}})
_CLIP = {"audio_sample": {"type": "string", "format": "binary", "description": "an audio file"}}
_ONLY_CLIP = {"type": "object", "properties": _CLIP, "required": ["audio_sample"], "additionalProperties": False}
_DETECTED = body_of({multipart.CONTENT_TYPE: {"schema": _ONLY_CLIP}})
_RECORDING = body_of({multipart.CONTENT_TYPE: _one_of(NewConsent)})
_NEW = {"application/json": _one_of(NewDesign, NewEmbedding), multipart.CONTENT_TYPE: _one_of(NewClone, NewDesign)}


@routes.get("/voices", response_model=openai.VoiceList)
async def list_voices(node: Here, client: Authorized) -> Response:
    """All voices that a request may name."""
    service = node.service
    clones = service.library is not None and service.routing.speaks("cloned")
    return await told_aside(node, lambda: openai.voice_list(service.routing, clones=clones))


@routes.post("/voices", openapi_extra=body_of(_NEW))
async def create_voice(request: Request, node: Here, client: Authorized) -> VoiceAdded:
    """Add a voice: cloned from a clip (multipart), designed from a description, or from a speaker embedding (JSON).

    If the client leaves before the answer, the voice is not added.
    """
    if node.service.draining:
        raise Draining
    enrolment = _enrolment(node)
    with await node.guard.admit(client):
        # Only a form may be as long as a clip: parsing JSON costs time and memory for each value.
        is_form = _is_form(request.headers.get("content-type", ""))
        new = await _uploaded(request, node, client, parse, node.settings.voices.clip_bytes if is_form else 0)
        node.service.routing.check_new(new.name, "designed" if isinstance(new, NewDesign) else "cloned")
        if not isinstance(new, NewDesign) and new.consent.startswith(CONSENT_ID):
            new = new.model_copy(update={"consent": await _stated(node, new.consent)})
        voice = await _unless_gone(request.receive, _add(node, client, enrolment, new))
    await _told(node)
    return VoiceAdded.of(voice, new.type)


@routes.get("/voices/{name}")
async def show_voice(name: str, node: Here, client: Authorized) -> VoiceDetails:
    """One voice, by its name or an alias; of a clone also who consented, when and to what."""
    service = node.service
    for own in service.routing.info.voices:
        if own.name == service.routing.info.aliases.get(name, name):
            languages = list(own.languages)
            return VoiceDetails(name=own.name, kind="own", languages=languages, description=own.description)
    stored = await _in_library(node, name, "have a lexicon", lambda library: library.get(name))
    return VoiceDetails.of(stored, sorted(set(service.routing.info.languages.values())))


@routes.delete("/voices")
@routes.delete("/voices/{name}")
async def delete_voice(name: str, node: Here, client: Authorized) -> VoiceDeleted:
    """Delete an added voice."""
    await _in_library(node, name, "can be deleted", lambda library: library.delete(name))
    await _told(node)
    return VoiceDeleted(id=name)


@routes.post("/voice_consents", openapi_extra=_RECORDING)
async def create_consent(request: Request, node: Here, client: Authorized) -> RecordedConsent:
    """Record a consent, whose id can be the `consent` of a voice. The recording is checked, and not kept."""
    settings = node.settings.voices
    _enrolment(node)
    with await node.guard.admit(client):
        form = await _uploaded(request, node, client, multipart.parse, settings.clip_bytes)
        new = validation.check_fields(NewConsent, form)
        with await node.guard.place("clips", client):
            try:
                await _unless_gone(request.receive, enroll.decode(new.recording, max_s=settings.clip_s))
            except InvalidRequest as error:
                raise InvalidRequest(error.message.replace("audio_sample", "recording"), "recording") from None

    def record(consents: JsonRecords[RecordedConsent]) -> RecordedConsent:  # the digest of 10 MB takes milliseconds
        digest = hashlib.sha256(new.recording).hexdigest()
        return consents.add(RecordedConsent(name=new.name, language=new.language, sha256=digest))

    return await _in_consents(node, record)


@routes.get("/voice_consents")
async def list_consents(
    node: Here,
    client: Authorized,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ConsentList:
    """The recorded consents, the newest first, from behind the one whose id is `after`."""
    found = list(await _in_consents(node, lambda consents: consents.all()))
    found.sort(key=lambda each: (each.created_at, each.id), reverse=True)
    ids = [each.id for each in found]
    if after is not None and after not in ids:
        raise UnknownConsent("after: this node has no such consent")
    first = 0 if after is None else ids.index(after) + 1
    page = found[first : first + limit]
    return ConsentList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=first + limit < len(ids),
    )


@routes.get("/voice_consents/{consent_id}")
async def show_consent(consent_id: str, node: Here, client: Authorized) -> RecordedConsent:
    """A recorded consent."""
    return await _in_consents(node, lambda consents: consents.by_id(consent_id))


@routes.post("/voice_consents/{consent_id}", openapi_extra=json_body(ConsentName))
async def rename_consent(consent_id: str, request: Request, node: Here, client: Authorized) -> RecordedConsent:
    """Give a recorded consent another name. What voices were cloned with keeps the one that it had."""
    new = (await read_fields(request, ConsentName)).model_dump()
    renamed = partial(RecordedConsent.model_copy, update=new)
    return await _in_consents(node, lambda consents: consents.change(consent_id, renamed))


@routes.delete("/voice_consents/{consent_id}")
async def delete_consent(consent_id: str, node: Here, client: Authorized) -> ConsentDeleted:
    """Delete a recorded consent: no other voice is cloned with it. Those that were keep what it said."""
    await _in_consents(node, lambda consents: consents.delete(consent_id))
    return ConsentDeleted(id=consent_id)


@routes.get("/voices/{name}/lexicon", response_model=dict[str, Any])
async def get_lexicon(name: str, node: Here, client: Authorized) -> Response:
    """How words are said in an added voice: a mapping from words to their alias, or to their alias and IPA."""
    lexicon = await _in_library(node, name, "have a lexicon", lambda library: library.lexicon(name))
    return await _mapping_of(node, lexicon)


@routes.put("/voices/{name}/lexicon", response_model=dict[str, Any], openapi_extra=_LEXICON)
async def put_lexicon(name: str, request: Request, node: Here, client: Authorized) -> Response:
    """Set how words are said in an added voice, in JSON or W3C PLS; an empty mapping removes it. Answers as GET."""
    await _in_library(node, name, "have a lexicon", lambda library: library.get(name))
    try:
        lexicon = await read_as(request, _lexicon, LEXICON_BYTES, at_once=0)
    except (BadMessage, ValueError) as error:
        raise InvalidRequest(f"lexicon: {error}", "lexicon") from None
    await _in_library(node, name, "have a lexicon", lambda library: library.set_lexicon(name, lexicon))
    await _told(node)
    return await _mapping_of(node, lexicon)


async def _mapping_of(node: Node, lexicon: Lexicon | None) -> Response:
    """The answer with a lexicon, made where nobody waits: that of 10 000 words takes 50 ms."""

    def write() -> bytes:
        return json.dumps({} if lexicon is None else lexicon.mapping(), ensure_ascii=False).encode()

    return Response(await node.computing(write), media_type="application/json")


def _lexicon(body: bytes) -> Lexicon:
    if body.lstrip().startswith(b"<"):
        return read_pls(body)
    why = "a JSON object from words to what is said, or a PLS document"
    return Lexicon.of(validation.decode(body, why, (1 + len(fields(Entry))) * MAX_ENTRIES))


async def _stated(node: Node, consent_id: str) -> str:
    """What a recorded consent says."""
    try:
        return (await _in_consents(node, lambda consents: consents.by_id(consent_id))).statement()
    except UnknownConsent:
        why = "no id that POST /v1/audio/voice_consents of this node gave; or say in words how the speaker agreed"
        raise InvalidRequest(f"consent: {why}", "consent") from None


async def _in_consents(node: Node, work: Callable[[JsonRecords[RecordedConsent]], T]) -> T:
    """The result of work on the recorded consents. Raises `Unsupported` if the node stores no voices."""
    if node.service.library is None:
        raise Unsupported("this node stores no voices")
    return await node.service.in_thread(work, node.service.library.consents)


async def _told(node: Node) -> None:
    """Other fronts have seen a change, so that whoever is answered may name the voice at any of them."""
    if node.supervisor is not None:
        await asyncio.sleep(2 * FOLLOW_S)


async def _in_library(node: Node, name: str, what: str, work: Callable[[VoiceLibrary], T]) -> T:
    """The result of work on an added voice. Only added voices `what`.

    Raises `HTTPException` 404 if the library has no such voice, `InvalidRequest` if it is the engine's.
    """
    service = node.service
    if service.routing.is_own(name):
        raise InvalidRequest(f"name: this is a voice of the engine; only added voices {what}", "name")
    try:
        if service.library is None:
            raise UnknownVoice("this node stores no voices")
        return await service.in_thread(work, service.library)
    except UnknownVoice as error:
        raise HTTPException(404, error.message) from None


def _enrolment(node: Node) -> enroll.Enrolment:
    """The enrolment of a node, made at its first voice. Raises `Unsupported` if the node stores no voices."""
    info, library = node.service.routing.info, node.service.library
    if not info.models or library is None:
        raise Unsupported(f"voices cannot be added to the {info.engine} engine, only to qwen3")
    if node.enrolment is None:
        checkpoints = [(Path(model.source), model.vector_size) for model in info.models if model.vector_size]
        node.enrolment = enroll.Enrolment(library, checkpoints, node.settings.voices.clip_s)
    return node.enrolment


async def _add(
    node: Node, client: Client, enrolment: enroll.Enrolment, new: NewClone | NewDesign | NewEmbedding
) -> StoredVoice:
    kept = new.model_dump(include={"description", "consent", "consent_by"})
    match new:
        case NewClone():
            with await node.guard.place("clips", client):
                return await enrolment.enroll(new.name, new.audio_sample, transcript=new.ref_text, **kept)
        case NewDesign():
            return await node.service.in_thread(enrolment.design, new.name, new.prompt, **kept)
        case NewEmbedding():
            return await node.service.in_thread(enrolment.embed, new.name, new.speaker_embedding, **kept)


@routes.post("/detect", openapi_extra=_DETECTED)
async def detect_speech(request: Request, node: Here, client: Authorized) -> Detection:
    """Look for the marks of this project's nodes in an audio file, which is not kept."""
    settings = node.settings
    with await node.guard.admit(client):
        form = await _uploaded(request, node, client, multipart.parse, settings.voices.clip_bytes)
        clip = form.pop("audio_sample", None)
        if not isinstance(clip, bytes) or form:
            raise InvalidRequest(f"audio_sample: must be a file in {multipart.CONTENT_TYPE}, and alone", "audio_sample")
        folder = None if settings.watermark == "none" else Path(settings.audioseal.source)
        with await node.guard.place("clips", client):
            return await _unless_gone(request.receive, detect(clip, folder, max_s=settings.voices.clip_s))


async def _uploaded(
    request: Request, node: Node, client: Client, parse: Callable[[str, bytes], T], file_bytes: int
) -> T:
    """A body that may have a clip, of which few are received at once, as `parse` makes it of its type and its bytes."""
    with await node.guard.place("new voices", client):
        return await read_as(request, partial(parse, request.headers.get("content-type", "")), file_bytes)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves or this is cancelled."""
    task = asyncio.create_task(work, name="work on a clip")
    gone = asyncio.create_task(disconnected(receive), name="client of a clip")
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise BadMessage("the client has left")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
