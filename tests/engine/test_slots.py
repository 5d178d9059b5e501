from __future__ import annotations

import pytest

from agent_tts.engine.slots import READ_CHARS, Opened, Point, SlotFeed, SlotTable
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.errors import UnknownVoice
from agent_tts.messages import Append, Audio, Cancel, End, Finished, Flush, Flushed, Open, OutOfText
from agent_tts.options import EngineOptions, NamedVoice
from agent_tts.text.feed import TextFeed, Unit
from tests.support import logged

OPEN = Open(9, EngineOptions())
FLUSH, END = Flush(9, "f"), End(9)


class Spoken:
    def __init__(self, opened: Opened, slot: int) -> None:
        if opened.options.voice:
            raise UnknownVoice("no such voice")
        self.feed = SlotFeed(opened, slot, TextFeed())


@pytest.fixture
def feed() -> SlotFeed:
    return SlotFeed(OPEN, 0, TextFeed())


def take(feed: SlotFeed, *pieces: str | Flush | End) -> None:
    for piece in pieces:
        feed.take(Append(9, piece) if isinstance(piece, str) else piece)


def taken(feed: SlotFeed) -> list[Unit | Point]:
    """Everything that an engine takes to speak."""
    items: list[Unit | Point] = []
    while not feed.dry:
        items += feed.read(0.0)
        feed.pending.clear()
    return items


def told(items: list[Unit | Point]) -> list[object]:
    return [item.text.strip() if isinstance(item, Unit) else item for item in items]


def test_text_becomes_units_with_its_flush_and_its_end(feed: SlotFeed) -> None:
    take(feed, "one two three", FLUSH, "four", END)
    assert told(taken(feed)) == ["one two", "three", FLUSH, "four", END]


def test_a_long_text_is_read_in_pieces_and_not_changed(feed: SlotFeed) -> None:
    text = "one two three, " * 1_000
    take(feed, text, END)
    assert 0 < sum(len(unit.text) for unit in feed.read(0.0) if isinstance(unit, Unit)) <= READ_CHARS
    items = taken(feed)
    assert "".join(item.text for item in items if isinstance(item, Unit)) == text
    assert items[-1] == END
    assert feed.dry


def test_small_pieces_that_wait_are_read_together(feed: SlotFeed) -> None:
    take(feed, *"one two three ")
    assert feed.read(3.0)
    assert feed.read_at == 3.0
    assert not feed._unread


def test_a_flush_stays_between_its_pieces(feed: SlotFeed) -> None:
    take(feed, "one ", "two", FLUSH, "three ", "four", END)
    assert told(taken(feed)) == ["one two", FLUSH, "three four", END]


def test_a_slot_with_unread_text_is_not_starved(feed: SlotFeed) -> None:
    take(feed, "\0" * 2 * READ_CHARS)
    assert not feed.read(0.0)
    assert feed.hand_out() == []
    assert not feed.read(0.0)
    assert feed.hand_out() == [OutOfText(9)]


def test_a_partial_frame_waits_for_the_rest(feed: SlotFeed) -> None:
    feed.write(b"ab" * 100)
    assert (feed.ready, feed.samples) == (0, 100)
    assert feed.hand_out() == [OutOfText(9)]
    feed.write(b"ab" * (FRAME_BYTES // 2))
    assert feed.hand_out() == [Audio(9, b"ab" * (FRAME_BYTES // 2))]
    assert feed.samples == 100 + FRAME_BYTES // 2


def test_a_slot_with_pending_text_is_not_starved(feed: SlotFeed) -> None:
    take(feed, "one two ", FLUSH)
    assert feed.hand_out() == []


def test_flushes_are_answered_right_after_the_frame_before_them(feed: SlotFeed) -> None:
    feed.write(b"a" * (FRAME_BYTES + 2))
    feed.mark(Flush(9, "1"))
    feed.write(b"b" * 2)
    feed.mark(Flush(9, None))
    feed.mark(Flush(9, "3"))
    feed.mark(END)
    assert [event for _ in range(3) for event in feed.hand_out()] == [
        Audio(9, b"a" * FRAME_BYTES),
        Audio(9, b"aa".ljust(FRAME_BYTES, b"\0")),
        Flushed(9, "1"),
        Audio(9, b"bb".ljust(FRAME_BYTES, b"\0")),
        Flushed(9, None),
        Flushed(9, "3"),
        Finished(9, "end"),
    ]


def test_an_end_right_after_a_whole_frame_adds_no_empty_one(feed: SlotFeed) -> None:
    feed.write(bytes(FRAME_BYTES))
    feed.mark(END)
    assert [type(event) for event in feed.hand_out()] == [Audio, Finished]


def test_the_lowest_free_slot_is_next() -> None:
    """So that few requests make a small batch. Mutation: the slot that came free last."""
    freed: list[int] = []
    slots = SlotTable(3, Spoken, freed.append)
    slots.apply([Open(request, EngineOptions()) for request in (7, 8, 9)])
    slots.apply([Cancel(9), Cancel(7), Open(1, EngineOptions()), Open(2, EngineOptions())])
    assert {one.feed.id: one.feed.slot for one in slots.requests()} == {8: 1, 1: 0, 2: 2}
    assert freed == [2, 0]


def test_an_error_ends_its_request_alone_and_is_logged_without_the_text() -> None:
    slots = SlotTable(2, Spoken)
    assert slots.apply([OPEN, Open(10, EngineOptions())]) == []
    first, second = slots.requests()

    def fail() -> None:
        secret = "the text"
        raise ValueError(secret)

    failed = Finished(9, "error", code="internal", message="the engine failed on this context")
    with logged(diagnose=True) as lines:
        assert slots.guard(first, fail) == [failed]
    assert "ValueError" in lines[0]
    assert "in fail" in lines[0]
    assert "the text" not in "".join(lines).replace('secret = "the text"', "")
    assert slots.requests() == [second]
    assert slots.apply([Append(9, "too late"), Cancel(9)]) == []


def test_an_error_of_the_client_keeps_its_code() -> None:
    slots = SlotTable(1, Spoken)
    opened = Open(3, EngineOptions(NamedVoice("nobody")))
    assert slots.apply([opened, Append(3, "a")]) == [
        Finished(3, "error", code="unknown_voice", message="no such voice")
    ]
    assert slots.requests({3}) == []


def test_a_request_is_over_after_its_last_event() -> None:
    slots = SlotTable(1, Spoken)
    slots.apply([OPEN, END])
    (request,) = slots.requests({9})
    request.feed.mark(END)
    assert slots.guard(request, request.feed.hand_out) == [Finished(9, "end")]
    assert slots.requests() == []
    assert not slots.has(request)
