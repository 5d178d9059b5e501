from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent_tts.config.settings import Settings
from agent_tts.directives import Pause
from agent_tts.engine.espeak.engine import MAX_UNIT_S, EspeakEngine
from agent_tts.engine_info import FRAME_BYTES, FRAME_MS, SAMPLE_RATE
from agent_tts.messages import Audio, Cancel, Finished, OutOfText, StepCommand, StepEvent, Words
from agent_tts.options import SpeechOptions
from tests.engine.driver import FLUSH, Script, appended, opened, speak, speak_all, start_of
from tests.examples import examples

TEXT = "Hello there, this is the node. It speaks “word by word” and, at 10:30, costs $3.50! Right? 你好，世界。"
LONG = "The quick brown fox jumps over the lazy dog while the other animals of the wood look on in silence."


NUMBERS, SLOW = "999,999 " * 12, SpeechOptions(speed=0.25)  # units that are spoken in halves


pytestmark = pytest.mark.node


def loud(pcm: NDArray[np.int16]) -> NDArray[np.intp]:
    """Indices of audible samples."""
    return np.flatnonzero(np.abs(pcm.astype(int)) > 100)


def pitch_hz(pcm: NDArray[np.int16]) -> float:
    """Median of the fundamental frequency, in voiced windows of 50 ms."""
    found = []
    for window in np.split(pcm[: len(pcm) // 1_200 * 1_200].astype(float), len(pcm) // 1_200):
        similarity = np.correlate(window, window, "full")[1_199:]
        lags = np.arange(50, 600)  # 480 .. 40 Hz
        best = similarity[lags].max()
        if similarity[0] > 1e9 and best > 0.4 * similarity[0]:
            peaks = [lag for lag in lags if similarity[lag] > 0.9 * best and similarity[lag] >= similarity[lag + 1]]
            found.append(SAMPLE_RATE / peaks[0])
    return float(np.median(found))


# ---------------------------------------------------------------- bit-equality


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12))
@examples(25)
def test_audio_and_words_do_not_depend_on_how_the_text_is_split(speaking: EspeakEngine, cuts: list[int]) -> None:
    whole = speak(speaking, TEXT)
    split = speak(speaking, *(TEXT[start:end] for start, end in pairwise([0, *sorted(cuts), len(TEXT)])))
    assert split.frames == whole.frames
    assert split.words == whole.words


def test_audio_does_not_depend_on_the_other_slots(engine: EspeakEngine) -> None:
    scripts = {
        0: Script([TEXT]),
        5: Script(list(LONG), SpeechOptions(voice="onyx", speed=1.4)),
        6: Script([LONG, FLUSH, TEXT], SpeechOptions(voice="en-us+f1", language="german", pitch=1.5)),
        7: Script(TEXT.split(), SpeechOptions(voice="en-us+whisper", speed=3.5)),
        9: Script(list(NUMBERS), SLOW),
        63: Script([TEXT], SpeechOptions(voice="cmn")),
    }
    together = speak_all(engine, scripts)
    for slot, script in scripts.items():
        alone = speak(engine, *((NUMBERS,) if slot == 9 else script.pieces), options=script.options)
        assert together[slot].frames == alone.frames
        assert together[slot].words == alone.words


# ---------------------------------------------------------------- sound


def test_speech_starts_at_the_first_sample(engine: EspeakEngine) -> None:
    assert loud(speak(engine, "Hello").pcm)[0] < 0.010 * SAMPLE_RATE


def test_a_sentence_cut_into_units_joins_without_an_audible_pause(engine: EspeakEngine) -> None:
    gaps = np.diff(loud(speak(engine, LONG.rstrip(".")).pcm))
    assert gaps.max() < 0.070 * SAMPLE_RATE  # the closure of a plosive


@pytest.mark.parametrize(("mark", "least"), [(".", 0.25), ("!", 0.25), ("?", 0.25), (",", 0.1), (".”", 0.25)])
def test_punctuation_is_followed_by_a_pause(engine: EspeakEngine, mark: str, least: float) -> None:
    gaps = np.diff(loud(speak(engine, f"One and all{mark} And so on").pcm))
    assert least < gaps.max() / SAMPLE_RATE < 0.45


def test_languages_and_voices_differ(engine: EspeakEngine) -> None:
    def of(voice: str | None, language: str = "auto") -> bytes:
        return speak(engine, "Guten Morgen", options=SpeechOptions(voice=voice, language=language)).pcm.tobytes()

    assert len({of(None), of("de"), of("en-us+f3"), of("en-us+f3", "german"), of("fr-fr"), of("coral", "ja")}) == 6
    assert of("en-us+f3", "German") == of("nova", "de-AT")


@pytest.mark.parametrize(("speed", "tolerance"), [(0.25, 0.1), (0.5, 0.1), (1.5, 0.1), (2.0, 0.2), (4.0, 0.2)])
def test_speed_shortens_the_speech(engine: EspeakEngine, speed: float, tolerance: float) -> None:
    normal = speak(engine, LONG).seconds
    found = speak(engine, LONG, options=SpeechOptions(speed=speed)).seconds
    assert found * speed / normal == pytest.approx(1.0, rel=tolerance)


MAMA = "Mama, mama, mama, mama, mama, mama."


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0, 4.0])
def test_speed_keeps_the_pitch(engine: EspeakEngine, speed: float) -> None:
    normal = speak(engine, MAMA, options=SpeechOptions(voice="nova"))
    other = speak(engine, MAMA, options=SpeechOptions(voice="nova", speed=speed))
    assert pitch_hz(other.pcm) == pytest.approx(pitch_hz(normal.pcm), rel=0.1)


def test_pitch_is_a_factor_of_the_frequency(engine: EspeakEngine) -> None:
    """At the ends of its range, which exceeds the library's, the pitch is as low or as high as possible."""
    found = {
        pitch: pitch_hz(speak(engine, MAMA, options=SpeechOptions(voice="nova", pitch=pitch)).pcm)
        for pitch in (0.5, 0.7, 0.8, 1.0, 1.3, 1.6, 2.0)
    }
    for pitch in (0.7, 0.8, 1.3, 1.6):
        assert found[pitch] == pytest.approx(found[1.0] * pitch, rel=0.1)
    assert found[0.5] < 0.65 * found[1.0]
    assert found[2.0] > 1.65 * found[1.0]


# ---------------------------------------------------------------- words


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("speed", [0.3, 1.0, 4.0])
def test_words_are_ordered_within_the_audio_and_sent_before_it(engine: EspeakEngine, speed: float, clean: bool) -> None:
    text = f"**Oh**, 😀 {TEXT} [a link](https://example.com/x) &amp; more"
    spoken = speak(engine, text[:30], FLUSH, text[30:], options=SpeechOptions(speed=speed, clean=clean))
    assert len(spoken.words) > 15
    for earlier, later in pairwise(spoken.words):
        assert earlier.start_ms <= earlier.end_ms <= later.start_ms
        assert earlier.char_start <= later.char_start < later.char_end  # several words are of one digit
    assert spoken.words[-1].char_end <= len(text)
    assert spoken.words[-1].end_ms <= spoken.seconds * 1_000
    told = 0
    for output in spoken.outputs:
        if isinstance(output, Audio):
            told += FRAME_MS
        elif isinstance(output, Words):
            assert told <= output.words[0].start_ms


@pytest.mark.parametrize("speed", [0.5, 1.0])
def test_word_times_match_the_sound(engine: EspeakEngine, speed: float) -> None:
    text = "Hello, well. Yes!"
    spoken = speak(engine, text, options=SpeechOptions(speed=speed))
    assert [text[word.char_start : word.char_end] for word in spoken.words] == ["Hello", "well", "Yes"]
    sound = loud(spoken.pcm) * 1_000 / SAMPLE_RATE
    for word in spoken.words:
        inside = sound[(sound >= word.start_ms) & (sound <= word.end_ms)]
        assert inside[0] - word.start_ms < 3
        assert word.end_ms - inside[-1] < 3
    for word, following in pairwise(spoken.words):
        assert not len(sound[(sound > word.end_ms + 1) & (sound < following.start_ms - 1)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# Title\n**bold** `code` 世界 😀 end.", "Title bold code 世 界 end"),
        (
            "My shop 🎉\nOpening hours\n\nFirst one.Second one! >90% → all",
            "My shop Opening hours First one Second one > >9 90 0% all",
        ),
    ],
)
def test_offsets_count_the_raw_text(engine: EspeakEngine, text: str, words: str) -> None:
    spoken = speak(engine, text, options=SpeechOptions(language="en"))
    assert [text[word.char_start : word.char_end] for word in spoken.words] == words.split()


def test_words_keep_their_offsets_in_parts_plain_letters_and_with_spaces_put_in(engine: EspeakEngine) -> None:
    text = "Say “привет мир” 5 times a≥b 𝐁𝐨𝐥𝐝 ﬁne 🙂 end."
    spoken = speak(engine, text, options=SpeechOptions(clean=False))
    found = [text[word.char_start : word.char_end] for word in spoken.words]
    assert [word.strip("“”. ") for word in found] == [*("Say", "привет", "мир", "5", "times"), *found[5:]]
    assert {"𝐁𝐨𝐥𝐝", "ﬁne", "🙂", "end"} <= {word.strip("“”. ") for word in found}
    assert all(earlier.char_end <= later.char_start for earlier, later in pairwise(spoken.words))
    assert all(earlier.end_ms <= later.start_ms for earlier, later in pairwise(spoken.words))


# ---------------------------------------------------------------- contract of engines


def test_a_flush_outputs_all_audio_before_it(engine: EspeakEngine) -> None:
    alone = speak(engine, "Hello there, old friend").seconds
    spoken = speak(engine, "Hello there, old friend", FLUSH, FLUSH, "and you")
    before = spoken.kinds.index("Flushed")
    frames = spoken.kinds[:before].count("Audio")
    assert frames == -(-alone * 1_000 // FRAME_MS)
    assert spoken.kinds.count("Flushed") == 2
    assert all(len(frame) == FRAME_BYTES for frame in spoken.frames[:-1])


def test_a_dry_slot_is_starved_and_continues_with_more_text(engine: EspeakEngine) -> None:
    engine.step([start_of(0, SpeechOptions()), *appended(0, "Hello there my ")], ())
    said = [output for _ in range(100) for output in engine.step([], {0})]
    assert said[-1] == OutOfText(0)
    assert said.count(OutOfText(0)) > 50
    said = engine.step([*appended(0, "friend", last=True)], {0})
    said += [output for _ in range(100) for output in engine.step([], {0})]
    assert {type(output) for output in said[:-1]} == {Words, Audio}
    assert said[-1] == Finished(0, "end")


@pytest.mark.parametrize("text", ["", " ", "...", "\u200b", "\x00", "😀", "```\ncode\n```", "—"])
def test_a_text_without_words_ends_without_a_frame(engine: EspeakEngine, text: str) -> None:
    assert speak(engine, text).kinds == ["end"]


def test_a_long_text_is_spoken_to_its_end(engine: EspeakEngine) -> None:
    spoken = speak(engine, ((LONG + " ") * 50)[:5_000])
    assert spoken.kinds[-1] == "end"
    assert spoken.seconds > 250
    assert spoken.words[-1].char_end > 4_900


LENGTHY = {
    "digits": ("999999999999 " * 12, "en-us"),
    "one number": ("9" * 160, "en-us"),
    "spelled out": ("internationalization " * 8, "ja"),
    "symbols": ("≥" * 100, "en-us"),
}


@pytest.mark.parametrize("speed", [0.25, 4.0])
@pytest.mark.parametrize("name", LENGTHY)
def test_any_text_is_spoken_in_short_steps(engine: EspeakEngine, name: str, speed: float) -> None:
    """A step synthesises at most one unit, when less than two frames are left; every word is spoken."""
    text, voice = LENGTHY[name]
    options = SpeechOptions(voice=voice, speed=speed)
    engine.step([start_of(0, options), *appended(0, text, last=True)], ())
    (request,) = engine._slots.requests({0})
    samples, said = 0, list[StepEvent]()
    while not said or not isinstance(said[-1], Finished):
        said += engine.step([], {0})
        assert request.feed.samples - samples <= (MAX_UNIT_S + 0.3) * SAMPLE_RATE
        samples = request.feed.samples
    told = [word for output in said if isinstance(output, Words) for word in output.words]
    assert told[0].char_start == 0
    assert told[-1].char_end >= len(text.rstrip()) - 1
    assert all(earlier.char_start <= later.char_start for earlier, later in pairwise(told))


def test_a_slot_released_in_mid_clause_starts_clean(engine: EspeakEngine) -> None:
    fresh = speak(engine, "next request")
    engine.step([start_of(0, SpeechOptions(voice="onyx")), *appended(0, LONG, flush=True)], {0})
    assert engine.step([Cancel(0)], ()) == []
    assert speak(engine, "next request").frames == fresh.frames


def test_a_clause_that_the_library_refuses_fails_its_slot_alone(
    engine: EspeakEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the file of a voice were missing."""
    missing = SpeechOptions(language="de")
    languages = engine._shared.voices._by_code
    monkeypatch.setitem(languages, "de", replace(languages["de"], path="gmw/none"))
    expected = Finished(3, "error", code="internal", message="the engine failed on this context")
    engine.step([start_of(3, missing), *appended(3, LONG, flush=True), start_of(4, SpeechOptions())], ())
    assert engine.step([], {3, 4}) == [expected, OutOfText(4)]
    assert engine.step([], {3}) == []


def test_many_new_requests_share_the_steps(engine: EspeakEngine) -> None:
    """A step does not synthesise all 64 clauses, new requests come first, and every request proceeds."""
    slots = range(64)
    opened = [each for slot in slots for each in (start_of(slot, SpeechOptions()), *appended(slot, LONG, last=True))]
    first = engine.step(opened, set(slots))
    assert {output.id for output in first} < set(slots)
    spoke_at: dict[int, int] = {}
    over: set[int] = set()
    for step in range(3_000):
        for output in engine.step([], set(slots) - over):
            if isinstance(output, Audio):
                spoke_at.setdefault(output.id, step)
            elif isinstance(output, Finished):
                over.add(output.id)
        if len(over) == len(slots):
            break
    assert over == set(slots)
    assert max(spoke_at.values()) < 64


def test_a_new_request_comes_before_those_that_have_audio(engine: EspeakEngine) -> None:
    old = range(63)
    speak_once = [each for slot in old for each in (start_of(slot, SpeechOptions()), *appended(slot, "Hi there "))]
    engine.step(speak_once, ())
    dry: set[int] = set()
    while dry != set(old):
        dry |= {output.id for output in engine.step([], set(old) - dry) if isinstance(output, OutOfText)}
    inputs: list[StepCommand] = [text for slot in old for text in appended(slot, LONG, last=True)]
    inputs += [start_of(63, SpeechOptions()), *appended(63, "Hello there ")]
    said = engine.step(inputs, {*old, 63})
    assert {output.id for output in said} >= {63}
    assert len({output.id for output in said}) < 64


def test_a_paced_request_comes_before_unpaced_ones(engine: EspeakEngine) -> None:
    """Also when it has audio and they have none; the unpaced ones still proceed."""
    engine.step([start_of(63, SpeechOptions()), *appended(63, "Hi there ")], ())
    while OutOfText(63) not in engine.step([], {63}):
        pass
    others = range(20)
    fast = SpeechOptions(lead_ms=None, speed=0.25)
    inputs: list[StepCommand] = [
        each for s in others for each in (start_of(s, fast), *appended(s, "999999999999 " * 9, last=True))
    ]
    said = engine.step([*inputs, *appended(63, LONG, last=True)], {*others, 63})
    assert any(isinstance(output, Audio) and output.id == 63 for output in said)
    assert len({output.id for output in said}) < 21
    spoke = {output.id for output in said if isinstance(output, Audio)}
    for _ in range(500):
        if spoke == {*others, 63}:
            break
        spoke |= {output.id for output in engine.step([], set(others)) if isinstance(output, Audio)}
    assert spoke == {*others, 63}


def test_the_engine_describes_itself(engine: EspeakEngine) -> None:
    assert (engine.info.engine, engine.info.default_voice, engine.info.slots) == ("espeak", "en-us", 64)
    assert engine.info.aligns_words


def test_two_engines_can_be_used_in_turn(engine: EspeakEngine) -> None:
    alone = speak(engine, LONG)
    with opened(EspeakEngine(Settings(), 1)) as other:
        other.step([start_of(0, SpeechOptions(voice="de")), *appended(0, LONG, last=True)], {0})
        assert speak(engine, LONG).frames == alone.frames
    other.close()
    assert speak(engine, LONG).frames == alone.frames


# ---------------------------------------------------------------- text options


def test_a_pause_is_silence_and_delays_the_words_after_it(engine: EspeakEngine) -> None:
    plain = speak(engine, "Hello there.", FLUSH, " How are you?")
    paused = speak(engine, "Hello there.", Pause(1_500), " How are you?")
    assert [word.char_start for word in paused.words] == [word.char_start for word in plain.words]
    later = [one.start_ms - other.start_ms for one, other in zip(paused.words[2:], plain.words[2:], strict=True)]
    assert all(1_420 <= ms <= 1_500 for ms in later)  # a flush pads its frame
    silence = paused.pcm[round(24 * (paused.words[2].start_ms - 1_490)) : round(24 * (paused.words[2].start_ms - 10))]
    assert not silence.any()


def test_a_pause_before_the_first_word_is_kept(engine: EspeakEngine) -> None:
    spoken = speak(engine, Pause(1_000), "Hello.")
    assert spoken.words[0].start_ms == 1_000
    assert loud(spoken.pcm)[0] >= 24_000


def test_numbers_are_spoken_in_the_words_of_the_language(engine: EspeakEngine) -> None:
    for language, written, said in (
        ("en", "It is $5.50.", "It is five dollars and fifty cents."),
        ("fr", "25", "vingt-cinq"),
    ):
        spoken = speak(engine, written, options=SpeechOptions(language=language, normalize=True))
        expected = speak(engine, said, options=SpeechOptions(language=language))
        assert np.array_equal(spoken.pcm, expected.pcm)
        assert spoken.words[-1].char_end <= len(written)
        assert spoken.words[-1].end_ms == expected.words[-1].end_ms


def test_numbers_and_signs_are_read_as_a_person_would_without_normalize(engine: EspeakEngine) -> None:
    """Not in Japanese, whose number words it cannot read. Mutation: espeak-ng reads them: "one slash two litre"."""
    for language, written, said in (
        (
            "en",
            "1/2 litre, 10 - 15 km, >90% of it.",
            "one half litre, ten to fifteen kilometers, more than ninety percent of it.",
        ),
        ("de", "½ l, 10 - 15 km", "ein halber Liter, zehn bis fünfzehn Kilometer"),
        ("ru", "10 - 15 км", "десять-пятнадцать километров"),
        ("zh", "50%", "百分之五十"),
        ("ja", "10 - 15", "10 - 15"),
    ):
        spoken = speak(engine, written, options=SpeechOptions(language=language))
        raw = SpeechOptions(language=language, clean=False)
        assert np.array_equal(spoken.pcm, speak(engine, said, options=raw).pcm), written
        assert (said == written) == np.array_equal(spoken.pcm, speak(engine, written, options=raw).pcm)


def test_numbers_and_signs_are_left_to_espeak_if_a_client_asks_for_it(engine: EspeakEngine) -> None:
    """ElevenLabs' `apply_text_normalization: off`. Mutation: `clean` alone decides."""
    written = "1/2 litre, 10 - 15 km"
    left = speak(engine, written, options=SpeechOptions(normalize=False))
    raw = speak(engine, written, options=SpeechOptions(clean=False))
    assert np.array_equal(left.pcm, raw.pcm)
    assert len(left.pcm) != len(speak(engine, written).pcm)


def rests(engine: EspeakEngine, text: str, language: str = "en", speed: float = 1.0) -> list[int]:
    """Lengths of the silences between words that are longer than those within, in ms."""
    pcm = speak(engine, text, options=SpeechOptions(language=language, speed=speed)).pcm
    heard = np.flatnonzero(np.abs(pcm.astype(int)) > 60)
    return [round(gap / 24) for gap in np.diff(heard) if gap > 100 * 24 / speed]


@pytest.mark.parametrize(
    ("lines", "language"),
    [
        ("# Our hours\n{}We are open", "en"),
        ("- all mine\n{}- all yours", "en"),
        ("Dear Anna\n{}we thank you", "en"),
        ("all mine 🎉  \n{}all yours", "en"),  # the words before have been given to espeak-ng
        ("all of it was mine 🎉\r\n{}and all of it was yours", "en"),
        ("<li>all mine</li>{}<li>all yours</li>", "en"),
        ("Unser Haus 3\n{}wir haben offen", "de"),
        ("我们的家\n{}我们很好", "zh"),
        ("наш дом\n{}наш сад", "ru"),
        ("우리 집\n{}우리 나라", "ko"),
    ],
)
def test_a_line_is_a_pause_like_a_clauses_and_a_paragraph_like_a_sentences(
    engine: EspeakEngine, lines: str, language: str
) -> None:
    """Without clean, line breaks are as they were."""
    (line,) = rests(engine, lines.format(""), language)
    (paragraph,) = rests(engine, lines.format("\n" if "<" not in lines else "<br><p>"), language)
    assert 130 <= line <= 240
    assert 120 <= paragraph - line <= 240


def test_marks_behind_white_space_are_pauses(engine: EspeakEngine) -> None:
    """Also where the words before them have been given to espeak-ng, and at any speed."""
    for text in ("all mine , all yours", "all of it was mine , and all of it was yours", "all mine → all yours"):
        (rest,) = rests(engine, text)
        assert 130 <= rest <= 200
    assert all(130 <= rest <= 240 for rest in rests(engine, "1. all mine\n2. all yours"))  # behind the numbers, too
    slow, fast = rests(engine, "all mine 🎉\nall yours", speed=0.7), rests(engine, "all mine 🎉\nall yours", speed=1.5)
    assert slow[0] > 1.5 * fast[0]
    assert rests(engine, "all mine all yours") == []
