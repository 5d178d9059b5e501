"""Nominal duration of text, estimated from its letters. Pure.

The constants are least-squares fits to speech in a dozen languages. Only the proportions between the words of a
sentence matter: `agent_tts.speech.words.fitting` learns the pace from the audio.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from agent_tts.text.chars import is_cjk
from agent_tts.text.spoken.east import chinese
from agent_tts.text.spoken.table import cardinal
from agent_tts.text.units import is_abbreviation
from agent_tts.text.words import CLUSTER, UNSPACED

# Milliseconds at normal speed.
VOWEL_MS = 68.0  # a group of vowels
GLIDE_MS = 20.0  # added for a group of several
CONSONANT_MS = 64.0
WORD_MS = 16.0  # added per word
FINAL_MS = 80.0  # added to the last word before a pause
IDEOGRAPH_MS = 210.0
KANA_MS = 110.0
LETTER_MS, BURMESE_MS = 110.0, 65.0  # a letter or mark of Thai and its kin
SYLLABLE_MS = 185.0  # of Hangul
INITIAL_MS = 200.0  # a spelled letter
SYMBOL_MS = 300.0  # a spoken sign
CLAUSE_PAUSE_MS = 150.0
SENTENCE_PAUSE_MS = 300.0

_CLOSERS = "[\"'”’)\\]»」』）]*$"
_SENTENCE_END = re.compile(rf"(?:[.!?…]|[。！？।؟]){_CLOSERS}")
_CLAUSE_END = re.compile(rf"[,;:—–、，；：،؛]{_CLOSERS}")
# Pieces of a token: a number, a word of a script without spaces, a run of other letters, or one sign.
_PIECE = re.compile(rf"\d+(?:[.,:]\d+)*|({CLUSTER})|(?:(?!{UNSPACED})[^\W\d_])+|.", re.DOTALL)
# A piece of more characters is cut into equal ones of at most half as many.
LONG_PIECE = 24
_VOWELS = re.compile("[aeiouyæœøıаеёиоуыэюяіїєαεηιουω]+")
# Groups of letters that stand for one sound.
_DIGRAPHS = re.compile(r"sch|[tscpg]h|ck|ng|wh|qu|[sc]z|[rd]z|[ln]h|gn|([b-df-hj-np-tv-z])\1")
_SILENT_LETTERS = {
    "en": re.compile(r"(?<=[^\Waeiouy])e(?=s?$)(?<!le)(?<![sxzgc]e)|(?<=[^\Wdt])e(?=d$)|(?<=[aeiou])gh(?=t|$)"),
    "fr": re.compile(r"(?<=\w\w)(?:ent|es|ts|[estxd])$"),
}


KNOWN_CHARS = 32  # of tokens whose lengths are kept, 5 MB at most: longer ones seldom come again


class Length(NamedTuple):
    """Pieces of a token as (characters, nominal ms), and the pause after the last. No piece has over `LONG_PIECE`."""

    pieces: tuple[tuple[int, float], ...]
    pause_ms: float


def length(token: str, language: str = "en") -> Length:
    """Nominal duration of a token (text without white space) at normal speed, in a language such as "en" or "en-us"."""
    return (_known if len(token) <= KNOWN_CHARS else _length)(token, language)


def _length(token: str, language: str) -> Length:
    language = language.partition("-")[0]
    pause_ms = _pause_ms(token)
    pieces: list[tuple[int, float]] = []
    apart = False
    for match in _PIECE.finditer(token):
        chars, ms = len(match[0]), _cluster_ms(match[0]) if match[1] else _ms(match[0], language)
        if pieces and (not ms or not pieces[-1][1] or not (match[1] or apart)):
            before, before_ms = pieces.pop()
            chars, ms = before + chars, before_ms + ms
        pieces.append((chars, ms))
        apart = bool(match[1]) or (apart and not match[0].isalnum())
    if len(token) > LONG_PIECE:
        pieces = [part for piece in pieces for part in _parts(*piece)]
    if pause_ms and any(ms for _, ms in pieces):
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + FINAL_MS)
    return Length(tuple(pieces), pause_ms)


_known = lru_cache(4_096)(_length)  # most words of a text are common ones


def _pause_ms(token: str) -> float:
    if _SENTENCE_END.search(token):
        return 0.0 if is_abbreviation(token) else SENTENCE_PAUSE_MS
    return CLAUSE_PAUSE_MS if _CLAUSE_END.search(token) else 0.0


def _parts(chars: int, ms: float) -> list[tuple[int, float]]:
    count = 1 if chars <= LONG_PIECE else -(-2 * chars // LONG_PIECE)
    edges = [chars * number // count for number in range(count + 1)]
    return [(end - start, ms * (end - start) / chars) for start, end in pairwise(edges)]


def _cluster_ms(cluster: str) -> float:
    if is_cjk(cluster[0]):
        return _ms(cluster[0], "")
    return len(cluster) * (BURMESE_MS if "\u1000" <= cluster[-1] <= "\u109f" else LETTER_MS)


def _ms(piece: str, language: str) -> float:
    first = piece[0]
    if first.isdecimal():
        return _number_ms(piece, language)
    if not first.isalpha():
        return SYMBOL_MS if first in "%&@+=€$£#°" else 0.0
    if is_cjk(first):
        return KANA_MS if "\u3041" <= first <= "\u30ff" else IDEOGRAPH_MS
    if "\uac00" <= first <= "\ud7a3":
        return SYLLABLE_MS * len(piece)
    if piece.isupper() and 1 < len(piece) <= 5 and (len(piece) <= 3 or not _VOWELS.search(piece.lower())):
        return INITIAL_MS * len(piece)
    return _word_ms(piece.lower(), language)


def _word_ms(word: str, language: str) -> float:
    if "\u0900" <= word[0] <= "\u0dff":  # Indic: each consonant has a vowel, unless a virama removes it
        consonants = sum(unicodedata.category(char) == "Lo" for char in word)
        vowels = max(1, consonants - sum(unicodedata.combining(char) == 9 for char in word) - (len(word) > 1))
        return WORD_MS + VOWEL_MS * vowels + CONSONANT_MS * consonants
    if "\u0590" <= word[0] <= "\u06ff":  # Hebrew and Arabic: few vowels are written
        return WORD_MS + (VOWEL_MS / 2 + CONSONANT_MS) * len(word)
    letters = "".join(char for char in unicodedata.normalize("NFD", word) if not unicodedata.combining(char))
    if len(letters) > 3 and (silent := _SILENT_LETTERS.get(language)):
        letters = silent.sub("", letters)
    groups = _VOWELS.findall(letters)
    consonants = len(_VOWELS.sub("", _DIGRAPHS.sub("t", letters)))
    glides = sum(len(group) > 1 for group in groups)
    return WORD_MS + VOWEL_MS * max(0.5, len(groups)) + GLIDE_MS * glides + CONSONANT_MS * consonants


def _number_ms(number: str, language: str) -> float:
    """Duration of a number in digits, read digit by digit if it is long or starts with a zero."""
    digits = re.sub(r"\D", "", number)
    if len(digits) > 12 or (digits[0] == "0" and len(digits) > 1):
        return sum(_cardinal_ms(int(digit), language) for digit in digits)
    return _cardinal_ms(int(digits), language)


@lru_cache(1_024)
def _cardinal_ms(number: int, language: str) -> float:
    said = chinese(number) if language == "zh" else cardinal(number, language)
    return sum(_number_word_ms(word, language) for word in re.findall(r"[^\W\d_]+", said))


@lru_cache(1_024)
def _number_word_ms(word: str, language: str) -> float:
    return sum(_ms(ch, language) for ch in word) if is_cjk(word[0]) else _ms(word, language)
