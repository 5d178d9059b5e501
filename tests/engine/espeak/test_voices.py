from __future__ import annotations

import pytest

from agent_tts.engine.espeak.voices import LIKE, VARIANTS, EspeakVoices
from agent_tts.engine_info import EngineInfo
from agent_tts.errors import InvalidRequest, SettingsError, UnknownVoice, UnsupportedLanguage
from agent_tts.options import SpeechOptions
from agent_tts.speech.routing import Routing
from agent_tts.voices import LANGUAGES, OPENAI_VOICES, QWEN_VOICES


@pytest.fixture(scope="module")
def voices() -> EspeakVoices:
    return EspeakVoices("en-us")


def resolve(voices: EspeakVoices, voice: str | None, language: str) -> tuple[str, str | None]:
    """The code of the language and the variant that `Routing` resolves to."""
    info = EngineInfo("espeak", "espeak-ng", 1, voices.listed, "en-us", voices.languages, voices.aliases)
    options = Routing(info).resolve(SpeechOptions(voice=voice, language=language)).options
    found, variant = voices.resolve(options.voice, options.language)
    return found.code, variant


@pytest.mark.parametrize(
    ("voice", "language", "expected"),
    [
        (None, "auto", ("en-us", None)),
        (None, "german", ("de", None)),
        (None, "de-AT", ("de", None)),
        (None, "de-Latn-XY", ("de", None)),
        (None, "chinese", ("cmn", None)),
        (None, "zh", ("cmn", None)),
        (None, "Portuguese", ("pt", None)),
        (None, "pt-BR", ("pt-br", None)),
        (None, "french", ("fr-fr", None)),
        (None, "es-MX", ("es-419", None)),
        (None, "en", ("en-us", None)),
        (None, "en-GB", ("en-gb", None)),
        (None, "english", ("en-us", None)),
        (None, "no", ("nb", None)),
        ("de", "auto", ("de", None)),
        ("en-us+m2", "auto", ("en-us", "m2")),
        ("en-us+m2", "ja", ("ja", "m2")),
        ("coral", "auto", ("en-us", LIKE["coral"])),
        ("uncle_fu", "korean", ("ko", LIKE["uncle_fu"])),
    ],
)
def test_voice_and_language_are_resolved(
    voices: EspeakVoices, voice: str | None, language: str, expected: tuple[str, str | None]
) -> None:
    assert resolve(voices, voice, language) == expected


@pytest.mark.parametrize("voice", ["nobody", "de+nobody", "nobody+f3", "../de", "de+../f3", "+f3", "de+f3+f3"])
def test_an_unknown_voice_is_an_error(voices: EspeakVoices, voice: str) -> None:
    with pytest.raises((UnknownVoice, InvalidRequest)):
        resolve(voices, voice, "auto")


@pytest.mark.parametrize("language", ["klingonese", "", "-", "-de", "xx-de"])
def test_an_unknown_language_is_an_error(voices: EspeakVoices, language: str) -> None:
    with pytest.raises(UnsupportedLanguage):
        resolve(voices, None, language)


def test_languages_and_variants_are_listed_once(voices: EspeakVoices) -> None:
    names = [voice.name for voice in voices.listed]
    assert len(names) == len(set(names)) > 120
    assert {"en-us", "de", "cmn", "en-us+f3", *(f"en-us+{variant}" for variant in VARIANTS)} <= set(names)
    assert all(voice.languages and voice.description for voice in voices.listed)


def test_everything_listed_can_be_resolved(voices: EspeakVoices) -> None:
    for voice in voices.listed:
        assert resolve(voices, voice.name, "auto")[0] == voice.languages[0]
    for spelling, code in voices.languages.items():
        assert spelling == spelling.lower()
        assert resolve(voices, None, spelling)[0] == code


def test_every_alias_of_other_clients_resolves_to_a_listed_voice(voices: EspeakVoices) -> None:
    assert voices.aliases.keys() == {*OPENAI_VOICES, *QWEN_VOICES}
    assert set(voices.aliases.values()) <= {voice.name for voice in voices.listed}
    assert LANGUAGES.keys() <= voices.languages.keys()


def test_the_default_voice_resolves_names_without_a_language() -> None:
    voices = EspeakVoices("de+f3")
    found, variant = voices.resolve(None, "auto")
    assert (found.code, variant) == ("de", "f3")
    assert voices.aliases["onyx"].startswith("de+")
    assert EspeakVoices("en-gb").languages["en"] == "en-gb"


@pytest.mark.parametrize("default", ["", "xx", "de+nobody"])
def test_an_unknown_default_voice_is_a_settings_error(default: str) -> None:
    with pytest.raises(SettingsError, match="no voice"):
        EspeakVoices(default)
