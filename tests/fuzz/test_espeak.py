"""A few random texts in each language for espeak-ng; `python -m tests.fuzz.espeak` takes any number."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agent_tts.engine.espeak.voices import languages
from agent_tts.engine.espeak.workers import Deadly, Delivery, EspeakWorkers
from tests.fuzz.espeak import KILLER_LANGUAGES, KILLERS, fuzz, jobs

pytestmark = pytest.mark.node

BY_CODE = {language.code: language for language in reversed(languages())}


@pytest.fixture
def espeak() -> Iterator[EspeakWorkers]:
    espeak = EspeakWorkers()
    yield espeak
    espeak.close()


@pytest.mark.slow
def test_no_text_ends_espeak(espeak: EspeakWorkers) -> None:
    assert [job.text for job in fuzz(espeak, 2 * len(languages()), seed=1) if job is not None] == []


def test_no_known_killer_ends_espeak(espeak: EspeakWorkers) -> None:
    for code in KILLER_LANGUAGES:
        for job in jobs(" ".join(KILLERS), Delivery(BY_CODE[code], None), None, raw=False):
            assert espeak.speak(job, time.monotonic() + 30) is not None


def test_without_the_filter_they_do(espeak: EspeakWorkers) -> None:
    (job,) = jobs(KILLERS[0], Delivery(BY_CODE["te"], None), None, raw=True)
    with pytest.raises(Deadly):
        espeak.speak(job, time.monotonic() + 30)
