"""Folders of records that any number of processes share: voices, pronunciation dictionaries, consents.

A record is a file or a folder of its own name. It appears, changes and goes by renames, so readers take no lock.
Writers take turns, in all processes of a machine. A folder cannot take another's place in one step everywhere (NFS,
macOS, Windows): the old one stands aside under a name that tells whose it is, and is the record until the new one is
there. So a process may be killed at any time: a record is the old one or the new one, and what is left is put right by
whoever finds it.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from filelock import FileLock, Timeout
from loguru import logger
from pydantic import TypeAdapter

from agent_tts.errors import AtCapacity, Internal, InvalidRequest, SettingsError, SpeechError, StorageFull
from agent_tts.system.threads import computing


class HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T")
Filed = TypeVar("Filed", bound=HasId)

LOCK_S = 10.0  # longest wait for another process

_LOCK = ".lock"
_POLL_S = 0.02
AGAIN_S = 1.0  # before records are read again that the system did not give
_ID_FILE = re.compile(r"(?:[a-z]+_)?[0-9a-f]{20}\.json")
_TEMPORARY = ".temporary-"  # begins the names of what is being written or deleted
ASIDE = ".aside-"  # begins the name of what another folder takes the place of; the record's name follows
# What was just changed may change again within the same modification time.
_SETTLED_S = 1
_RETRY_MS = 1_000


class RecordsBusy(AtCapacity):
    """Another process has been changing records for too long."""


class Records(Generic[T]):
    """The records in a folder, which is made when the first one is stored. Every method may be called in any thread.

    Args:
        noun: what a record is, for errors: "voice".
        is_record: whether an entry of this name is one; others are left alone.
        read: makes a record of its path; raises `OSError` or `ValueError` if it is damaged.
    """

    def __init__(self, folder: Path, noun: str, is_record: Callable[[str], bool], read: Callable[[Path], T]) -> None:
        self.folder = folder
        self._noun = noun
        self._is_record = is_record
        self._read = read
        # They are kept by name: (inode, modification time) when read, or None if it must be read again; and the record,
        # or None if it is damaged.
        self._entries: dict[str, tuple[tuple[int, int] | None, T | None]] = {}
        # It holds the modification time of the folder when it was last listed, ns, or None if it must be listed
        # again; and all records that were found in it.
        self._listed: tuple[int | None, tuple[T, ...]] = (None, ())
        # When it is listed again although it has not changed: an error of the system says nothing of a record.
        self._again_at = math.inf
        # What was told of damaged records, by name, and of the folder: each is told once.
        self._told: dict[str, object] = {}

    # ------------------------------------------------------------ reading

    def all(self) -> tuple[T, ...]:
        """All records, sorted by name; the same object until a process changes one.

        A damaged one is left out and logged. Without changes, this takes two system calls.
        """
        read_at, records = self._listed
        try:
            modified = self.folder.stat().st_mtime_ns
            if modified != read_at or time.monotonic() > self._again_at:
                settled = age_s(modified) > _SETTLED_S and self._tidied()
                entries = {}
                for name in sorted(self._names()):
                    try:
                        entries[name] = self._entry(name)
                    except FileNotFoundError:  # deleted meanwhile
                        pass
                    except OSError as error:  # of a disk that has lost this entry: the others are there
                        entries[name] = self._damaged(name, None, error)
                self._entries = entries
                found = tuple(record for _, record in entries.values() if record is not None)
                records = records if found == records else found
                is_final = settled and all(identity or record is None for identity, record in entries.values())
                self._again_at = time.monotonic() + AGAIN_S if (None, None) in entries.values() else math.inf
                self._listed = modified if is_final else None, records
        except OSError as error:
            self._listed = None, ()
            if not isinstance(error, FileNotFoundError) and self._is_news("", error.strerror):
                logger.error("the folder of each {} cannot be read: {}", self._noun, error.strerror)
            return ()
        return records

    def names(self) -> set[str]:
        """The names of all records, damaged or not."""
        with suppress(OSError):
            return self._names()
        return set()

    def _names(self) -> set[str]:
        found = (name.removeprefix(ASIDE) for name in os.listdir(self.folder))
        return {name for name in found if self._is_record(name)}

    def get(self, name: str) -> T:
        """One record. Raises `FileNotFoundError` if there is none of this name, `ValueError` if it is damaged."""
        if not self._is_record(name):
            raise FileNotFoundError(name)
        try:
            _, record = self._entries[name] = self._entry(name)
        except OSError:
            self._entries.pop(name, None)
            raise FileNotFoundError(name) from None
        if record is None:
            raise ValueError(f"the {self._noun} {name!r} is damaged")
        return record

    def _entry(self, name: str) -> tuple[tuple[int, int] | None, T | None]:
        path = self.path(name)
        try:
            at = path.lstat()
        except FileNotFoundError:  # another one has just taken its place
            path = self.path(name)
            at = path.lstat()
        identity = (at.st_ino, at.st_mtime_ns)
        known = self._entries.get(name)
        if known is not None and known[0] == identity:
            return known
        # A successor may get its inode.
        is_final = age_s(at.st_mtime_ns) > _SETTLED_S
        try:
            return identity if is_final else None, self._read(path)
        except Exception as error:  # noqa: BLE001 - a file that others write may raise any error
            return self._damaged(name, identity, error)

    def _damaged(
        self, name: str, identity: tuple[int, int] | None, error: Exception
    ) -> tuple[tuple[int, int] | None, None]:
        """The entry of a record that cannot be read; it is told once. The text of the error may quote the file."""
        if self._is_news(name, (identity, type(error))):
            logger.warning("the {} {!r} is damaged and left out: {}", self._noun, name, type(error).__name__)
        # Other errors of the system, such as that no descriptor is free, say nothing of the record.
        is_final = not isinstance(error, OSError) or isinstance(error, FileNotFoundError)
        return identity if is_final else None, None

    def _is_news(self, name: str, what: object) -> bool:
        before, self._told[name] = self._told.get(name), what
        return before != what

    def path(self, name: str) -> Path:
        """Where a record of this name is, or would be. Raises `ValueError` for what is no name of a record."""
        if not self._is_record(name):
            raise ValueError(f"a {self._noun} cannot have this name")
        path, aside = self.folder / name, self.folder / f"{ASIDE}{name}"
        return aside if not os.path.lexists(path) and os.path.lexists(aside) else path

    # ------------------------------------------------------------ writing

    @contextmanager
    def changing(self, what: str, wait_s: float = LOCK_S) -> Iterator[None]:
        """Keep all others from changing records; `what` is done to one: "stored".

        Raises RecordsBusy: another process still changes them after `wait_s`; StorageFull, Internal: the disk is full,
        or refuses.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked(wait_s):
                yield
        except Timeout:
            busy = f"another process changes a {self._noun}: try again"
            raise RecordsBusy(busy, retry_after_ms=_RETRY_MS) from None
        except OSError as error:
            logger.error("a {} cannot be {}: {}", self._noun, what, error.strerror)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"the {self._noun} cannot be {what}: the node's disk is full") from error
            raise Internal(f"the {self._noun} cannot be {what}; the reason is in the node's log") from error

    def _locked(self, wait_s: float) -> ExitStack:
        """The lock, with what a process that died has left put right. Raises `Timeout`, `OSError`."""
        with ExitStack() as locked:
            locked.enter_context(FileLock(self.folder / _LOCK, wait_s, 0o600, poll_interval=_POLL_S))
            for aside in self.folder.glob(f"{ASIDE}*"):
                path = self.folder / aside.name.removeprefix(ASIDE)
                aside.rename(self._temporary_path() if os.path.lexists(path) else path)
            for left in self.folder.glob(f"{_TEMPORARY}*"):
                remove(left)
            return locked.pop_all()

    def _tidied(self) -> bool:
        """Put right what a process that died has left, if there is any; False while a process changes records."""
        if any(name.startswith((ASIDE, _TEMPORARY)) for name in os.listdir(self.folder)):
            try:
                self._locked(0).close()
            except Timeout:
                return False
            except OSError as error:  # a reader need not be able to
                logger.debug("what is left of a {} cannot be removed: {}", self._noun, error.strerror)
        return True

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """A new path beside the records, for what becomes one; what is left there at the end is removed."""
        path = self._temporary_path()
        try:
            yield path
        finally:
            remove(path)

    def put(self, made: Path, name: str) -> None:
        """Give what was made at a `temporary` path the name of a record, in the place of one that there is."""
        target = self.path(name)
        if not made.is_dir() or not os.path.lexists(target):
            made.replace(target)
            return
        aside = self.folder / f"{ASIDE}{name}"
        target.rename(aside)
        try:
            made.rename(target)
        except BaseException:
            aside.rename(target)
            raise
        with self.temporary() as old:
            aside.rename(old)

    def _temporary_path(self) -> Path:
        return self.folder / f"{_TEMPORARY}{secrets.token_hex(8)}"

    def drop(self, name: str) -> bool:
        """Remove a record; returns whether there was one."""
        with self.temporary() as old:
            try:
                self.path(name).rename(old)
            except FileNotFoundError:
                return False
        return True


class JsonRecords(Records[Filed]):
    """Records that are a JSON file each, by the `new_id` they were given; at most `limit`, each of at most `max_bytes`.

    Args:
        unknown: the error for an id without a record, or whose record is damaged.
    """

    def __init__(
        self,
        folder: Path,
        noun: str,
        shape: type[Filed],
        unknown: type[SpeechError],
        *,
        limit: int,
        max_bytes: int,
    ) -> None:
        super().__init__(folder, noun, lambda name: _ID_FILE.fullmatch(name) is not None, self._read_file)
        self._shape = TypeAdapter(shape)
        # The record that was read or written last under a name, with the digest of its file: to make one of 2 MB keeps
        # the interpreter for 10 ms, and a file that has just changed is read again and again.
        self._made: dict[str, tuple[bytes, Filed]] = {}
        self._unknown = unknown
        self._limit = limit
        self._max_bytes = max_bytes

    def by_id(self, record_id: str) -> Filed:
        """Raises what `unknown` says."""
        try:
            return self.get(f"{record_id}.json")
        except FileNotFoundError:
            raise self._none() from None
        except ValueError:
            raise self._unknown(f"this {self._noun} is damaged: delete it and add it again") from None

    def add(self, record: Filed) -> Filed:
        """Raises `InvalidRequest` if there are too many, `StorageFull` or `Internal` if the disk is full or refuses."""
        with self.changing("stored"):
            if len(self.names()) >= self._limit:
                raise InvalidRequest(f"this node stores no more than {self._limit}: delete a {self._noun} first")
            return self._store(record)

    def change(self, record_id: str, changed: Callable[[Filed], Filed]) -> Filed:
        """Store what `changed` makes of a record. Raises what `by_id`, `add` and `changed` raise."""
        if f"{record_id}.json" not in self.names():
            raise self._none()
        with self.changing("changed"):  # it is read once: reading 8 MB keeps the interpreter
            return self._store(changed(self.by_id(record_id)))

    def delete(self, record_id: str) -> None:
        """Delete a record, damaged or not. Raises what `unknown` says, or `Internal` if the disk refuses."""
        file = f"{record_id}.json"
        if file not in self.names():
            raise self._none()
        with self.changing("deleted"):
            if not self.drop(file):
                raise self._none()
            self._made.pop(file, None)

    def _store(self, record: Filed) -> Filed:
        with computing:
            data = self._shape.dump_json(record)
        with self.temporary() as made:
            write_file(made, data)
            self.put(made, f"{record.id}.json")
        return self._keep(data, record)

    def _keep(self, data: bytes, record: Filed) -> Filed:
        name = f"{record.id}.json"
        self._made.pop(name, None)
        self._made[name] = hashlib.sha256(data).digest(), record
        if len(self._made) > self._limit:
            self._made.pop(next(iter(self._made)), None)  # another thread may have
        return record

    def _read_file(self, path: Path) -> Filed:
        with regular(path).open("rb") as file:
            data = file.read(self._max_bytes)
        known = self._made.get(path.name)
        if known and known[0] == hashlib.sha256(data).digest():
            return known[1]
        with computing:
            found = self._shape.validate_json(data)
        if f"{found.id}.json" != path.name:
            raise ValueError("its id is that of another one")
        return self._keep(data, found)

    def _none(self) -> SpeechError:
        return self._unknown(f"this node has no such {self._noun}: add it first")


def new_id(prefix: str = "") -> str:
    """An id of a JSON record, which nobody can guess."""
    return prefix + secrets.token_hex(10)


def regular(path: Path) -> Path:
    """Return `path`; raise ValueError for a link, which could lead out of the folder, and for a pipe."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    return path


def write_file(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def user_data_folder() -> Path:
    """`agent-tts` in the user's data folder: $XDG_DATA_HOME or ~/.local/share; %LOCALAPPDATA% on Windows.

    Raises `RuntimeError` if there is no home folder.
    """
    variable, default = (
        ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_DATA_HOME", ".local/share")
    )
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # the XDG specification says to ignore it
        base = Path.home() / default
    return base / "agent-tts"


def folder_of(setting: str, given: str | None, default: str, allowed: str = "absolute or start with ~") -> Path:
    """The folder that a setting gives, otherwise `default` in the user's data folder.

    Raises `SettingsError` if there is no absolute one.
    """
    try:
        folder = Path(given).expanduser() if given else user_data_folder() / default
    except RuntimeError as error:
        raise SettingsError(f"{setting}: there is no home folder; set an absolute path") from error
    if not folder.is_absolute():
        raise SettingsError(f"{setting}: it has to be {allowed}")
    return folder


def age_s(modified_ns: int) -> float:
    """Seconds between a file's modification time and now. One in the future is another clock's, and as good as past."""
    return abs(datetime.now(UTC).timestamp() - modified_ns / 1e9)
