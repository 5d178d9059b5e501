"""Entries refuse what cannot be said or found; a mapping and a lexicon are the same."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from agent_tts.text import entries as lexicon
from agent_tts.text.entries import MAX_SAID, MAX_WRITTEN, Entry, Lexicon


@pytest.mark.parametrize(
    "fields",
    [
        {"written": "a"},
        {"written": "", "alias": "b"},
        {"written": " ", "alias": "b"},
        {"written": "a", "alias": ""},
        {"written": "a", "alias": " ", "ipa": "a"},
        {"written": "a" * (MAX_WRITTEN + 1), "alias": "b"},
        {"written": "a", "alias": "b" * (MAX_SAID + 1)},
        {"written": "a", "ipa": "b" * (MAX_SAID + 1)},
        {"written": "a", "alias": "b\x1b"},
        {"written": "a\nb", "alias": "b"},
        {"written": "\ud800", "alias": "b"},
    ],
)
def test_an_entry_has_a_word_and_something_to_say(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(an entry|the word|an alias|a transcription) has"):
        Entry(**fields)


def test_an_entry_may_be_as_long_as_is_told() -> None:
    Entry("a" * MAX_WRITTEN, "b" * MAX_SAID)


def test_a_mapping_makes_a_lexicon_and_a_lexicon_a_mapping() -> None:
    mapping: dict[str, Any] = {
        "nginx": "engine x",
        "GIF": {"alias": "jif", "ipa": "dʒɪf"},
        "US": {"alias": "u", "match_case": False},
        "ology": {"alias": "o", "ipa": "ɒ", "match_case": True, "whole_word": False},
    }
    assert Lexicon.of(mapping).mapping() == mapping
    assert Lexicon.of({"a": {"alias": "b"}}).mapping() == {"a": "b"}


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({5: "five"}, "a word is not a text"),
        ({"a": 5}, "an alias, or the fields alias, ipa, match_case, whole_word$"),
        ({"a": {"alias": "b", "c": "d"}}, "an alias, or the fields alias"),
        ({"a": {"alias": "b", "whole_word": None}}, "whole_word of a word has another type"),
    ],
)
def test_another_mapping_is_refused(mapping: dict[Any, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Lexicon.of(mapping)


def test_a_later_entry_replaces_an_earlier_one() -> None:
    entries = [Entry("café", "1"), Entry("Café", "2"), Entry("cafe\u0301", "3")]
    assert [entry.alias for entry in Lexicon(entries).entries] == ["3", "2"]


def test_a_lexicon_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MAX_ENTRIES", 2)
    assert len(Lexicon.of({"a": "1", "b": "2"})) == 2
    with pytest.raises(ValueError, match="at most 2 entries"):
        Lexicon.of({"a": "1", "b": "2", "c": "3"})


def test_the_garbage_collector_does_not_look_at_entries() -> None:
    """It would stop the process for a quarter of a second, again and again, where voices have many words."""
    before = len(gc.get_objects())
    lexicon = Lexicon.of({f"word {number}": "x" for number in range(2_000)})
    gc.collect()
    assert len(gc.get_objects()) - before < 500
    assert len(lexicon) == 2_000
