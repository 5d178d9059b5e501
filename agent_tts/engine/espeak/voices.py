"""espeak-ng's voices and languages: those that it has, those listed, the names accepted, and what each means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import espeakng_loader

from agent_tts.engine_info import Voice
from agent_tts.errors import SettingsError
from agent_tts.options import NamedVoice, ResolvedVoice
from agent_tts.text.data import data, words
from agent_tts.voices import LANGUAGES

_DATA = data("languages", Path(__file__).parent)

# Variants of every voice, with their descriptions.
VARIANTS: dict[str, str] = _DATA["variants"]

# Variants for voice names of other engines.
LIKE: dict[str, str] = _DATA["like"]

# Codes that differ in espeak-ng.
OTHER_CODES = {"zh": "cmn", "zh-cn": "cmn", "zh-tw": "cmn", "zh-hk": "yue", "no": "nb", "iw": "he"}
OTHER_CODES |= dict.fromkeys(("en-au", "en-ie", "en-in", "en-nz", "en-za"), "en-gb")  # they write the day first, too
# Regions without a voice of their own, which get the language's.
REGIONS = words(_DATA["regions"])


@dataclass(frozen=True, slots=True)
class EspeakLanguage:
    """A language file of espeak-ng."""

    code: str  # its first code, lower case
    codes: tuple[tuple[str, int], ...]  # all its codes, lower case, and how well each fits: lower is better
    name: str  # in English
    path: str  # below `lang/`


@lru_cache(maxsize=1)
def data_path() -> Path:
    return Path(espeakng_loader.get_data_path())


@lru_cache(maxsize=1)
def languages() -> tuple[EspeakLanguage, ...]:
    """All languages whose dictionary is installed; of two with the same code, the plain one is first."""
    found = [_language(path) for path in (data_path() / "lang").rglob("*") if path.is_file()]
    return tuple(sorted((language for language in found if language is not None), key=lambda each: each.path))


def _language(path: Path) -> EspeakLanguage | None:
    attributes = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines()]
    pairs = [(key, value.strip()) for key, value in (each for each in attributes if len(each) == 2)]
    codes = [value.lower().split() for key, value in pairs if key == "language"]
    names = [value for key, value in pairs if key == "name"]
    first = codes[0][0]
    dictionary = next((value for key, value in pairs if key == "dictionary"), first.partition("-")[0])
    if not (data_path() / f"{dictionary}_dict").is_file():
        return None
    ranked = tuple((code[0], int(code[1]) if len(code) > 1 else 5) for code in codes)
    return EspeakLanguage(
        first, ranked, names[0].partition("//")[0].strip(), path.relative_to(data_path() / "lang").as_posix()
    )


class EspeakVoices:
    """The voices and languages, given a default voice such as "en-us" or "de+f3".

    Raises:
        SettingsError: there is no such default voice.
    """

    def __init__(self, default: str) -> None:
        self._by_code: dict[str, EspeakLanguage] = {}
        for language in languages():
            self._by_code.setdefault(language.code, language)
        installed = {path.name for path in (data_path() / "voices" / "!v").iterdir() if path.is_file()}
        self._variants = tuple(name for name in VARIANTS if name in installed)
        self._default = default
        base, _, variant = default.partition("+")
        if base not in self._by_code or (variant and variant not in self._variants):
            raise SettingsError(f"espeak.voice: no voice {default!r}; voices are languages such as en-us, de or de+f3")
        # Every accepted spelling of a language, in lower case: its code.
        self.languages = self._spellings(base)
        # Voice names of other engines, in the default language.
        self.aliases = {name: f"{base}+{like}" for name, like in LIKE.items() if like in self._variants}
        # The default language and its variants, then the other languages by name. Every voice speaks every language.
        own = self._by_code[base]
        others = sorted(self._by_code.values(), key=lambda language: language.name)
        self.listed = (
            Voice(base, (base,), own.name),
            *(Voice(f"{base}+{name}", (base,), f"{own.name}, {VARIANTS[name]}") for name in self._variants),
            *(Voice(each.code, (each.code,), each.name) for each in others if each is not own),
        )

    def resolve(self, voice: ResolvedVoice | None, language: str) -> tuple[EspeakLanguage, str | None]:
        """The language file and the variant to speak with. No voice is the default one; "auto" is the voice's own."""
        name = voice.name if isinstance(voice, NamedVoice) else self._default
        base, _, variant = name.partition("+")
        return self._by_code[base if language == "auto" else language], variant or None

    def language(self, code: str) -> EspeakLanguage:
        """The language file of a code, or the default voice's where it is not installed."""
        return self._by_code.get(code) or self._by_code[self._default.partition("+")[0]]

    def _spellings(self, default: str) -> dict[str, str]:
        ranked: dict[str, tuple[int, str]] = {}
        for code, language in self._by_code.items():
            names = ((language.name.lower(), 1), (language.name.lower().partition(" (")[0], 9))
            for spelling, rank in (*language.codes, *names):
                # The default voice decides which English "en" is.
                rank = 0 if code in (spelling, default) else rank
                ranked[spelling] = min(ranked.get(spelling, (rank, code)), (rank, code))
        found = {spelling: code for spelling, (_, code) in ranked.items()}
        found |= {spelling: code for spelling, code in OTHER_CODES.items() if code in self._by_code}
        found |= {name: found[code] for name, code in LANGUAGES.items()}
        found |= {region: found[region[:2]] for region in REGIONS if region not in found}
        return found
