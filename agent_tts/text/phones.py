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


# X-SAMPA, each before its IPA; what is not here (a, b, ... z, and the point) is the same in both.
_PAIRS = r"""
    g ɡ, A ɑ, B β, C ç, D ð, E ɛ, F ɱ, G ɣ, H ɥ, I ɪ, J ɲ, K ɬ, L ʎ, M ɯ, N ŋ, O ɔ, P ʋ, Q ɒ, R ʁ, S ʃ, T θ, U ʊ, V ʌ,
    W ʍ, X χ, Y ʏ, Z ʒ, 1 ɨ, 2 ø, 3 ɜ, 4 ɾ, 5 ɫ, 6 ɐ, 7 ɤ, 8 ɵ, 9 œ, & ɶ, @ ə, { æ, } ʉ, ? ʔ, B\ ʙ, G\ ɢ, H\ ʜ, I\ ᵻ,
    J\ ɟ, K\ ɮ, L\ ʟ, M\ ɰ, N\ ɴ, R\ ʀ, U\ ᵿ, X\ ħ, h\ ɦ, j\ ʝ, l\ ɺ, p\ ɸ, r\ ɹ, s\ ɕ, v\ ʋ, x\ ɧ, z\ ʑ, 3\ ɞ, @\ ɘ,
    ?\ ʕ, d` ɖ, l` ɭ, n` ɳ, r` ɽ, r\` ɻ, s` ʂ, t` ʈ, z` ʐ, @` ɚ, 3` ɝ, b_< ɓ, d_< ɗ, g_< ɠ, J\_< ʄ, G\_< ʛ, : ː, :\ ˑ,
    " ˈ, % ˌ, ' ʲ, _j ʲ, _h ʰ, _w ʷ, _G ˠ, _?\ ˤ, _n ⁿ, _l ˡ, _> ʼ
    """
_X_SAMPA = dict(pair.split() for pair in _PAIRS.split(","))
_X_SAMPA |= dict.fromkeys(("~", "_~"), "\u0303") | dict.fromkeys(("=", "_="), "\u0329")
_X_SAMPA |= {
    "_0": "\u0325",
    "_v": "\u032c",
    "_d": "\u032a",
    "_r": "\u031d",
    "_o": "\u031e",
    "_^": "\u032f",
    "_}": "\u031a",
}
_X_SAMPA |= {"-": "", "_": "\u0361"}  # a boundary; both at once
_X_SAMPA_SYMBOL = re.compile("|".join(sorted(map(re.escape, _X_SAMPA), key=len, reverse=True)) + r"|[a-z. ]")


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
    said, place = "", 0
    while place < len(text):
        symbol = _X_SAMPA_SYMBOL.match(text, place)
        if symbol is None:
            raise ValueError(f"x-sampa has no {text[place : place + 2]!r}")
        said += _X_SAMPA.get(symbol[0], symbol[0])
        place = symbol.end()
    return said


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
