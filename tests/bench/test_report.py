"""Figures in files and tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agent_tts.bench import report
from agent_tts.errors import SettingsError


def test_a_document_holds_all_that_repeating_the_measurement_needs(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    report.write_json(path, report.document("serve", {"engine": "tone"}, [{"load": "1/s"}]))
    found = json.loads(path.read_text())
    assert found.keys() == {"bench", "date", "command", "device", "node", "runs"}
    assert found["runs"] == [{"load": "1/s"}]


def test_a_table_shows_a_missing_value_as_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    report.table("title", ("load", "p50"), [("1/s", None), ("2/s", 3.5)])
    said = capsys.readouterr().out
    assert "title" in said
    assert [line.split() for line in said.splitlines()[-2:]] == [["1/s", "-"], ["2/s", "3.5"]]


def test_counts_are_abbreviated() -> None:
    assert report.counted({}) == "0"
    assert report.counted({"starved": 1, "at_capacity": 2}) == "2 at_capacity, 1 starved"


def draw(folder: Path, name: str) -> list[Path]:
    """A plot of each kind."""
    times, lines = report.Plot(folder / f"times-{name}"), report.Plot(folder / f"lines-{name}")
    times.times("title", [("1/s", [3.0, 1.0, 2.0])])
    lines.lines("title", [1, 2], {"cpu": [1.0, 2.0]}, ("streams", "%"))
    times.save()
    lines.save()
    return list(folder.iterdir())


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the font files that it used open until the process ends."""
    draw(tmp_path_factory.mktemp("fonts"), "out.png")


@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("name", ["out.png", "out.svg", "out.pdf"])
def test_plots_are_drawn(tmp_path: Path, name: str) -> None:
    files = draw(tmp_path, name)
    assert len(files) == 2
    assert all(file.stat().st_size > 1_000 for file in files)


@pytest.mark.parametrize(
    ("name", "said"), [("out.gif", "ends in one of .png"), ("no/out.png", "no such folder"), (".", "the name ends")]
)
def test_an_invalid_plot_file_is_refused_before_drawing(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"--plot .*{said}"):
        report.Plot(tmp_path / name)


@pytest.mark.parametrize(("name", "said"), [("no/out.json", "no such folder"), ("folder", "cannot be written")])
def test_an_invalid_output_file_is_refused_before_measuring(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError, match=f"--json .*{said}"):
        report.check_output("--json", tmp_path / name)


@pytest.mark.usefixtures("fonts")
def test_a_folder_that_disappears_meanwhile_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    picture = report.Plot(tmp_path / "gone/out.png")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SettingsError, match="--plot out"):
        picture.save()
    with pytest.raises(SettingsError, match="--json out"):
        report.write_json(tmp_path / "gone/out.json", {})


def test_a_missing_library_is_reported_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"pip install agent-tts\[bench\]"):
        report.Plot(tmp_path / "out.png")
