"""Amounts, hours, ranges, codes and telephone numbers as agents write them, said as a native speaker says them."""

from __future__ import annotations

from pathlib import Path

from tests.text.test_normalize import text as say


def test_they_are_said_as_a_native_speaker_says_them() -> None:
    """The file has a text and its spoken form in a line, under the language."""
    language, wrong = "", []
    for line in Path(__file__).with_name("said_by_agents.txt").read_text().splitlines():
        written, arrow, spoken = line.partition("  =>  ")
        if not arrow:
            language = written.strip("[]") or language
        elif (said := say(written, language)) != spoken:
            wrong.append(f"{language}: {written!r} is said {said!r}")
    assert not wrong, "\n".join(wrong)
