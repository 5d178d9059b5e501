"""A live text gives the same segments of tokens for any split."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.directives import Language, Pause, Prosody, Say, Style
from agent_tts.engine.qwen3.delivery import Manner
from agent_tts.engine.qwen3.segment_feed import FIRST_WORDS, SEGMENT_TOKENS, SegmentFeed
from agent_tts.messages import Append, End, Flush, StepCommand
from agent_tts.options import EngineOptions
from agent_tts.text.directives import ABILITIES, Directives
from agent_tts.text.tokens import TokenFeed, Tokenizer
from tests.engine.driver import Piece, add, appended, start_of
from tests.model import tiny
from tests.support import uncollected


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(tiny.checkpoint("custom_voice"))


def take_all(feed: SegmentFeed, commands: list[StepCommand], *, reads: bool = False) -> None:
    """Take text and what follows it; `reads`: and read it at once."""
    for command in commands:
        assert isinstance(command, Append | Flush | End)
        feed.take(command)
    while reads and feed._unread:
        feed._read(*feed.next_chunk(0.0))


Spoken = list[tuple[list[int], int]]  # of each segment: its tokens, and the number of flushes after it


def segments(parts: Sequence[str | None], *, clean: bool = False, usual: int = SEGMENT_TOKENS) -> Spoken:
    """The segments of a text given in parts; None is a flush. Tokens are taken as soon as they exist."""
    feed = SegmentFeed(start_of(0, EngineOptions(clean=clean)), 0, TokenFeed(tokenizer()), usual=usual)
    taken: list[int] = []
    spoken: Spoken = []

    def take() -> None:
        nonlocal taken
        while True:
            feed.read(0.0)
            if not feed.segments:
                return
            segment = feed.segments[0]
            taken += segment.tokens
            segment.tokens.clear()
            if segment.complete:
                spoken.append((taken, len(feed.segments.popleft().flushes)))
                taken = []
            elif feed.dry:
                return

    for part in parts:
        take_all(feed, appended(0, part or "", flush=part is None))
        take()
    take_all(feed, appended(0, "", last=True))
    take()
    assert not feed.segments
    return spoken


TEXTS = st.text(st.sampled_from("ab .!?。你。é\u0301\u0323<|1\n👋*_"), max_size=60)


@given(TEXTS, st.lists(st.integers(0, 60), max_size=8), st.booleans(), st.sampled_from([1, 3, SEGMENT_TOKENS]))
def test_segments_do_not_depend_on_the_split(text: str, cuts: list[int], clean: bool, usual: int) -> None:
    ends = sorted(min(cut, len(text)) for cut in cuts)
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    whole = segments([text], clean=clean, usual=usual)
    assert segments(parts, clean=clean, usual=usual) == whole


CHANGES = st.sampled_from(
    [Pause(200), Prosody(speed=2.0), Prosody(), Style("Whisper."), Style(None), Language("de"), Say("3", "three")]
)
Shape = list[tuple[list[int], Manner, int, bool]]


def shaped(parts: Sequence[Piece]) -> Shape:
    """The segments with something to speak or a pause: their tokens and manners, the pauses and seams after them."""
    directives = Directives(ABILITIES, {"de": "de"})
    feed = SegmentFeed(start_of(0, EngineOptions(clean=False)), 0, TokenFeed(tokenizer()), directives=directives)
    for part in parts:
        take_all(feed, add(0, part, last=False))
    take_all(feed, appended(0, "", last=True))
    spoken: Shape = []
    while True:
        feed.read(0.0)
        if not feed.segments:
            return spoken
        if feed.segments[0].complete:
            one = feed.segments.popleft()
            if one.rest_ms or not one.is_mute:
                spoken.append((one.tokens, one.manner, one.rest_ms, one.seam))


@given(st.lists(TEXTS | CHANGES, max_size=8))
def test_manners_do_not_depend_on_the_split(parts: list[Piece]) -> None:
    single = [one for part in parts for one in (part if isinstance(part, str) else [part])]
    spoken = shaped(parts)
    assert shaped(single) == spoken
    assert all(manner.language in (None, "de") and manner.speed in (1.0, 2.0) for _, manner, _, _ in spoken)


@given(st.lists(TEXTS | st.none(), max_size=6))
def test_every_flush_is_answered_after_all_text_before_it(parts: list[str | None]) -> None:
    spoken = segments(parts)
    assert sum(flushes for _, flushes in spoken) == parts.count(None)
    texts = "".join("\0" if part is None else part for part in parts).split("\0")  # between the flushes
    heard = ""
    for tokens, flushes in spoken:
        heard += visible(tokens)
        for _ in range(flushes):
            assert heard == visible(tokenizer().encode(texts.pop(0)))
            heard = ""


def visible(tokens: list[int]) -> str:
    """The tokens' bytes, as the vocabulary writes them, without white space."""
    return "".join(map(str, map(tokenizer()._pipeline.id_to_token, tokens))).translate(dict.fromkeys(map(ord, "ĠĊ")))


def texts(feed: SegmentFeed) -> list[str]:
    """Of the segments that are complete, and of the one that grows."""
    return [segment.text for segment in feed.segments]


def reading(*parts: str, limit: int = SEGMENT_TOKENS, usual: int = SEGMENT_TOKENS, last: bool = False) -> SegmentFeed:
    """A feed that has read the text."""
    feed = SegmentFeed(start_of(0, EngineOptions(clean=False)), 0, TokenFeed(tokenizer()), limit=limit, usual=usual)
    for part in parts:
        take_all(feed, appended(0, part), reads=True)
    if last:
        take_all(feed, appended(0, "", last=True), reads=True)
    return feed


def test_a_text_is_split_at_the_length_of_a_segment() -> None:
    sentence = "How are you in the world?"
    count = SEGMENT_TOKENS // len(tokenizer().encode(f" {sentence}"))
    found = texts(reading(f"{sentence} " * 3 * count, last=True))
    assert " ".join(found) == " ".join([sentence] * 3 * count)
    assert all(text.endswith("?") for text in found)
    assert abs(len(found[0].split("?")) - 1 - count) <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c d, e f", ["a b c d,", "e f"]),
        ("a b c d e f g h i j k", ["a b c d e", "f g h i j k"]),
        ("x" * 20, ["x" * 15, "x" * 5]),
        ("你" * 12, ["你" * 10, "你" * 2]),
        ("a b c.\n- d e f.\n- g", ["a b c.", "- d e f.", "- g"]),
    ],
)
def test_a_segment_without_the_end_of_a_sentence_ends_later(text: str, expected: list[str]) -> None:
    assert texts(reading(text, limit=5, last=True)) == expected
    assert texts(reading(*text, limit=5, last=True)) == expected


@pytest.mark.parametrize(
    ("usual", "text", "expected"),
    [
        (4, "It is. We are. So", ["It is.", "We are.", "So"]),
        (9, "It is. We are. So", ["It is. We are.", "So"]),
        (2, "It is, as is so. We are", ["It is, as is so.", "We are"]),  # a longer sentence stays whole
        (1, "ab " * 11, ["ab ab ab ab ab ab ab ab ab", "ab ab"]),  # up to the limit
        (20, "ab " * 11, ["ab ab ab ab ab ab ab ab ab", "ab ab"]),
        (1, "It, as is, so. Oh? No! We", ["It, as is, so.", "Oh?", "No!", "We"]),
        (1, "Dr. Who is e.g. a man. So", ["Dr. Who is e.g. a man.", "So"]),
        (2, "# So\n- it is\n- we are", ["# So", "- it is", "- we are"]),
        (1, "你好。世界！「是。」他", ["你好。", "世界！", "「是。」", "他"]),
        (30, "It is. We are. So. As he", ["It is. We are.", "So. As he"]),  # never more than the limit
    ],
)
def test_a_usual_length_ends_segments_with_sentences_alone(usual: int, text: str, expected: list[str]) -> None:
    """What has no end of a sentence is cut as it is without one."""
    assert texts(reading(text, limit=10, usual=usual, last=True)) == expected
    assert texts(reading(*text, limit=10, usual=usual, last=True)) == expected


def test_line_breaks_of_a_clean_text_are_marks() -> None:
    """Of a list and of paragraphs; what ends a piece ends with them."""
    feed = SegmentFeed(start_of(0, EngineOptions()), 0, TokenFeed(tokenizer()), usual=1)
    take_all(feed, appended(0, "# So\n- it is\n- we are 🎉\n\nWell.Here\n\nAs he", last=True), reads=True)
    assert texts(feed) == ["So,", "it is,", "we are  .", "Well.", "Here.", "As he"]


def test_white_space_around_a_segment_is_not_spoken() -> None:
    assert segments([" a. ", None, "\n b \n"]) == segments(["a.", None, "b"])


class TestASegmentThatEndsBeforeItsTime:
    """What a reference wants more text than there is for."""

    @pytest.mark.parametrize(
        ("text", "spoken", "rest"),
        [
            ("Sure, let me loo", "Sure,", "let me loo"),
            ("Well, fine. Now, let me loo", "Well, fine.", "Now, let me loo"),
            ("one two three four fiv", "one two three four", "fiv"),
            ("你" * 16, "你" * 15, "你"),
        ],
    )
    def test_ends_with_a_sentence_a_clause_or_some_words(self, text: str, spoken: str, rest: str) -> None:
        feed = reading(*text)
        assert feed.can_split(paused=False)
        feed.split(paused=False)
        take_all(feed, appended(0, " k.", last=True), reads=True)
        assert [segment.tokens for segment in feed.segments] == [*map(tokenizer().encode, (spoken, f"{rest} k."))]

    @pytest.mark.parametrize("text", ["", " ", "Sure", "Sure thing", "one two thr", "\N{EM DASH} "])
    def test_is_too_short_without_a_pause(self, text: str) -> None:
        assert len(text.split()) < FIRST_WORDS
        assert not reading(text).can_split(paused=False)

    @pytest.mark.parametrize(
        ("text", "spoken", "rest"),
        [("Sure thi", "Sure", ""), ("Sure, ", "Sure,", ""), ("Let me see…", "Let me see…", "")],
    )
    def test_ends_with_any_word_behind_a_pause(self, text: str, spoken: str, rest: str) -> None:
        feed = reading(text)
        assert feed.can_split(paused=True)
        feed.split(paused=True)
        assert texts(feed) == [spoken, rest]

    def test_never_ends_within_a_word(self) -> None:
        assert not reading("unbeliev").can_split(paused=True)

    def test_keeps_the_places_of_the_rest(self) -> None:
        feed = reading("One. Two, three fou")
        feed.split(paused=False)
        feed.segments.popleft()
        feed.split(paused=False)
        assert texts(feed) == ["Two,", "three"]


def test_a_long_text_is_read_in_chunks() -> None:
    feed = SegmentFeed(start_of(0, EngineOptions()), 0, TokenFeed(tokenizer()))
    take_all(feed, appended(0, "word " * 4_000, last=True))
    feed.read(0.0)
    assert 0 < len(feed.segments[0].tokens) < 1_000
    assert not feed.dry


def test_markup_is_removed_only_with_clean() -> None:
    assert segments(["**the**"], clean=True)[0][0] == tokenizer().encode("the")
    assert segments(["**the**"])[0][0] == tokenizer().encode("**the**")


PAUSE = Pause(1_000)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["a.", PAUSE, None], [1_000, "flush"]),
        (["a.", None, PAUSE], ["flush", 1_000]),
        ([None, PAUSE, None], ["flush", 1_000, "flush"]),
        (["a.", PAUSE, PAUSE, "b."], [1_000, 1_000]),
        ([PAUSE], [1_000]),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_pauses_and_flushes_keep_their_order(parts: list[Piece], expected: list[object], at_once: bool) -> None:
    """Whether segments are spoken at once or later."""
    feed = SegmentFeed(start_of(0, EngineOptions()), 0, TokenFeed(tokenizer()))
    found: list[object] = []

    def speak() -> None:
        while feed.segments and feed.segments[0].complete:
            segment = feed.segments.popleft()
            found.extend([*[1_000] * (segment.rest_ms // 1_000), *["flush"] * len(segment.flushes)])

    for part in parts:
        take_all(feed, add(0, part, last=False), reads=True)
        if not at_once:
            speak()
    take_all(feed, appended(0, "", last=True), reads=True)
    speak()
    assert found == expected


def test_a_feed_leaves_nothing_to_the_collector_of_garbage() -> None:
    """See `test_garbage`."""
    segments(["Hello."], clean=True)
    with uncollected():
        segments(["Hello **there**, ", None, "`code` and [1] $x^2$ of 25 people."], clean=True)
        assert gc.collect() == 0
