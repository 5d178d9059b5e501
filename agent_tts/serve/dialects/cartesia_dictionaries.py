"""Cartesia's pronunciation dictionaries, `/pronunciation-dicts/`."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Self

from fastapi import APIRouter, Query
from pydantic import AliasChoices, BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import InvalidRequest
from agent_tts.protocol.options import Lenient
from agent_tts.serve.dialects.cartesia_http import cartesia_errors
from agent_tts.serve.dictionaries import MAX_NAME, RULES_BYTES, Dictionary, Rule
from agent_tts.serve.routes.http import Authorized, node_of, read_fields

# A word's phones, parted by "|".
_PHONES = re.compile(r"<<([^<>]*)>>")


class CartesiaRule(Lenient):
    """A rule, as Cartesia writes it: what is said instead is a text, or phones in `<<` and `>>`, one block a word."""

    text: str
    alias: str = Field(validation_alias=AliasChoices("pronunciation", "alias"))
    case_sensitive: bool = False

    def rule(self) -> Rule:
        """Raises `InvalidRequest` for a text with phones in it."""
        phones, others = _PHONES.findall(self.alias), _PHONES.sub("", self.alias)
        capitals: Any = "sentence" if self.case_sensitive else "any"
        if not phones:
            return Rule(self.text, self.alias, capitals=capitals)
        if others.strip():
            raise InvalidRequest("items: an alias is a text, or phones in << and >>", "items")
        return Rule(self.text, " ".join(phones), "ipa", capitals=capitals)

    @classmethod
    def of(cls, rule: Rule) -> Self:
        said = rule.said
        if rule.alphabet is not None:
            said = " ".join(f"<<{word}>>" for word in said.split())
        return cls(text=rule.written, alias=said, case_sensitive=rule.capitals != "any")


Items = Annotated[list[CartesiaRule], Field(fail_fast=True)]


class CartesiaNewDictionary(Lenient):
    """The body of `POST /pronunciation-dicts/`."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    items: Items | None = None


class CartesiaChanges(Lenient):
    """The body of `PATCH /pronunciation-dicts/{id}`."""

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    items: Items | None = None


class CartesiaDictionary(BaseModel):
    """A dictionary, as Cartesia tells it."""

    id: str
    name: str
    owner_id: str = "node"
    pinned: bool = False
    items: list[CartesiaRule]
    created_at: str

    @classmethod
    def of(cls, dictionary: Dictionary) -> Self:
        items = [CartesiaRule.of(rule) for rule in dictionary.latest.rules]
        return cls(id=dictionary.id, name=dictionary.name, items=items, created_at=dictionary.created_at.isoformat())


class CartesiaPage(BaseModel):
    """A part of the list."""

    data: list[CartesiaDictionary]
    has_more: bool
    next_page: str | None


routes = APIRouter(prefix="/pronunciation-dicts", dependencies=[cartesia_errors], include_in_schema=False)

Limit = Annotated[int, Query(ge=1, le=100)]


@routes.get("/")
async def list_dictionaries(
    request: Request,
    client: Authorized,
    limit: Limit = 10,
    starting_after: str | None = None,
    ending_before: str | None = None,
) -> CartesiaPage:
    """The dictionaries, the newest first."""
    found = await asyncio.to_thread(node_of(request).dictionaries.all)
    ids = [each.id for each in found]
    first, last = 0, len(found)
    if starting_after in ids:
        first = ids.index(starting_after) + 1
    if ending_before in ids:
        last = ids.index(ending_before)
        first = max(first, last - limit)
    page = found[first:last][:limit]
    has_more = first + len(page) < last
    return CartesiaPage(
        data=[CartesiaDictionary.of(each) for each in page],
        has_more=has_more,
        next_page=page[-1].id if has_more else None,
    )


@routes.post("/")
async def create_dictionary(request: Request, client: Authorized) -> CartesiaDictionary:
    """Add a dictionary."""
    wanted = await read_fields(request, CartesiaNewDictionary, RULES_BYTES)
    rules = [item.rule() for item in wanted.items or ()]
    return CartesiaDictionary.of(await asyncio.to_thread(node_of(request).dictionaries.add, wanted.name, rules))


@routes.get("/{dictionary_id}")
async def retrieve_dictionary(dictionary_id: str, request: Request, client: Authorized) -> CartesiaDictionary:
    """One dictionary."""
    return CartesiaDictionary.of(node_of(request).dictionaries.get(dictionary_id))


@routes.patch("/{dictionary_id}")
async def update_dictionary(dictionary_id: str, request: Request, client: Authorized) -> CartesiaDictionary:
    """Change the name, or replace all rules."""
    wanted = await read_fields(request, CartesiaChanges, RULES_BYTES)
    rules = None if wanted.items is None else [item.rule() for item in wanted.items]
    change = node_of(request).dictionaries.change
    return CartesiaDictionary.of(await asyncio.to_thread(change, dictionary_id, name=wanted.name, rules=rules))


@routes.delete("/{dictionary_id}", status_code=204)
async def delete_dictionary(dictionary_id: str, request: Request, client: Authorized) -> Response:
    """Delete a dictionary."""
    await asyncio.to_thread(node_of(request).dictionaries.delete, dictionary_id)
    return Response(status_code=204)
