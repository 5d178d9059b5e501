"""A live text gives the same segments of tokens for any split."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.bench.checkpoint_config import write_tokenizer
from agent_tts.engine.base import AddText, StartRequest
from agent_tts.engine.qwen3.delivery import Manner
from agent_tts.engine.qwen3.segment_feed import SEGMENT_CHARS, SegmentFeed
from agent_tts.events import Language, Pause, Prosody, Say, SpeechOptions, Style
from agent_tts.text.directives import ABILITIES, Directives
from agent_tts.text.tokens import TokenFeed, Tokenizer
from tests.engine.driver import Piece, add


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.load(folder)


Spoken = list[tuple[list[int], int]]  # of each segment: its tokens, and the number of flushes after it


def segments(tokenizer: Tokenizer, parts: Sequence[str | None], *, clean: bool = False) -> Spoken:
    """The segments of a text given in parts; None is a flush. Tokens are taken as soon as they exist."""
    feed = SegmentFeed(StartRequest(0, 1, SpeechOptions(clean=clean)), TokenFeed(tokenizer))
    taken: list[int] = []
    spoken: Spoken = []

    def take() -> None:
        nonlocal taken
        while True:
            feed.read()
            if not feed.segments:
                return
            segment = feed.segments[0]
            taken += segment.tokens
            segment.tokens.clear()
            if segment.complete:
                spoken.append((taken, feed.segments.popleft().flushes))
                taken = []
            elif feed.dry:
                return

    for part in parts:
        feed.take_text(AddText(0, part or "", flush=part is None))
        take()
    feed.take_text(AddText(0, "", last=True))
    take()
    assert not feed.segments
    return spoken


TEXTS = st.text(st.sampled_from("ab .!?。你。é\u0301\u0323<|1\n👋*_"), max_size=60)


@given(TEXTS, st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_segments_do_not_depend_on_the_split(tokenizer: Tokenizer, text: str, cuts: list[int], clean: bool) -> None:
    ends = sorted(min(cut, len(text)) for cut in cuts)
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert segments(tokenizer, parts, clean=clean) == segments(tokenizer, [text], clean=clean)


CHANGES = st.sampled_from(
    [Pause(200), Prosody(speed=2.0), Prosody(), Style("Whisper."), Style(None), Language("de"), Say("3", "three")]
)
Shape = list[tuple[list[int], Manner, int, bool]]


def shaped(tokenizer: Tokenizer, parts: Sequence[Piece]) -> Shape:
    """The segments with something to speak or a pause: their tokens and manners, the pauses and seams after them."""
    directives = Directives(ABILITIES, {"de": "de"})
    feed = SegmentFeed(StartRequest(0, 1, SpeechOptions(clean=False)), TokenFeed(tokenizer), directives=directives)
    for part in parts:
        feed.take_text(add(0, part, last=False))
    feed.take_text(AddText(0, "", last=True))
    spoken: Shape = []
    while True:
        feed.read()
        if not feed.segments:
            return spoken
        if feed.segments[0].complete:
            one = feed.segments.popleft()
            if one.rest_ms or not one.is_mute:
                spoken.append((one.tokens, one.manner, one.rest_ms, one.seam))


@given(st.lists(TEXTS | CHANGES, max_size=8))
def test_manners_do_not_depend_on_the_split(tokenizer: Tokenizer, parts: list[Piece]) -> None:
    single = [one for part in parts for one in (part if isinstance(part, str) else [part])]
    spoken = shaped(tokenizer, parts)
    assert shaped(tokenizer, single) == spoken
    assert all(manner.language in (None, "de") and manner.speed in (1.0, 2.0) for _, manner, _, _ in spoken)


@given(st.lists(TEXTS | st.none(), max_size=6))
def test_every_flush_is_answered_after_all_text_before_it(tokenizer: Tokenizer, parts: list[str | None]) -> None:
    spoken = segments(tokenizer, parts)
    assert sum(flushes for _, flushes in spoken) == parts.count(None)
    texts = "".join("\0" if part is None else part for part in parts).split("\0")  # between the flushes
    heard = ""
    for tokens, flushes in spoken:
        heard += visible(tokenizer, tokens)
        for _ in range(flushes):
            assert heard == visible(tokenizer, tokenizer.encode(texts.pop(0)))
            heard = ""


def visible(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """The tokens' bytes, as the vocabulary writes them, without white space."""
    return "".join(tokenizer._pipeline.id_to_token(token) for token in tokens).translate(dict.fromkeys(map(ord, "ĠĊ")))


def test_a_text_is_split_at_the_length_of_a_segment(tokenizer: Tokenizer) -> None:
    sentence = "How are you in the world? "
    count = SEGMENT_CHARS // len(sentence)
    assert segments(tokenizer, [sentence * count]) == [(tokenizer.encode(sentence * count), 0)]
    longer = segments(tokenizer, [sentence * 3 * count])
    assert len(longer) == 3
    assert longer[0][0] == tokenizer.encode(sentence * (count + 1))


def test_a_long_text_is_read_in_chunks(tokenizer: Tokenizer) -> None:
    feed = SegmentFeed(StartRequest(0, 1, SpeechOptions()), TokenFeed(tokenizer))
    feed.take_text(AddText(0, "word " * 4_000, last=True))
    feed.read()
    assert 0 < len(feed.segments[0].tokens) < 1_000
    assert not feed.dry


def test_markup_is_removed_only_with_clean(tokenizer: Tokenizer) -> None:
    assert segments(tokenizer, ["**the**"], clean=True)[0][0] == tokenizer.encode("the")
    assert segments(tokenizer, ["**the**"])[0][0] == tokenizer.encode("**the**")


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
def test_pauses_and_flushes_keep_their_order(
    tokenizer: Tokenizer, parts: list[Piece], expected: list[object], at_once: bool
) -> None:
    """Whether segments are spoken at once or later."""
    feed = SegmentFeed(StartRequest(0, 1, SpeechOptions()), TokenFeed(tokenizer))
    found: list[object] = []

    def speak() -> None:
        while feed.segments and feed.segments[0].complete:
            segment = feed.segments.popleft()
            found.extend([*[1_000] * (segment.rest_ms // 1_000), *["flush"] * segment.flushes])

    for part in parts:
        feed._read(add(0, part, last=False))
        if not at_once:
            speak()
    feed._read(AddText(0, "", last=True))
    speak()
    assert found == expected
