"""Figures from a page's notes: notes are written by hand, their figures are known."""

from __future__ import annotations

from tests.measure.timeline import Answer, Interruption, Note, answers, interruptions, spans

# A question, an answer with a pause in it, a voice during it that is detected 300 ms later, and the next answer.
QUESTION: list[Note] = [("user loud", 1_000), ("user quiet", 2_000)]
FIRST: list[Note] = [("agent loud", 3_000), ("agent quiet", 3_500), ("agent loud", 3_700), ("agent quiet", 5_420)]
VOICE: list[Note] = [("user loud", 5_000), ("told user-started-speaking", 5_300), ("user quiet", 6_000)]
MUTED: list[Note] = [("muted", 5_304), ("unmuted", 5_520)]
SECOND: list[Note] = [("agent loud", 7_050), ("agent quiet", 8_000)]
CALL = [*QUESTION, *FIRST, *VOICE, *MUTED, *SECOND]


def test_a_pause_is_part_of_speech_and_a_silence_is_not() -> None:
    assert spans(CALL, "agent") == [(3_000, 5_420), (7_050, 8_000)]
    assert spans(CALL, "user") == [(1_000, 2_000), (5_000, 6_000)]


def test_notes_may_come_in_any_order() -> None:
    """Levels are reported later than they occur."""
    assert spans(CALL[::-1], "agent") == spans(CALL, "agent")


def test_an_interruption_ends_when_no_sound_arrives_or_the_page_is_mute() -> None:
    assert interruptions(CALL) == [Interruption(voice=5_000, told=5_300, silent=5_420, unheard=5_304)]
    unmuted = [note for note in CALL if note not in MUTED]
    assert interruptions(unmuted) == [Interruption(voice=5_000, told=5_300, silent=5_420, unheard=5_420)]


def test_a_voice_during_silence_is_no_interruption() -> None:
    """Neither a question nor a voice that is detected when the answer has just ended."""
    question: list[Note] = [*QUESTION, ("told user-started-speaking", 1_300)]
    assert interruptions(question) == []
    assert interruptions([*QUESTION, *FIRST, ("told user-started-speaking", 5_421)]) == []


def test_an_answer_is_timed_from_the_words_before_it() -> None:
    assert answers(CALL, [2_800, 6_900]) == [Answer(2_000, 2_800, 3_000), Answer(6_000, 6_900, 7_050)]


def test_an_answer_without_sound_does_not_get_the_sound_of_the_next() -> None:
    assert answers(CALL, [2_800, 6_500, 6_900]) == [Answer(2_000, 2_800, 3_000), Answer(6_000, 6_900, 7_050)]
