"""A folder of records: what is remembered of one that could not be read."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_tts.system.records import Records
from tests.support import logged


class Reads:
    """Reads a record, or raises an error; counts how often."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.count = 0

    def __call__(self, path: Path) -> str:
        self.count += 1
        if self.error is not None:
            raise self.error
        return path.read_text()


def one_in(folder: Path, changed_at: float | None = None) -> None:
    """A record, changed at this time or now."""
    (folder / "one").write_text("text")
    if changed_at is not None:
        for path in (folder / "one", folder):
            os.utime(path, (changed_at, changed_at))


def test_an_error_of_the_system_is_not_damage(tmp_path: Path) -> None:
    """Without the rule a record stays damaged until its file changes: here no descriptor was free once."""
    errors = [OSError(24, "Too many open files"), OSError(24, "Too many open files")]

    def read(path: Path) -> str:
        if errors:
            raise errors.pop()
        return path.read_text()

    one_in(tmp_path)
    records = Records(tmp_path, "record", str.isalnum, read)
    assert records.all() == ()
    with pytest.raises(ValueError, match="damaged"):
        records.get("one")
    assert records.all() == ("text",)
    assert records.get("one") == "text"


def test_what_the_system_does_not_give_is_asked_for_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a voice that another user has copied: all others were looked at twenty times a second, for ever."""
    reads = Reads(PermissionError(13, "Permission denied"))
    one_in(tmp_path, changed_at=0)
    records = Records(tmp_path, "record", str.isalnum, reads)
    assert [records.all() for _ in range(3)] == [()] * 3
    assert reads.count == 1
    monkeypatch.setattr(records, "_again_at", 0.0)
    assert records.all() == ()
    assert reads.count == 2


@pytest.mark.parametrize("error", [ValueError("no JSON"), RecursionError()])
def test_damage_is_remembered(tmp_path: Path, error: Exception) -> None:
    reads = Reads(error)
    one_in(tmp_path)
    records = Records(tmp_path, "record", str.isalnum, reads)
    assert records.all() == records.all() == ()
    assert reads.count == 1


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_a_record_whose_time_is_far_from_now_is_read_once(tmp_path: Path, ahead_s: int) -> None:
    """Fails where a time in the future is never old: a clock was set back, or another machine's is ahead."""
    reads = Reads()
    one_in(tmp_path, datetime.now(UTC).timestamp() + ahead_s)
    records = Records(tmp_path, "record", str.isalnum, reads)
    assert [records.all() for _ in range(3)] == [("text",)] * 3
    assert reads.count == 1
    (tmp_path / "one").write_text("more")
    assert records.get("one") == "more"


def test_a_folder_that_cannot_be_read_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    records = Records(tmp_path, "record", str.isalnum, Path.read_text)
    with logged("DEBUG") as lines:
        assert records.all() == records.all() == ()
    assert lines == ["the folder of each record cannot be read: Permission denied\n"]


def test_an_entry_that_the_disk_has_lost_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where an error of one entry is taken for one of the folder: all voices were gone."""
    one_in(tmp_path)
    (tmp_path / "two").write_text("more")
    look = Path.lstat

    def lost(path: Path) -> os.stat_result:
        if path.name == "one":
            raise OSError(5, "Input/output error")
        return look(path)

    records = Records(tmp_path, "record", str.isalnum, Path.read_text)
    monkeypatch.setattr(Path, "lstat", lost)
    with logged() as log:
        assert records.all() == records.all() == ("more",)
    assert ["'one'" in line for line in log] == [True]
    monkeypatch.undo()
    assert records.all() == ("text", "more")
