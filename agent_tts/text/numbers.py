"""Numbers in words, in every language that num2words has."""

from __future__ import annotations

from functools import lru_cache

from num2words import CONVERTER_CLASSES, num2words

# Languages that use the numbers of another.
_SAME = {"nb": "no", "nn": "no", "hr": "sr", "bs": "sr", "gl": "pt", "kk": "kz"}


def has_numbers(language: str) -> bool:
    """Whether num2words has the language; only the first part of its code counts."""
    return _name(language) in CONVERTER_CLASSES


@lru_cache(maxsize=4_096)
def cardinal(number: int, language: str = "en") -> str:
    """A whole number in words; in English if num2words lacks the language."""
    return _say(number, language, "cardinal")


@lru_cache(maxsize=1_024)
def ordinal(number: int, language: str = "en") -> str:
    """An ordinal number in words; in English if num2words lacks it in the language."""
    return _say(number, language, "ordinal")


def _say(number: int, language: str, how: str) -> str:
    try:
        said: str = num2words(number, to=how, lang=_name(language))
    except (NotImplementedError, OverflowError, LookupError):  # not in this language, or not so many
        said = num2words(number, to=how, lang="en")
    return said.replace("-", " ").replace(",", "")


def _name(language: str) -> str:
    code = language.lower().partition("-")[0]
    return _SAME.get(code, code)
