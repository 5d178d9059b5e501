"""Fuzz targets: functions of bytes that know every allowed outcome and raise on any other.

`test_targets` feeds them inputs from hypothesis and the kept corpus; `atheris_run` feeds them by coverage.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

from agent_tts.directives import Directive, Say
from agent_tts.errors import BadMessage, SlowConsumer, SpeechError
from agent_tts.ipc.wire import TO_ENGINE, TO_FRONT, WireError, decode, encode
from agent_tts.messages import Open
from agent_tts.protocol.adapter import Failed, Update
from agent_tts.protocol.options import SessionConfig
from agent_tts.protocol.v1 import NativeAdapter
from agent_tts.protocol.validation import check_body
from agent_tts.serve import openai
from agent_tts.serve.dialects.routes import STREAMS
from agent_tts.serve.routes import multipart
from agent_tts.serve.transports.sdp import read_offer
from agent_tts.serve.transports.websocket import NATIVE, Dialect
from agent_tts.text.entries import Lexicon
from agent_tts.text.feed import Reading, TextFeed, Unit
from agent_tts.text.lexicon import LexiconReader
from agent_tts.text.markup.reader import Item, MarkupReader, Offsets
from agent_tts.text.markup.scan import MAX_TAG
from agent_tts.text.normalize import RUNS, TABLES
from agent_tts.text.pls import read_pls, write_pls
from agent_tts.text.units import MAX_CHARS, MAX_CLUSTER, MAX_RUN
from tests.fuzz.conversation import Conversation, codec_of

# Every WebSocket dialect, by its path.
LANGUAGES: dict[str, Dialect] = {"/v1/tts/stream": NATIVE, **STREAMS}

BINARY, TURN, QUERY = b"\x00", b"\x01", b"\x02"  # first byte of a line in a conversation
STEPS = {0: (1, 0.0), 1: (3, 0.08), 2: (5, 1.0), 3: (1, 4.0)}  # (steps, seconds) of a turn
SPLIT = b"\x1e"
NORMALIZED = [*TABLES, *RUNS]


def text_of(data: bytes) -> str:
    """Text, with lone surrogates where they occur, as JSON allows them."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


# ---------------------------------------------------------------- dialects


def talk(data: bytes) -> None:
    """A whole conversation: a byte selects the dialect, then each line is a client message or lets time pass."""
    paths = sorted(LANGUAGES)
    if data:
        path = paths[data[0] % len(paths)]
        converse(path, data[1:].split(b"\n"))


def converse(path: str, lines: list[bytes]) -> list[str | bytes]:
    """What a client receives that sends these lines on a path. The first byte of a line may be BINARY, TURN or QUERY.

    Checks that text messages can be encoded and are JSON where they look like it, and that nothing is left at the end.
    """
    conversation = Conversation()
    query = ""
    if lines and lines[0].startswith(QUERY):
        query = text_of(lines.pop(0)[1:])
    adapter = codec_of(conversation, LANGUAGES[path], path, query)
    told: list[str | bytes] = []
    with contextlib.suppress(SlowConsumer):
        conversation.session.receive(adapter.begin())
        for line in lines:
            if line.startswith(TURN):
                conversation.turn(*STEPS[len(line) % len(STEPS)])
                told += conversation.told(adapter)
            else:
                spoken = line[1:] if line.startswith(BINARY) else text_of(line)
                conversation.session.receive(adapter.decode(spoken))
        told += conversation.told(adapter)
    conversation.session.close()
    conversation.turn(3, 0.0)
    assert conversation.service.speaking == 0, "a context outlived its connection"
    for message in told:
        if isinstance(message, str):
            message.encode()
            assert not message.startswith("{") or isinstance(json.loads(message), dict)
    return told


def check_message(data: bytes) -> None:
    """One message of the native protocol: a command, or a documented error that can be sent."""
    try:
        for command in NativeAdapter().decode(text_of(data)):
            if isinstance(command, Open | Update):
                fields = command.options if isinstance(command, Open) else command.fields
                SessionConfig().merged(fields, 60_000).options()
    except SpeechError as error:
        list(NativeAdapter().encode(Failed(None, error)))


# ---------------------------------------------------------------- HTTP


def speech_request(data: bytes) -> None:
    """The body of `POST /v1/audio/speech`."""
    with contextlib.suppress(SpeechError):
        check_body(openai.SpeechRequest, data, "input", 20_000).options()


def form(data: bytes) -> None:
    """A multipart body, with its content type on the first line."""
    content_type, _, body = data.partition(b"\n")
    with contextlib.suppress(BadMessage):
        fields = multipart.parse(content_type.decode("latin-1"), body)
        assert len(fields) <= multipart.MAX_PARTS
        assert sum(map(len, fields.values())) <= len(body)


def offer(data: bytes) -> None:
    """An SDP offer: refused, or read as one audio track and one channel. A parsed offer parses again unchanged."""
    with contextlib.suppress(BadMessage):
        found = read_offer(text_of(data))
        assert found.sdp.count("m=") == 2
        assert read_offer(found.sdp).sdp == found.sdp


# ---------------------------------------------------------------- engine side


def pipe(data: bytes) -> None:
    """Frames between front and engine: the first byte selects the end and the split, the rest is received data."""
    if not data:
        return
    readers: Any = TO_FRONT if data[0] & 1 else TO_ENGINE
    size = (data[0] >> 1) or len(data)
    found, broken = _decoded(readers, [data[1:]])
    split, split_broken = _decoded(readers, [data[at : at + size] for at in range(1, len(data), size)])
    assert broken == split_broken
    assert broken or split == found  # data in the same read before a broken frame may be lost
    for message in found:
        assert decode(bytearray(), encode(message), readers) == [message]


def _decoded(readers: Any, pieces: list[bytes]) -> tuple[list[Any], bool]:
    found: list[Any] = []
    rest = bytearray()
    try:
        for piece in pieces:
            found += decode(rest, piece, readers)
    except WireError:
        return found, True
    return found, False


def speech_text(data: bytes) -> None:
    """LLM text in pieces: units do not depend on the split and have a bounded length."""
    pieces = [text_of(piece) for piece in data.split(SPLIT)]
    spoken = NORMALIZED[len(data) % len(NORMALIZED)]
    for clean, language in product((True, False), (None, spoken)):
        whole = list(_said(["".join(pieces)], clean, language))
        assert list(_said(pieces, clean, language)) == whole
        units = [one for one in whole if isinstance(one, Unit)]
        assert all(len(unit.text.encode()) > 0 for unit in units)
        assert all(len(unit.text) <= MAX_CHARS + MAX_RUN + MAX_CLUSTER for unit in units)
        assert all(before.offsets[-1] <= after.offsets[0] for before, after in pairwise(units))


def _said(pieces: list[str], clean: bool, language: str | None) -> Iterator[Unit | Directive]:
    """The units of a text, with numbers in words of a language if it is given."""
    feed = TextFeed(Reading(clean, language))
    for piece in pieces:
        yield from feed.append(piece)
    yield from feed.flush()


def markup(data: bytes) -> None:
    """Text with tags in pieces: text and directives do not depend on the split, nothing is held back for long, and the
    offsets of what is left rise."""
    pieces = [text_of(piece) for piece in data.split(SPLIT)]
    text = "".join(pieces)
    whole, offsets = read_markup([text])
    assert directed(read_markup(pieces)[0]) == directed(whole)
    spans = [offsets.span(place, place + 1) for place in range(offsets.length)]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(before[0] <= after[0] for before, after in pairwise(spans))


def read_markup(pieces: list[str]) -> tuple[list[Item], Offsets]:
    """The items of a text that was sent in these pieces, with joined text; and its offsets."""
    reader = MarkupReader()
    items: list[Item] = []
    for piece in pieces:
        items += reader.read(piece)
        assert len(reader._held) <= MAX_TAG + 1
    items += reader.end()
    joined: list[Item] = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined, reader.offsets


def directed(items: list[Item]) -> list[Item]:
    """The same with spelled words in one piece."""
    joined: list[Item] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, Say) and isinstance(last, Say) and item.ipa is None is last.ipa:
            joined[-1] = Say(last.text + item.text, (last.alias or "") + (item.alias or ""))
        else:
            joined.append(item)
    return joined


def lexicon(data: bytes) -> None:
    """A lexicon, in PLS or JSON, up to the first SPLIT; then text in pieces. What is said does not depend on the split,
    and the text stays as it was."""
    written, *rest = data.split(SPLIT)
    pieces = [text_of(piece) for piece in rest]
    try:
        found = json.loads(written) if written.startswith(b"{") else None
        made = read_pls(written) if found is None else Lexicon.of(found)
    except (ValueError, RecursionError):
        return
    again = [(each.written, each.alias, each.ipa) for each in read_pls(write_pls(made)).entries]
    assert again == [tuple(map(_spaced, (each.written, each.alias, each.ipa))) for each in made.entries]
    whole = _looked_up(made, ["".join(pieces)])
    assert _looked_up(made, pieces) == whole
    assert "".join(item if isinstance(item, str) else item.text for item in whole) == "".join(pieces)


def _spaced(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())


def _looked_up(made: Lexicon, pieces: list[str]) -> list[str | Say]:
    reader = LexiconReader([made])
    items: list[str | Say] = []
    for piece in pieces:
        items += reader.append(piece)
    items += reader.flush()
    joined: list[str | Say] = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(last := joined[-1], str):
            joined[-1] = last + item
        else:
            joined.append(item)
    return joined


TARGETS: dict[str, Callable[[bytes], None]] = {
    "talk": talk,
    "protocol": check_message,
    "speech_request": speech_request,
    "multipart": form,
    "sdp": offer,
    "wire": pipe,
    "text": speech_text,
    "markup": markup,
    "lexicon": lexicon,
}
