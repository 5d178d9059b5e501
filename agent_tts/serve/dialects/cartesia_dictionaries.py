"""Cartesia's pronunciation dictionaries, `/pronunciation-dicts/`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_tts.errors import InvalidRequest
from agent_tts.protocol.options import Lenient
from agent_tts.serve.dialects.cartesia_http import cartesia_errors
from agent_tts.serve.dictionaries import MAX_NAME, RULES_BYTES, Dictionary, Rule
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import Authorized, Here, read_fields

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


class CartesiaChanges(Lenient):
    """The body of `PATCH /pronunciation-dicts/{id}`."""

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    items: Annotated[list[CartesiaRule], Field(fail_fast=True)] | None = None

    @property
    def rules(self) -> list[Rule] | None:
        return None if self.items is None else [item.rule() for item in self.items]


class CartesiaNewDictionary(CartesiaChanges):
    """The body of `POST /pronunciation-dicts/`."""

    name: str = Field(min_length=1, max_length=MAX_NAME)


def _told(dictionary: Dictionary) -> str:
    """A dictionary, as Cartesia tells it, in JSON."""
    told = {
        "id": dictionary.id,
        "name": dictionary.name,
        "owner_id": "node",
        "pinned": False,
        "items": [_told_rule(rule) for rule in dictionary.latest.rules],
        "created_at": dictionary.created_at.isoformat(),
    }
    return json.dumps(told)


def _told_rule(rule: Rule) -> dict[str, Any]:
    said = rule.said if rule.alphabet is None else " ".join(f"<<{word}>>" for word in rule.said.split())
    return {"text": rule.written, "alias": said, "case_sensitive": rule.capitals != "any"}


routes = APIRouter(prefix="/pronunciation-dicts", dependencies=[cartesia_errors], include_in_schema=False)

Limit = Annotated[int, Query(ge=1, le=100)]


@routes.get("")
async def list_dictionaries(
    node: Here,
    client: Authorized,
    limit: Limit = 10,
    starting_after: str | None = None,
    ending_before: str | None = None,
) -> Response:
    """The dictionaries, the newest first."""
    found = await node.reading(node.dictionaries.all)
    ids = [each.id for each in found]
    first, last = 0, len(found)
    if starting_after in ids:
        first = ids.index(starting_after) + 1
    if ending_before in ids:
        last = ids.index(ending_before)
        first = max(first, last - limit)
    page = found[first:last][:limit]
    has_more = first + len(page) < last
    end = json.dumps({"has_more": has_more, "next_page": page[-1].id if has_more else None})

    def pieces() -> Iterator[str]:  # in threads; a page may have a hundred thousand rules
        yield '{"data": ['
        for number, dictionary in enumerate(page):
            yield (", " if number else "") + _told(dictionary)
        yield f"], {end[1:]}"

    return StreamingResponse(pieces(), media_type="application/json")


@routes.post("")
async def create_dictionary(request: Request, node: Here, client: Authorized) -> Response:
    """Add a dictionary."""
    wanted = await read_fields(request, CartesiaNewDictionary, RULES_BYTES)
    return await _answer(node, lambda: node.dictionaries.add(wanted.name, wanted.rules or ()))


@routes.get("/{dictionary_id}")
async def retrieve_dictionary(dictionary_id: str, node: Here, client: Authorized) -> Response:
    """One dictionary."""
    told = await node.reading(lambda: _told(node.dictionaries.records.by_id(dictionary_id)))
    return Response(told, media_type="application/json")


@routes.patch("/{dictionary_id}")
async def update_dictionary(dictionary_id: str, request: Request, node: Here, client: Authorized) -> Response:
    """Change the name, or replace all rules."""
    wanted = await read_fields(request, CartesiaChanges, RULES_BYTES)
    change = node.dictionaries.change
    return await _answer(node, lambda: change(dictionary_id, name=wanted.name, rules=wanted.rules))


@routes.delete("/{dictionary_id}", status_code=204)
async def delete_dictionary(dictionary_id: str, node: Here, client: Authorized) -> Response:
    """Delete a dictionary."""
    await node.storing(node.dictionaries.records.delete, dictionary_id)
    return Response(status_code=204)


async def _answer(node: Node, work: Callable[[], Dictionary]) -> Response:
    return Response(await node.storing(lambda: _told(work())), media_type="application/json")
