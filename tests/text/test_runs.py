"""Chinese, Japanese and Korean: numbers within the text, with what is counted."""

from __future__ import annotations

import pytest

from agent_tts.text.feed import Reader, Reading
from agent_tts.text.spoken.runs import MAX_RUN


def say(written: str, language: str) -> str:
    out: list[str] = []
    normalizer = Reader(Reading(clean=False, normalize=language), lambda ch, _: out.append(ch))
    for offset, ch in enumerate(written):
        normalizer.push(ch, offset)
    normalizer.flush(len(written))
    return "".join(out)


@pytest.mark.parametrize("language", ["zh", "ja", "ko"])
def test_a_run_without_end_is_not_held(language: str) -> None:
    out: list[str] = []
    normalizer = Reader(Reading(clean=False, normalize=language), lambda ch, _: out.append(ch))
    for offset in range(1_000):
        normalizer.push("a1"[offset > 0], offset)
    assert len("".join(out)) >= 1_000 - MAX_RUN
