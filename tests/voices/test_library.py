from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from numpy.typing import NDArray
from safetensors.numpy import save_file

from agent_tts.config.settings import Voices
from agent_tts.errors import (
    Internal,
    InvalidRequest,
    SettingsError,
    SpeechError,
    StorageFull,
    UnknownVoice,
    Unsupported,
    VoiceExists,
    VoiceLimit,
)
from agent_tts.model.entries import CheckpointError
from agent_tts.system.records import user_data_folder
from agent_tts.text.entries import Lexicon
from agent_tts.voices import library as library_module
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary
from tests.small_disk import NEEDS_ROOT, small_disk
from tests.support import logged, present

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes and links")
Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder for a library; does not exist yet."""
    return tmp_path / "data" / "voices"


@pytest.fixture
def library(folder: Path) -> VoiceLibrary:
    return VoiceLibrary(folder, limit=3)


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Logged warnings and errors."""
    with logged() as lines:
        yield lines


def sound(seed: int = 0) -> Arrays:
    """The arrays of a cloned voice with a transcript."""
    dice = np.random.default_rng(seed)
    vectors = {f"vector_{size}": dice.standard_normal(size).astype(np.float32) for size in (1024, 64)}
    return vectors | {"codes": dice.integers(0, 2048, (25, 16)).astype(np.int16)}


def cloned(name: str = "bob", **fields: Any) -> StoredVoice:
    given: dict[str, Any] = {"transcript": "hello", "consent": Consent("yes")} | fields
    return StoredVoice(name=name, kind="cloned", **given)


def designed(name: str = "sage") -> StoredVoice:
    return StoredVoice(name=name, kind="designed", prompt="a calm old man")


# ---------------------------------------------------------------- storing


def test_a_voice_is_stored_completely(folder: Path, library: VoiceLibrary) -> None:
    """A second library, for example in another process, reads the same."""
    added = library.add(cloned(description="a friend"), sound())
    assert (added.vector_sizes, added.frames, added.description) == ((64, 1024), 25, "a friend")
    assert present(added.consent).statement == "yes"
    other = VoiceLibrary(folder, 3)
    assert other.voices() == library.voices() == (added,)
    assert other.get("bob") == other.get("clone:bob") == added
    arrays = other.arrays("bob")
    assert {name: (str(array.dtype), array.shape) for name, array in arrays.items()} == {
        "vector_64": ("float32", (64,)),
        "vector_1024": ("float32", (1024,)),
        "codes": ("int64", (25, 16)),
    }
    assert all(np.array_equal(arrays[name], array) for name, array in sound().items())


def test_a_designed_voice_has_no_arrays(folder: Path, library: VoiceLibrary) -> None:
    added = library.add(designed(), {})
    assert (added.prompt, added.vector_sizes, added.frames) == ("a calm old man", (), 0)
    assert library.arrays("sage") == {}
    assert [path.name for path in (folder / "sage").iterdir()] == ["voice.json"]


@POSIX
def test_only_the_owner_can_read_the_voices(folder: Path, library: VoiceLibrary) -> None:
    """For any umask: voices are personal data."""
    before = os.umask(0)
    try:
        library.add(cloned(), sound())
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {"voices": 0o700, ".lock": 0o600, "bob": 0o700, "voice.json": 0o600, "voice.safetensors": 0o600}


def test_reading_a_library_creates_no_folder(folder: Path, library: VoiceLibrary) -> None:
    assert library.voices() == ()
    assert not folder.exists()


# ---------------------------------------------------------------- refusing


@pytest.mark.node
@NEEDS_ROOT
def test_a_full_disk_is_told_and_leaves_no_files(tmp_path: Path, log: list[str]) -> None:
    """It fills while the arrays are written."""
    with small_disk(tmp_path):
        library = VoiceLibrary(tmp_path / "voices", 3)
        library.add(designed(), {})
        with pytest.raises(StorageFull, match="disk is full"):
            library.add(cloned(transcript=None), {"vector_16384": np.ones(16_384, np.float32)})
        assert entries(tmp_path / "voices") == ["sage"]
        assert "a voice cannot be stored: No space left on device" in log[0]
        library.delete("sage")


@pytest.mark.parametrize("name", ["../bob", "/tmp/bob", "a/b", ".hidden", "", "Bob", "nul"])
def test_a_name_never_leads_out_of_the_library(name: str, folder: Path, library: VoiceLibrary) -> None:
    library.add(designed(), {})
    outside = folder.parent / "bob"
    shutil.copytree(folder / "sage", outside)
    for use in (library.get, library.arrays):
        with pytest.raises(UnknownVoice):
            use(name)
    for change in (library.delete, lambda name: library.add(designed(name), {})):
        with pytest.raises(InvalidRequest, match=r"^name: "):
            change(name)
    assert (outside / "voice.json").exists()


def test_the_error_of_an_unknown_voice_names_the_nearest(library: VoiceLibrary) -> None:
    library.add(designed(), {})
    for use in (library.get, library.arrays, library.delete):
        with pytest.raises(UnknownVoice, match="did you mean 'sage'"):
            use("sagee")


VECTOR = sound()["vector_64"]
CODES = sound()["codes"]


@pytest.mark.parametrize(
    ("voice", "arrays"),
    [
        (cloned(), {}),
        (cloned(), {"codes": CODES}),
        (cloned(), {"vector_64": VECTOR}),
        (cloned(transcript=None), {"vector_64": VECTOR, "codes": CODES}),
        (cloned(transcript=None, consent=None), {"vector_64": VECTOR}),
        (cloned(transcript=None), {"vector_65": VECTOR}),
        (cloned(transcript=None), {"vector_64": VECTOR.astype(np.float64)}),
        (cloned(transcript=None), {"vector_64": VECTOR * np.float32(np.inf)}),
        (cloned(transcript=None), {"vector_64": VECTOR, "vector": VECTOR}),
        (cloned(), {"vector_64": VECTOR, "codes": CODES[:, :15]}),
        (cloned(), {"vector_64": VECTOR, "codes": CODES[:0]}),
        (cloned(), {"vector_64": VECTOR, "codes": CODES - 2048}),
        (cloned(), {"vector_64": VECTOR, "codes": CODES.astype(np.float32)}),
        (designed(), {"vector_64": VECTOR}),
        (StoredVoice(name="sage", kind="designed"), {}),
    ],
)
def test_an_incomplete_voice_is_refused(
    voice: StoredVoice, arrays: Arrays, folder: Path, library: VoiceLibrary
) -> None:
    with pytest.raises(ValueError, match=r"array|incomplete"), np.errstate(invalid="ignore"):
        library.add(voice, arrays)
    assert not folder.exists()


def test_an_unwritable_disk_is_an_internal_error(folder: Path, log: list[str]) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the library is to be")
    library = VoiceLibrary(folder, 3)
    with pytest.raises(Internal, match="cannot be stored"):
        library.add(designed(), {})
    assert library.voices() == ()
    assert any("Not a directory" in line or "File exists" in line for line in log)


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, Internal), (errno.ENOSPC, StorageFull)])
def test_a_failed_write_leaves_no_files(
    number: int, error: type[SpeechError], folder: Path, library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any step."""
    library.add(designed(), {})

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for victim, step in ((library_module, "write_file"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(victim, step, fail)
            with pytest.raises(error, match="cannot be stored"):
                library.add(cloned(), sound())
        assert entries(folder) == ["sage"]
    library.add(cloned(), sound())


# ---------------------------------------------------------------- changes by other processes


def test_an_unchanged_library_is_not_read_again(
    folder: Path, library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.add(designed(), {})
    settle(folder)
    voices = library.voices()
    monkeypatch.setattr(os, "scandir", lambda _: pytest.fail("read again"))
    assert library.voices() is voices


def test_reading_waits_for_no_writer(folder: Path, library: VoiceLibrary) -> None:
    """The event loop of a front reads. Mutation: reading within the lock."""
    library.add(designed(), {})
    with FileLock(folder / ".lock"):
        assert library.get("sage") == library.voices()[0]


def test_only_new_voices_are_read(folder: Path, library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    library.add(designed(), {})
    settle(folder / "sage")
    library.voices()
    library.add(cloned(), sound())
    read = library_module._read
    monkeypatch.setattr(
        library._records, "_read", lambda path: pytest.fail("read again") if path.name == "sage" else read(path)
    )
    assert [voice.name for voice in library.voices()] == ["bob", "sage"]


@pytest.mark.parametrize("settled", [True, False])
def test_changes_by_another_process_are_read(settled: bool, folder: Path, library: VoiceLibrary) -> None:
    """Including two within one tick of the file system clock. Mutation: trusting a recent time stamp misses one."""
    other = VoiceLibrary(folder, 3)
    other.add(designed(), {})
    if settled:
        settle(folder)
    stamp = folder.stat().st_mtime_ns
    assert [voice.name for voice in library.voices()] == ["sage"]
    other.add(cloned(), sound())
    if not settled:
        os.utime(folder, ns=(stamp, stamp))
    assert [voice.name for voice in library.voices()] == ["bob", "sage"]
    other.delete("sage")
    assert [voice.name for voice in library.voices()] == ["bob"]
    shutil.rmtree(folder)
    assert library.voices() == ()


def test_a_voice_that_another_process_replaced_within_a_tick_is_read_again(folder: Path, library: VoiceLibrary) -> None:
    """The file system may give the new folder the inode and the time of the old one."""
    before = library.add(designed(), {})
    assert library.get("sage").version == before.version
    card = folder / "sage" / "voice.json"
    card.write_text(card.read_text().replace(before.version, "0" * 32))
    assert library.get("sage").version == "0" * 32


@pytest.mark.parametrize(("names", "error", "why"), [("bb", VoiceExists, "'b'"), ("bc", VoiceLimit, "2 voices")])
def test_of_two_processes_that_add_at_once_one_is_refused(
    names: str, error: type[SpeechError], why: str, folder: Path, library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one comes while the first writes the last voice for which there is room."""
    VoiceLibrary(folder, 2).add(designed("a"), {})
    other, write_card, pool = VoiceLibrary(folder, 2), library_module._write_card, ThreadPoolExecutor(1)
    seconds: list[Future[StoredVoice]] = []

    def slow(made: Path, voice: StoredVoice) -> None:
        if not seconds:
            seconds.append(pool.submit(VoiceLibrary(folder, 2).add, designed(names[1]), {}))
            with pytest.raises(TimeoutError):
                seconds[0].result(0.05)
        write_card(made, voice)

    monkeypatch.setattr(library_module, "_write_card", slow)
    with pool:
        other.add(designed(names[0]), {})
        with pytest.raises(error, match=why):
            seconds[0].result(5)
    assert [voice.name for voice in library.voices()] == ["a", "b"]
    library.delete("a")
    other.add(designed("d"), {})


def test_a_voice_with_a_reused_name_has_another_version(library: VoiceLibrary) -> None:
    """A prompt of the old voice must not be used for the new one."""
    first = library.add(cloned(), sound())
    library.delete("bob")
    second = library.add(cloned(), sound(1))
    assert first.version != second.version
    assert library.get("bob") == second
    assert np.array_equal(library.arrays("bob")["vector_64"], sound(1)["vector_64"])


def entries(folder: Path) -> list[str]:
    """What is in a library's folder beside its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def settle(folder: Path) -> None:
    """Set the time of the last change to some seconds ago."""
    past = datetime.now(UTC).timestamp() - 10
    os.utime(folder, (past, past))


# ---------------------------------------------------------------- damage


def rewrite(path: Path, **entries: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def escape(voice: Path) -> None:
    """Put the whole voice elsewhere, behind a link."""
    voice.rename(voice.parent.parent / "elsewhere")
    voice.symlink_to(voice.parent.parent / "elsewhere")


def escape_file(voice: Path, name: str) -> None:
    (voice / name).rename(voice.parent.parent / name)
    (voice / name).symlink_to(voice.parent.parent / name)


def become_file(voice: Path) -> None:
    shutil.rmtree(voice)
    voice.write_text("")


def become_pipe(path: Path) -> None:
    """A pipe without a writer: opening it would block for ever."""
    path.unlink()
    os.mkfifo(path)


def save(voice: Path, arrays: Arrays) -> None:
    save_file(arrays, voice / "voice.safetensors")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no json": lambda voice: (voice / "voice.json").unlink(),
    "broken json": lambda voice: (voice / "voice.json").write_text("{"),
    "json without an object": lambda voice: (voice / "voice.json").write_text("[]"),
    "deep json": lambda voice: (voice / "voice.json").write_text("[" * 60_000),
    "json of invalid UTF-8": lambda voice: (voice / "voice.json").write_bytes(b"\xff\xfe"),
    "an unknown entry": lambda voice: rewrite(voice / "voice.json", more=1),
    "an unknown kind": lambda voice: rewrite(voice / "voice.json", kind="sung"),
    "no consent": lambda voice: rewrite(voice / "voice.json", consent=None),
    "a bad time": lambda voice: rewrite(voice / "voice.json", created_at="yesterday"),
    "a bad version": lambda voice: rewrite(voice / "voice.json", version="../.."),
    "no transcript": lambda voice: rewrite(voice / "voice.json", transcript=None),
    "a long description": lambda voice: rewrite(voice / "voice.json", description="x" * 100_000),
    "no arrays": lambda voice: (voice / "voice.safetensors").unlink(),
    "empty arrays": lambda voice: (voice / "voice.safetensors").write_bytes(b""),
    "cut arrays": lambda voice: os.truncate(voice / "voice.safetensors", 4_000),
    "arrays with a wrong header": lambda voice: (voice / "voice.safetensors").write_bytes(b"\xff" * 100),
    "no vector": lambda voice: save(voice, {"codes": CODES}),
    "no codes": lambda voice: save(voice, {"vector_64": VECTOR}),
    "a vector of another size": lambda voice: save(voice, {"vector_1024": VECTOR, "codes": CODES}),
    "codes of another shape": lambda voice: save(voice, {"vector_64": VECTOR, "codes": CODES.T.copy()}),
    "an unknown array": lambda voice: save(voice, {"vector_64": VECTOR, "codes": CODES, "more": CODES}),
    "a link": escape,
    "a link as json": lambda voice: escape_file(voice, "voice.json"),
    "a link as arrays": lambda voice: escape_file(voice, "voice.safetensors"),
    "a file": become_file,
    "a pipe as json": lambda voice: become_pipe(voice / "voice.json"),
}


@POSIX
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_voice_is_left_out_and_can_be_deleted(
    what: str, folder: Path, library: VoiceLibrary, log: list[str]
) -> None:
    """It is logged once, the other voices remain, its use is an error, and deleting it touches nothing outside."""
    library.add(cloned(), sound())
    library.add(designed(), {})
    DAMAGE[what](folder / "bob")
    fresh = VoiceLibrary(folder, 3)
    assert [voice.name for voice in (*fresh.voices(), *fresh.voices())] == ["sage", "sage"]
    assert len([line for line in log if "'bob'" in line]) == 1
    for use in (fresh.get, fresh.arrays):
        with pytest.raises(UnknownVoice, match="'bob' is damaged: delete it"):
            use("bob")
    outside = {path for path in folder.parent.rglob("*") if folder not in path.parents}
    fresh.delete("bob")
    assert entries(folder) == ["sage"]
    assert {path for path in folder.parent.rglob("*") if folder not in path.parents} == outside


@pytest.mark.parametrize(
    "arrays",
    [
        {"vector_64": np.full(64, np.nan, np.float32), "codes": CODES},
        {"vector_64": VECTOR.astype(np.float16), "codes": CODES},
        {"vector_64": VECTOR, "codes": CODES - 2048},
        {"vector_64": VECTOR, "codes": CODES.astype(np.float32)},
    ],
)
def test_harmful_values_are_refused(arrays: Arrays, folder: Path, library: VoiceLibrary, log: list[str]) -> None:
    """A file's header does not show them."""
    library.add(cloned(), sound())
    save(folder / "bob", arrays)
    with pytest.raises(UnknownVoice, match="damaged"):
        VoiceLibrary(folder, 3).arrays("bob")
    assert log


def test_entries_without_a_valid_name_are_ignored(folder: Path, library: VoiceLibrary) -> None:
    library.add(designed(), {})
    (folder / "README.txt").write_text("mine")
    (folder / ".git").mkdir()
    assert [voice.name for voice in VoiceLibrary(folder, 3).voices()] == ["sage"]


@pytest.mark.node
def test_temporary_folders_of_a_crash_are_removed(folder: Path, library: VoiceLibrary) -> None:
    """The lock of the process that died is free."""
    library.add(designed(), {})
    program = "import os, sys\nfrom pathlib import Path\nfrom agent_tts.voices import library\n"
    crash = f"{program}library._write_card = lambda *_: os._exit(1)\n"
    add = (
        "library.VoiceLibrary(Path(sys.argv[1]), 3).add(library.StoredVoice(name='x', kind='designed', prompt='x'), {})"
    )
    subprocess.run([sys.executable, "-c", crash + add, str(folder)], timeout=60, check=False)
    assert len(entries(folder)) == 2
    library.set_lexicon("sage", None)
    assert entries(folder) == ["sage"]


# ---------------------------------------------------------------- location


def test_the_library_is_in_the_user_s_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert user_data_folder() == tmp_path / ".local/share/agent-tts"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert user_data_folder() == tmp_path / ".local/share/agent-tts"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_data_folder() == tmp_path / "data/agent-tts"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert user_data_folder() == tmp_path / "local/agent-tts"


def test_the_settings_can_name_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    VoiceLibrary.of(Voices(folder="~/mine", limit=1)).add(designed(), {})
    assert (tmp_path / "mine/sage/voice.json").exists()
    with pytest.raises(SettingsError, match=r"^voices\.folder: it has to be absolute"):
        VoiceLibrary.of(Voices(folder="mine"))


@pytest.mark.node
def test_the_front_imports_neither_encoder_nor_pyav() -> None:
    """Mutation: importing the encoder or PyAV, which only child processes use."""
    modules = "agent_tts.voices.library, agent_tts.voices.enroll, agent_tts.voices.names"
    program = f"import {modules}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "transformers", "av", "safetensors"} & set(done.stdout.split())


def test_a_lexicon_is_kept_with_the_voice_and_seen_by_other_processes(library: VoiceLibrary, folder: Path) -> None:
    other = VoiceLibrary(folder, limit=3)
    library.add(cloned(), sound())
    assert other.lexicon("bob") is None
    lexicon = Lexicon.of({"nginx": "engine x", "GIF": {"ipa": "dʒɪf"}})
    library.set_lexicon("bob", lexicon)
    assert library.lexicon("bob") == other.lexicon("clone:bob") == lexicon
    assert stat.S_IMODE((folder / "bob" / "lexicon.json").stat().st_mode) == 0o600
    library.set_lexicon("bob", Lexicon.of({"nginx": "n"}))
    assert other.lexicon("bob") == Lexicon.of({"nginx": "n"})
    library.set_lexicon("bob", None)
    assert other.lexicon("bob") is None
    assert len(list((folder / "bob").iterdir())) == 2
    with pytest.raises(UnknownVoice):
        library.set_lexicon("eve", lexicon)


@pytest.mark.parametrize(
    "written",
    ["null", '{"a": null}', '{"a": {"alias": null}}', '{"a": NaN}', '{"": "x"}', "[" * 100_000, "", b'{"a": "\xff"}'],
)
def test_a_damaged_lexicon_costs_its_voice_the_lexicon_alone(
    written: str | bytes, library: VoiceLibrary, folder: Path, log: list[str]
) -> None:
    """It is told once, by the name of the voice."""
    library.add(cloned(), sound())
    library.set_lexicon("bob", Lexicon.of({"a": "b"}))
    (folder / "bob" / "lexicon.json").write_bytes(written if isinstance(written, bytes) else written.encode())
    os.utime(folder)
    (voice,) = library.voices()
    assert voice.lexicon is not None
    for _ in range(2):
        assert len(library.read_lexicon(voice.lexicon)) == 0
        with pytest.raises(UnknownVoice, match="'bob' is damaged"):
            library.lexicon("bob")
    assert len(log) == 1
    assert "the lexicon of the voice 'bob' is damaged" in log[0]


def test_a_lexicon_that_could_not_be_opened_is_read_again(
    library: VoiceLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    """Each request tries, and one line is logged for all."""
    library.add(designed("bob"), {})
    library.set_lexicon("bob", Lexicon.of({"a": "b"}))
    stored = library.get("bob").lexicon
    assert stored is not None
    with monkeypatch.context() as patched:
        patched.setattr(library_module, "regular", lambda _: tmp_path / "nowhere")
        for _ in range(2):
            assert library.read_lexicon(stored) is library_module.DAMAGED
    assert len(log) == 1
    assert library.read_lexicon(stored) == Lexicon.of({"a": "b"})


def test_lexicons_in_memory_have_a_limit_on_their_sum(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was used the longest ago makes room; a list of voices reads none."""
    stored = []
    for name in "abc":
        library.add(designed(name), {})
        library.set_lexicon(name, Lexicon.of({"word": name}))
        stored.append(library.get(name).lexicon)
    a, b, c = (each for each in stored if each is not None)
    library.voices()
    assert library.kept_lexicon(a) is None
    monkeypatch.setattr(library_module, "KEPT_LEXICONS_BYTES", 2 * a.size)
    library.read_lexicon(a)
    library.read_lexicon(b)
    assert library.kept_lexicon(a) == Lexicon.of({"word": "a"})
    library.read_lexicon(c)
    assert [library.kept_lexicon(each) is not None for each in (a, b, c)] == [True, False, True]


@pytest.mark.real_time
def test_who_follows_a_folder_never_waits_for_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read last is known while the folder does not answer; changes of one's own are known at once."""
    one, other = VoiceLibrary(folder, 9), VoiceLibrary(folder, 9)
    one.add(designed("sage"), {})
    end = one.follow()
    try:
        assert [voice.name for voice in one.known] == ["sage"]
        one.add(designed("own"), {})
        assert [voice.name for voice in one.known] == ["own", "sage"]
        other.add(designed("other"), {})
        deadline = time.monotonic() + 30
        while len(one.known) < 3 and time.monotonic() < deadline:
            time.sleep(library_module.FOLLOW_S)
        assert [voice.name for voice in one.known] == ["other", "own", "sage"]
        hung = threading.Event()
        monkeypatch.setattr(one._records, "all", hung.wait)
        assert [voice.name for voice in one.known] == ["other", "own", "sage"]
        hung.set()
    finally:
        end()


def an_adapter(folder: Path, **entries: object) -> Path:
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **entries}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.talker.model.layers.0.mlp.up_proj.lora"
    halves = {f"{name}_A.weight": np.ones((2, 3), np.float32), f"{name}_B.weight": np.ones((5, 2), np.float32)}
    save_file(halves, folder / "adapter_model.safetensors")
    return folder


def test_a_voice_takes_an_adapter_with_all_that_it_has_and_a_new_version(
    folder: Path, library: VoiceLibrary, tmp_path: Path
) -> None:
    library.add(cloned(), sound())
    library.set_lexicon("bob", Lexicon.of({"GIF": "jif"}))
    before, other = library.get("bob"), VoiceLibrary(folder, 10)
    assert not other.get("bob").adapter
    library.set_adapter("bob", an_adapter(tmp_path / "a"))
    after = other.get("bob")
    assert after.adapter
    assert after.version != before.version
    assert replace(after, version=before.version, adapter=False, lexicon=before.lexicon) == before
    assert other.lexicon("bob") == Lexicon.of({"GIF": "jif"})
    assert {name: array.tolist() for name, array in other.arrays("bob").items()} == {
        name: array.tolist() for name, array in sound().items()
    }
    assert (other.adapter("bob").rank, other.adapter("bob").scale) == (2, 2.0)
    library.set_adapter("bob", None)
    assert not other.get("bob").adapter
    assert entries(folder) == ["bob"]


def test_an_adapter_is_refused_as_a_whole(folder: Path, library: VoiceLibrary, tmp_path: Path) -> None:
    library.add(cloned(), sound())
    library.add(designed(), {})
    good = an_adapter(tmp_path / "good")
    with pytest.raises(CheckpointError, match="use_dora is True"):
        library.set_adapter("bob", an_adapter(tmp_path / "dora", use_dora=True))
    with pytest.raises(Unsupported, match="only cloned voices have adapters"):
        library.set_adapter("sage", good)
    with pytest.raises(UnknownVoice):
        library.set_adapter("nobody", good)
    assert not library.get("bob").adapter
    assert entries(folder) == ["bob", "sage"]


def test_a_damaged_adapter_damages_the_voice(
    folder: Path, library: VoiceLibrary, tmp_path: Path, log: list[str]
) -> None:
    library.add(cloned(), sound())
    library.set_adapter("bob", an_adapter(tmp_path / "a"))
    escape_file(folder / "bob" / "adapter", "adapter_model.safetensors")
    with pytest.raises(UnknownVoice, match="damaged"):
        library.adapter("bob")
    assert "is not a regular file" in log[-1]


def test_a_lexicon_that_goes_is_seen_though_its_writer_is_killed(
    library: VoiceLibrary, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where the folder is changed by a step of its own: killed before it, other processes had the lexicon on."""
    library.add(designed(), {})
    library.set_lexicon("sage", Lexicon.of({"nginx": "engine x"}))
    for path in (folder / "sage", folder):
        os.utime(path, (1, 1))
    other = VoiceLibrary(folder, 3)
    assert [voice.lexicon is None for voice in other.voices()] == [False]
    monkeypatch.setattr(os, "utime", lambda *_: pytest.fail("killed"))
    with suppress(pytest.fail.Exception):
        library.set_lexicon("sage", None)
    assert [voice.lexicon is None for voice in other.voices()] == [True]


@pytest.mark.node
@pytest.mark.skipif(sys.platform != "linux", reason="the children are traced by ptrace")
def test_a_kill_at_any_system_call_loses_nothing(tmp_path: Path) -> None:
    """Fails with two renames and no trace of whose folder stands aside: the voice and its consent are gone between."""
    command = [sys.executable, "-m", "tests.voices.killed", str(tmp_path), str(an_adapter(tmp_path / "a"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert told.keys() == {"add", "replace", "adapter", "lexicon", "delete"}, done.stdout + done.stderr
    assert all(states.isdigit() and int(states) >= 3 for states in told.values()), told


def test_a_slow_look_hides_no_later_change(library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that follows reads the folder, a voice is added, and then the thread keeps what it has read."""
    library.follow()()
    read, began, goes_on = library._records.all, threading.Event(), threading.Event()

    def slow() -> tuple[StoredVoice, ...]:
        found = read()
        if not began.is_set():
            began.set()
            assert goes_on.wait(20)
        return found

    monkeypatch.setattr(library._records, "all", slow)
    with ThreadPoolExecutor(2) as pool:
        looks = pool.submit(library.voices)
        assert began.wait(20)
        adds = pool.submit(library.add, designed(), {})
        wait([adds], 0.3)  # it ends only where it does not wait for the look
        goes_on.set()
        looks.result()
        adds.result()
    assert [voice.name for voice in library.known] == ["sage"]
