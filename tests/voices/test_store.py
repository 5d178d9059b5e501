"""The store of voices: what one machine changes, others have; whole or not at all; and when it does not answer."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from agent_tts.config.settings import Voices
from agent_tts.errors import InvalidRequest, SettingsError, UnknownVoice, VoiceExists
from agent_tts.text.entries import Lexicon
from agent_tts.voices import store as store_module
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary
from agent_tts.voices.store import StoreLost, VoiceStore
from tests.small_disk import NEEDS_ROOT, small_disk

VECTOR = {"vector_4": np.arange(4, dtype=np.float32)}


def clone(name: str) -> StoredVoice:
    return StoredVoice(name=name, kind="cloned", consent=Consent("yes"))


def design(name: str, prompt: str = "calm") -> StoredVoice:
    return StoredVoice(name=name, kind="designed", prompt=prompt)


@pytest.fixture(params=["memory", "file"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"memory://bucket/{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/shared/voices"
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def here(address: str, tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path / "here", 5, VoiceStore(address))


@pytest.fixture
def there(address: str, tmp_path: Path) -> VoiceLibrary:
    return VoiceLibrary(tmp_path / "there", 5, VoiceStore(address))


def names(library: VoiceLibrary) -> list[str]:
    library.refresh()
    return [voice.name for voice in library.voices()]


def test_a_voice_is_added_changed_and_deleted_everywhere(here: VoiceLibrary, there: VoiceLibrary) -> None:
    added = here.add(clone("bob"), VECTOR)
    assert names(there) == names(here) == ["bob"]
    assert there.get("bob") == added
    np.testing.assert_array_equal(there.arrays("bob")["vector_4"], VECTOR["vector_4"])
    there.set_lexicon("bob", Lexicon.of({"nginx": "engine x"}))
    here.refresh()
    assert (lexicon := here.lexicon("bob")) is not None
    assert lexicon.mapping() == {"nginx": "engine x"}
    assert here.get("bob").version == added.version  # requests with it are not interrupted
    here.delete("bob")
    assert names(there) == names(here) == []
    with pytest.raises(UnknownVoice):
        there.delete("bob")
    there.add(design("bob"), {})
    assert names(here) == ["bob"]
    assert here.get("bob").kind == "designed"


def test_a_voice_that_is_not_copied_yet_can_be_deleted(here: VoiceLibrary, there: VoiceLibrary) -> None:
    here.add(design("bob"), {})
    there.delete("bob")
    assert names(here) == []


def test_of_many_writers_of_one_name_one_has_it(address: str, tmp_path: Path) -> None:
    libraries = [VoiceLibrary(tmp_path / str(number), 5, VoiceStore(address)) for number in range(4)]
    outcomes: list[str] = []
    start = threading.Barrier(len(libraries))

    def add(number: int) -> None:
        start.wait()
        try:
            libraries[number].add(design("bob", f"as {number}"), {})
            outcomes.append(f"as {number}")
        except VoiceExists:
            pass

    threads = [threading.Thread(target=add, args=(number,)) for number in range(len(libraries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    for library in libraries:
        assert names(library) == ["bob"]
        assert library.get("bob").prompt == outcomes[0]


def test_a_copy_is_not_made_again(
    here: VoiceLibrary, there: VoiceLibrary, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.add(clone("bob"), VECTOR)
    there.refresh()
    fetched: list[str] = []

    def fetch(fs: object, root: str, names: list[str]) -> list[object]:
        fetched.extend(names)
        return []

    monkeypatch.setattr(store_module, "_fetch", fetch)
    there.refresh()
    VoiceLibrary(tmp_path / "there", 5, VoiceStore(address)).refresh()  # after a restart
    assert fetched == []


@pytest.mark.parametrize("cut", [0, 1, 30, -1])
def test_a_voice_that_is_not_whole_changes_nothing(here: VoiceLibrary, there: VoiceLibrary, cut: int) -> None:
    here.add(clone("bob"), VECTOR)
    there.refresh()
    assert here.store is not None
    fs, root = here.store._connected()
    whole = fs.cat_file(f"{root}/bob.voice")
    fs.pipe_file(f"{root}/bob.voice", whole[:cut])
    fs.pipe_file(f"{root}/zoe.voice", whole[:cut])
    assert names(there) == ["bob"]
    there.arrays("bob")
    fs.pipe_file(f"{root}/zoe.voice", whole)
    assert names(there) == ["bob", "zoe"]


def test_names_lead_nowhere_else(here: VoiceLibrary, there: VoiceLibrary, tmp_path: Path) -> None:
    """Neither a user's name nor one in the store is part of a path unless it is a voice's."""
    here.add(design("bob"), {})
    assert here.store is not None
    for name in ("../bob", "a/b", "..", "", "con"):
        with pytest.raises(InvalidRequest):
            here.delete(name)
        with pytest.raises(InvalidRequest):
            here.store.put(name, {}, new=True)
    here.store.put("zoe", {"../../evil": b"x", "voice.json": b"{}", "/tmp/evil": b"x"}, new=True)
    assert names(there) == ["bob"]
    assert sorted(path.name for path in (tmp_path / "there" / "zoe").iterdir()) == ["origin", "voice.json"]


def test_without_a_store_what_was_copied_can_be_used(
    here: VoiceLibrary, there: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.add(clone("bob"), VECTOR)
    there.refresh()

    def refuse(*_: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(VoiceStore, "_connected", refuse)
    for change in (there.refresh, lambda: there.delete("bob"), lambda: there.add(design("zoe"), {})):
        with pytest.raises(StoreLost, match=r"voices\.folder"):
            change()
    assert [voice.name for voice in there.voices()] == ["bob"]
    there.arrays("bob")


def test_while_a_store_is_known_to_be_lost_changes_are_refused_at_once(
    here: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client who deletes a voice would wait for a lock, and then for another call without an answer."""
    here.add(clone("bob"), VECTOR)
    asked = list[str]()

    def refuse(*_: object) -> None:
        asked.append("once")
        raise ConnectionError("no route")

    with monkeypatch.context() as lost:
        lost.setattr(VoiceStore, "_connected", refuse)
        for _ in range(2):  # whoever copies tries again
            with pytest.raises(StoreLost):
                here.refresh()
        changes = (
            lambda: here.delete("bob"),
            lambda: here.add(design("zoe"), {}),
            lambda: here.set_lexicon("bob", None),
        )
        for change in changes:
            with pytest.raises(StoreLost, match="ConnectionError"):
                change()
        assert len(asked) == 2
    here.refresh()
    here.delete("bob")
    assert names(here) == []


def test_a_disk_that_is_not_mounted_deletes_nothing(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    library = VoiceLibrary(tmp_path / "here", 5, VoiceStore(f"file://{shared}"))
    assert names(library) == []
    library.add(design("bob"), {})
    shared.rename(tmp_path / "away")
    for folder_is_there in (False, True):
        if folder_is_there:
            shared.mkdir()
        with pytest.raises(StoreLost, match="mounted"):
            library.refresh()
        assert [voice.name for voice in library.voices()] == ["bob"]


@pytest.mark.real_time
def test_a_store_that_hangs_holds_one_thread_and_nobody(here: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    hang, calls = threading.Event(), []

    def connect(_: VoiceStore) -> None:
        calls.append("begun")
        hang.wait(20)
        calls.append("ended")
        raise ConnectionError

    monkeypatch.setattr(VoiceStore, "_connected", connect)
    monkeypatch.setattr(store_module, "LIST_S", 0.05)
    try:
        for why in ("did not answer", "has not answered yet"):
            with pytest.raises(StoreLost, match=why):
                here.refresh()
            assert calls == ["begun"]
    finally:
        hang.set()


def test_a_setting_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="voices-remote"):
        VoiceLibrary.of(Voices(folder="nowhere://voices"))
    assert VoiceLibrary.of(Voices(folder="memory://voices")).store is not None
    assert VoiceLibrary.of(Voices(folder=str(tmp_path))).store is None


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and links are of POSIX")
def test_what_is_no_file_hides_no_voice(tmp_path: Path) -> None:
    """Fails where all that has a voice's name is read: a folder, a pipe or a link in a circle hid the whole store."""
    folder, odd = tmp_path / "shared", tmp_path / "shared" / "odd.voice"
    here, there = (VoiceLibrary(tmp_path / name, 9, VoiceStore(f"file://{folder}")) for name in ("here", "there"))
    here.add(clone("bob"), VECTOR)
    (folder / "linked.voice").symlink_to("bob.voice")
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)):
        make(odd)
        assert names(there) == ["bob", "linked"]
        odd.rmdir() if odd.is_dir() else odd.unlink()


@pytest.mark.node
@NEEDS_ROOT
def test_a_full_disk_keeps_nothing_of_a_write(tmp_path: Path) -> None:
    """Neither of one that has failed, nor of a node that died; what another node writes now stays."""
    shared = tmp_path / "shared"
    with small_disk(shared):
        library = VoiceLibrary(tmp_path / "copy", 9, VoiceStore(f"file://{shared}"))
        old, new = shared / ".temporary-0", shared / ".temporary-1"
        for path in (old, new):
            path.write_bytes(b"x")
        os.utime(old, (1, 1))
        with pytest.raises(StoreLost):
            library.add(clone("bob"), {"vector_16384": np.ones(16_384, np.float32)})
        assert sorted(path.name for path in shared.iterdir()) == [new.name, "agent-tts-voices"]
