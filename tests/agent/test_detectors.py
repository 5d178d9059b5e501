"""Whose voice is heard: by its level alone, in natural speech."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pipecat.audio.turn.base_turn_analyzer import EndOfTurnState
from pipecat.audio.turn.smart_turn.base_smart_turn import SmartTurnParams
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADState
from pipecat.metrics.metrics import TurnMetricsData

from agent_tts.agent.call import IN_RATE
from agent_tts.agent.detectors import PIECES_PER_S, SURE, TurnDetector, VoiceDetector, voice_params
from agent_tts.agent.realtime.ear import DetectorTurns, Ear
from agent_tts.agent.realtime.shapes import RealtimeFormat, SemanticVad
from agent_tts.config.settings import Agent
from tests.agent.people import at_level, says
from tests.agent.test_phone import linear, mulaw
from tests.recogniser import to_16k
from tests.support import typed, until

WINDOW = 512 * 2  # bytes
LONG = "Hold on, I have another question about the entrance fee."
CALLER, OTHERS = "Please cancel my order.", ("Four people.", "What time do you open tomorrow?", "Can I help you?")


def detector(**agent: Any) -> VoiceDetector:
    made = VoiceDetector(Agent(**agent))
    made.set_sample_rate(IN_RATE)
    return made


def pieces(sound: bytes) -> list[bytes]:
    """What the detector hears at once."""
    return [sound[at : at + WINDOW] for at in range(0, len(sound) - WINDOW, WINDOW)]


def telephone(speech: bytes) -> NDArray[np.int16]:
    """At 16 kHz, after a line of 8 kHz."""
    samples = np.frombuffer(speech, "<i2")[: len(speech) // 6 * 3].reshape(-1, 3).mean(axis=1).astype(np.int16)
    return to_16k(linear(mulaw(samples)), 8_000)


def spoken(words: str) -> bytes:
    """At 16 kHz."""
    return to_16k(np.frombuffer(says(words), "<i2"), 24_000).tobytes()


async def noticed_s(vad: VoiceDetector, speech: bytes) -> float | None:
    """When a voice that follows half a second of silence is noticed, s after its first sound; None: never."""
    sound = to_16k(np.frombuffer(speech, "<i2"), 24_000)[IN_RATE // 4 :].tobytes()
    heard = bytes(IN_RATE) + sound + bytes(IN_RATE)
    found = None
    for number, piece in enumerate(pieces(heard), start=1):
        state = await vad.analyze_audio(piece)
        if state is VADState.SPEAKING and found is None:
            found = (number * WINDOW - IN_RATE) / (2 * IN_RATE)
    return found


async def test_a_voice_is_noticed_as_soon_as_it_is_long_enough() -> None:
    """Mutations: Pipecat's `min_volume`, by which "No." is never heard; without `SURE` it takes up to 0.28 s."""
    for words in (CALLER, "No.", "Five.", "Two.", "Yep.", "Eight."):
        vad = detector()
        heard_s = await noticed_s(vad, says(words))
        await vad.cleanup()
        assert 0.09 <= (heard_s or 9) < 0.23


@pytest.mark.parametrize(
    ("found", "windows", "threshold"),
    [
        ([SURE] * 9, 3, 0.7),
        ([0.75] * 9, 5, 0.7),
        ([0.75, 0.4, SURE, 0.4, 0.4], 4, 0.7),
        ([SURE, 0.3, *[SURE] * 9], 5, 0.7),  # what went before does not count
        ([0.75] * 4 + [0.3] + [0.4] * 9, None, 0.7),
        ([0.96] + [0.94] * 9, 5, 0.95),  # a client of Realtime wants more
    ],
)
async def test_a_voice_begins_sooner_where_the_detector_is_sure(
    found: list[float], windows: int | None, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: each window counts as one, or all as two; the threshold is not asked."""
    left = iter([*found, *[0.0] * 20])
    monkeypatch.setattr(SileroVADAnalyzer, "voice_confidence", lambda *_: next(left))
    vad = detector()
    vad.set_params(voice_params(Agent(), confidence=threshold))
    heard = [await vad.analyze_audio(b"\0\x20" * 512) for _ in range(20)]
    await vad.cleanup()
    assert (heard.index(VADState.SPEAKING) + 1 if VADState.SPEAKING in heard else None) == windows


@pytest.mark.parametrize("level_db", [-40.0, -12.0])
async def test_nobody_speaks_below_the_level(level_db: float) -> None:
    """Mutation: `level_db` is not asked."""
    vad = detector(level_db=level_db)
    heard = [await noticed_s(vad, at_level(says(words), -30)) is not None for words in OTHERS]
    assert heard == [level_db == -40.0] * len(OTHERS)
    assert await noticed_s(vad, says(CALLER)) is not None
    await vad.cleanup()


async def test_a_voice_may_fall_below_the_level_at_which_it_began() -> None:
    """Vowels that are not stressed are 12 dB below others. Mutation: `SOFT_DB` is 0."""
    vad = detector(level_db=-12.0)
    heard = [await vad.analyze_audio(piece) for piece in pieces(bytes(IN_RATE) + spoken(LONG) + bytes(IN_RATE))]
    assert list(pairwise(heard)).count((VADState.STOPPING, VADState.QUIET)) == 1
    assert IN_RATE <= 2 * WINDOW / 2 * heard[::-1].index(VADState.SPEAKING) < 1.6 * IN_RATE
    await vad.cleanup()


async def test_pauses_of_a_voice_are_told_before_it_ends() -> None:
    """And that it goes on. Mutation: a pause is told 0.1 s after it began."""
    told: list[tuple[bool, int]] = []

    async def pause(pauses: bool) -> None:
        told.append((pauses, number))

    vad = VoiceDetector(Agent(), pause)
    vad.set_sample_rate(IN_RATE)
    speech = spoken("Four people.")
    half = len(speech) // 4 * 2
    sound = bytes(IN_RATE) + speech[:half] + bytes(5 * WINDOW) + speech[half:] + bytes(IN_RATE)
    ends = None
    for number, piece in enumerate(pieces(sound)):
        state = await vad.analyze_audio(piece)
        ends = number if state is not VADState.QUIET else ends
    assert told[-1][0]
    assert ends is not None
    assert 4 <= ends - told[-1][1] <= 6  # windows of 32 ms before the end is certain
    assert [pauses for pauses, _ in told] == [True, False] * (len(told) // 2) + [True]
    assert len(told) >= 3
    await vad.cleanup()


async def test_a_voice_on_the_telephone_does_not_end_within_words() -> None:
    """Wherever the windows of the detector lie. Mutation: a voice that lasts needs the probability of a new one."""
    vad, speech = detector(), telephone(says("My phone number is five five five, one two three four."))
    for offset in range(0, WINDOW // 2, 64):
        heard = np.concatenate([np.zeros(IN_RATE // 2 + offset, np.int16), speech, np.zeros(IN_RATE, np.int16)])
        found = [await vad.analyze_audio(piece) for piece in pieces(heard.astype("<i2").tobytes())]
        assert list(pairwise(found)).count((VADState.STOPPING, VADState.QUIET)) == 1
    await vad.cleanup()


@pytest.mark.parametrize("size", [64, 640, WINDOW, 32_000])
async def test_the_turn_detector_keeps_what_its_model_hears_of_a_voice_without_an_end(size: int) -> None:
    """Mutation: Pipecat's `append_audio` alone, which keeps all."""
    mine, pipecats = TurnDetector(8.0), LocalSmartTurnAnalyzerV3(params=SmartTurnParams(stop_secs=8.0))
    sound = to_16k(np.frombuffer(says(CALLER) * 16, "<i2"), 24_000).tobytes()
    for each in (mine, pipecats):
        each.set_sample_rate(IN_RATE)
        for at in range(0, len(sound) - size + 1, size):
            each.append_audio(sound[at : at + size], is_speech=True)
    window_s = mine.params.max_duration_secs
    kept, everything = (sum(len(piece) for _, piece in each._audio_buffer) for each in (mine, pipecats))
    assert len(mine._audio_buffer) <= window_s * PIECES_PER_S
    assert kept <= window_s * IN_RATE < everything / 2
    if size >= 2 * IN_RATE / PIECES_PER_S:
        (_, found), (_, known) = await mine.analyze_end_of_turn(), await pipecats.analyze_end_of_turn()
        assert typed(TurnMetricsData, found).probability == typed(TurnMetricsData, known).probability
    for each in (mine, pipecats):
        await each.cleanup()


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_turn_is_judged_in_the_pause_that_ends_it(*, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `pause` does nothing."""
    judged: list[int] = []
    turn = TurnDetector(8.0)
    turn.set_sample_rate(IN_RATE)
    predict = turn._predict_endpoint

    def noted(audio: NDArray[np.float32]) -> dict[str, Any]:
        judged.append(len(audio))
        return predict(audio)

    monkeypatch.setattr(turn, "_predict_endpoint", noted)
    for piece in pieces(spoken(CALLER)):
        turn.append_audio(piece, is_speech=True)
    turn.pause(True)
    await until(lambda: bool(judged))
    if goes_on:
        turn.pause(False)
    turn.append_audio(bytes(IN_RATE), is_speech=False)
    state, _ = await turn.analyze_end_of_turn()
    assert state is EndOfTurnState.COMPLETE
    assert len(judged) == 1 + goes_on
    assert not turn._audio_buffer
    await turn.cleanup()


@pytest.mark.parametrize("end", ["take", "forget"])
async def test_a_turn_that_ends_otherwise_has_ended_for_the_turn_detector(end: str) -> None:
    """Committed or cleared by the client. Mutation: `forget` leaves the turn detector alone."""
    ear = Ear(Agent(), DetectorTurns())
    await ear.detect(SemanticVad(type="semantic_vad", eagerness="low"))
    assert [starts async for starts, _ in ear.hear(says(CALLER), RealtimeFormat())] == [True]
    detector = typed(TurnDetector, ear._complete)
    assert (detector.speech_triggered, bool(detector._audio_buffer)) == (True, True)
    getattr(ear, end)()
    assert (detector.speech_triggered, bool(detector._audio_buffer)) == (False, False)
    await ear.close()


async def test_a_turn_that_is_cut_has_ended_for_the_turn_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.agent.realtime.ear.MAX_TURN_MS", 1_000)
    ear, turns = Ear(Agent(), DetectorTurns()), []
    await ear.detect(SemanticVad(type="semantic_vad", eagerness="low"))
    voice, piece = says(CALLER) * 3, 9_600
    for at in range(0, len(voice), piece):
        async for starts, _ in ear.hear(voice[at : at + piece], RealtimeFormat()):
            if not starts:
                turns.append(len(ear.take()))
                assert not typed(TurnDetector, ear._complete)._audio_buffer
    assert len(turns) >= 2
    assert max(turns) < 1.3 * 2 * IN_RATE
    await ear.close()
