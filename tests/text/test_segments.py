"""The places where a text can be cut, as it comes.

The sentences follow the golden rules of pragmatic_segmenter and pysbd, which number what a segmenter must know.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.text.segments import MAX_HELD, Level, Pieces, Segmenter
from tests.examples import CUTS, examples, split


def feed(segmenter: Segmenter, *texts: str) -> list[str | Level]:
    """The places of a text that comes in pieces, and what is between them."""
    found: list[str | Level] = [""]
    parts = [part for text in texts for part in segmenter.feed(text)] + [*segmenter.flush()]
    for part in parts:
        if isinstance(part, Level):
            found += [part, ""]
        else:
            found[-1] = f"{found[-1]}{part}"
    return found


def cut(text: str, language: str = "en", level: Level = Level.SENTENCE) -> list[str]:
    """The text, cut at all places of a level."""
    found = [""]
    for part in feed(Segmenter(language), text):
        if not isinstance(part, Level):
            found[-1] += part
        elif part >= level:
            found.append("")
    return [part.strip() for part in found]


# "|" stands where a sentence ends.
SENTENCES = [
    # Points, questions, exclamations, several of them, and ellipses.
    ("en", "It rains. | We stay."),
    ("en", "Who is it? | It is me."),
    ("en", "Look! | A fox."),
    ("en", "Hey!! | Wait?! | Really!? | Yes."),
    ("en", "I never said that.... | She left."),
    ("en", "I was not … well, you know … sure."),
    ("en", "Leave it out . . . . | Next one."),
    # Initials, titles, places, companies, countries, hours.
    ("en", "I am Anna B. Miller."),
    ("en", "Turn to p. 21, see fig. 3 and No. 5."),
    ("en", "Was Tom and co. there?"),
    ("en", "Ask Tom and co. | They know."),
    ("en", "He left Miller, Jones & Co. at noon."),
    ("en", "Mt. Fuji and St. Paul's are far, said Dr. Smith."),
    ("en", "It is Tom Jr.'s book."),
    ("en", "I saw the U.S.A. last year."),
    ("en", "I live in the U.S. | How about you?"),
    ("en", "She works for the U.S. Government."),
    ("en", "At 5 a.m. Mr. Smith slept."),
    ("en", "It was you and I. | Did you see Albert I. Jones?"),
    # Numbers, addresses, lists.
    ("en", "It costs $10.00. | That is cheap."),
    ("en", "Write to Tom.Jones@example.com. | I did."),
    ("en", "See https://www.example.50.com/new.html. | It is there."),
    ("en", "1.) The first 2.) The second"[:13] + " | 2.) The second"),
    ("en", "1. The first. | 2. The second."),
    ("en", "a. The first | b. The second | c. The third"),
    ("en", "• 9. The first | • 10. The second"),
    # Quotes, brackets, names with a mark.
    ("en", "He turned to her, 'That is good.' he said."),
    ("en", 'He turned to her, "That is good." | She left.'),
    ("en", "He said “That is good.” | She left."),
    ("en", "(It is late.) | We go."),
    ("en", "He taught (he had been an engineer.) at the school."),
    ("en", "She is at Yahoo! in the evening."),
    # Line breaks.
    ("en", "Buy:\n| - bread\n| - milk and butter"),
    ("en", "A title\n\n| A text"),
    # The other languages.
    ("de", "Wir treffen uns am 14. Januar. | Dann fahren wir z. B. zum 3. Mal los."),
    ("de", "Frau Dr. Meier kommt z.B. am 1.2. um 14.30 Uhr. | Er auch."),
    ("de", "„Ich habe keine Zeit.“ | Wir gehen."),
    ("fr", "M. Dupont paie 3,5 €. | Elle dit « non ! » et part."),
    ("fr", "Il est tard ! | Où es-tu ?"),
    ("es", "¿Cómo está? | ¡Bien! | El Sr. Gómez y la Sra. Ruiz, p.ej. hoy, vienen."),
    ("es", "«Nadie está exento.», dijo él."),
    ("it", "Salve Sig.ra Rossi! | È qui l'Ing. Bianchi?"),
    ("pt", "O Sr. Silva chegou. | A Dra. Costa também."),
    ("ru", "Это стоит 5 тыс. руб. в год. | Он живёт на ул. Ленина."),
    ("ru", "Она спросила: «Где мама?». | Никто не знал."),
    ("zh", "他说：“你好。”| 我们走吧！| 好吗？"),
    ("zh", "我们明天去看《摔跤吧！爸爸》好吗？| 好！"),
    ("zh", "价格是3.5元。| 很便宜。"),
    ("zh", "他说：“iPhone很好。真的。”| 我们走吧！"),
    ("zh", "他说「I don’t know。真的。」| 我们走吧！"),
    ("ja", "これはペンです。| それは何ですか？| ３．２９％です。"),
    ("ja", "彼は「行く。」と言った。| 私も。"),
    ("ko", "오늘은 3.5도입니다. | 춥네요! | 그렇죠?"),
    ("hi", "यह अच्छा है। | वह भी।"),
    ("ar", "كيف حالك؟ | أنا بخير."),
]


def test_a_sentence_ends_where_a_reader_ends_it() -> None:
    for language, text in SENTENCES:
        expected = [sentence.strip() for sentence in text.split("|")]
        assert cut(text.replace("| ", "").replace("|", ""), language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Well, let me see: yes", ["Well,", "let me see:", "yes"]),
        ("it is late; we go - or not", ["it is late;", "we go - or not"]),
        ("it costs 1,000 at 10:30 today", ["it costs 1,000 at 10:30 today"]),
        ("好的，我看看、想一想", ["好的，", "我看看、", "想一想"]),
        ("all small. no capitals! none", ["all small. no capitals!", "none"]),
    ],
)
def test_a_clause_ends_with_its_mark(text: str, expected: list[str]) -> None:
    assert cut(text, level=Level.CLAUSE) == expected


def test_words_and_wide_characters_can_be_cut_between() -> None:
    assert cut("one two\u00a0three", level=Level.WORD) == ["one", "two\u00a0three"]
    assert cut("东西っ「南」北", level=Level.CHAR) == ["东", "西っ", "「南」", "北"]


TEXTS = st.lists(st.sampled_from([*'aB1. !?,\n。”」「你é"(2)\u00a0•-“', "x" * 20, "-" * 20]), max_size=60).map("".join)


@pytest.mark.parametrize("text", [f"{'x' * 25}你好", f"{'x' * 25}。。-", f"A etc. {'-' * 25}The", f"“{'x' * 25}好。你"])
def test_the_places_around_a_long_word_do_not_depend_on_the_split(text: str) -> None:
    assert feed(Segmenter(), *text) == feed(Segmenter(), text)


@examples(200)
@given(TEXTS, CUTS)
def test_the_places_do_not_depend_on_the_split_and_no_text_is_lost(text: str, cuts: list[int]) -> None:
    whole = feed(Segmenter(), text)
    assert feed(Segmenter(), *split(text, cuts)) == whole
    assert "".join(part for part in whole if not isinstance(part, Level)) == text


def test_at_most_a_word_is_held_back() -> None:
    segmenter = Segmenter()
    assert [*segmenter.feed("Hello. Wor")] == ["Hello.", " "]
    assert [*segmenter.feed("x" * (MAX_HELD + 1))] == [Level.SENTENCE, "Wor" + "x" * (MAX_HELD + 1)]
    assert [*segmenter.feed("yz")] == ["yz"]
    assert [*segmenter.feed(" a")] == [" "]
    assert [*segmenter.flush()] == [Level.WORD, "a"]


def test_a_clause_ends_before_the_word_behind_it_does() -> None:
    assert [*Segmenter().feed("Sure, le")] == ["Sure,", " ", Level.CLAUSE]
    assert [*Segmenter().feed("Sure. Le")] == ["Sure.", " "]


def pieces(limit: int, *texts: str) -> list[str]:
    """The pieces of a text that comes in parts."""
    cutter = Pieces(limit)
    found = [""]
    for part in [part for text in texts for part in cutter.feed(text)] + [*cutter.end()]:
        if part is None:
            found.append("")
        else:
            found[-1] += part
    return [piece for piece in found if piece]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four. Five", ["One two. Three four. ", "Five"]),
        ("no end of it, in a sentence that is, well", ["no end of it, in a ", "sentence that is, ", "well"]),
        ("x" * 70, ["x" * 30, "x" * 30, "x" * 10]),
        ("これは文です。次の文", ["これは文です。", "次の文"]),
        ("short.", ["short."]),
    ],
)
def test_pieces_end_with_a_sentence_or_a_clause_or_anywhere(text: str, expected: list[str]) -> None:
    assert pieces(10, text) == expected
    assert pieces(10, *text) == expected
