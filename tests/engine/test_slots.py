from __future__ import annotations

import pytest
from loguru import logger

from agent_tts.directives import Directive
from agent_tts.engine.slots import READ_CHARS, Mark, SlotFeed, SlotTable
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.errors import UnknownVoice
from agent_tts.messages import Audio, Cancel, Finished, Flushed, Starved
from agent_tts.options import EngineOptions, NamedVoice
from agent_tts.text.feed import Unit
from tests.engine.driver import appended, start_of

OPEN = start_of(0, EngineOptions())


class Spoken:
    def __init__(self, opened: start_of) -> None:
        if opened.options.voice:
            raise UnknownVoice("no such voice")
        self.feed = SlotFeed(opened, "en")


@pytest.fixture
def feed() -> SlotFeed:
    return SlotFeed(OPEN, "en")


def taken(feed: SlotFeed) -> list[Unit | Directive | Mark]:
    """Everything that an engine takes to speak."""
    items: list[Unit | Directive | Mark] = []
    while not feed.dry:
        items += feed.pending
        feed.pending.clear()
    return items


def test_text_becomes_units_with_its_flush_and_its_end(feed: SlotFeed) -> None:
    feed.take_text(appended(0, "one two three", flush=True))
    feed.take_text(appended(0, "four", last=True))
    marks = [item.text.strip() if isinstance(item, Unit) else item for item in taken(feed)]
    assert marks == ["one two", "three", Mark.FLUSH, "four", Mark.END]


def test_a_long_text_is_read_in_pieces_and_not_changed(feed: SlotFeed) -> None:
    text = "one two three, " * 1_000
    feed.take_text(appended(0, text, last=True))
    assert 0 < sum(len(unit.text) for unit in feed.pending if isinstance(unit, Unit)) <= READ_CHARS
    items = taken(feed)
    assert "".join(item.text for item in items if isinstance(item, Unit)) == text
    assert items[-1] is Mark.END
    assert feed.dry


def test_small_pieces_that_wait_are_read_together(feed: SlotFeed) -> None:
    for character in "one two three ":
        feed.take_text(appended(0, character))
    assert feed.pending
    assert not feed._unread


def test_a_flush_stays_between_its_pieces(feed: SlotFeed) -> None:
    for piece, flush in [("one ", False), ("two", True), ("three ", False), ("four", False)]:
        feed.take_text(appended(0, piece, flush=flush))
    feed.take_text(appended(0, "", last=True))
    marks = [item.text.strip() if isinstance(item, Unit) else item for item in taken(feed)]
    assert marks == ["one two", Mark.FLUSH, "three four", Mark.END]


def test_a_slot_with_unread_text_is_not_starved(feed: SlotFeed) -> None:
    feed.take_text(appended(0, "\0" * 2 * READ_CHARS))
    assert not feed.pending
    assert feed.hand_out() == []
    assert not feed.pending
    assert feed.hand_out() == [Starved(0)]


def test_a_partial_frame_waits_for_the_rest(feed: SlotFeed) -> None:
    feed.write(b"ab" * 100)
    assert (feed.ready, feed.samples) == (0, 100)
    assert feed.hand_out() == [Starved(0)]
    feed.write(b"ab" * (FRAME_BYTES // 2))
    assert feed.hand_out() == [Audio(0, b"ab" * (FRAME_BYTES // 2))]
    assert feed.samples == 100 + FRAME_BYTES // 2


def test_a_slot_with_pending_text_is_not_starved(feed: SlotFeed) -> None:
    feed.take_text(appended(0, "one two ", flush=True))
    assert feed.hand_out() == []


def test_flushes_are_answered_right_after_the_frame_before_them(feed: SlotFeed) -> None:
    feed.write(b"a" * (FRAME_BYTES + 2))
    feed.mark(Mark.FLUSH)
    feed.write(b"b" * 2)
    feed.mark(Mark.FLUSH)
    feed.mark(Mark.FLUSH)
    feed.mark(Mark.END)
    said = [output for _ in range(3) for output in feed.hand_out()]
    assert [type(output) for output in said] == [
        Audio,
        Audio,
        Flushed,
        Audio,
        Flushed,
        Flushed,
        Finished,
    ]
    assert [output.payload for output in said if isinstance(output, Audio)] == [
        b"a" * FRAME_BYTES,
        b"aa".ljust(FRAME_BYTES, b"\0"),
        b"bb".ljust(FRAME_BYTES, b"\0"),
    ]


def test_an_end_right_after_a_whole_frame_adds_no_empty_one(feed: SlotFeed) -> None:
    feed.write(bytes(FRAME_BYTES))
    feed.mark(Mark.END)
    assert [type(output) for output in feed.hand_out()] == [Audio, Finished]


def test_an_error_ends_its_request_alone_and_is_logged_without_the_text() -> None:
    slots = SlotTable(2, Spoken)
    assert slots.apply([OPEN, start_of(1, EngineOptions())]) == []
    first, second = slots.requests()

    def fail() -> None:
        secret = "the text"
        raise ValueError(secret)

    lines: list[str] = []
    sink = logger.add(lines.append, diagnose=True)
    try:
        assert slots.guard(first, fail) == [
            Finished(0, "error", code="internal", message="the engine failed on this context")
        ]
    finally:
        logger.remove(sink)
    assert "ValueError" in lines[0]
    assert "in fail" in lines[0]
    assert "the text" not in "".join(lines).replace('secret = "the text"', "")
    assert slots.requests() == [second]
    assert slots.apply([*appended(0, "too late"), Cancel(0)]) == []


def test_an_error_of_the_client_keeps_its_code() -> None:
    slots = SlotTable(1, Spoken)
    opened = start_of(0, EngineOptions(NamedVoice("nobody")))
    assert slots.apply([opened, *appended(0, "a")]) == [
        Finished(0, "error", code="unknown_voice", message="no such voice")
    ]
    assert slots.requests({0}) == []


def test_a_slot_is_free_after_its_last_output() -> None:
    slots = SlotTable(1, Spoken)
    slots.apply([OPEN, *appended(0, "", last=True)])
    (request,) = slots.requests({0})
    request.feed.mark(Mark.END)
    assert slots.guard(request, request.feed.hand_out) == [Finished(0, "end")]
    assert slots.requests() == []
