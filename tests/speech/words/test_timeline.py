from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from agent_tts.directives import Directive, Pause, Say
from agent_tts.messages import Word
from agent_tts.speech.words import timeline as timeline_module
from agent_tts.speech.words.fitting import Fit
from agent_tts.speech.words.peaks import peaks
from agent_tts.speech.words.timeline import MAX_NOTES, NOTED_CHARS, READ_CHARS, LateTimeline, WordTimeline
from agent_tts.text.lengths import CLAUSE_PAUSE_MS, SENTENCE_PAUSE_MS
from agent_tts.text.words import words
from tests.examples import CUTS, examples, split
from tests.speech.words.test_silences import audio
from tests.work import work


def told(timeline: WordTimeline, *pieces: str) -> list[Word]:
    words = [word for piece in pieces for word in timeline.append(piece)]
    return words + timeline.complete()


@pytest.fixture
def timeline() -> WordTimeline:
    """Of an engine without times of its own."""
    return WordTimeline(aligned=False)


def test_words_are_whitespace_tokens_with_their_punctuation_and_offsets() -> None:
    words = told(WordTimeline(aligned=False), "  Hello, wor", "ld!  (Yes)\n")
    offsets = [(w.word, w.char_start, w.char_end) for w in words]
    assert offsets == [("Hello,", 2, 8), ("world!", 9, 15), ("(Yes)", 17, 22)]


def test_a_word_is_complete_with_the_white_space_after_it(timeline: WordTimeline) -> None:
    assert timeline.append("Hel") == []
    assert [w.word for w in timeline.append("lo wo")] == ["Hello"]
    assert [w.word for w in timeline.complete()] == ["wo"]
    assert timeline.complete() == []


def test_estimates_go_on_without_gaps_and_pause_after_a_sentence() -> None:
    one, two, three = told(WordTimeline(aligned=False), "abcd efgh. ijkl")
    assert one.start_ms == 0
    assert one.end_ms == two.start_ms
    assert two.end_ms - two.start_ms > one.end_ms - one.start_ms
    assert three.start_ms == two.end_ms + SENTENCE_PAUSE_MS


@pytest.mark.parametrize(
    ("text", "pause_ms"),
    [
        ("abcd\nijkl", CLAUSE_PAUSE_MS),
        ("abcd\n\nijkl", SENTENCE_PAUSE_MS),
        ("abcd \n \n\n ijkl", SENTENCE_PAUSE_MS),
        ("abcd.\nijkl", SENTENCE_PAUSE_MS),
        ("abcd,\n\nijkl", CLAUSE_PAUSE_MS),
        ("你\n好", CLAUSE_PAUSE_MS),
        ("word " * 12 + "abcd\nijkl", 0),  # a line that is filled goes on
        ("word " * 12 + "abcd\n\nijkl", SENTENCE_PAUSE_MS),
        ("word " * 12 + "abcd\n- ijkl", CLAUSE_PAUSE_MS),
        ("word " * 12 + "\nabcd\nijkl", CLAUSE_PAUSE_MS),
    ],
)
def test_a_line_break_is_a_pause_where_no_mark_is_one(text: str, pause_ms: float) -> None:
    for pieces in ([text], [*text]):
        *_, one, two = [word for word in told(WordTimeline(aligned=False), *pieces) if word.word != "-"]
        assert two.start_ms - one.end_ms == pytest.approx(pause_ms, abs=1)


def test_speed_shortens_the_estimates() -> None:
    (slow,) = told(WordTimeline(aligned=False), "word")
    (fast,) = told(WordTimeline(aligned=False, speed=2.0), "word")
    assert fast.end_ms == pytest.approx(slow.end_ms / 2, abs=1)


@examples(200)
@given(st.text(alphabet="ab .,你好\n\u2003", max_size=40), CUTS)
def test_the_split_of_the_text_does_not_change_the_words(text: str, cuts: list[int]) -> None:
    whole = told(WordTimeline(aligned=False), text)
    assert told(WordTimeline(aligned=False), *split(text, cuts)) == whole
    assert [w.word for w in whole] == [word for _, word in words(text)]
    assert all(text[w.char_start : w.char_end] == w.word for w in whole)


@given(st.text(max_size=60), st.floats(0, 60_000))
def test_heard_and_unheard_are_the_whole_text(text: str, played_ms: float) -> None:
    timeline = WordTimeline(aligned=False)
    told(timeline, text)
    heard, unheard = timeline.split(played_ms)
    assert heard + unheard == text


def test_a_long_text_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read 4 000 characters at once would take 10 to 30 ms of the event loop."""
    text = "word " * 300 + "好" * 600 + " " + "1" * 300 + " end. " + "a " * 500
    whole = WordTimeline(aligned=False)
    parts: list[list[Word]] = [whole.append(text)]
    while whole.is_unread:
        parts.append(whole.read())
    assert all(sum(len(word.word) + 1 for word in part[1:]) <= READ_CHARS for part in parts)
    found = [word for part in parts for word in part]
    assert [word.word for word in found] == [word for _, word in words(text)]
    monkeypatch.setattr(timeline_module, "READ_CHARS", 100_000)
    other = WordTimeline(aligned=False)
    at_once = other.append(text)
    assert all(whole.split(ms) == other.split(ms) for ms in range(0, found[300].end_ms, 5_000))
    assert [(word.word, word.char_start, word.start_ms) for word in found[:300]] == [
        (word.word, word.char_start, word.start_ms) for word in at_once[:300]
    ]


def test_a_cut_reads_no_more_text_than_was_played() -> None:
    """Sixteen contexts may be cut by one message, each with a long text."""
    timeline, other = WordTimeline(aligned=False), WordTimeline(aligned=False)
    text = "word " * 500
    for each in (timeline, other):
        each.append(text)
    assert "".join(timeline.split(1_000)) == text
    assert timeline.read() == other.read()
    heard, _ = timeline.split(60_000)  # more than is read: a client that plays before it reads the words
    assert len(heard) > 4 * READ_CHARS


def test_a_word_counts_as_heard_from_its_middle_on(timeline: WordTimeline) -> None:
    first, second = told(timeline, "Hello, world! ")
    middle = (second.start_ms + second.end_ms) / 2
    assert timeline.split(0) == ("", "Hello, world! ")
    assert timeline.split(first.end_ms) == ("Hello,", " world! ")
    assert timeline.split(middle - 1) == ("Hello,", " world! ")
    assert timeline.split(middle) == ("Hello, world!", " ")


def test_text_without_spaces_is_heard_character_by_character(timeline: WordTimeline) -> None:
    _, *words, last = told(timeline, "Hi 你好，世界。")
    assert [word.word for word in words] == ["你", "好，", "世"]
    assert timeline.split(words[1].end_ms)[0] == "Hi 你好，"
    assert timeline.split(last.end_ms) == ("Hi 你好，世界。", "")


def test_a_long_word_is_heard_in_parts(timeline: WordTimeline) -> None:
    """Mutation: pieces are never cut."""
    (word,) = told(timeline, "Donaudampfschifffahrtsgesellschaft")
    heard = [timeline.split(word.end_ms * part / 10)[0] for part in range(11)]
    assert heard[0] == ""
    assert [len(text) for text in heard] == sorted(len(text) for text in heard)
    assert {len(text) for text in heard} == {0, 11, 22, 34}


def test_text_without_spaces_is_told_as_it_comes(timeline: WordTimeline) -> None:
    """The last character alone waits, for a mark or punctuation behind it."""
    told = [
        [word.word for word in timeline.append(token)] for token in ("今天", "天气", "很", "好，", "GP", "U很", "贵")
    ]
    assert told == [["今"], ["天", "天"], ["气"], ["很"], ["好，"], ["GPU"], ["很"]]
    assert [word.word for word in timeline.complete()] == ["贵"]


def test_the_end_stretches_estimates_to_the_real_audio(timeline: WordTimeline) -> None:
    words = told(timeline, "one two three four")
    assert timeline.split(words[-1].end_ms)[1] == ""
    timeline.finish(10 * words[-1].end_ms)
    assert timeline.split(words[-1].end_ms)[1] != ""
    assert timeline.split(10 * words[-1].end_ms) == ("one two three four", "")


def test_aligned_times_are_sent_as_whole_tokens_of_the_text() -> None:
    timeline = WordTimeline(aligned=True)
    assert told(timeline, "Pay 3.14 — now!") == []
    pieces = [Word("", 50, 300, 0, 3), Word("", 300, 500, 4, 5), Word("", 500, 900, 6, 8)]
    assert timeline.align(pieces) == [Word("Pay", 50, 300, 0, 3), Word("3.14", 300, 900, 4, 8)]
    dash, now = timeline.align([Word("", 900, 1_200, 11, 14)])
    assert (dash, now) == (Word("—", 900, 900, 9, 10), Word("now!", 900, 1_200, 11, 15))


def test_unspoken_words_come_with_the_end() -> None:
    timeline = WordTimeline(aligned=True)
    assert timeline.direct(Pause(800)) == []  # the engine's times have it
    told(timeline, "Great! 😀")
    assert timeline.align([]) == []
    timeline.align([Word("", 0, 400, 0, 5)])
    assert timeline.finish(500) == [Word("😀", 400, 400, 7, 8)]
    silent = WordTimeline(aligned=True)
    told(silent, "😀")
    assert silent.finish(500) == [Word("😀", 0, 0, 0, 1)]


def test_an_unfinished_token_is_sent_when_it_is_complete() -> None:
    timeline = WordTimeline(aligned=True)
    timeline.append("你好，世")
    times = [Word("", 0, 200, 0, 1), Word("", 200, 400, 1, 3)]
    assert timeline.align(times) == [Word("你", 0, 200, 0, 1), Word("好，", 200, 400, 1, 3)]
    assert timeline.append("界 ") == []
    assert timeline.align([Word("", 400, 600, 3, 4), Word("", 600, 900, 4, 5)]) == [
        Word("世", 400, 600, 3, 4),
        Word("界", 600, 900, 4, 5),
    ]
    assert timeline.split(400)[0] == "你好，"


# ---------------------------------------------------------------- estimates settle with the audio

TEXT = "One two three, four five. Six seven eight nine."


def hear(timeline: WordTimeline | LateTimeline, pcm: bytes) -> None:
    timeline.hear(len(pcm) // 2, peaks(pcm))


def settled(timeline: WordTimeline, pcm: bytes) -> list[tuple[float, Word]]:
    """The words that settle in each 80 ms of audio, with the end time of the 80 ms."""
    found = []
    for start in range(0, len(pcm), 3_840):
        hear(timeline, pcm[start : start + 3_840])
        until_ms = min(len(pcm), start + 3_840) / 48
        found += [(until_ms, word) for word in timeline.settle(until_ms)]
    return found


def test_words_settle_once_with_the_audio_in_which_they_start(timeline: WordTimeline) -> None:
    words = told(timeline, TEXT)
    found = settled(timeline, audio((900, 9_000), (160, 0), (800, 9_000), (320, 0), (1_200, 9_000)))
    timeline.finish(3_380)
    found += [(3_380, word) for word in timeline.settle()]
    assert [word.word for _, word in found] == [word.word for word in words] == TEXT.split()
    assert all(until_ms - 80 <= word.start_ms < until_ms for until_ms, word in found[:4])
    assert {word.word: word.start_ms for _, word in found}["four"] == pytest.approx(1_060, abs=11)
    assert {word.word: word.start_ms for _, word in found}["Six"] == pytest.approx(2_180, abs=11)
    assert timeline.settle() == []


def test_a_settled_word_does_not_move_and_the_next_is_after_it() -> None:
    timeline = WordTimeline(aligned=False, pace=2.0)
    first = told(timeline, "one two six ten one two six ten one two, four five.")
    pcm = audio((first[9].end_ms * 7 // 100 * 10, 9_000), (150, 0), (400, 9_000))  # shorter than expected
    found = [word for _, word in settled(timeline, pcm)]
    known = timeline.words()
    assert [word.start_ms for word in found[:6]] == [word.start_ms for word in first[:6]]
    assert known[7].start_ms < found[6].start_ms  # the eighth word was spoken before the seventh was sent
    starts = [word.start_ms for word in found]
    assert starts == sorted(set(starts))


def test_audio_improves_the_heard_text(timeline: WordTimeline) -> None:
    told(timeline, TEXT)
    assert timeline.split(1_150)[0] == "One two three, four"
    settled(timeline, audio((1_000, 9_000), (160, 0), (750, 9_000), (320, 0), (100, 9_000)))
    assert timeline.split(1_150)[0] == "One two three,"
    assert timeline.split(2_220)[0] == "One two three, four five."


def test_a_flush_fixes_the_end_of_its_text(timeline: WordTimeline) -> None:
    timeline.append("a rather long beginning")
    timeline.flush()
    timeline.append(" 你好 more.")
    hear(timeline, audio((700, 9_000), (100, 0)))
    timeline.flushed(800)
    hear(timeline, audio((400, 9_000)))
    first, *_, last, you, _, more = timeline.words() + timeline.complete()
    assert (first.start_ms, last.end_ms, you.start_ms, more.word) == (0, 700, 800, "more.")


def test_a_word_behind_a_flush_settles_after_its_answer(timeline: WordTimeline) -> None:
    """Mutation: `settle` does not look at the flushes."""
    timeline.append("one two")
    timeline.flush()
    timeline.append(" three four ")
    hear(timeline, audio((3_000, 9_000)))
    assert [word.word for word in timeline.settle(2_900)] == ["one", "two"]
    timeline.flushed(3_000)
    hear(timeline, audio((1_000, 9_000)))
    (three, *_) = timeline.settle(3_900)
    assert (three.word, three.start_ms) == ("three", 3_000)


def test_the_end_tells_the_words_that_were_not_read() -> None:
    timeline, text = WordTimeline(aligned=False), "word " * 200 + "end"
    words = timeline.append(text)
    assert 0 < len(words) < 100
    words += timeline.finish(60_000)
    assert [word.word for word in words] == text.split()


def test_its_place_is_behind_the_last_character_that_is_no_white_space(timeline: WordTimeline) -> None:
    places = [timeline.place]
    for piece in (" ", "One two. ", " three"):
        timeline.append(piece)
        places.append(timeline.place)
    assert places == [0, 0, 9, 16]


def test_an_early_end_leaves_words_unheard(timeline: WordTimeline) -> None:
    told(timeline, TEXT * 20)
    hear(timeline, audio((2_000, 9_000)))
    timeline.finish(2_000, cut=True)
    assert len(timeline.split(2_000)[0]) < len(TEXT * 2)
    assert all(word.start_ms <= word.end_ms <= 2_000 for word in timeline.settle())


def test_the_engines_own_times_do_not_settle() -> None:
    timeline = WordTimeline(aligned=True)
    told(timeline, "Hello there")
    hear(timeline, audio((800, 9_000)))
    timeline.align([Word("", 0, 400, 0, 5), Word("", 400, 800, 6, 11)])
    timeline.finish(800)
    assert timeline.settle() == []


@examples(100)
@given(
    st.text(alphabet="ab .,你好7\n", max_size=60),
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0, 9_000])), max_size=8),
    st.booleans(),
)
def test_settled_words_are_all_words_in_order_within_the_audio(
    text: str, spans: list[tuple[int, int]], cut: bool
) -> None:
    timeline = WordTimeline(aligned=False)
    told(timeline, text)
    pcm = b"".join(audio((20 * ms, loud)) for ms, loud in spans)
    found = [word for _, word in settled(timeline, pcm)]
    timeline.finish(len(pcm) // 48, cut=cut)
    found += timeline.settle()
    assert [word.word for word in found] == [word for _, word in words(text)]
    starts = [word.start_ms for word in found]
    assert starts == sorted(starts)
    assert all(word.start_ms <= word.end_ms for word in found)
    assert all(word.start_ms <= len(pcm) // 48 for word in timeline.words())
    heard, unheard = timeline.split(10**9)
    assert heard + unheard == text


def test_a_pause_takes_exactly_its_time(timeline: WordTimeline) -> None:
    told = timeline.append("One two") + timeline.direct(Pause(800)) + timeline.append(" three ")
    told += timeline.direct(Pause(800)) + timeline.append("four") + timeline.complete()
    plain = WordTimeline(aligned=False)
    expected = plain.append("One two three four") + plain.complete()
    assert [word.word for word in told] == [word.word for word in expected]
    later = [word.start_ms - other.start_ms for word, other in zip(told, expected, strict=True)]
    assert later == [0, 0, 800, 1_600]
    timeline.finish(told[-1].end_ms)
    assert [word.word for word in timeline.settle()] == [word.word for word in told]


def test_a_word_that_is_spelled_takes_longer() -> None:
    timeline, plain = WordTimeline(aligned=False), WordTimeline(aligned=False)
    told = timeline.append("Code ") + timeline.direct(Say("ab", "alpha beta")) + timeline.direct(Say("c", " gamma"))
    told += timeline.append(" Yes") + timeline.complete()
    expected = plain.append("Code alpha beta gamma Yes") + plain.complete()
    assert [word.word for word in told] == ["Code", "abc", "Yes"]
    assert told[-1].start_ms == pytest.approx(expected[-1].start_ms, rel=0.1)
    assert timeline.direct(Say("d", None, "diː")) == []  # it has a transcription alone


def test_half_of_a_word_that_is_said_in_another_way_is_not_heard() -> None:
    timeline = WordTimeline(aligned=True)
    timeline.append("By ")
    timeline.direct(Say("W3C", "World Wide Web Consortium"))
    timeline.append(", now")
    times = [(0, 2, 0), (3, 4, 100), (3, 4, 200), (4, 5, 300), (5, 6, 400), (8, 11, 500)]
    timeline.align([Word("", ms, ms + 100, start, end) for start, end, ms in times])
    assert timeline.split(380) == ("By ", "W3C, now")
    assert timeline.split(480) == ("By W3C,", " now")


def test_a_number_spoken_in_parts_is_sent_when_all_its_times_are_known() -> None:
    timeline = WordTimeline(aligned=True)
    told(timeline, "is $5.50. Yes")
    assert [word.word for word in timeline.align([Word("", 0, 100, 0, 2), Word("", 100, 300, 3, 5)])] == ["is"]
    assert timeline.align([Word("", 300, 900, 5, 8)]) == [Word("$5.50.", 100, 900, 3, 9)]


def test_words_are_not_tracked_by_the_garbage_collector() -> None:
    """The collector stops the process to visit all its objects, and a busy node holds 100 000 words."""

    def known() -> int:
        gc.collect()
        return len(gc.get_objects())

    timelines = [WordTimeline(aligned=False) for _ in range(2)]
    before = known()
    for timeline in timelines:
        told(timeline, "speech " * 1_000)
    assert known() - before < 200


def test_without_word_times_a_long_text_is_read_with_its_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []
    add = Fit.add

    def counted(self: Fit, ms: float, pause_ms: float) -> None:
        read.append(ms)
        add(self, ms, pause_ms)

    monkeypatch.setattr(Fit, "add", counted)
    timeline = WordTimeline(aligned=False, tells=False)
    text = "One two three, four five. " * 100
    assert told(timeline, text) == []
    assert timeline.flush() == []
    at_once = len(read)
    assert 15 < at_once < 80
    for _ in range(50):
        hear(timeline, audio((80, 9_000)))
    assert at_once < len(read) < at_once + 40
    assert "".join(timeline.split(4_000)) == text
    assert timeline.split(60_000)[0].count("One") > 20
    timeline.finish(4_000, cut=True)
    assert len(read) < 500
    timeline.finish(4_000)
    assert len(read) == 500
    assert timeline.split(4_000) == (text.rstrip(), " ")


def test_without_word_times_a_flush_reads_its_text_when_it_is_answered() -> None:
    timelines = [WordTimeline(aligned=False, tells=tells) for tells in (True, False)]
    for timeline in timelines:
        timeline.append("A word or two, and so on. " * 20)
        timeline.flush()
        timeline.append("Nothing of this has been heard. " * 20)
        hear(timeline, audio((2_000, 9_000)))
        timeline.flushed(2_000)
    told, untold = (timeline.split(2_000)[0] for timeline in timelines)
    assert told == untold
    assert told.count("word") == 20


@given(
    st.lists(st.sampled_from(["word", "longer", "phrase,", "end.", "Ну,", "好。"]), min_size=1, max_size=120),
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 9_000])), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([0.25, 1.0, 4.0]),
)
@examples(60)
def test_the_heard_text_is_the_same_without_word_times(
    words: list[str], spans: list[tuple[int, int]], pieces: int, speed: float
) -> None:
    """The text comes in pieces, with audio in between."""
    timelines = [WordTimeline(aligned=False, tells=tells, speed=speed) for tells in (True, False)]
    size = -(-len(words) // pieces)
    heard_ms = 0
    for at in range(0, len(words), size):
        for timeline in timelines:
            timeline.append(" ".join(words[at : at + size]) + " ")
        for ms, loud in spans:
            heard_ms += 20 * ms
            for timeline in timelines:
                hear(timeline, audio((20 * ms, loud)))
    told, untold = timelines
    for played_ms in range(0, heard_ms, 100):
        assert told.split(played_ms) == untold.split(played_ms)


def test_pauses_shorter_than_estimated_do_not_delay_reading() -> None:
    """A pause is exact; its estimate is too short where speech is slow."""
    draw = random.Random(2)
    choices: list[str | Pause] = ["word", "phrase,", Pause(9_000), "end.", "longer"]
    tokens = [draw.choice(choices) for _ in range(80)]
    timelines = [WordTimeline(aligned=False, tells=tells, speed=0.25) for tells in (True, False)]
    for timeline in timelines:
        for token in tokens:
            if isinstance(token, str):
                timeline.append(f"{token} ")
            else:
                timeline.direct(token)
        while timeline.is_unread:
            timeline.read()
    heard_ms = 0
    for token in tokens[:30]:
        said = [(9_000, 0)] if isinstance(token, Pause) else [(1_280, 9_000), (1_200 if token[-1] in ",." else 0, 0)]
        for ms, loud in said:
            heard_ms += ms
            for timeline in timelines:
                for start in range(0, ms, 1_000):
                    hear(timeline, audio((min(1_000, ms - start), loud)))
    told, untold = timelines
    for played_ms in range(0, heard_ms, 500):
        assert told.split(played_ms) == untold.split(played_ms)


# ---------------------------------------------------------------- a listener who gets no words


SOUND, SILENCE = audio((80, 9_000)), audio((240, 0))


@examples(100)
@given(st.data())
def test_a_late_timeline_splits_as_one_that_reads_at_once(data: st.DataObject) -> None:
    """Whatever comes, in whatever order, and however often it is asked."""
    prompt, other = (WordTimeline(aligned=False, tells=False, pace=1.5) for _ in range(2))
    late = LateTimeline(other)
    audio_ms = 0
    for _ in range(data.draw(st.integers(0, 20))):
        match data.draw(st.sampled_from(["append", "direct", "hear", "hear", "flush", "flushed", "split"])):
            case "direct":
                directives: list[Directive] = [Say("nginx", "engine x"), Say("GIF", ipa="dʒɪf"), Pause(500)]
                directive = data.draw(st.sampled_from(directives))
                assert late.direct(directive) == prompt.direct(directive) == []
            case "append":
                text = data.draw(st.sampled_from(["Hel", "lo there. ", "One, two, three. " * 9, "\n", "x" * 300]))
                assert late.append(text) == prompt.append(text) == []
            case "hear":
                for pcm in [SOUND] * data.draw(st.sampled_from([1, 5, MAX_NOTES])) + [SILENCE]:
                    hear(late, pcm)
                    hear(prompt, pcm)
                    audio_ms += len(pcm) // 48
            case "flush":
                late.flush()
                prompt.flush()
            case "flushed":
                late.flushed(audio_ms)
                prompt.flushed(audio_ms)
            case "split":
                assert late.split(audio_ms / 2) == prompt.split(audio_ms / 2)
    late.complete()
    prompt.complete()
    if data.draw(st.booleans()):
        late.finish(audio_ms, cut=True)
        prompt.finish(audio_ms, cut=True)
    assert late.split(audio_ms) == prompt.split(audio_ms)


def test_a_late_timeline_computes_nothing_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: notes that are taken in at once."""
    with monkeypatch.context() as patch:
        patch.setattr(Fit, "add", None)
        patch.setattr(Fit, "hear", None)
        late = LateTimeline(WordTimeline(aligned=False, tells=False))
        late.append("One two three, four five.")
        for _ in range(60):
            hear(late, SOUND)
        late.complete()
    assert "".join(late.split(1_000)) == "One two three, four five."
    assert late.split(1_000)[0]


def test_a_late_timeline_takes_a_long_text_in_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All contexts of a session may be cut at once. Mutation: notes of any length."""
    read: list[int] = []

    def noted(text: str) -> Iterator[tuple[int, str]]:
        read.append(len(text))
        return words(text)

    monkeypatch.setattr(timeline_module, "words_in", noted)
    late = LateTimeline(WordTimeline(aligned=False, tells=False))
    for _ in range(80):
        late.append("a " * 128)
    read.clear()
    late.split(0)
    assert sum(read) <= NOTED_CHARS


# ---------------------------------------------------------------- what it costs


def test_a_long_word_that_still_comes_has_marks_inside() -> None:
    """Of a script with spaces, whose word ends at white space alone. Mutation: it is read once it is complete."""
    url = "https://example.com/" + "path/of/the/answer/" * 10
    for tells in (True, False):
        timeline = WordTimeline(aligned=False, tells=tells)
        for letter in f"See\n{url}":
            assert [word.word for word in timeline.append(letter)] in ([], ["See"])
        timeline.hear(24_000 * 6, peaks(b"\x00\x40" * 24_000 * 6))
        heard, unheard = timeline.split(3_000)
        assert heard + unheard == f"See\n{url}"
        assert 15 < len(heard) < 100
        whole = WordTimeline(aligned=False, tells=tells)
        whole.append(f"See\n{url} ")
        assert abs(len(whole.split(3_000)[0]) - len(heard)) < 12
        told = timeline.append(" ")
        assert [word.word for word in told] == ([url] if tells else [])
        assert timeline.split(3_000)[0] == heard


def test_no_call_takes_longer_in_a_script_without_spaces_or_when_nothing_is_spoken() -> None:
    """Lines of code of one call of the front: 256 characters of English take 6 500, which is a third of a millisecond.

    Mutations: all words that the engine has left out are told at once; a long word is read again with each of its
    characters.
    """
    texts = {
        "en": "hello there " * 250,
        "zh": "今天天气很好我们一起去公园" * 230,
        "th": "สวัสดีครับไปน้ำ" * 200,
        "my": "မင်္ဂလာပါ" * 333,
        "emoji": "😀 " * 1_500,
        "one word": "a" * 6_000,
        "brackets": "(" * 6_000,
    }
    most: dict[tuple[str, bool], int] = {}
    for (name, text), aligned in product(texts.items(), (False, True)):
        timeline, size = WordTimeline(aligned=aligned), len(text)
        calls: list[Callable[[], object]] = []
        calls += [partial(timeline.append, text[at : min(at + 256, size - 40)]) for at in range(0, size - 40, 256)]
        calls += [partial(timeline.append, char) for char in text[-40:]]
        calls += [timeline.complete, partial(timeline.align, [Word("", 0, 9_000, size - 1, size)] * aligned)]
        calls += [partial(timeline.finish, 10_000)] * aligned
        found = [work(call) for call in calls]
        while timeline.is_unread:
            found.append(work(timeline.read))
        found.append(work(partial(timeline.split, 5_000)) - 2 * size)  # but for the text, which it is given twice
        most[name, aligned] = max(found)
    assert max(most.values()) < 24_000, most


def test_a_text_takes_little_memory_for_each_of_its_words() -> None:
    """Each character is a word here: tuples of them took 390 bytes a character, and thousands of texts are open."""
    timeline = WordTimeline(aligned=False, language="zh")
    text = "你好" * 2_000
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(0, len(text), READ_CHARS):
            timeline.append(text[at : at + READ_CHARS])
        while timeline.is_unread:
            timeline.read()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 200 * len(text), taken
