"""Transcriptions of speech in other alphabets, as IPA."""

from __future__ import annotations

import re
import unicodedata

from agent_tts.text.data import data

_SIGNS: dict[str, dict[str, str]] = {
    name: dict(pair.split() for pair in pairs.split(",")) for name, pairs in data("phones").items()
}
_ARPABET = _SIGNS["arpabet"]
_UNSTRESSED = {"AH": "ə", "ER": "ɚ"}
_STRESS = {"1": "ˈ", "2": "ˌ"}
_PHONE = re.compile(r"([A-Z]{1,2})([012]?)")


_X_SAMPA = {**_SIGNS["x_sampa"], **_SIGNS["x_sampa_marks"], "-": ""}  # the last is a boundary
_X_SAMPA_SYMBOL = re.compile("|".join(sorted(map(re.escape, _X_SAMPA), key=len, reverse=True)) + r"|[a-z. ]|((?s:..?))")


def to_ipa(text: str, alphabet: str) -> str:
    """A transcription as IPA.

    The alphabets are "ipa" itself, "cmu-arpabet" (`HH AH0 L OW1`), also called "x-cmu-arpabet", and "x-sampa"
    (`h@"l@U`).

    Raises:
        ValueError: the alphabet or a phone of it is not known.
    """
    match alphabet.lower().removeprefix("x-"):
        case "ipa":
            return text
        case "cmu-arpabet" | "cmu" | "arpabet":
            return _from_arpabet(text)
        case "sampa":
            return _from_x_sampa(text)
    raise ValueError("the alphabet of a transcription is ipa, x-sampa or cmu-arpabet")


def to_letters(ipa: str) -> str:
    """Letters that an English reader says about like the IPA, for a voice that reads letters alone."""
    plain = unicodedata.normalize("NFD", _TIES.sub("", ipa))
    return _SOUND.sub(lambda sound: _LETTERS.get(sound[0], sound[0] if sound[0].isascii() else ""), plain)


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


def _from_x_sampa(text: str) -> str:
    symbols = list(_X_SAMPA_SYMBOL.finditer(text))
    if unknown := next(filter(None, (symbol[1] for symbol in symbols)), None):
        raise ValueError(f"x-sampa has no {unknown!r}")
    return "".join(_X_SAMPA.get(symbol[0], symbol[0]) for symbol in symbols)


_LETTERS = _SIGNS["letters"]
_LETTERS |= dict.fromkeys("/.|'\":,ˈˌː", "")
_LETTERS = {unicodedata.normalize("NFD", sound): letters for sound, letters in _LETTERS.items()}
_TIES = re.compile("[\u0361\u035c]")
_SOUND = re.compile("|".join(sorted(map(re.escape, _LETTERS), key=len, reverse=True)) + "|(?s:.)")

_VOWELS = {*(said for name, said in _ARPABET.items() if name[0] in "AEIOU"), *_UNSTRESSED.values()}
