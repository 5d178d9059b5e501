"""What of a text reaches espeak-ng: for each language, the scripts that its voice reads, and Latin.

espeak-ng spells what a voice cannot read: it looks up names of letters and symbols in buffers of 20 to 80 bytes, which
longer names overflow. Each unit is therefore cut into parts of one script, and a part in a foreign script is given to a
language that reads it. What nobody reads is left out: extinct scripts, private and unassigned characters, variation
selectors. Letters and digits in other styles (𝐁𝐨𝐥𝐝, ﬁ, １) become plain ones, and symbols stand alone, so that they
are looked up as words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from agent_tts.text.chars import JOINERS, is_pictograph, is_silent
from agent_tts.text.data import data, words
from agent_tts.text.feed import Unit

_DATA = data("languages", Path(__file__).parent)
# Languages by the script that their voices read; and scripts, by first words of characters' names that are not theirs.
LANGUAGES = {script: tuple(words(listed)) for script, listed in _DATA["readers"].items()}
_SCRIPTS: dict[str, str] = _DATA["scripts"]
_EVERYBODYS = frozenset(("LATIN", "MODIFIER", "COMBINING", "FEMININE", "MASCULINE", "MICRO"))

# Most characters of a part in Burmese, and at white space: espeak-ng copies the rest of a clause to 160 bytes.
MAX_BURMESE, MAX_BURMESE_WORDS = 48, 30
MAX_PLAIN = 4  # characters for one, so that a unit stays short: ﷺ has 18
_ENCLOSED = re.compile("[\u2460-\u24ff\u3200-\u33ff\U0001f100-\U0001f1e5\U0001f200-\U0001f265]")
# Letters of phonetic notation and of decorated text, which no language here is written with.
_ODD_LATIN = re.compile(
    "(?:.*(?:CIRCLED|SQUARED|BRACKETED).* )?LATIN "
    "(?:SMALL LETTER|CAPITAL LETTER|LETTER SMALL CAPITAL) ([A-Z])(?: WITH .*)?"
)
_LETTERS = ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl")
_NEVER_READ = ("Cf", "Cn", "Co", "Cs")
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_LETTERS_OF_FLAGS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))

# Who reads a character, if it is not a language: whoever reads its neighbours; the same, as a word of its own; the
# text's voice, with nothing else; nobody.
_ANYBODY, _APART, _ALONE, _NOBODY = "", "word", "part", "nobody"
_NO_LANGUAGE = frozenset((_ANYBODY, _APART, _ALONE, _NOBODY))


def parts(unit: Unit, language: str) -> list[Unit]:
    """The unit as parts that a voice of `language`, or of `reader` of the part, can read; empty if there is nothing.

    A part is a unit whose only part is itself. Each character keeps its offset; a space that is put in has that of the
    character before it, and several characters for one have the same.
    """
    if unit.text.isascii():
        return [unit]
    chars = [
        (plain, offset)
        for char, offset in zip(unit.text, unit.offsets, strict=True)
        for plain in _plain(char, language)
    ]
    readers = _readers([char for char, _ in chars], language)
    found: list[Unit] = []
    text: list[str] = []
    offsets: list[int] = []
    current = _ANYBODY  # who reads the part so far

    def put(char: str, offset: int) -> None:
        if unicodedata.category(char)[0] == "M" and not text:
            return  # what it stands on is in the part before
        if char != " " or (text and text[-1] != " "):
            text.append(char)
            offsets.append(offset)

    def cut() -> None:
        if not all(map(is_silent, text)):
            found.append(Unit("".join(text), tuple(offsets)))
        text.clear()
        offsets.clear()

    before = _ANYBODY
    for (char, offset), who in zip(chars, readers, strict=True):
        if who == _NOBODY:
            char = " " if char.isalpha() else ""
        elif who not in (_ANYBODY, _APART):
            if who != current != _ANYBODY or (who == _ALONE and not _is_flag(text, char)):
                cut()
            current = who
        if not char:
            continue
        is_mark = unicodedata.category(char)[0] == "M"
        if _APART in (who, before) and not is_mark and _is_wordlike(char) and _is_wordlike(text[-1:]):
            put(" ", offsets[-1])  # of the character before: it may count as a part of that word
        if current == "my" and not is_mark:
            most = MAX_BURMESE_WORDS if text[-1:] == [" "] else MAX_BURMESE
            if len(text) >= most:
                cut()
        put(char, offset)
        before = who
    cut()
    return found


def reader(text: str, language: str) -> str:
    if text.isascii():
        return language
    return next((who for who in _readers(text, language) if who not in _NO_LANGUAGE), language)


def _readers(text: Sequence[str], language: str) -> list[str]:
    found = [_reader(char, language) for char in text]
    greek = LANGUAGES["GREEK"][0]
    last, digit = _ANYBODY, None  # the last language, and the first digit after it
    for i, (char, who) in enumerate(zip(text, found, strict=True)):
        if who == greek != language and greek not in (*found[i - 1 : i], *found[i + 1 : i + 2]):
            found[i] = who = _APART  # a symbol (π, Ω, Δ), whose name each language knows
        elif (char in JOINERS or unicodedata.category(char)[0] == "M") and (
            not _is_spelled(text[:i][-1:]) or found[i - 1] == _NOBODY
        ):
            found[i] = who = _NOBODY  # without a letter before it
        if char.isdigit() and who == _ANYBODY:
            digit = i if digit is None else digit
        elif who not in _NO_LANGUAGE:
            if digit is not None and last not in (_ANYBODY, who):
                found[digit] = language  # between two languages: neither's
            last, digit = who, None
    return found


@lru_cache(maxsize=1 << 14)
def _reader(char: str, language: str) -> str:
    category = unicodedata.category(char)
    if category[0] in "LM":
        script = _script(char)
        if script in _EVERYBODYS:
            return language if category[0] == "L" else _ANYBODY
        return language if _is_own(script, language) else next(iter(LANGUAGES.get(script, ())), _NOBODY)
    if category in _NEVER_READ and char not in JOINERS:
        return _NOBODY
    if char < "\u0100" or category[0] not in "SN" or category == "Nd":
        return _ANYBODY
    if char in _SKIN_TONES or "\u2800" <= char <= "\u28ff":  # braille is spelled dot by dot
        return _NOBODY
    return _ALONE if is_pictograph(char) or char > "\uffff" else _APART


@lru_cache(maxsize=1 << 14)
def _plain(char: str, language: str) -> str:
    """The same in plain letters and digits."""
    category = unicodedata.category(char)
    if category == "Nd" and not char.isascii() and not _is_own(_script(char), language):
        return str(unicodedata.digit(char))
    if char < "\u1d00" or "\u1e00" <= char <= "\u1eff" or "\u3131" <= char <= "\u318e":  # Vietnamese, Korean
        return char
    is_enclosed = category in ("So", "No") and _ENCLOSED.match(char)  # ①, Ⓜ, ㎏
    if not is_enclosed and category not in _LETTERS:
        return char
    if letter := _ODD_LATIN.fullmatch(unicodedata.name(char, "")):
        return letter[1].lower()
    if unicodedata.decomposition(char).startswith("<"):
        plain = "".join(_plain(one, language) for one in unicodedata.normalize("NFKC", char))
        if len(plain) > MAX_PLAIN:
            return char
        return f"{plain} " if is_enclosed and len(plain) > 1 else plain
    return "" if not is_enclosed and _script(char) == "LATIN" else char


def _script(char: str) -> str:
    script = unicodedata.name(char, "").partition(" ")[0]
    return _SCRIPTS.get(script, script)


def _is_own(script: str, language: str) -> bool:
    languages = LANGUAGES.get(script, ())
    return language in languages or language.partition("-")[0] in languages


def _is_spelled(chars: Sequence[str]) -> bool:
    """Whether there is a last character that a mark may follow."""
    return bool(chars) and unicodedata.category(chars[-1])[0] in "LMN"


def _is_wordlike(chars: Sequence[str]) -> bool:
    """Whether there is a last character, and it could be of the same word as what follows it."""
    return bool(chars) and (chars[-1].isalpha() or chars[-1] > "\u00ff")


def _is_flag(text: Sequence[str], char: str) -> bool:
    """Whether the character is the second of a flag's two letters."""
    letters = list(takewhile(_LETTERS_OF_FLAGS.__contains__, reversed(text)))
    return char in _LETTERS_OF_FLAGS and len(letters) % 2 == 1
