"""Finds tags in a text that may go on. Pure.

A tag is `<name ...>`, `</name>` or `<name ... />` with a name of `NAMES`, and with nothing or attributes after it;
`[name]` with a name of `SOUNDS` or `STYLES`, unless "(" follows, which makes it a link; or `<<p|h|o|n|e|m|e|s>>`.
Anything else is text: "a < b", "[1]", "x<y>z".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from agent_tts.text.chars import is_word
from agent_tts.text.markup.inventory import BRACKETS, NAMES

MAX_TAG = 512  # characters

_OPENER = re.compile(r"[<\[]")
_HEAD = re.compile(r"<(/?)([a-z][\w:-]*)?", re.ASCII | re.IGNORECASE)
_BODY = re.compile(r"[^<>]*")
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"?|'([^']*)'?|([^\s"'/]+))""", re.ASCII)
# What follows a tag's name: while it may still grow, in a whole tag, and if it can be nothing else but a tag.
_UNFINISHED = re.compile(r"\s*/?|\s+[\w:.-]+\s*(?:=.*)?", re.ASCII | re.DOTALL)
_WHOLE = re.compile(r"\s*/?|\s+[\w:.-]+\s*=.*", re.ASCII | re.DOTALL)
_CERTAIN = re.compile(r"\s*/|\s+[\w:.-]+\s*=.*", re.ASCII | re.DOTALL)
# What is left out of a tag without an end.
_BROKEN = re.compile(r"""\s+[\w:.-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s<>]*)|\s*/?""", re.ASCII)
_BRACKET = re.compile(r"\[([a-z' -]*)", re.ASCII | re.IGNORECASE)
_PHONEMES = re.compile(r"<<([^<>\s\d]+\|[^<>\s\d]*)>>")
_PHONEMES_UNFINISHED = re.compile(r"<<[^<>\s\d]{0,128}>?")
_INSTRUCTION = re.compile(r"<(\?xml|!--|!doctype)", re.ASCII | re.IGNORECASE)
_INSTRUCTION_STARTS = frozenset(whole[:end] for whole in ("<?xml", "<!--", "<!doctype") for end in range(1, len(whole)))


class Not(Enum):
    """Why there is no tag at a place."""

    TEXT = "text"
    UNFINISHED = "unfinished"  # it may become one
    CERTAIN = "certain"  # it will become one


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag in a text."""

    end: int  # the index after it
    name: str  # in lower case, without a slash; "[" and "<<" for these
    attributes: dict[str, str] = field(default_factory=dict)
    closes: bool = False  # </name>
    is_empty: bool = False  # <name/>, or without a closing tag by its kind


def next_opener(text: str, start: int) -> int:
    """The index of the next character that may start a tag, or the length of the text."""
    found = _OPENER.search(text, start)
    return found.start() if found else len(text)


def find(text: str, start: int, before: str, *, more: bool) -> Tag | Not:
    """The tag at `start`, where `next_opener` was.

    Args:
        before: the character before it, "" at the start.
        more: whether the text may go on; otherwise what is not certain is text.
    """
    if text[start] == "<":
        found = _phonemes(text, start, before) if text.startswith("<<", start) else _angle(text, start)
    else:
        found = Not.TEXT if is_word(before) else _bracket(text, start, more=more)
    if found is Not.UNFINISHED and not more:
        return Not.TEXT
    return found


def _bracket(text: str, start: int, *, more: bool) -> Tag | Not:
    found = _BRACKET.match(text, start)
    assert found is not None
    name, end = found[1].lower(), found.end()
    if end == len(text):
        return Not.UNFINISHED if BRACKETS.may_become(name) else Not.TEXT
    if text[end] != "]" or name not in BRACKETS:
        return Not.TEXT
    if text.startswith("(", end + 1):
        return Not.TEXT
    if end + 1 == len(text) and more:
        return Not.UNFINISHED
    return Tag(end + 1, "[", {"name": name}, is_empty=True)


def _angle(text: str, start: int) -> Tag | Not:
    if text[start + 1 : start + 2] in ("?", "!"):
        return _instruction(text, start)
    head = _HEAD.match(text, start)
    assert head is not None
    name, end = (head[2] or "").lower(), head.end()
    if end == len(text):
        known = NAMES.may_become(name)
        return (Not.CERTAIN if head[1] and name in NAMES else Not.UNFINISHED) if known else Not.TEXT
    if name not in NAMES:
        return Not.TEXT
    body = _BODY.match(text, end, start + MAX_TAG)
    assert body is not None
    after = text[body.end() : body.end() + 1]
    if after == ">":
        if not _WHOLE.fullmatch(body[0]):
            return Not.TEXT
        given = {key.lower(): one or two or bare for key, one, two, bare in _ATTRIBUTE.findall(body[0])}
        return Tag(body.end() + 1, name, given, closes=bool(head[1]), is_empty=body[0].endswith("/"))
    if not _UNFINISHED.fullmatch(body[0]):
        return Not.TEXT
    is_certain = bool(head[1]) or bool(_CERTAIN.fullmatch(body[0]))
    if not after and len(text) - start <= MAX_TAG:
        return Not.CERTAIN if is_certain else Not.UNFINISHED
    if not is_certain:
        return Not.TEXT
    rest = _BROKEN.match(text, end)
    return Tag(rest.end() if rest else end, "")


def _phonemes(text: str, start: int, before: str) -> Tag | Not:
    if is_word(before):  # x<<y
        return Not.TEXT
    if found := _PHONEMES.match(text, start):
        return Tag(found.end(), "<<", {"ph": found[1]}, is_empty=True)
    unfinished = _PHONEMES_UNFINISHED.match(text, start)
    return Not.UNFINISHED if unfinished and unfinished.end() == len(text) else Not.TEXT


def _instruction(text: str, start: int) -> Tag | Not:
    """A comment, or what may stand before a document."""
    if not (found := _INSTRUCTION.match(text, start)):
        return Not.UNFINISHED if text[start:].lower() in _INSTRUCTION_STARTS else Not.TEXT
    close = "-->" if found[1] == "!--" else ">"
    end = text.find(close, found.end(), start + MAX_TAG)
    if end >= 0:
        return Tag(end + len(close), "")
    return Not.UNFINISHED if len(text) - start <= MAX_TAG else Not.TEXT
