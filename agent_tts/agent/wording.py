"""What callers' words say about whose turn it is, and what the agent says of itself: data of `languages.toml`. Pure."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

LONGEST_S = 2.0  # of a back-channel: whoever speaks longer wants to be heard
MOST = 4  # phrases of a back-channel
SHORT_S, UNSURE = 0.7, -0.8  # of a sound that is hardly a word; how sure Whisper is of its words, and of words -0.3
WITHOUT_SPACES = ("zh", "ja")

_LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text("utf-8"))
# What the agent says where it has no answer, and where it needs time for one.
APOLOGIES, FILLERS = (
    {code: str(said[name]) for code, said in _LANGUAGES.items() if name in said} for name in ("apology", "filler")
)


def _words(name: str) -> dict[str, str]:
    """A pattern of each language."""
    return {code: "|".join(said[name]) for code, said in _LANGUAGES.items() if name in said}


_HALF = {
    language: re.compile(rf"(?:{'.*' if language in WITHOUT_SPACES else '(?:.* )?'})(?:{words})")
    for language, words in _words("open").items()
}
_PHRASES = {
    language: re.compile(rf"(?:(?:{phrases})(?: |$){'?' if language in WITHOUT_SPACES else ''}){{1,{MOST}}}")
    for language, phrases in _words("listens").items()
}
_STOPS = {
    language: re.compile(words if language in WITHOUT_SPACES else rf"\b(?:{words})\b")
    for language, words in _words("stops").items()
}
_ASKING = re.compile(r"\b(?:what|where|whom?|whose|which|when|why|how)\b")
_LAST_END = re.compile(r"[.?!。？！؟](?=[^.?!。？！؟]*$)")


def is_backchannel(text: str, speech_s: float, sure: float = 0.0, *, asked: bool, language: str | None = None) -> bool:
    """Whether words during an answer only say that its listener listens.

    A pause follows them, because words that go on are in the same text. Their melody is left out: in a network's voice
    pitch and level at the end tell "yeah" from "yeah?" no better than chance (area under the curve 0.48 to 0.56).

    Args:
        speech_s: their length in seconds.
        sure: the mean logarithm of their probability; 0 if it is not known.
        asked: whether the answer has asked something: then "yeah" is an answer.
        language: of the words; None: any.
    """
    said = plain(text)
    languages = _of(language, _PHRASES)
    if asked or speech_s > LONGEST_S:
        return False
    if speech_s <= SHORT_S and sure < UNSURE and not any(_STOPS[key].search(said) for key in languages):
        return True
    return any(_PHRASES[key].fullmatch(said) for key in languages)


def is_half(text: str, language: str | None = None) -> bool:
    """Whether a sentence has to go on: its recogniser says so, or, in a known `language`, its last words do.

    Whisper writes a question mark after half of a question, too, and only English ends whole ones with such words.
    """
    said, words = text.strip(), plain(text)
    languages = _of(language, _HALF) if language else []
    if said.endswith(("?", "？")) and (languages != ["en"] or _ASKING.search(words)):
        return False
    if said.endswith(("...", "…", ",", "-", "，", "、")):
        return True
    return any(_HALF[key].fullmatch(words) for key in languages)


def asks(said: str) -> bool:
    """Whether the last sentence that ends in this text is a question."""
    end = _LAST_END.search(said)
    return end is not None and end[0] in "?？؟"


def phrase(known: Mapping[str, str], own: Mapping[str, str], languages: Sequence[str]) -> str:
    """The one of `known` for a voice of these languages, the first one best; the operator's `own` go before it."""
    said = dict(known) | {code.lower(): text for code, text in own.items()}
    for language in (*languages[:1], "en"):
        code = "zh" if language.startswith("cmn") else language.lower()
        for found in (code, code.partition("-")[0]):
            if found in said:
                return said[found]
    return ""


def plain(text: str) -> str:
    """Its words alone, in lower case, with single spaces."""
    text = re.sub(r"['’ʼ]", "", unicodedata.normalize("NFC", text).casefold())
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())


def _of(language: str | None, known: dict[str, re.Pattern[str]]) -> list[str]:
    """The languages to look in. A language without data has none of its own: English is spoken everywhere."""
    if not language:
        return list(known)
    name = language.split("-")[0].lower()
    return [name if name in known else "en"]
