"""ARPAbet becomes IPA, with the stress at the syllable."""

from __future__ import annotations

import pytest

from agent_tts.phones import to_ipa


@pytest.mark.parametrize(
    ("written", "ipa"),
    [
        ("HH AH0 L OW1", "həˈloʊ"),
        ("T AH0 M EY1 T OW2", "təˈmeɪˌtoʊ"),
        ("K W EH1 N", "kˈwɛn"),
        ("AE1 P AH0 L", "ˈæpəl"),
        ("b er1 d", "ˈbɝd"),
        ("S IH1 NG ER0", "ˈsɪŋɚ"),
    ],
)
def test_arpabet(written: str, ipa: str) -> None:
    assert to_ipa(written, "cmu-arpabet") == to_ipa(written, "x-cmu-arpabet") == ipa


def test_ipa_stays_and_others_are_refused() -> None:
    assert to_ipa("ˈtɛst", "ipa") == "ˈtɛst"
    for text, alphabet in (("T", "x-sampa"), ("Q", "cmu-arpabet"), ("T9", "cmu-arpabet")):
        with pytest.raises(ValueError, match=r"alphabet|phone"):
            to_ipa(text, alphabet)
