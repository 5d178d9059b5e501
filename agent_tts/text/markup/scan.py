"""Finds tags in a text that may go on. Pure.

A tag is one of these; anything else is text: "a < b", "[1]", "x<y>z", "Q&A", "\\{x\\}".

* `<name ...>`, `</name>` and `<name ... />` with a name of `NAMES`, and with nothing or attributes after it.
* `[name]` with a name of `BRACKETS`, unless "(" follows, which makes it a link.
* `<<p|h|o|n|e|m|e|s>>`, `\\{"word": "...", "pronounce": "..."\\}` and `\\{pause:1s\\}`.
* A token of a chat template, `<|im_end|>`, `<｜tool▁sep｜>`, `<|tool_call>`, `<tool_call|>`, `[TOOL_CALLS]`.
* An entity, `&amp;`; the marks around `<![CDATA[text]]>`.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from enum import Enum

from agent_tts.text.chars import is_word
from agent_tts.text.markup.inventory import BRACKET_TOKENS, BRACKETS, CLOSING_TOKENS, NAMES, Names

MAX_TAG = 512  # characters

_OPENER = re.compile(
    r"<(?=[/a-z?!|｜]|<[^<>\s\d]|<?\Z)|\[(?=[/a-z]|\Z)|\](?=\]>|\]?\Z)|\\(?=\{|\Z)|&(?=[#a-z]|\Z)",
    re.ASCII | re.IGNORECASE,
)
_HEAD = re.compile(r"<(/?)([a-z｜][\w:｜-]{0,63})?", re.ASCII | re.IGNORECASE)  # longer names are not known
_BODY = re.compile(r"[^<>]*")
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"?|'([^']*)'?|([^\s"'/]+))""", re.ASCII)
# What follows a tag's name: while it may still grow, in a whole tag, and if it can be nothing else but a tag.
_UNFINISHED = re.compile(r"\s*/?|\s+[\w:.-]+\s*(?:=.*)?", re.ASCII | re.DOTALL)
_WHOLE = re.compile(r"\s*/?|\s+[\w:.-]+\s*=.*", re.ASCII | re.DOTALL)
_CERTAIN = re.compile(r"\s*/|\s+[\w:.-]+\s*=.*", re.ASCII | re.DOTALL)
# What is left out of a tag without an end.
_BROKEN = re.compile(r"""\s+[\w:.-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s<>]*)|\s*/?""", re.ASCII)
_BRACKET = re.compile(r"\[(/?[a-z'_ -]*)", re.ASCII | re.IGNORECASE)
_PHONEMES = re.compile(r"<<([^<>\s\d]+\|[^<>\s\d]*)>>")
_PHONEMES_UNFINISHED = re.compile(r"<<[^<>\s\d]{0,128}>?")
# `<function=get_weather>`: the name of a tool stands where an attribute would.
_TOOL = re.compile(r"=[\w.-]{0,64}", re.ASCII)
_TOKEN = re.compile(rf"<[|｜](?:([^<>|｜\s]{{1,40}})[|｜]|(\w{{1,40}}))>|<({'|'.join(CLOSING_TOKENS)})\|>", re.ASCII)
_TOKEN_UNFINISHED = re.compile(rf"<[|｜][^<>|｜\s]{{0,40}}[|｜]?|<(?:{'|'.join(CLOSING_TOKENS)})\|", re.ASCII)
_CLOSING = Names(CLOSING_TOKENS)
_ESCAPED = re.compile(r"\\\{([^{}\n]{1,384})\\\}")
_ESCAPED_UNFINISHED = re.compile(r"\\(\{([\"p][^{}\n]{0,384})?)?")
_PAUSE = re.compile(r"pause:\s*(\d{1,5}(?:\.\d{1,3})?m?s)", re.ASCII)
_ENTITIES = frozenset(("amp", "lt", "gt", "quot", "apos", "nbsp"))
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-z]{2,4});", re.ASCII)
_ENTITY_UNFINISHED = re.compile(r"&(#[xX][\da-fA-F]{0,6}|#\d{0,7}|[a-z]{0,4})", re.ASCII)
_INSTRUCTION = re.compile(r"<(\?xml|!--|!doctype|!\[cdata\[)", re.ASCII | re.IGNORECASE)
_INSTRUCTION_STARTS = Names(["<?xml", "<!--", "<!doctype", "<![cdata["])


class Not(Enum):
    TEXT = "text"
    UNFINISHED = "unfinished"  # it may become one
    CERTAIN = "certain"  # it will become one


@dataclass(frozen=True, slots=True)
class Tag:
    end: int  # the index after it
    name: str  # in lower case, without a slash; "[", "<<", "\\" and "&" for these, "|" for a token, "![" for CDATA
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
    match text[start]:
        case "<":
            found = _phonemes(text, start, before) if text.startswith("<<", start) else _angle(text, start)
        case "[":
            found = _bracket(text, start, before, more=more)
        case "]":
            found = Tag(start + 3, "![", closes=True) if text.startswith("]]>", start) else Not.UNFINISHED
        case "&":
            found = _entity(text, start)
        case _:
            found = _escaped(text, start)
    if found is Not.UNFINISHED and not more:
        return Not.TEXT
    return found


def broken(text: str, start: int) -> int:
    """The index up to which a tag at `start` is left out that is certain and has no end: after its first attribute."""
    head = _HEAD.match(text, start)
    assert head is not None
    rest = _BROKEN.match(text, head.end())
    assert rest is not None
    return rest.end()


def _bracket(text: str, start: int, before: str, *, more: bool) -> Tag | Not:
    found = _BRACKET.match(text, start)
    assert found is not None
    name, end = found[1], found.end()
    if end == len(text):
        return Not.UNFINISHED if BRACKETS.may_become(name) or BRACKETS.may_become(name.lower()) else Not.TEXT
    if name in BRACKET_TOKENS and text[end] == "]":
        return _token_of(name, end + 1)
    name = name.lower()
    if is_word(before) or text[end] != "]" or name not in BRACKETS:
        return Not.TEXT
    if text.startswith("(", end + 1):
        return Not.TEXT
    if end + 1 == len(text) and more:
        return Not.UNFINISHED
    return Tag(end + 1, "[", {"name": name}, is_empty=True)


def _angle(text: str, start: int) -> Tag | Not:
    if text[start + 1 : start + 2] in ("?", "!"):
        return _instruction(text, start)
    if (token := _token(text, start)) is not Not.TEXT:
        return token
    head = _HEAD.match(text, start)
    assert head is not None
    name, end = (head[2] or "").lower(), head.end()
    if end == len(text):
        known = NAMES.may_become(name) or _CLOSING.may_become(name)
        return (Not.CERTAIN if head[1] and name in NAMES else Not.UNFINISHED) if known else Not.TEXT
    if name not in NAMES:
        return Not.TEXT
    body = _BODY.match(text, end, start + MAX_TAG)
    assert body is not None
    after = text[body.end() : body.end() + 1]
    if name == "function" and not head[1]:
        if not _TOOL.fullmatch(body[0]) or after not in ("", ">"):
            return Not.TEXT
        return Tag(body.end() + 1, name) if after else Not.UNFINISHED
    if after == ">":
        if not _WHOLE.fullmatch(body[0]):
            return Not.TEXT
        given = {key.lower(): html.unescape(one or two or bare) for key, one, two, bare in _ATTRIBUTE.findall(body[0])}
        return Tag(body.end() + 1, name, given, closes=bool(head[1]), is_empty=body[0].endswith("/"))
    if not _UNFINISHED.fullmatch(body[0]):
        return Not.TEXT
    is_certain = bool(head[1]) or bool(_CERTAIN.fullmatch(body[0]))
    if not after and len(text) - start <= MAX_TAG:
        return Not.CERTAIN if is_certain else Not.UNFINISHED
    return Tag(broken(text, start), "") if is_certain else Not.TEXT


def _token(text: str, start: int) -> Tag | Not:
    if found := _TOKEN.match(text, start):
        return _token_of(found[1] or found[2] or f"/{found[3]}", found.end())
    return Not.UNFINISHED if _TOKEN_UNFINISHED.fullmatch(text, start) else Not.TEXT


def _token_of(name: str, end: int) -> Tag:
    return Tag(end, "|", {"name": name.lower().replace("▁", "_")}, is_empty=True)


def _escaped(text: str, start: int) -> Tag | Not:
    """A pronunciation, with the word and its phonemes, or a pause, as Deepgram's clients write them."""
    if not (found := _ESCAPED.match(text, start)):
        return Not.UNFINISHED if _ESCAPED_UNFINISHED.fullmatch(text, start) else Not.TEXT
    if pause := _PAUSE.fullmatch(found[1].strip()):
        return Tag(found.end(), "\\", {"time": pause[1]}, is_empty=True)
    try:
        said = json.loads(f"{{{found[1]}}}")
        word, ph = said["word"], said["pronounce"]
    except (ValueError, KeyError):
        return Not.TEXT
    if not (isinstance(word, str) and isinstance(ph, str) and word.strip()):
        return Not.TEXT
    return Tag(found.end(), "\\", {"word": word, "ph": ph}, is_empty=True)


def _entity(text: str, start: int) -> Tag | Not:
    if found := _ENTITY.match(text, start):
        if found[1][0] != "#" and found[1] not in _ENTITIES:
            return Not.TEXT
        return Tag(found.end(), "&", {"text": html.unescape(found[0])}, is_empty=True)
    if not (unfinished := _ENTITY_UNFINISHED.fullmatch(text, start)):
        return Not.TEXT
    known = unfinished[1][:1] in ("", "#") or any(name.startswith(unfinished[1]) for name in _ENTITIES)
    return Not.UNFINISHED if known else Not.TEXT


def _phonemes(text: str, start: int, before: str) -> Tag | Not:
    if is_word(before):  # x<<y
        return Not.TEXT
    if found := _PHONEMES.match(text, start):
        return Tag(found.end(), "<<", {"ph": found[1]}, is_empty=True)
    return Not.UNFINISHED if _PHONEMES_UNFINISHED.fullmatch(text, start) else Not.TEXT


def _instruction(text: str, start: int) -> Tag | Not:
    """A comment, what may stand before a document, or the beginning of CDATA."""
    if not (found := _INSTRUCTION.match(text, start)):
        is_start = len(text) - start < MAX_TAG and _INSTRUCTION_STARTS.may_become(text[start:].lower())
        return Not.UNFINISHED if is_start else Not.TEXT
    if found[1].startswith("!["):
        return Tag(found.end(), "![")
    close = "-->" if found[1] == "!--" else ">"
    end = text.find(close, found.end(), start + MAX_TAG)
    if end >= 0:
        return Tag(end + len(close), "")
    return Not.UNFINISHED if len(text) - start <= MAX_TAG else Not.TEXT
