"""Whose voice is heard: by its level alone, in natural speech."""

from __future__ import annotations

import numpy as np
import pytest
from pipecat.audio.vad.vad_analyzer import VADState

from agent_tts.agent.call import IN_RATE
from agent_tts.agent.detectors import VoiceDetector
from agent_tts.config.settings import Agent
from tests.agent.people import at_level, says
from tests.recogniser import to_16k

WINDOW = 512 * 2
CALLER, OTHERS = "Please cancel my order.", ("Four people.", "What time do you open tomorrow?", "Can I help you?")


def detector(**agent: float) -> VoiceDetector:
    made = VoiceDetector(Agent(**agent), IN_RATE)
    made.set_sample_rate(IN_RATE)
    return made


async def noticed_s(vad: VoiceDetector, speech: bytes) -> float | None:
    """When a voice that follows half a second of silence is noticed, s after its first sound; None: never."""
    sound = to_16k(np.frombuffer(speech, "<i2"), 24_000)[IN_RATE // 4 :].tobytes()
    heard = bytes(IN_RATE) + sound + bytes(IN_RATE)
    found = None
    for at in range(0, len(heard) - WINDOW, WINDOW):
        state = await vad.analyze_audio(heard[at : at + WINDOW])
        if state is VADState.SPEAKING and found is None:
            found = (at + WINDOW - IN_RATE) / (2 * IN_RATE)
    return found


async def test_a_voice_is_noticed_as_soon_as_it_is_long_enough() -> None:
    """Mutation: Pipecat's `min_volume`, by which "No." is never heard."""
    vad = detector()
    for words in (CALLER, "No.", "Stop."):
        assert 0.19 <= (await noticed_s(vad, says(words)) or 9) < 0.3
    await vad.cleanup()


@pytest.mark.parametrize("level_db", [-40.0, -12.0])
async def test_nobody_speaks_below_the_level(level_db: float) -> None:
    """Mutation: `level_db` is not asked."""
    vad = detector(level_db=level_db)
    heard = [await noticed_s(vad, at_level(says(words), -30)) is not None for words in OTHERS]
    assert heard == [level_db == -40.0] * len(OTHERS)
    assert await noticed_s(vad, says(CALLER)) is not None
    await vad.cleanup()


async def test_others_are_quieter_than_the_caller_and_the_caller_may_become_quieter() -> None:
    """Mutations: `_caller_db` stays silent; it does not fall."""
    vad = detector()
    assert await noticed_s(vad, says(CALLER)) is not None
    assert [await noticed_s(vad, at_level(says(words), -30)) for words in OTHERS] == [None] * len(OTHERS)
    again = [await noticed_s(vad, at_level(says(words), -23)) for words in OTHERS]
    assert None not in again
    for _ in range(20):
        heard = await noticed_s(vad, at_level(says(OTHERS[1]), -30))
        if heard is not None:
            break
    assert heard is not None
    await vad.cleanup()
