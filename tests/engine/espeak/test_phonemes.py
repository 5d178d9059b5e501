"""Words in IPA, as espeak-ng speaks them."""

from __future__ import annotations

import ctypes
import time
from contextlib import closing, suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_tts.engine.espeak import worker
from agent_tts.engine.espeak.voices import data_path, languages
from agent_tts.engine.espeak.workers import Clause, Delivery, EspeakWorkers, Job, NoPhonemes, library_path
from agent_tts.text.chars import SOUND
from tests.examples import examples
from tests.support import present

BY_CODE = {language.code: language for language in reversed(languages())}

WORDS = {
    "en-us": "tomato Siobhan little bottle water squirrel nuclear colonel Worcestershire measure vision judge thirteen",
    "en-gb": "tomato bottle water squirrel Worcestershire beyond pure fire",
    "de": "Straße Mädchen König Zeugnis pfeifen Auge Jahr zwölf Knie Qualität",
    "fr-fr": "bonjour rendez-vous croissant bien vin feuille oiseau grenouille",
    "es": "hola perro jamón guerra lluvia niño zapato ciudad",
    "it": "ciao mondo gnocchi bruschetta famiglia zaino pizza scienza acqua",
    "pt": "olá coração amanhã filho vinho pão",
    "ru": "привет здравствуйте человек щука объект жизнь любовь",
    "ja": "こんにちは ありがとう がっこう",
    "ko": "안녕하세요 감사합니다",
}

pytestmark = pytest.mark.node


def speak(espeak: EspeakWorkers, text: str, *ipa: str, code: str = "en-us") -> Clause:
    job = Job(text, Delivery(BY_CODE[code], None), pause=False, ipa=ipa)
    return present(espeak.speak(job, time.monotonic() + 30))


class Library(worker.Library):
    """In this process: what a language makes of words in letters and in phonemes."""

    def __init__(self, code: str) -> None:
        super().__init__(library_path(), str(data_path()))
        self._select(BY_CODE[code].path, "")
        self._with_phonemes(f"{worker.IPA_START}a{worker.IPA_END}", BY_CODE[code].path)
        self.table = self._phonemes(BY_CODE[code].path)
        self.say = self._ipa

    def read(self, word: str) -> str:
        text = ctypes.c_char_p(word.encode())
        said: bytes = self._lib.espeak_TextToPhonemes(ctypes.byref(text), 1, 2)
        return said.decode().strip()


@pytest.mark.parametrize("code", WORDS)
def test_phonemes_sound_like_their_ipa(code: str) -> None:
    """The IPA of words, which espeak-ng itself tells, comes back from the phonemes that are chosen for it."""
    library = Library(code)
    with closing(library._voice_file):
        for word in WORDS[code].split():
            ipa = library.read(word)
            found = worker.phonemes(ipa, library.table, library.say)
            assert found is not None, (word, ipa)
            assert library.say(found) == ipa, word


@pytest.mark.parametrize(
    ("ipa", "other"),
    [
        ("/təˈme͡ɪ.to͡ʊ/", "təmˈeɪtoʊ"),  # ties, syllables, slashes
        ("tə'meɪ:toʊ", "təˈmeɪːtoʊ"),
        ("ʤʌʧ", "dʒʌtʃ"),
        ("gəʊ", "ɡəʊ"),
        ("kʰæt", "kæt"),  # a diacritic without a phoneme
        ("həˈloʊ   wɜːld", "həˈloʊ wɜːld"),
    ],
)
def test_spellings_of_the_same_sounds_are_one(espeak: EspeakWorkers, ipa: str, other: str) -> None:
    mine, its = (speak(espeak, SOUND, each).samples for each in (ipa, other))
    assert len(mine)
    assert np.array_equal(mine, its)


def test_a_word_in_ipa_is_spoken_in_its_place(espeak: EspeakWorkers) -> None:
    text = f"I like {SOUND}, and {SOUND} soup."
    clause = speak(espeak, text, "təˈmeɪɾoʊ", "pəˈteɪɾoʊ")
    plain = speak(espeak, "I like tomato, and potato soup.")
    assert [text[word.char : word.char + word.length] for word in clause.words] == [
        *("I", "like", SOUND, "and", SOUND, "soup"),
    ]
    assert len(clause.samples) == pytest.approx(len(plain.samples), rel=0.05)
    for mine, its in zip(clause.words, plain.words, strict=True):
        assert mine.start == pytest.approx(its.start, abs=0.05 * len(plain.samples))


@pytest.mark.parametrize("ipa", ["ʘ", "t ʘ", "", " ", "]]\x01+90S", "hallo\x03 \x01+90S"])
def test_what_has_no_phonemes_is_not_spoken_at_all(espeak: EspeakWorkers, ipa: str) -> None:
    with pytest.raises(NoPhonemes):
        speak(espeak, f"one {SOUND}", ipa)


def test_brackets_of_a_text_are_never_phonemes(espeak: EspeakWorkers) -> None:
    plain = speak(espeak, f"  tEst]] {SOUND}", "tu").samples
    assert np.array_equal(speak(espeak, f"[[tEst]] {SOUND}", "tu").samples, plain)


def test_words_in_ipa_change_no_later_audio(espeak: EspeakWorkers) -> None:
    first = speak(espeak, "one [[two]]").samples
    for code in ("ja", "de", "en-us"):
        speak(espeak, SOUND, "tu", code=code)
        assert np.array_equal(speak(espeak, "one [[two]]").samples, first)


@given(st.lists(st.text("təmeɪɾoʊˈˌː aɪɔbdfɡhjklnŋpɹsʃʒθðuvwzɝɚɨʉ̩̃ʰ'", max_size=40), min_size=1, max_size=12))
@example(["x" * 32] * 8)
@example(["ʊ" * 1_000])
@example(["aɪ" * 16] * 16)
@examples(25)
def test_no_ipa_ends_the_library(espeak: EspeakWorkers, ipa: list[str]) -> None:
    with suppress(NoPhonemes):
        speak(espeak, " ".join([SOUND] * len(ipa)), *ipa)
    assert espeak.take_faults() == (0, 0)
