from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soxr

from agent_tts.config.settings import Espeak, Hibari, Settings
from agent_tts.directives import Language, Pause, Prosody, Say
from agent_tts.engine.hibari import engine as engines
from agent_tts.engine.hibari.engine import HibariEngine
from agent_tts.engine.hibari.phrase import NO_SAMPLES, Due, Phrase, Wanted
from agent_tts.engine.hibari.speech import HibariVoice, Sentence
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SettingsError
from agent_tts.options import SpeechOptions
from tests.engine.driver import FLUSH, Script, Spoken, assert_well_formed, opened, speak, speak_all
from tests.engine.espeak.test_engine import loud
from tests.engine.hibari.test_phrase import TEXTS
from tests.engine.test_gain import reference
from tests.recogniser import hearing

pytestmark = pytest.mark.node

NOISE_DB = -10  # on the line, against the speech

SEED = SpeechOptions(seed=7)
TEXT = "I understand how frustrating that must be, and I will help you right away. Is Tuesday at nine fine?"


@pytest.fixture(scope="module")
def engine() -> Iterator[HibariEngine]:
    with opened(HibariEngine(Settings(), 64)) as engine:
        speak_all(engine, {number: Script(["Hello there."]) for number in range(4)})  # all its threads are there
        yield engine


@pytest.fixture(scope="module")
def whole(engine: HibariEngine) -> Spoken:
    return speak(engine, TEXT)


def listened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], str]]:
    """The words that hibari is asked to speak, each time with the name of the thread."""
    asked: list[tuple[tuple[str, ...], str]] = []
    speaks = HibariVoice.speak

    def listens(self: HibariVoice, words: tuple[str, ...], *rest: Any, **how: Any) -> Sentence:
        asked.append((words, threading.current_thread().name))
        return speaks(self, words, *rest, **how)

    monkeypatch.setattr(HibariVoice, "speak", listens)
    return asked


def said(text: str, words: list[Any]) -> list[str]:
    return [text[word.char_start : word.char_end] for word in words]


def test_every_word_is_told_in_order_and_within_the_sound(whole: Spoken) -> None:
    assert_well_formed(whole)
    assert said(TEXT, whole.words) == TEXT.split()
    edges = [ms for word in whole.words for ms in (word.start_ms, word.end_ms)]
    assert edges == sorted(edges)
    assert edges[-1] <= whole.seconds * 1_000
    assert 5.0 < whole.seconds < 9.0


def test_text_that_comes_word_by_word_sounds_as_long_as_the_whole(engine: HibariEngine, whole: Spoken) -> None:
    live = speak(engine, *(f"{word} " for word in TEXT.split()))
    assert said(TEXT + " ", live.words) == TEXT.split()
    assert abs(live.seconds / whole.seconds - 1) < 0.1


def two_at_a_time(phrase: Phrase, **_: float) -> Due:
    waiting = len(phrase.units)
    return Due(3, 2) if waiting > 2 else Due(waiting, waiting) if phrase.closed else Due()


def alone(**asked: Any) -> Wanted:
    """A part without the words before and after it."""
    return Wanted(**asked | {"before": (), "over": NO_SAMPLES, "words": asked["words"][: asked["heard"]]})


@pytest.mark.parametrize(
    ("joins", "least", "most"), [(True, 0.0, 0.04), pytest.param(False, 0.06, 1.0, marks=pytest.mark.slow)]
)
def test_words_that_come_slowly_are_understood_on_a_noisy_line_and_parts_alone_are_not(
    engine: HibariEngine, joins: bool, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 to 3 % wrong words, by the noise; without the rule 9 to 22 %, by the noise and the machine."""
    monkeypatch.setattr(engines, "due", two_at_a_time)
    if not joins:
        monkeypatch.setattr(engines, "Wanted", alone)
    pause = np.zeros(SAMPLE_RATE * 3 // 10, np.int16)
    sound = np.concatenate([piece for text in TEXTS for piece in (speak(engine, text, options=SEED).pcm, pause)])
    line = soxr.resample(sound.astype(np.float32), SAMPLE_RATE, 8_000)
    noise = np.random.default_rng(1).normal(0, np.sqrt(np.mean(line**2)) * 10 ** (NOISE_DB / 20), len(line))
    assert least <= hearing().wer(" ".join(TEXTS), (line + noise).astype(np.int16), 8_000) <= most


@pytest.mark.parametrize("by_word", [False, True])
def test_a_line_is_a_pause_like_a_clauses_and_a_paragraph_like_a_sentences(engine: HibariEngine, by_word: bool) -> None:
    """As with the marks themselves; also behind an emoji, where the words before have been spoken."""

    @cache
    def length(text: str) -> float:
        return speak(engine, *(text if by_word else [text]), options=SEED).seconds

    marks = {"\n": ",", "\n\n": ".", " 🎉\n": " ,", " → ": " ,"}
    plain = length("My opening hours We are open now")
    for written, mark in marks.items():
        found, expected = (length(f"My opening hours{gap}We are open now") for gap in (written, f"{mark} "))
        assert found > plain + 0.1
        assert found > expected - 0.1


def test_equal_texts_and_seeds_are_equal_audio(engine: HibariEngine) -> None:
    first, second = (speak(engine, "Is Tuesday at nine fine?", options=SEED) for _ in range(2))
    assert first.frames == second.frames
    assert first.words == second.words


def test_what_is_not_english_is_espeaks_in_the_same_utterance(engine: HibariEngine) -> None:
    text = "The word 你好 means hello, and Привет does as well."
    spoken = speak(engine, text)
    words = {text[word.char_start : word.char_end]: word for word in spoken.words}
    assert {"word", "means", "hello,", "Привет", "well."} <= set(words)
    assert words["word"].end_ms <= words["means"].start_ms < words["Привет"].start_ms < words["well."].start_ms


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Guten Morgen, wie geht es Ihnen heute? Wir gehen in den Garten.", SpeechOptions(language="de")),
        ("Bonjour, je voudrais réserver une table pour deux personnes ce soir.", SpeechOptions(language="fr")),
        ("Buenos días, me gustaría reservar una mesa para dos personas.", SpeechOptions(language="es")),
        ("Доброе утро, я хотел бы заказать столик на двоих сегодня вечером.", SpeechOptions(language="ru")),
        ("早上好，我想预订今晚两个人的桌子。", SpeechOptions(language="zh")),
        (TEXT, SpeechOptions(voice="en-us")),
        (TEXT, SpeechOptions(voice="en-us+f3")),
    ],
)
def test_what_espeak_says_is_as_loud(engine: HibariEngine, whole: Spoken, text: str, options: SpeechOptions) -> None:
    """Its voices and languages differ by 5 LU: hibari's voice is in their middle."""
    assert reference(speak(engine, text, options=options).pcm) == pytest.approx(reference(whole.pcm), abs=3)


def test_what_espeak_says_has_the_loudness_asked_for(engine: HibariEngine) -> None:
    """By a measurement of its own. Mutation: that of hibari's voice, which has another level."""
    speak(engine, TEXT * 8, options=SpeechOptions(loudness=-28))
    text, options = "早上好，我想预订今晚两个人的桌子。" * 3, SpeechOptions(language="zh", loudness=-28)
    speak(engine, text, options=options)
    assert reference(speak(engine, text, options=options).pcm) == pytest.approx(-28, abs=1)


def test_another_language_is_espeaks(engine: HibariEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = listened(monkeypatch)
    speak(engine, "Guten Morgen, wie geht es Ihnen?", options=SpeechOptions(language="de"))
    assert not asked
    speak(engine, "We say ", Language("de"), "Guten Morgen", Language(None), " in the morning.")
    assert asked
    assert not any("Guten " in words for words, _ in asked)
    asked.clear()
    speak(engine, "A robot says so.", options=SpeechOptions(voice="en-us+f3"))
    assert not asked


@pytest.mark.parametrize(
    "text", ["9" * 60, "9" * 60 + " is a number.", "x" * 300, "[a](/b/) c", "a\u0301" * 20, "½ ⅔ ∑ ≠"]
)
def test_what_hibari_fails_on_is_espeaks(engine: HibariEngine, text: str) -> None:
    spoken = speak(engine, f"Well, {text}", " and so on.")
    assert spoken.kinds[-1] == "end"
    assert np.abs(spoken.pcm).max() > 3_000


@pytest.mark.parametrize("text", ["½", "Add ½ of it.", "™", "∑ is a sum."])
def test_a_symbol_that_the_dictionary_lacks_is_heard(engine: HibariEngine, text: str) -> None:
    spoken = speak(engine, text)
    assert list(dict.fromkeys(said(text, spoken.words))) == text.split()
    assert len(loud(spoken.pcm)) > SAMPLE_RATE // 10


def test_numbers_and_signs_are_read_as_a_person_would_without_normalize(
    engine: HibariEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: its dictionary reads them: "one two litre", "ten fifteen k m", and nothing for a sign."""
    asked = listened(monkeypatch)
    spoken = speak(engine, "Add 1/2 litre for 10 - 15 km. It is >90% of the API.")
    words = " ".join("".join(word for words, _ in asked for word in words).split())
    expected = "Add one half litre for ten to fifteen kilometers. It is more than ninety percent of the API."
    assert all(part in words for part in expected.split(". "))
    assert_well_formed(spoken)


def test_a_failing_sentence_is_spoken_by_espeak(engine: HibariEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HibariVoice, "speak", mock.Mock(side_effect=IndexError))
    spoken = speak(engine, TEXT)
    assert spoken.kinds[-1] == "end"
    assert said(TEXT, spoken.words)[:3] == ["I", "understand", "how"]


def test_speech_is_made_in_threads(engine: HibariEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = listened(monkeypatch)
    speak_all(engine, {number: Script([TEXT]) for number in range(1, 5)})
    assert asked
    assert all(thread.startswith("hibari") for _, thread in asked)


def test_a_flush_a_pause_and_markup_have_their_effects(engine: HibariEngine) -> None:
    spoken = speak(engine, "Hello there my", FLUSH, " friend.")
    assert spoken.kinds.count("Flushed") == 1
    plain = speak(engine, "Hello there. ", "How are you?")
    paused = speak(engine, "Hello there. ", Pause(1_500), "How are you?")
    assert abs(paused.words[2].start_ms - plain.words[2].start_ms - 1_500) < 250
    slow = speak(engine, "Hello there. ", Prosody(speed=0.5), "How are you?")
    assert slow.seconds > 1.2 * plain.seconds
    loud = speak(engine, Prosody(volume=1.4), "Hello there.")
    assert np.abs(loud.pcm).max() > 1.2 * np.abs(speak(engine, "Hello there.").pcm).max()


def test_words_in_ipa_are_hibaris_where_it_has_the_sounds(engine: HibariEngine) -> None:
    text = ("I say ", Say("tomato", ipa="təˈmɑːtoʊ"), " and ", Say("rue", ipa="ʀyː"), " today.")
    spoken = speak(engine, *text)
    assert said("I say tomato and rue today.", spoken.words) == ["I", "say", "tomato", "and", "rue", "today."]


def test_the_default_voice_is_english_where_espeaks_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HibariVoice, "load", lambda voice: None)

    def default(**given: Any) -> str:
        engine = HibariEngine(Settings(**given), 1)
        engine.close()
        return engine.info.default_voice

    assert default() == "heart"
    assert default(espeak=Espeak(voice="de")) == "de"
    assert default(espeak=Espeak(voice="de"), hibari=Hibari(voice="heart")) == "heart"
    with pytest.raises(SettingsError, match=r"hibari\.voice"):
        default(hibari=Hibari(voice="nobody"))


def test_other_vendors_names_are_the_voice_that_is_there(engine: HibariEngine) -> None:
    assert set(engine.info.aliases.values()) == {"heart"}
    assert engine.info.voices[0].name == "heart"
    assert "en-us" in {voice.name for voice in engine.info.voices}


def test_onsets_of_words_are_where_they_sound(engine: HibariEngine) -> None:
    """Each word is a sentence of its own, so that it begins after a silence."""
    text = "Monday. Tuesday. Paris. London. Berlin. Table. Window. Garden. People. Butter. Copper. Tiger."
    spoken = speak(engine, text)
    loud = np.abs(spoken.pcm.astype(int)) > 300
    errors = []
    for word in spoken.words[1:]:
        start = word.start_ms * SAMPLE_RATE // 1_000
        near = np.flatnonzero(loud[start - 2_400 : start + 4_800])
        errors.append(abs(int(near[0]) - 2_400) * 1_000 / SAMPLE_RATE)
    assert len(errors) == len(text.split()) - 1
    assert np.percentile(errors, 95) <= 60, errors
