"""Transcriptions of speech in other alphabets, as IPA."""

from __future__ import annotations

import re
import unicodedata

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


# fmt: off
_LETTERS = {
    "aɪ": "eye", "aʊ": "ow", "eɪ": "ay", "oʊ": "oh", "əʊ": "oh", "ɔɪ": "oy", "ɪə": "eer", "eə": "air", "ʊə": "oor",
    "i": "ee", "ɪ": "i", "y": "ue", "u": "oo", "ʊ": "oo", "ɯ": "oo", "e": "ay", "ɛ": "e", "ø": "ur", "œ": "ur",
    "ə": "uh", "ɚ": "er", "ɝ": "ur", "ɜ": "ur", "ʌ": "u", "ɐ": "uh", "o": "oh", "ɔ": "aw", "æ": "a", "a": "ah",
    "ɑ": "ah", "ɒ": "o", "ɨ": "i", "tʃ": "ch", "dʒ": "j", "ts": "ts", "θ": "th", "ð": "th", "ʃ": "sh", "ʒ": "zh",
    "ɕ": "sh", "ʂ": "sh", "ʑ": "zh", "ʐ": "zh", "ŋ": "ng", "ɲ": "ny", "ʎ": "ly", "j": "y", "ɹ": "r", "ʁ": "r", "ɾ": "t",
    "ʀ": "r", "ɡ": "g", "x": "kh", "χ": "kh", "ç": "h", "c": "k", "q": "k", "β": "v", "ʋ": "v", "ɣ": "g", "ɫ": "l",
    "ɬ": "l", "ɸ": "f", "ʍ": "w",
}
# fmt: on
_LETTERS |= dict.fromkeys("/.|'\":,ˈˌː", "")
_LETTERS = {unicodedata.normalize("NFD", sound): letters for sound, letters in _LETTERS.items()}
_TIES = re.compile("[\u0361\u035c]")
_SOUND = re.compile("|".join(sorted(map(re.escape, _LETTERS), key=len, reverse=True)) + "|(?s:.)")

_VOWELS = {*(said for name, said in _ARPABET.items() if name[0] in "AEIOU"), *_UNSTRESSED.values()}
