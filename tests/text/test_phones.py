"""ARPAbet and X-SAMPA become IPA."""

from __future__ import annotations

import pytest

from agent_tts.text.phones import to_ipa


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


@pytest.mark.parametrize(
    ("written", "ipa"),
    [
        ('h@"l@U', "həˈləʊ"),
        ("r\\i:d", "ɹiːd"),
        ('"t_hEst', "ˈtʰɛst"),
        ("t_SA:", "t͡ʃɑː"),
        ("ma~", "ma\u0303"),
        ('"bQt=l', "ˈbɒt̩l"),
        ("s`a b_<J\\_<", "ʂa ɓʄ"),
        ("3`3\\3", "ɝɞɜ"),
    ],
)
def test_x_sampa(written: str, ipa: str) -> None:
    assert to_ipa(written, "x-sampa") == ipa


def test_ipa_stays_and_others_are_refused() -> None:
    assert to_ipa("ˈtɛst", "ipa") == "ˈtɛst"
    for text, alphabet in (("T", "kirshenbaum"), ("é", "x-sampa"), ("Q", "cmu-arpabet"), ("T9", "cmu-arpabet")):
        with pytest.raises(ValueError, match=r"alphabet|phone|x-sampa has no"):
            to_ipa(text, alphabet)
