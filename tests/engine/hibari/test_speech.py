from __future__ import annotations

import numpy as np
import pytest

from agent_tts.engine.hibari.speech import MAX_PHONEMES, Sentence, to_alphabet
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.text.chars import SOUND
from tests.engine.espeak.test_engine import pitch_hz
from tests.engine.hibari.test_phrase import heart

WORDS = ("I ", "understand ", "how ", "frustrating ", "that ", "must ", "be, ", "and ", "I ", "will ", "help.")


@pytest.fixture(scope="session")
def normal() -> Sentence:
    return heart().speak(WORDS, ())


def test_durations_of_phonemes_are_those_of_the_sound(normal: Sentence) -> None:
    assert len(normal.words) == len(normal.cuts) == len(WORDS)
    edges = [place for word in normal.words for place in word]
    assert edges == sorted(edges)
    assert all(start < end for start, end in normal.words)
    assert all(end <= cut for (_, end), cut in zip(normal.words, normal.cuts, strict=True))
    loud = np.flatnonzero(np.abs(normal.samples) > 300)
    assert abs(normal.words[0][0] - loud[0]) < 0.08 * SAMPLE_RATE
    assert normal.words[-1][1] <= len(normal.samples)


def test_equal_words_are_equal_samples_and_seeds_differ(normal: Sentence) -> None:
    assert np.array_equal(heart().speak(WORDS, ()).samples, normal.samples)
    assert not np.array_equal(heart().speak(WORDS, (), seed=1).samples, normal.samples)


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.5, 2.0, 3.0, 4.0])
def test_speed_divides_the_length(normal: Sentence, speed: float) -> None:
    other = heart().speak(WORDS, (), speed=speed)
    ratio = len(normal.samples) / len(other.samples)
    # Phonemes have whole units of 25 ms and at least one, so that twice as fast is 1.8 times.
    assert 0.85 * speed < ratio < 1.1 * speed
    assert other.words[-1][1] <= len(other.samples)


def test_pitch_is_higher_without_a_change_of_length(normal: Sentence) -> None:
    high = heart().speak(WORDS, (), pitch=1.3)
    assert len(high.samples) == len(normal.samples)
    assert high.words == normal.words
    ratio = pitch_hz(high.samples.astype(np.int16)) / pitch_hz(normal.samples.astype(np.int16))
    assert 1.2 < ratio < 1.4


def test_phonemes_belong_to_their_words() -> None:
    said = heart().phonemes(("It's ", "“quoted” ", "— ", "co-op ", "me@x.com, ", "50% ", "off."))
    assert len(said.text) == len(said.words)
    assert sorted(said.words) == list(said.words)
    by_word = [
        "".join(letter for letter, word in zip(said.text, said.words, strict=True) if word == n) for n in range(7)
    ]
    assert by_word[1].strip() == "kwˈOTᵻd"
    assert by_word[2].strip() == "—"
    assert by_word[4].strip().endswith("kˈɑm,")


def test_a_word_in_ipa_is_said_so() -> None:
    said = heart().phonemes(("Say ", f"{SOUND} ", "again."), ("təˈmeɪtoʊ",))
    assert "təˈmAtO" in said.text
    with pytest.raises(ValueError, match="no letter"):
        heart().phonemes((f"{SOUND}.",), ("ʀyː",))


@pytest.mark.parametrize(
    ("ipa", "british", "letters"),
    [
        ("dʒɪf", False, "ʤɪf"),
        ("ˈtʃaɪnə", False, "ˈʧInə"),
        ("kəʊ", True, "kQ"),
        ("koʊ", True, "kQ"),
        ("kəʊ", False, "kO"),
        ("bɜːd", True, "bɜːd"),
        ("bɝd", False, "bɜɹd"),
        ("lɒt", False, "lɑt"),
        ("ˈwɔ.tər", False, "ˈwɔtəɹ"),
        ("haʊs", False, "hWs"),
        ("tɔɪ", False, "tY"),
        ("ʒyʁ", False, None),
        ("", False, None),
    ],
)
def test_ipa_in_the_letters_of_the_dictionary(ipa: str, british: bool, letters: str | None) -> None:
    assert to_alphabet(ipa, british) == letters


def test_too_many_phonemes_are_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        heart().speak(("encyclopedias ",) * (MAX_PHONEMES // 10), ())
