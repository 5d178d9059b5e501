"""Estimated word times against espeak's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.measure.test_tools import tool
from tests.measure.words import ENDS, TEXTS, _pieces


@pytest.mark.parametrize("flush", [pytest.param(False, marks=pytest.mark.slow), True])
def test_estimates_are_near_espeaks_times(tmp_path: Path, flush: bool) -> None:
    file = tmp_path / "words.json"
    options = ["--languages", "en", "--json", str(file)] + ["--flush"] * flush
    done = tool("words", *options)
    assert done.exit_code == 0, done.stderr
    (found,) = json.loads(file.read_text())["runs"]
    assert found["words"] == sum(len(text.split()) for text in TEXTS["en"])
    assert found["first_ms"]["p50"] < 500
    assert found["settled_ms"]["p50"] < 80
    assert found["settled_ms"]["p95"] < 400
    assert found["known_ms"]["p50"] < 60
    assert found["known_ms"]["p95"] < 200
    assert found["heard_words"]["p95"] <= 2


def test_a_language_without_test_texts_is_refused() -> None:
    done = tool("words", "--languages", "en,xx")
    assert (done.exit_code, "--languages xx: must be of en, de" in done.stderr) == (2, True)


@pytest.mark.parametrize("text", [text for texts in TEXTS.values() for text in texts])
def test_the_pieces_join_to_the_text(text: str) -> None:
    assert "".join(_pieces(text)) == text
    assert all(piece.endswith(ENDS) for piece in _pieces(text)[:-1] if len(piece) < 4)
