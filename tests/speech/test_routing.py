from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from agent_tts.engine_info import EngineInfo, Model, Voice
from agent_tts.errors import InvalidRequest, SpeechError, UnknownModel, UnknownVoice, Unsupported, UnsupportedLanguage
from agent_tts.options import (
    AnyVoice,
    DesignedVoice,
    EmbeddedVoice,
    EngineOptions,
    NamedVoice,
    ResolvedVoice,
    SpeechOptions,
    StoredPart,
    StoredVoices,
)
from agent_tts.speech.routing import RESERVED, Routing, check_free
from agent_tts.text.entries import Lexicon
from agent_tts.text.feed import Reader, Reading
from agent_tts.voices import OPENAI_VOICES, QWEN_VOICES
from agent_tts.voices.library import Consent, StoredLexicon, StoredVoice

NAMED = Model("custom-1.7b", "named", "/c", speakers=("vivian", "ryan"))
SMALL = Model("custom-0.6b", "named", "/s", speakers=("vivian", "ryan"))
FINE_TUNE = Model("fine-tune", "named", "/f", speakers=("nina",))
DESIGNED = Model("design-1.7b", "designed", "/d")
CLONED = Model("base-1.7b", "cloned", "/b", 2_048)
CLONED_SMALL = Model("base-0.6b", "cloned", "/t", 1_024)


def cloned(name: str, *sizes: int, description: str = "") -> StoredVoice:
    consent = Consent("They said yes.")
    return StoredVoice(name=name, kind="cloned", description=description, consent=consent, vector_sizes=sizes)


BOB = cloned("bob", 1_024, 2_048)
ALICE = cloned("alice", 2_048, description="my sister")
TINA = cloned("tina", 1_024)
OLD = StoredVoice(name="old", kind="designed", prompt="a calm old man")
LIBRARY = (ALICE, BOB, OLD, TINA)


def qwen(*models: Model) -> EngineInfo:
    speakers = dict.fromkeys(name for model in models for name in model.speakers)
    voices = [Voice(name, ("zh", "en") if name == "vivian" else ("en", "zh")) for name in speakers]
    if any(model.kind == "designed" for model in models):
        voices.append(Voice("design", ("en", "zh")))
    voices = voices or [Voice("anyone", ("en", "zh"))]
    return EngineInfo(
        engine="qwen3",
        model=models[0].name,
        slots=4,
        voices=tuple(voices),
        default_voice=voices[0].name,
        languages={"english": "en", "en": "en", "chinese": "zh", "zh": "zh", "german": "de", "de": "de"},
        aliases={"alloy": voices[0].name},
        models=models,
    )


ESPEAK = replace(qwen(NAMED), engine="espeak", model="espeak-ng", models=())


def resolve(*models: Model, **options: Any) -> EngineOptions:
    return Routing(qwen(*models), LIBRARY).resolve(SpeechOptions(**options)).options


def refused(kind: type[SpeechError], *models: Model, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        resolve(*models, **options)
    return caught.value.message


# ---------------------------------------------------------------- voices

EVERY = (NAMED, DESIGNED, CLONED)

RESOLVED: dict[str, ResolvedVoice] = {
    "default": NamedVoice("vivian"),
    "named": NamedVoice("ryan"),
    "alias": NamedVoice("vivian"),
    "cloned": StoredVoices((StoredPart("bob", BOB.version),)),
    "designed": DesignedVoice("a calm old man"),
    "described": DesignedVoice(),
    "mix": StoredVoices((StoredPart("bob", BOB.version, 0.75), StoredPart("alice", ALICE.version, 0.25))),
    "embedding": EmbeddedVoice((0.5,) * 2_048),
}

ROUTES: dict[str, tuple[dict[str, Any], str | None, str | None]] = {
    "default": ({}, "vivian", None),
    "named": ({"voice": "ryan"}, "ryan", None),
    "alias": ({"voice": "alloy"}, "vivian", None),
    "cloned": ({"voice": "bob"}, "bob", "base-1.7b"),
    "cloned by prefix": ({"voice": "clone:bob"}, "bob", "base-1.7b"),
    "designed": ({"voice": "old"}, "old", "design-1.7b"),
    "described": ({"voice": "design", "instructions": "a child"}, "design", "design-1.7b"),
    "mix": ({"voice": "bob(3)+clone:alice"}, "bob(0.75)+alice(0.25)", "base-1.7b"),
    "embedding": ({"speaker_embedding": (0.5,) * 2_048}, None, "base-1.7b"),
    "model of the voice": ({"voice": "bob", "model": "base-1.7b"}, "bob", "base-1.7b"),
    "named model": ({"voice": "ryan", "model": "custom-1.7b"}, "ryan", "custom-1.7b"),
    "any model": ({"voice": "bob", "model": "tts-1"}, "bob", "base-1.7b"),
    "the engine as model": ({"voice": "bob", "model": "qwen3"}, "bob", "base-1.7b"),
}


@pytest.mark.parametrize(("options", "voice", "model"), ROUTES.values(), ids=ROUTES)
def test_a_voice_goes_to_a_model_that_speaks_it(options: dict[str, Any], voice: str | None, model: str | None) -> None:
    found = Routing(qwen(*EVERY), LIBRARY).resolve(SpeechOptions(**options))
    assert (found.voice, found.options.model) == (voice, model)


@pytest.mark.parametrize("name", RESOLVED)
def test_the_engine_gets_a_resolved_voice(name: str) -> None:
    assert resolve(*EVERY, **ROUTES[name][0]).voice == RESOLVED[name]


@pytest.mark.parametrize(
    ("model", "voice"),
    [
        *((None, "vivian"), ("tts-1", "vivian"), ("custom-1.7b", "vivian"), ("fine-tune", "nina")),
        *(("fine-tune-de", "nina"), ("Qwen/design-1.7b", "design"), ("base-1.7b", "anyone")),
    ],
)
def test_without_a_voice_it_is_the_models(model: str | None, voice: str) -> None:
    routing = Routing(qwen(NAMED, FINE_TUNE, DESIGNED, CLONED))
    found = routing.resolve(SpeechOptions(model=model))
    assert found.voice == voice
    assert found.options.model is None or found.options.model in str(model)


def test_a_named_voice_goes_to_a_model_that_has_it() -> None:
    said = refused(Unsupported, NAMED, FINE_TUNE, voice="nina", model="custom-1.7b")
    assert said == "the voice 'nina': the model custom-1.7b does not speak it, but fine-tune would"
    said = refused(UnknownVoice, FINE_TUNE, voice="ryan")
    assert said == "this node has no such voice: `agent-tts voices` and GET /v1/audio/voices list them"


def test_a_model_without_its_own_voices_speaks_any_at_the_speed_that_was_asked_for() -> None:
    options = resolve(CLONED, speed=1.5)
    assert (options.voice, options.speed) == (AnyVoice(), 1.5)


def test_lexicons_are_those_of_the_request_and_of_its_voices() -> None:
    own = Lexicon.of({"a": "x"})
    first, second = (StoredLexicon(name, 1, (0, 0)) for name in ("first", "second"))
    bob, old, tina = (replace(voice, lexicon=words) for voice, words in ((BOB, first), (OLD, second), (TINA, second)))
    routing = Routing(qwen(*EVERY, CLONED_SMALL), (bob, old, tina))
    for name, found in (("bob", (first,)), ("old", (second,)), ("bob+tina", (first, second)), ("ryan", ())):
        assert routing.resolve(SpeechOptions(voice=name, lexicon=own)).lexicons == (own, *found)


def test_an_alias_may_name_an_unlisted_voice() -> None:
    """As in espeak, which has too many variants to list."""
    routing = Routing(replace(ESPEAK, aliases={"nova": "en-US+f2"}))
    assert routing.resolve(SpeechOptions(voice="nova")).options.voice == NamedVoice("en-US+f2")
    assert routing.resolve(SpeechOptions(voice="en-US+f2")).options.voice == NamedVoice("en-US+f2")


def test_a_clone_goes_to_the_model_of_its_vectors_size() -> None:
    models = (CLONED, CLONED_SMALL)
    assert resolve(*models, voice="tina").model == "base-0.6b"
    assert resolve(*models, voice="alice").model == "base-1.7b"
    assert resolve(*models, voice="bob").model == "base-1.7b"
    assert resolve(*models, voice="bob", model="base-0.6b").model == "base-0.6b"
    assert resolve(*models, voice="bob+tina").model == "base-0.6b"
    assert resolve(*models, speaker_embedding=(1.0,) * 1_024).model == "base-0.6b"


def adds(checkpoint: str) -> str:
    model = f"Qwen/Qwen3-TTS-12Hz-1.7B-{checkpoint}"
    return f"this node has no model that speaks it; add a {checkpoint} model ({model}) to qwen3.models"


@pytest.mark.parametrize(
    ("kind", "models", "options", "said"),
    [
        # Without a model for it, the model is named.
        (Unsupported, (NAMED,), {"voice": "bob"}, f"the voice 'bob' is cloned: {adds('Base')}"),
        (Unsupported, (NAMED, DESIGNED), {"voice": "bob+alice"}, adds("Base")),
        (Unsupported, (CLONED,), {"voice": "old"}, adds("VoiceDesign")),
        (Unsupported, (CLONED,), {"voice": "Ryan"}, f"'ryan' is a voice of the released models: {adds('CustomVoice')}"),
        (Unsupported, (NAMED,), {"speaker_embedding": (1.0,) * 2_048}, "Qwen3-TTS-12Hz-1.7B-Base"),
        # A voice of another model's size.
        (Unsupported, (CLONED,), {"voice": "tina"}, "'tina' is cloned: it has no vector for the models of this node"),
        (Unsupported, (CLONED, CLONED_SMALL), {"voice": "tina+alice"}, "no vector for the models"),
        # A wrong model: those that speak the voice are named.
        (Unsupported, (CLONED, CLONED_SMALL), {"voice": "alice", "model": "base-0.6b"}, "base-1.7b would"),
        (Unsupported, (*EVERY, SMALL), {"voice": "ryan", "model": "base-1.7b"}, "custom-1.7b and custom-0.6b would"),
        # What is unknown: the nearest is named.
        (UnknownVoice, EVERY, {"voice": "vivien"}, "did you mean 'vivian'?"),
        (UnknownVoice, EVERY, {"voice": "alise"}, "did you mean 'alice'?"),
        (UnknownVoice, EVERY, {"voice": "bob+alise"}, "did you mean 'alice'?"),
        (UnknownVoice, EVERY, {"voice": "qqqq"}, "GET /v1/audio/voices"),
        (UnknownModel, EVERY, {"model": "base-1.7"}, "did you mean 'base-1.7b'?"),
        (UnknownModel, EVERY, {"model": "base-1.7"}, "custom-1.7b, design-1.7b, base-1.7b, qwen3, gpt-4o-mini-tts"),
        (UnknownModel, EVERY, {"model": "tts-1-klingon"}, ""),
        (UnknownModel, EVERY, {"model": "de"}, ""),
        (UnsupportedLanguage, (NAMED,), {"language": "germn"}, "did you mean 'german'?"),
    ],
)
def test_what_cannot_be_spoken_is_refused_with_advice(
    kind: type[SpeechError], models: tuple[Model, ...], options: dict[str, Any], said: str
) -> None:
    assert said in refused(kind, *models, **options)


def test_an_engine_without_models_speaks_only_its_own_voices() -> None:
    routing = Routing(ESPEAK, LIBRARY)
    assert routing.resolve(SpeechOptions(voice="alloy")).options.voice == NamedVoice("vivian")
    for options in (SpeechOptions(voice="bob"), SpeechOptions(speaker_embedding=(1.0,) * 2_048)):
        with pytest.raises(Unsupported, match=r"1\.7B-Base"):
            routing.resolve(options)
    assert [voice.name for voice in routing.voices()] == ["vivian", "ryan"]


def test_the_error_for_a_wrong_model_names_the_models_that_speak_the_voice() -> None:
    said = refused(Unsupported, *EVERY, voice="bob", model="custom-1.7b")
    assert said == "the voice 'bob' is cloned: the model custom-1.7b does not speak it, but base-1.7b would"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"voice": "bob+old"}, "only cloned voices can be mixed: 'old' is designed"),
        ({"voice": "bob+tuned"}, "only cloned voices can be mixed: 'tuned' has a LoRA adapter"),
        ({"voice": "bob(0)+alice"}, "weight"),
        ({"voice": "bob", "speaker_embedding": (1.0,) * 2_048}, "in the place of a voice"),
        ({"speaker_embedding": (math.nan,) * 2_048}, "not finite"),
        ({"speaker_embedding": (1.0,) * 1_000}, "has 1000 values; allowed are 1024 or 2048"),
    ],
)
def test_invalid_mixes_and_embeddings_are_refused(options: dict[str, Any], said: str) -> None:
    library = (*LIBRARY, replace(BOB, name="tuned", adapter=True))
    with pytest.raises(InvalidRequest) as caught:
        Routing(qwen(CLONED, CLONED_SMALL), library).resolve(SpeechOptions(**options))
    assert said in caught.value.message
    assert caught.value.param == list(options)[-1]


# ---------------------------------------------------------------- models and languages


@pytest.mark.parametrize(
    ("model", "language", "spoken"),
    [
        ("tts-1-de", "auto", "de"),
        ("custom-1.7b-german", "auto", "de"),
        ("tts-1-de", "en", "en"),
        ("tts-1", "English", "en"),
        (None, "zh_TW", "zh"),
        (None, "AUTO", "auto"),
    ],
)
def test_a_models_name_may_contain_the_language(model: str | None, language: str, spoken: str) -> None:
    assert resolve(NAMED, model=model, language=language).language == spoken


DATED: tuple[str, ...] = (
    "gpt-4o-mini-tts-2025-12-15",
    "gpt-4o-mini-tts-2025-03-20",
    "tts-1-1106",
    "tts-1-hd-1106",
    "openai/tts-1-1106",
)
DATED += ("tts-1-2026-01-31", "openai/gpt-4o-mini-tts-2025-12-15", "tts-1-hd-1106-de", "gpt-4o-mini-tts-2025-12-15-de")


@pytest.mark.parametrize("name", DATED)
def test_a_snapshot_is_the_model_without_its_date(name: str) -> None:
    options = resolve(NAMED, model=name)
    assert (options.model, options.language) == (None, "de" if name.endswith("-de") else "auto")


@pytest.mark.parametrize("name", ["tts-1-110", "tts-1-11067", "tts-1-2025-12", "tts-1-1106-1106", "custom-1.7b-1106"])
def test_other_numbers_are_no_dates(name: str) -> None:
    refused(UnknownModel, *EVERY, model=name)


@pytest.mark.parametrize(
    ("asked", "date"),
    [
        ("en-GB", "the third of December"),
        ("en_au", "the third of December"),
        ("en-US", "March twelfth"),
        ("en", "March twelfth"),
        ("English", "March twelfth"),
    ],
)
def test_an_engine_without_regions_still_writes_dates_as_the_region_does(asked: str, date: str) -> None:
    """Mutation: numbers are said in the language that the engine speaks."""
    options, said = resolve(NAMED, language=asked, normalize=True), list[str]()
    assert options.language == "en"
    reader = Reader(Reading.of(options, options.language), lambda ch, _: said.append(ch))
    for offset, ch in enumerate("On 3/12/2024 "):
        reader.push(ch, offset)
    reader.flush(13)
    assert "".join(said).startswith(f"On {date}")


def test_hub_ids_of_models_and_published_names_of_voices_are_accepted() -> None:
    found = resolve(NAMED, SMALL, model="Qwen/custom-0.6b", voice="Ryan")
    assert (found.model, found.voice) == ("custom-0.6b", NamedVoice("ryan"))


@pytest.mark.parametrize("asked", ["sichuan_dialect", "Sichuan_Dialect"])
def test_a_dialect_is_requested_by_its_name(asked: str) -> None:
    info = qwen(NAMED)
    info = replace(info, languages=info.languages | {"sichuan_dialect": "sichuan_dialect"})
    assert Routing(info).resolve(SpeechOptions(language=asked)).options.language == "sichuan_dialect"


# ---------------------------------------------------------------- lists and new names


def test_voices_of_the_library_are_listed_if_a_model_speaks_them() -> None:
    def listed(*models: Model) -> list[str]:
        return [voice.name for voice in Routing(qwen(*models), LIBRARY).voices()]

    assert listed(NAMED) == ["vivian", "ryan"]
    assert listed(NAMED, DESIGNED) == ["vivian", "ryan", "design", "old"]
    assert listed(CLONED) == ["anyone", "alice", "bob"]
    voices = {voice.name: voice for voice in Routing(qwen(CLONED), LIBRARY).voices()}
    assert (voices["bob"].description, voices["alice"].description) == ("cloned", "cloned: my sister")
    assert voices["bob"].languages == ("de", "en", "zh")
    assert Routing(qwen(NAMED), LIBRARY).stored == LIBRARY


def test_a_voice_of_the_engine_hides_its_namesake_in_the_library() -> None:
    routing = Routing(qwen(*EVERY), (cloned("ryan", 2_048),))
    assert routing.resolve(SpeechOptions(voice="ryan", model="custom-1.7b")).voice == "ryan"
    assert [voice.name for voice in routing.voices()] == ["vivian", "ryan", "design"]


def test_a_new_voice_needs_a_free_name_and_a_model() -> None:
    routing = Routing(qwen(replace(NAMED, name="x"), CLONED), LIBRARY)
    routing.check_new("carl", "cloned")
    with pytest.raises(Unsupported, match="VoiceDesign"):
        routing.check_new("carl", "designed")
    for name in (*OPENAI_VOICES, *QWEN_VOICES, "design", "anyone"):
        with pytest.raises(InvalidRequest, match=f"{name!r} is a voice of the engine"):
            check_free(name)
        assert name in RESERVED
    own = replace(qwen(CLONED), voices=(Voice("zoe", ("en",)),), aliases={"zozo": "zoe"})
    for name in ("zoe", "zozo"):
        with pytest.raises(InvalidRequest, match=name) as refusal:
            Routing(own).check_new(name, "cloned")
        assert refusal.value.param == "name"


def test_a_configured_alias_names_a_voice_and_yields_to_the_voices_own_names() -> None:
    """Fails if aliases are looked up before the voices' own names."""
    routing = Routing(ESPEAK, (), {"9BWtsMINqrJLrRacOk9x": "ryan", "vivian": "ryan"})
    assert routing.resolve(SpeechOptions(voice="9BWtsMINqrJLrRacOk9x")).voice == "ryan"
    assert routing.resolve(SpeechOptions(voice="vivian")).voice == "vivian"
    with pytest.raises(UnknownVoice):
        routing.resolve(SpeechOptions(voice="nobody"))


def test_every_other_name_of_a_voice_is_listed_with_it() -> None:
    """The engine's and the operator's, but neither "*" nor a name that is a voice of its own."""
    given = {"9BWtsMINqrJLrRacOk9x": "ryan", "vivian": "ryan", "*": "ryan", "lena": "clone:bob", "fifth": "alloy"}
    routing = Routing(replace(qwen(NAMED, CLONED), aliases={"alloy": "ryan"}), LIBRARY, given)
    listed = routing.aliases()
    assert listed == {"9BWtsMINqrJLrRacOk9x": "ryan", "lena": "bob", "fifth": "ryan", "alloy": "ryan"}
    for alias in listed:
        routing.resolve(SpeechOptions(voice=alias))


def test_the_alias_star_matches_any_other_name() -> None:
    assert Routing(ESPEAK, (), {"*": "ryan"}).resolve(SpeechOptions(voice="nobody")).voice == "ryan"


def test_an_alias_of_an_unknown_voice_is_an_error() -> None:
    with pytest.raises(UnknownVoice, match="voice_aliases has 'gone'"):
        Routing(ESPEAK, (), {"*": "gone"}).resolve(SpeechOptions(voice="nobody"))
