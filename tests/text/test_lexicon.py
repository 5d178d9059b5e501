"""Words are found as a person expects, the longest first, for any split of the text."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.directives import Say
from agent_tts.text.entries import Entry, Lexicon
from agent_tts.text.lexicon import MAX_HELD, LexiconReader
from tests.examples import CUTS, examples, split
from tests.work import more_than_linear, work

_FLUSH = None

# fmt: off
_PIECES = st.sampled_from([
    "new", "New", "NEW", " ", "  ", "\n", "york", "York", "city", "us", "US", "don", "'t", "’s", "'", "cat", "alogue",
    "s", "é", "e\u0301", "e", "삼성", "은", "重", "庆", "アイ", "ス", "-", ".", "C", "++", "ß", "ss", "İ",
    "i\u0307", "1",
])
# fmt: on
_TEXTS = st.lists(_PIECES | st.text(max_size=2), max_size=20).map("".join)
_LEXICON = Lexicon.of(
    {
        **dict.fromkeys(["new", "new york", "New York City", "us", "US", "don", "cat", "s", "é", "삼성", "重庆"], "x"),
        **dict.fromkeys(["アイ", "C", "C++", "ß", "İ", "1 1", "e"], "y"),
        "alo": {"alias": "z", "whole_word": False},
    }
)


def read(script: list[str | None], *lexicons: Lexicon) -> list[str | Say]:
    """What comes out of pieces of text with flushes between them, adjacent texts joined."""
    reader = LexiconReader(lexicons or [_LEXICON])
    out: list[str | Say] = []
    for piece in [*script, _FLUSH]:
        for item in reader.flush() if piece is _FLUSH else reader.append(piece):
            if isinstance(item, str) and out and isinstance(last := out[-1], str):
                out[-1] = last + item
            else:
                out.append(item)
    return out


def said(text: str, *mappings: dict[str, str]) -> str:
    items = read([text], *map(Lexicon.of, mappings))
    return "".join(item if isinstance(item, str) else f"<{item.alias}>" for item in items)


@examples(300)
@given(text=_TEXTS, cuts=CUTS)
def test_the_split_does_not_matter(text: str, cuts: list[int]) -> None:
    """Any pieces, single characters, or the whole text."""
    whole = read([text])
    assert read([*split(text, cuts)]) == whole
    assert read(list(text)) == whole


@examples(200)
@given(parts=st.lists(_TEXTS, max_size=4))
def test_flushes_are_part_of_the_text(parts: list[str]) -> None:
    whole: list[str | None] = [piece for part in parts for piece in (part, _FLUSH)]
    pieces: list[str | None] = [piece for part in parts for piece in (*part, _FLUSH)]
    assert read(pieces) == read(whole)


@examples(300)
@given(text=_TEXTS)
def test_the_text_stays_as_it_was(text: str) -> None:
    assert "".join(item if isinstance(item, str) else item.text for item in read([text])) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # capitals: "nginx" and "Ada" are entries, "US" and "iPhone" with capitals
        ("nginx Nginx NGINX nGINX", "<n> <n> <n> <n>"),
        ("us Us US", "us Us <u>"),
        ("Ada ada ADA aDA", "<a> ada <a> aDA"),
        ("iPhone IPhone IPHONE iphone", "<i> <i> <i> iphone"),
        # whole words
        ("(nginx), nginx. nginx-based re-nginx", "(<n>), <n>. <n>-based re-<n>"),
        ("nginxes anginx nginx2 2nginx", "nginxes anginx nginx2 2nginx"),
        ("**nginx** _nginx_ `nginx`", "**<n>** _<n>_ `<n>`"),
        ("Ada's Ada’s Ada'll l'Ada 'Ada'", "<a>'s <a>’s <a>'ll l'<a> '<a>'"),
        ("don't Don't DON'T don’t", "don't Don't DON'T don’t"),
        ("don 'don' the don's don'", "<d> '<d>' the <d>'s <d>'"),
        ("ol's ol' s ol'Ada 's' Ada't don-t", "<o>s <o> <s> <o><a> '<s>' <a>'t <d>-t"),
        ("it's s. I'm m", "it's <s>. I'm <m>"),
        # letters of any form
        ("café cafe\u0301 CAFÉ cafe", "<c> <c> <c> cafe"),
        ("cafe\u0301s", "cafe\u0301s"),
        ("die Straße, STRASSE", "die <g>, <g>"),
        ("rock'n'roll rock’n’roll", "<r> <r>"),
        # the longest
        ("new york, New  York City, new\u00a0york citys", "<ny>, <nyc>, <ny> citys"),
        ("new new york", "new <ny>"),
        ("new\nyork", "new\nyork"),
        ("C++ C C# C+", "<see pp> <see> <see># <see>+"),
        # scripts without spaces between words
        ("我在重庆市。", "我在<cq>市。"),
        ("用nginx和重庆", "用<n>和<cq>"),
        ("アイ アイス カアイ アイと アイ・アイ アイァ アイヿ", "<ai> アイス カアイ <ai>と <ai>・<ai> アイァ アイヿ"),
        ("ｱｲ ｱｲｽ ｱｲｦ ｱｲﾟ", "<ai> ｱｲｽ ｱｲｦ ｱｲﾟ"),
        ("삼성은 삼성 대삼성 가삼성 힣삼성 nginx는", "<ss>은 <ss> 대삼성 가삼성 힣삼성 <n>는"),
        ("ไปกรุงเทพมา កnginx", "ไป<bkk>มา ក<n>"),
    ],
)
def test_a_word_is_found_as_a_person_expects(text: str, expected: str) -> None:
    lexicon = {
        "nginx": "n",
        "US": "u",
        "Ada": "a",
        "iPhone": "i",
        "don": "d",
        "s": "s",
        "m": "m",
        "café": "c",
        "ol'": "o",
    }
    lexicon |= {
        "Straße": "g",
        "rock'n'roll": "r",
        "new york": "ny",
        "new york city": "nyc",
        "C": "see",
        "C++": "see pp",
    }
    lexicon |= {"重庆": "cq", "アイ": "ai", "ｱｲ": "ai", "삼성": "ss", "กรุงเทพ": "bkk"}
    assert said(text, lexicon) == expected


def test_an_entry_says_how_it_is_matched() -> None:
    exact = Lexicon([Entry("Ada", "1", match_case=True), Entry("bob", "2", match_case=True)])
    loose = Lexicon([Entry("US", "3", match_case=False), Entry("ology", "4", whole_word=False), Entry("olo", "5")])
    assert [item.alias for item in read(["ADA Ada Bob bob"], exact) if isinstance(item, Say)] == ["1", "2"]
    assert read(["us biology biolo"], loose) == [Say("us", "3"), " bi", Say("ology", "4"), " biolo"]
    assert read(["cafe\u0301"], Lexicon([Entry("afe", "1", whole_word=False)])) == ["cafe\u0301"]


def test_of_entries_for_one_word_the_strictest_is_found() -> None:
    assert said("us US Us", {"us": "1", "US": "2"}) == "<1> <2> <1>"
    assert said("POLISH Polish", {"Polish": "1", "POLISH": "2"}) == "<2> <1>"
    lexicon = Lexicon([Entry("aDa", "1", match_case=False), Entry("ada", "2"), Entry("Ada", "3", match_case=True)])
    assert [item.alias for item in read(["Ada ada"], lexicon) if isinstance(item, Say)] == ["3", "2"]


def test_the_first_lexicon_wins_unless_a_later_one_has_a_longer_entry() -> None:
    assert said("nginx new york", {"nginx": "1", "new": "2"}, {"nginx": "3", "new york": "4"}) == "<1> <4>"
    assert said("NGINX", {"nginx": "1"}, {"NGINX": "2"}) == "<1>"
    assert said("don't wor", {"don": "1"}, {"don't worry": "2"}) == "don't wor"


def test_what_an_entry_says_is_not_looked_up() -> None:
    assert said("a b", {"a": "b", "b": "a"}) == "<b> <a>"


def test_a_transcription_comes_with_its_alias() -> None:
    lexicon = Lexicon.of({"GIF": {"ipa": "dʒɪf", "alias": "jif"}, "nginx": {"ipa": "x"}})
    assert read(["GIF nginx"], lexicon) == [Say("GIF", "jif", "dʒɪf"), " ", Say("nginx", None, "x")]


def test_a_flush_ends_a_word() -> None:
    assert read(["cata", _FLUSH, "cat", _FLUSH, "s"]) == ["cata", Say("cat", "x"), Say("s", "x")]


def test_text_is_held_back_only_while_an_entry_may_come() -> None:
    reader = LexiconReader([Lexicon.of({"new york": "x"})])
    assert reader.append("the new") == ["the "]
    assert reader.append(" ") == []
    assert reader.append("car") == ["new car"]
    assert reader.append(" newer n") == [" newer "]
    assert reader.append("e" + " " * MAX_HELD) == ["ne" + " " * MAX_HELD]
    assert LexiconReader([Lexicon.of({"don": "x"})]).append("don's") == [Say("don", "x"), "'s"]


def test_white_space_without_end_is_not_held() -> None:
    reader = LexiconReader([Lexicon.of({"new york": "x"})])
    assert reader.append("new" + " " * (MAX_HELD - 4)) == []
    assert reader.append(" ") == ["new" + " " * (MAX_HELD - 3)]
    assert len("".join(map(str, reader.append("new" + " " * 10_000)))) > 9_000


def test_work_is_linear_in_the_text() -> None:
    """Entries that nearly match at every character; without `MAX_HELD` and `goes_on` this takes minutes."""

    def nearly(entries: int, chars: int) -> None:
        assert read(["重" * chars], lexicons[entries]) == ["重" * chars]

    lexicons = {
        count: Lexicon.of({"重" * 60 + chr(0x4E00 + number): "x" for number in range(count)}) for count in (1, 2_000)
    }
    assert not more_than_linear(lexicons, nearly)


def test_spellings_of_one_word_cost_no_more_than_one() -> None:
    """Without the look-up by spelling each character is compared with all of them: a text takes seconds."""

    spellings = ["é" * 30, *("".join(case) for case in product(*["éÉ"] * 7, *["É"] * 23))]
    one, many = (
        LexiconReader([Lexicon(Entry(each, "x", match_case=True, whole_word=False) for each in spellings[:count])])
        for count in (1, 128)
    )
    assert len(one.append("é" * 200)) == len(many.append("é" * 200)) > 5
    assert work(lambda: many.append("é" * 200)) < 1.1 * work(lambda: one.append("é" * 200))


def test_entries_of_many_lengths_cost_no_more_than_one() -> None:
    """Entries that nearly match: if each length is looked up at each character, a slice of a text takes 0.1 s."""
    one, many = (
        LexiconReader([Lexicon(Entry("." * length + "b", "x") for length in lengths)])
        for lengths in ([61], range(1, 62))
    )
    assert one.append("." * 200) == many.append("." * 200)
    assert work(lambda: many.append("." * 200)) < 1.1 * work(lambda: one.append("." * 200))


def test_a_hyphen_that_does_not_break_the_line_is_one() -> None:
    assert said("e\u2011mail, e-mail", {"e-mail": "letter", "mail": "x"}) == "<letter>, <letter>"
