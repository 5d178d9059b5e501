from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agent_tts.bench.quality import (
    MEASURES,
    RATE,
    TEXTS,
    HeardWord,
    Judge,
    Judged,
    Recording,
    SpeakerModel,
    clicks,
    compared,
    got_worse,
    joined,
    levels,
    onsets,
    paces,
    summary,
)
from agent_tts.errors import SettingsError
from agent_tts.messages import Word
from tests.recogniser import hearing
from tests.support import running_node
from tests.wire import speak

pytestmark = pytest.mark.node

SENTENCE = "I understand how frustrating that must be."
OTHER = "Turn left at the second traffic light, then go straight on."
MAN, WOMAN = "en-us", "en-us+f2"


def recording(samples: NDArray[np.int16], text: str = SENTENCE, **fields: Any) -> Recording:
    return Recording(text, "en", samples, 24_000, **fields)


@pytest.fixture(scope="module")
def said() -> dict[tuple[str, str], NDArray[np.int16]]:
    """Speech by its text and voice."""
    wanted = [(SENTENCE, MAN), (SENTENCE, WOMAN), (OTHER, MAN)]

    async def main() -> list[bytes]:
        async with running_node(engine="espeak") as node:
            return [await speak(node.ws_url, text, voice=voice, lead_ms=None) for text, voice in wanted]

    return dict(zip(wanted, (np.frombuffer(pcm, "<i2") for pcm in asyncio.run(main())), strict=True))


@pytest.fixture
def clean(said: dict[tuple[str, str], NDArray[np.int16]]) -> NDArray[np.int16]:
    return said[SENTENCE, MAN]


def test_the_texts_are_as_many_as_promised_and_none_is_said_twice() -> None:
    counts = {name: len(texts) for name, texts in TEXTS.items()}
    assert counts.pop("en") == 40
    assert counts.pop("en-long") == 10
    assert counts == dict.fromkeys(("de", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh"), 15)
    every = [text for texts in TEXTS.values() for text in texts]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("text", "heard", "wrong"),
    [
        ("That's twenty four dollars, right?", "That is $24, right", (0, 4)),  # written otherwise, said alike
        ("Turn left now.", "Turn right now", (1, 3)),
        ("Turn left now.", "", (3, 3)),
        ("Turn left now.", "Please turn left now, sir.", (2, 3)),
    ],
)
def test_words_are_wrong_if_they_sound_otherwise(text: str, heard: str, wrong: tuple[int, int]) -> None:
    assert hearing().errors(Recording(text, "en", np.zeros(0, np.int16), RATE), heard)["wer"] == wrong


@pytest.mark.parametrize(
    ("language", "text", "heard"), [("ja", "少々お待ちください。", "少々お持ちください"), ("zh", "请稍等。", "请少等")]
)
def test_languages_without_spaces_are_counted_by_characters(language: str, text: str, heard: str) -> None:
    found = hearing().errors(Recording(text, language, np.zeros(0, np.int16), RATE), heard)
    assert found == {"cer": (1, len(text) - 1)}


def test_speech_is_understood_and_another_text_is_not(clean: NDArray[np.int16]) -> None:
    heard = joined(hearing().listen(recording(clean)))
    assert hearing().errors(recording(clean), heard)["wer"] == (0, 7)
    wrong, count = hearing().errors(recording(clean, OTHER), heard)["wer"]
    assert wrong > 0.8 * count


@pytest.mark.parametrize("damage", ["cut", "hole"])
def test_a_cut_and_a_hole_within_a_vowel_are_clicks(damage: str, clean: NDArray[np.int16]) -> None:
    """And one at a seam is counted as such, where the messages begin there."""
    block = 240
    loudest = int(np.abs(clean[: len(clean) // block * block].reshape(-1, block).astype(int)).mean(axis=1).argmax())
    at = loudest * block + int(np.abs(clean[loudest * block :][:block].astype(int)).argmax())
    broken = np.delete(clean, slice(at, at + block)) if damage == "cut" else clean.copy()
    if damage == "hole":
        broken[at : at + 2 * block] = 0
    whole, hurt = (clicks(recording(samples, seams=(at,))) for samples in (clean, broken))
    assert whole["click"][0] < 12
    assert hurt["click"][0] > 1.4 * whole["click"][0]
    assert whole["seam"][0] < 6
    assert hurt["seam"][0] == hurt["click"][0]


def test_silence_and_a_few_samples_have_no_click() -> None:
    assert clicks(recording(np.zeros(10, np.int16))) == {}
    assert clicks(recording(np.zeros(24_000, np.int16)))["click"] == (0, 1)


def test_each_sentence_has_its_level(clean: NDArray[np.int16]) -> None:
    both = np.concatenate((clean, clean // 2))
    seconds = len(clean) / 24_000
    heard = [HeardWord(" Be.", 0, seconds), HeardWord(" Be.", seconds, 2 * seconds)]
    loud, soft = levels(heard, recording(both))
    assert loud - soft == pytest.approx(6.02, abs=0.3)
    (off,) = [one["level_off"] for one in compared([Judged("", {}, [loud, soft])])]
    assert off[0] / off[1] == pytest.approx(3.01, abs=0.2)


@pytest.mark.parametrize(("pause_s", "faster"), [(0.0, 100.0), (1.0, 100.0)])
def test_pauses_do_not_count_as_a_slow_pace(pause_s: float, faster: float) -> None:
    """Words of four letters, the last third of them twice as fast."""
    lengths = [0.4] * 20 + [0.2] * 10
    words, sound, at = [], [], 0.0
    for length in lengths:
        words.append(HeardWord(" abcd", at, at + length))
        sound += [np.full(round(length * RATE), 0.5, np.float32), np.zeros(round(pause_s * RATE), np.float32)]
        at += length + pause_s
    found = paces(words, np.concatenate(sound))
    assert found["drift"][0] == pytest.approx(faster, abs=1)
    letters, seconds = found["pace"]
    assert letters / seconds == pytest.approx(120 / 10, rel=0.01)
    assert "drift" not in paces(words[:10], np.concatenate(sound))
    assert paces([], np.concatenate(sound)) == {}


def test_word_times_are_compared_where_both_have_the_word() -> None:
    words = tuple(
        Word(word, start, start + 200, 0, 0) for word, start in (("One,", 100), ("two", 400), ("three.", 900))
    )
    heard = [HeardWord(" one", 0, 0.3), HeardWord(" too", 0.45, 0.8), HeardWord(" three", 1.0, 1.2)]
    assert onsets(words, heard, 0.15) == {"words_ms": (50 + 100, 2)}
    assert onsets(words, [], 0) == {}


@pytest.mark.slow  # its libraries take half a gigabyte
def test_a_voice_is_like_itself_and_less_like_another(said: dict[tuple[str, str], NDArray[np.int16]]) -> None:
    judge = Judge(hearing(), clip=recording(said[OTHER, MAN]))
    assert judge.speakers is not None
    own, other = (judge.judge(recording(said[SENTENCE, voice])) for voice in (MAN, WOMAN))
    assert own.heard == other.heard == SENTENCE
    assert own.parts.keys() == {
        *("wer", "mos", "mos_p808", "before_ms", "after_ms", "pace", "click", "similarity_clip")
    }
    assert own.parts["similarity_clip"][0] > other.parts["similarity_clip"][0] + 0.05
    assert 1 < own.parts["mos"][0] < 4
    same, mixed = (compared(some)[0]["similarity"][0] for some in ([own, own], [own, other]))
    assert same == pytest.approx(1, abs=1e-3)
    assert mixed < same - 0.05
    silent = judge.judge(recording(np.zeros(24_000, np.int16)))
    assert silent.parts["wer"] == (7, 7)


def test_an_interval_holds_the_figure_and_narrows_with_more_texts() -> None:
    draw = np.random.default_rng(1)
    widths = []
    for count in (20, 200):
        found = summary([{"text": str(n), "wer": (int(draw.integers(0, 3)), 10)} for n in range(count)])["wer"]
        assert 0 < found["low"] < found["value"] < found["high"] < 20
        widths.append(found["high"] - found["low"])
    assert widths[0] > 2 * widths[1]


def test_callers_who_say_the_same_text_are_no_further_evidence() -> None:
    some = [{"text": str(n), "mos": (n % 5, 1)} for n in range(20)]
    assert summary(some * 8) == summary(some)


@pytest.mark.parametrize("name", [name for name, measure in MEASURES.items() if measure.worse])
def test_what_got_worse_is_told_and_chance_is_not(name: str) -> None:
    """Texts differ by far more than the runs do: they are compared one by one."""
    draw, sign = np.random.default_rng(2), MEASURES[name].worse
    hard = draw.uniform(10, 100, 40)

    def run(shift: float) -> list[dict[str, object]]:
        values = hard + draw.normal(0, 1, 40) + shift
        return [{"text": str(n), name: (float(value), 10)} for n, value in enumerate(values)]

    before = run(0)
    assert got_worse(before, before) == {}
    assert got_worse(run(0), before) == {}
    assert got_worse(run(-2 * sign), before) == {}
    (interval,) = got_worse(run(2 * sign), before).values()
    assert all(math.copysign(1, bound) == sign for bound in interval)


def test_levels_and_pace_are_neither_better_nor_worse() -> None:
    runs = [[{"text": str(n), "level": (level, 1), "pace": (level, 1)} for n in range(5)] for level in (-30.0, -10.0)]
    assert all(got_worse(*pair) == {} for pair in (runs, runs[::-1], *pairwise(runs)))


@pytest.mark.slow
def test_a_model_of_speakers_is_one_of_transformers(tmp_path: Path) -> None:
    """With random weights: vectors of speakers, as for Resemblyzer's; a folder without a model is told."""
    from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    layers = {"conv_dim": (8, 8), "conv_stride": (5, 64), "conv_kernel": (10, 64), "num_conv_pos_embeddings": 16}
    small = {"tdnn_dim": (16, 16), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1), "xvector_output_dim": 24}
    config = WavLMConfig(**sizes, **layers, **small, num_conv_pos_embedding_groups=2)
    WavLMForXVector(config).save_pretrained(tmp_path)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(tmp_path)
    model, draw = SpeakerModel(tmp_path), np.random.default_rng(1)
    one, other = (model(draw.normal(0, 0.1, RATE).astype(np.float32)) for _ in range(2))
    assert one.shape == (24,)
    assert np.linalg.norm(one) == pytest.approx(1)
    assert not np.allclose(one, other)
    with pytest.raises(SettingsError, match="--speaker empty: "):
        SpeakerModel(tmp_path / "empty")
