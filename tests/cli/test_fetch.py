"""`agent-tts voices fetch` with a server of files, and the node that has the voices then."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hibari import voices

from agent_tts.engine.espeak.voices import LIKE
from agent_tts.engine.hibari.speech import aliases, installed
from tests.cli.process import invoke
from tests.hub_server import files_of
from tests.small_disk import NEEDS_ROOT, small_disk

pytestmark = pytest.mark.real_time  # commands run in their own event loops

OTHERS = ("emma", "fenrir", "fable", "kore")
HEART = Path(voices.ASSETS, voices.VOICES["heart"]["file"])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server where the voices are fetched from; each one's file is most of that in the package."""
    folder = tmp_path / "hub"
    folder.mkdir()
    known = {}
    for number, (name, facts) in enumerate(voices.VOICES.items()):
        content = HEART.read_bytes()[: -number or None]
        known[name] = facts | {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / facts["file"]).write_bytes(content)
    monkeypatch.setattr(voices, "VOICES", known)
    with files_of(folder) as address:
        monkeypatch.setattr(voices, "BASE_URL", f"{address}/")
        yield folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of voices of this machine, which is not there yet."""
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def file_of(name: str) -> str:
    return str(voices.VOICES[name]["file"])


@pytest.mark.usefixtures("hub")
def test_voices_are_fetched_by_name_then_the_rest_then_none(home: Path) -> None:
    one = invoke("voices", "fetch", "fable")
    assert (one.returncode, one.stdout) == (0, b"")
    assert b"fable are in" in one.stderr
    assert b"after a restart" in one.stderr
    assert [file.name for file in home.iterdir()] == [file_of("fable")]
    assert (home / file_of("fable")).stat().st_mode & 0o444 == 0o444  # a node may be another user's
    rest = invoke("voices", "fetch")
    assert b"agent-tts: emma, fenrir, kore are in" in rest.stderr
    assert {file.name for file in home.iterdir()} == set(map(file_of, OTHERS))
    assert b"all of them are here" in invoke("voices", "fetch", "heart", "emma").stderr


def wrong(hub: Path) -> str:
    (hub / file_of("kore")).write_bytes(b"another")
    return "its SHA-256 is another one"


def endless(hub: Path) -> str:
    with (hub / file_of("kore")).open("ab") as file:
        file.truncate(10 << 30)
    return "its SHA-256 is another one"


def missing(hub: Path) -> str:
    (hub / file_of("kore")).unlink()
    return "404"


@pytest.mark.parametrize("damage", [wrong, endless, missing])
def test_what_is_not_the_voice_is_not_kept(hub: Path, home: Path, damage: object) -> None:
    assert callable(damage)
    said = damage(hub)
    done = invoke("voices", "fetch", "kore")
    assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr
    assert list(home.iterdir()) == []


def test_what_a_fetch_that_was_killed_left_goes_with_the_next(hub: Path, home: Path) -> None:
    """One that goes on beside this one keeps its own."""
    home.mkdir()
    (left := home / f"{HEART.name}.1.part").write_bytes(b"half")
    (others := home / f"{HEART.name}.2.part").write_bytes(b"half")
    os.utime(left, (0, 0))
    assert invoke("voices", "fetch", "emma").returncode == 0
    assert not left.exists()
    assert others.exists()


def test_without_a_network_it_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voices, "BASE_URL", "http://127.0.0.1:9/")
    done = invoke("voices", "fetch", "emma")
    assert done.returncode == 2
    assert f"copy it to {home / file_of('emma')}" in done.stderr.decode()
    assert list(home.iterdir()) == []


def test_an_unknown_voice_is_refused_with_those_there_are(home: Path) -> None:
    done = invoke("voices", "fetch", "emma", "nobody")
    said = b"agent-tts: hibari has no voice nobody: it has heart, emma, fenrir, fable, kore\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not home.exists()


@NEEDS_ROOT
@pytest.mark.usefixtures("hub")
def test_a_full_disk_leaves_nothing(home: Path) -> None:
    with small_disk(home):
        done = invoke("voices", "fetch", "emma")
        assert (done.returncode, b"No space left on device" in done.stderr) == (2, True), done.stderr
        assert list(home.iterdir()) == []


def test_a_folder_that_is_a_file_is_told(home: Path) -> None:
    home.write_text("")
    done = invoke("voices", "fetch", "emma")
    assert (done.returncode, b"emma cannot be stored in" in done.stderr) == (2, True)


@pytest.mark.parametrize("names", [pytest.param(("fenrir",), marks=pytest.mark.slow), OTHERS])
def test_the_engine_speaks_what_is_there_and_other_vendors_names_map_to_it(home: Path, names: tuple[str, ...]) -> None:
    """With a man there, names of men are his; with heart alone all are hers."""
    assert {*aliases(installed()).values()} == {"heart"}
    home.mkdir()
    for name in names:
        shutil.copy(HEART, home / file_of(name))
    listed = invoke("voices", "--engine", "hibari", "--json")
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    there = {voice["name"]: voice for voice in found["voices"] if "natural" in voice["description"]}
    assert (found["default"], {*there}) == ("heart", {"heart", *names})
    voice_of = {alias: voice for voice in there.values() for alias in voice["aliases"]}
    men, women = {"fenrir", "fable"} & {*there}, {"heart", "emma", "kore"} & {*there}
    for alias in ("onyx", "echo"):
        assert LIKE[alias].startswith("m")
        assert voice_of[alias]["name"] in men
    for alias in ("nova", "shimmer"):
        assert voice_of[alias]["name"] in women
    assert {voice["name"] for voice in voice_of.values()} == men | women
