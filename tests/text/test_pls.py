"""A W3C PLS document becomes a lexicon; what XML can do beyond that is refused."""

from __future__ import annotations

import pytest

from agent_tts.text import pls
from agent_tts.text.entries import Entry, Lexicon
from agent_tts.text.pls import read_pls, write_pls

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<lexicon version="1.0" xml:lang="en-US" alphabet="ipa" '
    'xmlns="http://www.w3.org/2005/01/pronunciation-lexicon">'
)


def entries(body: str, head: str = _HEAD) -> dict[str, Entry]:
    return {entry.written: entry for entry in read_pls(f"{head}{body}</lexicon>".encode()).entries}


def test_words_have_aliases_and_transcriptions() -> None:
    found = entries(
        """<metadata><p>None of this</p></metadata>
        <lexeme><grapheme>W3C</grapheme><alias>World Wide
           Web Consortium</alias></lexeme>
        <!-- <lexeme> -->
        <lexeme><grapheme>judgment</grapheme><grapheme>judgement</grapheme>
          <phoneme>ˈdʒʌdʒ.mənt</phoneme><example>In my <!-- x -->judgment</example></lexeme>
        <lexeme><grapheme>Q&amp;A</grapheme><alias><![CDATA[Q & A]]></alias></lexeme>"""
    )
    assert found == {
        "W3C": Entry("W3C", "World Wide Web Consortium"),
        "judgment": Entry("judgment", None, "ˈdʒʌdʒ.mənt"),
        "judgement": Entry("judgement", None, "ˈdʒʌdʒ.mənt"),
        "Q&A": Entry("Q&A", "Q & A"),
    }


def test_the_preferred_pronunciation_counts_or_the_first() -> None:
    found = entries(
        """<lexeme><grapheme>a</grapheme><phoneme>1</phoneme><phoneme prefer="true">2</phoneme></lexeme>
        <lexeme><grapheme>b</grapheme><phoneme>1</phoneme><alias>2</alias></lexeme>
        <lexeme><grapheme>c</grapheme><alias>1</alias><phoneme>2</phoneme></lexeme>
        <lexeme><grapheme>d</grapheme><alias>1</alias></lexeme>
        <lexeme><grapheme>d</grapheme><alias>2</alias></lexeme>"""
    )
    assert {word: (entry.alias, entry.ipa) for word, entry in found.items()} == {
        "a": (None, "2"),
        "b": ("2", "1"),
        "c": ("1", None),
        "d": ("1", None),
    }


def test_other_alphabets_are_read_and_no_unknown_one() -> None:
    lexeme = '<lexeme><grapheme>a</grapheme><phoneme alphabet="{}">T EH1 S T</phoneme></lexeme>'
    assert entries(lexeme.format("cmu-arpabet"))["a"].ipa == "ˈtɛst"
    with pytest.raises(ValueError, match="line 2: the alphabet"):
        entries(lexeme.format("kirshenbaum"))
    sampa = '<lexeme><grapheme>a</grapheme><phoneme>"tEst</phoneme></lexeme>'
    assert entries(sampa, '<lexicon alphabet="x-sampa">')["a"].ipa == "ˈtɛst"


def test_a_lexeme_without_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: a lexeme has a grapheme"):
        entries("<lexeme><alias>b</alias></lexeme>")


def test_a_namespace_may_be_left_out() -> None:
    assert entries("<lexeme><grapheme>a</grapheme><alias>b</alias></lexeme>", "<lexicon>")["a"].alias == "b"


@pytest.mark.parametrize(
    "document",
    [
        "",
        "text",
        "<lexicon>",
        "<speak/>",
        '<lexicon xmlns="http://other/"/>',
        "<lexicon><lexeme><grapheme>a</grapheme></lexeme></lexicon>",
        "<lexicon><lexeme><grapheme></grapheme><alias>b</alias></lexeme></lexicon>",
        "<lexicon><lexeme><grapheme>a</grapheme><alias></alias></lexeme></lexicon>",
        "<lexicon><lexeme><grapheme>a</grapheme><alias>&other;</alias></lexeme></lexicon>",
        '<?xml version="1.0" encoding="unknown"?><lexicon/>',
        "<!DOCTYPE lexicon><lexicon/>",
        '<!DOCTYPE lexicon SYSTEM "file:///etc/passwd"><lexicon/>',
        '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><lexicon>&b;</lexicon>',
        '<!DOCTYPE a [<!ENTITY a SYSTEM "http://127.0.0.1/">]><lexicon>&a;</lexicon>',
        f"<lexicon><lexeme><grapheme>{'a' * 2_000}</grapheme></lexeme></lexicon>",
    ],
)
def test_anything_else_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+: (?!line)"):
        read_pls(document.encode())


def test_a_file_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pls, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10 bytes"):
        read_pls(b"<lexicon />")


def test_a_lexeme_without_end_is_refused_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of equal words, which are one entry: each of them costs as much as an entry."""
    monkeypatch.setattr("agent_tts.text.pls.MAX_ENTRIES", 10)
    lexeme = f"<lexeme>{'<grapheme>a</grapheme>' * 25}"
    with pytest.raises(ValueError, match="line 1: a lexicon has at most 10 entries"):
        read_pls(f"<lexicon>{lexeme}".encode())


def test_depth_and_attributes_cost_little() -> None:
    deep = "<lexicon>" + "<a>" * 100_000 + "</a>" * 100_000 + "</lexicon>"
    assert len(read_pls(deep.encode())) == 0


def test_a_written_lexicon_is_read_again() -> None:
    lexicon = Lexicon.of({"Q&A": "<Q> & 'A'", "GIF": {"alias": "jif", "ipa": "dʒɪf"}, "ĳ": {"ipa": "ɛi"}})
    assert read_pls(write_pls(lexicon, 'n"l')).entries == lexicon.entries
