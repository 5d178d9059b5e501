"""Transcriptions of speech in other alphabets, as IPA."""

from __future__ import annotations

import re

# fmt: off
_ARPABET = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "aʊ", "AY": "aɪ", "EH": "ɛ", "ER": "ɝ", "EY": "eɪ", "IH": "ɪ",
    "IY": "i", "OW": "oʊ", "OY": "ɔɪ", "UH": "ʊ", "UW": "u", "B": "b", "CH": "tʃ", "D": "d", "DH": "ð", "F": "f",
    "G": "ɡ", "HH": "h", "JH": "dʒ", "K": "k", "L": "l", "M": "m", "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s",
    "SH": "ʃ", "T": "t", "TH": "θ", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "ʒ",
}
# fmt: on
_UNSTRESSED = {"AH": "ə", "ER": "ɚ"}
_STRESS = {"1": "ˈ", "2": "ˌ"}
_PHONE = re.compile(r"([A-Z]{1,2})([012]?)")


def to_ipa(text: str, alphabet: str) -> str:
    """A transcription as IPA: of "ipa" itself, or of "cmu-arpabet" (`HH AH0 L OW1`), also called "x-cmu-arpabet".

    Raises:
        ValueError: the alphabet or a phone of it is not known.
    """
    match alphabet.lower().removeprefix("x-"):
        case "ipa":
            return text
        case "cmu-arpabet" | "cmu" | "arpabet":
            return _from_arpabet(text)
    raise ValueError("the alphabet of a transcription is ipa or cmu-arpabet")


def _from_arpabet(text: str) -> str:
    said: list[str] = []
    for written in text.upper().split():
        phone = _PHONE.fullmatch(written)
        if phone is None or phone[1] not in _ARPABET:
            raise ValueError(f"cmu-arpabet has no phone {written[:8]!r}")
        name, stress = phone.groups()
        if stress in _STRESS:  # the mark stands before the consonant that leads the syllable
            leads = bool(said) and said[-1] not in _VOWELS and said[-1] != "ŋ"
            said.insert(len(said) - leads, _STRESS[stress])
        said.append(_UNSTRESSED.get(name, _ARPABET[name]) if stress == "0" else _ARPABET[name])
    return "".join(said)


_VOWELS = {*(said for name, said in _ARPABET.items() if name[0] in "AEIOU"), *_UNSTRESSED.values()}
