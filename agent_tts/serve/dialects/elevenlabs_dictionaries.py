"""ElevenLabs' pronunciation dictionaries, `/v1/pronunciation-dictionaries`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import InvalidRequest
from agent_tts.protocol.options import Lenient
from agent_tts.serve.dialects.elevenlabs_http import error_body
from agent_tts.serve.dictionaries import MAX_DESCRIPTION, MAX_NAME, MAX_RULES, RULES_BYTES, Dictionary, Rule
from agent_tts.serve.node import Node
from agent_tts.serve.routes import multipart
from agent_tts.serve.routes.http import (
    AUDIO,
    VENDOR_ERRORS,
    Authorized,
    Here,
    errors_as,
    json_body,
    read_as,
    read_fields,
)
from agent_tts.text.pls import MAX_BYTES, read_pls, write_pls

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Description = Annotated[str, Field(max_length=MAX_DESCRIPTION)]


class ToldRule(Lenient):
    """What is said instead of a word."""

    string_to_replace: str
    case_sensitive: bool | None = None
    word_boundaries: bool | None = None


class AliasRule(ToldRule):
    """A text that is said instead of a word."""

    type: Literal["alias"] = "alias"
    alias: str


class PhonemeRule(ToldRule):
    """A transcription that is said instead of a word."""

    type: Literal["phoneme"]
    phoneme: str
    alphabet: str


AnyRule = Annotated[AliasRule | PhonemeRule, Field(discriminator="type")]
RuleList = Annotated[list[AnyRule], Field(fail_fast=True, max_length=MAX_RULES)]


def _rule(told: AliasRule | PhonemeRule) -> Rule:
    said, alphabet = (told.alias, None) if isinstance(told, AliasRule) else (told.phoneme, told.alphabet)
    capitals: Any = "any" if told.case_sensitive is False else "written"
    return Rule(told.string_to_replace, said, alphabet, capitals, told.word_boundaries is not False)


def _told(rule: Rule) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "alias", "alias": rule.said}
    if rule.alphabet is not None:
        said = {"type": "phoneme", "phoneme": rule.said, "alphabet": rule.alphabet}
    matching = {"case_sensitive": rule.capitals != "any", "word_boundaries": rule.whole_word}
    return {"string_to_replace": rule.written} | said | matching


class NewDictionary(Lenient):
    """The body of `add-from-rules`."""

    name: Name
    rules: RuleList
    description: Description | None = None


class ChangedDictionary(Lenient):
    """The body of `PATCH /v1/pronunciation-dictionaries/{id}`."""

    name: Name | None = None
    archived: bool | None = None


class Rules(Lenient):
    """The body of `set-rules` and `add-rules`."""

    rules: RuleList


class RuleStrings(Lenient):
    """The body of `remove-rules`."""

    rule_strings: Annotated[list[str], Field(fail_fast=True)]


class ToldDictionary(BaseModel):
    """What every answer with a dictionary tells."""

    id: str
    name: str
    created_by: str = "node"
    creation_time_unix: int
    description: str | None
    permission_on_resource: Literal["admin"] = "admin"


class ToldVersion(BaseModel):
    """A new version of a dictionary."""

    id: str
    version_id: str
    version_rules_num: int


class Added(ToldVersion, ToldDictionary):
    """A new dictionary, as ElevenLabs tells it."""


class Told(ToldDictionary):
    """A dictionary without its rules."""

    latest_version_id: str
    latest_version_rules_num: int
    archived_time_unix: int | None


class ToldWithRules(Told):
    """A dictionary with the rules of its latest version."""

    rules: list[dict[str, Any]]


Shape = TypeVar("Shape", bound=BaseModel)


def _as(shape: type[Shape], dictionary: Dictionary) -> Shape:
    """What an answer of this shape tells of a dictionary."""
    archived, latest = dictionary.archived_at, dictionary.latest
    facts = {
        "id": dictionary.id,
        "name": dictionary.name,
        "description": dictionary.description or None,
        "creation_time_unix": int(dictionary.created_at.timestamp()),
        "archived_time_unix": None if archived is None else int(archived.timestamp()),
        **dict.fromkeys(("version_id", "latest_version_id"), latest.id),
        **dict.fromkeys(("version_rules_num", "latest_version_rules_num"), len(latest.rules)),
        "rules": [_told(rule) for rule in latest.rules] if "rules" in shape.model_fields else [],
    }
    return shape.model_validate(facts)


class Page(BaseModel):
    """A part of the list."""

    pronunciation_dictionaries: list[Told]
    next_cursor: str | None
    has_more: bool


routes = APIRouter(
    prefix="/v1/pronunciation-dictionaries", dependencies=[errors_as(error_body)], responses=VENDOR_ERRORS
)

# OpenAPI is told: the form that has a file, and the answer that is one.
_PARTS = {"name": {"type": "string"}, "description": {"type": "string"}, "file": AUDIO["schema"]}
_FORM = {"content": {multipart.CONTENT_TYPE: {"schema": {"type": "object", "properties": _PARTS}}}, "required": True}
_PLS: dict[int | str, dict[str, Any]] = {200: {"description": "The file.", "content": {"application/pls+xml": AUDIO}}}

PageSize = Annotated[int, Query(ge=1, le=100)]


@routes.get("")
async def list_dictionaries(
    node: Here,
    client: Authorized,
    cursor: str | None = None,
    page_size: PageSize = 30,
    include_archived: bool = False,
) -> Page:
    """The dictionaries, the newest first."""
    stored = await node.reading(node.dictionaries.all)
    found = [each for each in stored if include_archived or each.archived_at is None]
    first = next((at + 1 for at, each in enumerate(found) if each.id == cursor), 0)
    page, has_more = found[first : first + page_size], first + page_size < len(found)
    told, next_cursor = [_as(Told, each) for each in page], page[-1].id if has_more else None
    return Page(pronunciation_dictionaries=told, next_cursor=next_cursor, has_more=has_more)


@routes.post("/add-from-rules", openapi_extra=json_body(NewDictionary))
async def add_from_rules(request: Request, node: Here, client: Authorized) -> Added:
    """Add a dictionary."""
    wanted = await read_fields(request, NewDictionary, RULES_BYTES)
    rules = map(_rule, wanted.rules)
    return _as(Added, await node.storing(node.dictionaries.add, wanted.name, rules, wanted.description or ""))


@routes.post("/add-from-file", openapi_extra={"requestBody": _FORM})
async def add_from_file(request: Request, node: Here, client: Authorized) -> Added:
    """Add a dictionary from a file in W3C's Pronunciation Lexicon Specification."""
    read = partial(_read_form, request.headers.get("content-type", ""))
    name, rules, description = await read_as(request, read, MAX_BYTES, at_once=0)
    return _as(Added, await node.storing(node.dictionaries.add, name, rules, description))


def _read_form(content_type: str, body: bytes) -> tuple[str, list[Rule], str]:
    form = multipart.parse(content_type, body)
    name, description, file = form.get("name"), form.get("description") or "", form.get("file")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise InvalidRequest(f"name: should have 1 to {MAX_NAME} characters", "name")
    if not isinstance(description, str) or len(description) > MAX_DESCRIPTION:
        raise InvalidRequest(f"description: should have at most {MAX_DESCRIPTION} characters", "description")
    if not isinstance(file, bytes):
        raise InvalidRequest("file: should be a PLS file", "file")
    try:
        entries = read_pls(file).entries
    except ValueError as error:
        raise InvalidRequest(f"file: {error}", "file") from None
    rules = [
        Rule(each.written, each.ipa, "ipa") if each.ipa is not None else Rule(each.written, each.alias or "")
        for each in entries
    ]
    return name, rules, description


@routes.get("/{dictionary_id}", response_model=ToldWithRules)
async def retrieve_dictionary(dictionary_id: str, node: Here, client: Authorized) -> Response:
    """One dictionary, with its rules."""

    def told() -> str:
        return _as(ToldWithRules, node.dictionaries.records.by_id(dictionary_id)).model_dump_json()

    return Response(await node.reading(told), media_type="application/json")


@routes.patch("/{dictionary_id}", openapi_extra=json_body(ChangedDictionary))
async def update_dictionary(dictionary_id: str, request: Request, node: Here, client: Authorized) -> Told:
    """Change the name, or archive it: it is left out of the list."""
    wanted = await read_fields(request, ChangedDictionary)
    return _as(Told, await _change(node, dictionary_id, name=wanted.name, is_archived=wanted.archived))


@routes.get("/{dictionary_id}/{version_id}/download", response_class=Response, responses=_PLS)
async def download_dictionary(dictionary_id: str, version_id: str, node: Here, client: Authorized) -> Response:
    """A version as a PLS file."""
    file = await node.reading(lambda: write_pls(node.dictionaries.lexicon([(dictionary_id, version_id)])))
    return Response(file, media_type="application/pls+xml")


@routes.post("/{dictionary_id}/set-rules", openapi_extra=json_body(Rules))
async def set_rules(dictionary_id: str, request: Request, node: Here, client: Authorized) -> ToldVersion:
    """Replace all rules."""
    wanted = await read_fields(request, Rules, RULES_BYTES)
    return _as(ToldVersion, await _change(node, dictionary_id, rules=map(_rule, wanted.rules)))


@routes.post("/{dictionary_id}/add-rules", openapi_extra=json_body(Rules))
async def add_rules(dictionary_id: str, request: Request, node: Here, client: Authorized) -> ToldVersion:
    """Add rules; one for a word that has a rule replaces it."""
    wanted = await read_fields(request, Rules, RULES_BYTES)
    added = {rule.string_to_replace: rule for rule in wanted.rules}
    rules = map(_rule, added.values())
    return _as(ToldVersion, await _change(node, dictionary_id, rules=rules, instead_of=added))


@routes.post("/{dictionary_id}/remove-rules", openapi_extra=json_body(RuleStrings))
async def remove_rules(dictionary_id: str, request: Request, node: Here, client: Authorized) -> ToldVersion:
    """Remove the rules for some words."""
    wanted = await read_fields(request, RuleStrings, RULES_BYTES)
    words = frozenset(wanted.rule_strings)
    return _as(ToldVersion, await _change(node, dictionary_id, rules=(), instead_of=words))


async def _change(node: Node, dictionary_id: str, **changes: Any) -> Dictionary:
    return await node.storing(node.dictionaries.change, dictionary_id, **changes)
