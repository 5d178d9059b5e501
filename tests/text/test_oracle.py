"""The sentences and verdicts of `make normalise-oracle`, without the oracles."""

from __future__ import annotations

import re

import pytest

from tests.text.oracle.__main__ import plain, verdicts
from tests.text.oracle.sentences import sentences
from tests.text.test_normalize import said

SENTENCES = sentences()


@pytest.mark.parametrize("language", SENTENCES)
def test_no_number_of_an_agent_is_left_as_digits(language: str) -> None:
    """And the offsets of what is said instead stay within the sentence, in order."""
    assert len({sentence for _, sentence in SENTENCES[language]}) >= 300
    for _, sentence in SENTENCES[language]:
        spoken = said([sentence], language)
        offsets = [offset for _, offset in spoken]
        assert not re.search(r"[\d%€$¥₩₽]", "".join(ch for ch, _ in spoken)), sentence
        assert offsets == sorted(offsets)
        assert offsets[0] == 0
        assert offsets[-1] == len(sentence) - 1


def test_each_difference_has_a_verdict_with_a_reason() -> None:
    assert len(SENTENCES) == 10
    kinds = {(language, kind) for language, found in SENTENCES.items() for kind, _ in found}
    for (_, language, kind), (verdict, reason) in verdicts().items():
        assert (language, kind) in kinds
        assert verdict in ("ours", "both")
        assert reason


def test_spellings_of_the_same_words_are_no_difference() -> None:
    assert plain("One hundred and five.", "en") == plain("one hundred five", "en")
    assert plain("fünfundzwanzig", "de") == plain("fünf und zwanzig", "de")
    assert plain("five cents", "en") != plain("five dollars", "en")
