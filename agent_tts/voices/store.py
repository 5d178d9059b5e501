"""Voices in a store that several machines share: one object for each voice, at an fsspec address such as s3://B/voices.

An object is a ZIP archive without compression of the files in a voice's folder, so it is replaced as a whole, and one
that is not yet whole is recognised. Every call has a deadline and runs in a thread of its own.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from loguru import logger

from agent_tts.errors import AtCapacity, SettingsError, to_install
from agent_tts.system.records import age_s
from agent_tts.system.threads import in_daemon
from agent_tts.voices.names import checked_name, is_name

T = TypeVar("T")
Files = Mapping[str, bytes]  # of a voice, by their paths in its folder

LIST_S = 5.0  # longest list of a store's voices
MOVE_S = 30.0  # longest write, or read of `BATCH_BYTES`
BATCH_BYTES = 64 << 20
MAX_BYTES = 1 << 30  # of one voice
LEFT_S = 3_600.0  # age of what a node that died has left on a disk; a write takes `MOVE_S`
RETRY_MS = 1_000

_ADDRESS = re.compile(r"[a-z0-9+.:-]+://.+")
_SUFFIX = ".voice"
_TEMPORARY = ".temporary-"
# It is in every store that has had a voice. A disk that is not mounted is an empty folder without it.
_MARK = "agent-tts-voices"


class StoreLost(AtCapacity):
    """The store cannot be reached, or did not answer in time."""


class VoiceStore:
    """The voices at an address. Raises `SettingsError` if what reads such addresses is not installed."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec

            fsspec.get_filesystem_class(address.partition("://")[0].split("::")[0])
        except (ImportError, ValueError) as error:
            extra = f"needs fsspec ({to_install('voices-remote')}), and s3fs, gcsfs or what reads its kind of address"
            raise SettingsError(f"voices.folder: {extra}: {error}") from None
        self._address = address
        self._place: tuple[Any, str] | None = None  # the file system and the folder in it, from the first call on
        # The last call. While it has no result, others are refused: a hung store holds one thread.
        self._call: Future[Any] = Future()
        self._call.set_result(None)
        self._starting = threading.Lock()  # held while a call is started
        self._why: str | None = None  # the last call was lost; None if it had a result

    @staticmethod
    def is_address(folder: str) -> bool:
        """Whether a setting is the address of a store, and no path."""
        return _ADDRESS.fullmatch(folder) is not None

    def read(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Files | None]]:
        """The files of voices with these sizes, in bytes; None for one that is gone, damaged or not yet whole."""
        batches: list[list[str]] = []
        room = 0
        for name, size in sizes.items():
            if not batches or size > room:
                batches.append([])
                room = BATCH_BYTES
            batches[-1].append(name)
            room -= size
        for batch in batches:
            yield from self._ask(partial(_fetch, names=batch), MOVE_S)

    def contents(self) -> dict[str, tuple[str, int]] | None:
        """What tells one state of each voice from another, and its size in bytes; None before the first voice."""

        def look(fs: Any, root: str) -> dict[str, tuple[str, int]] | None:
            found, marked = {}, False
            try:
                listed = fs.ls(root, detail=True)
            except FileNotFoundError:
                return None
            for entry in listed:
                file, size = entry["name"].rpartition("/")[2], entry["size"] or 0
                name = file.removesuffix(_SUFFIX)
                marked |= file == _MARK
                # A folder could not be read, nor a pipe: it would hide the others. A link may lead to a file.
                is_voice = file != name and is_name(name) and size <= MAX_BYTES
                if is_voice and (entry["type"] == "file" or fs.isfile(entry["name"])):
                    found[name] = _identity(entry), size
            return found if marked else None

        return self._ask(look, LIST_S)

    def put(self, name: str, files: Files, *, new: bool) -> None:
        """Store a voice as a whole. Raises `FileExistsError` if it is `new` and the store has one of this name."""
        file, data = _object(name), _packed(files)

        def write(fs: Any, root: str) -> None:
            if _is_disk(fs):
                fs.makedirs(root, exist_ok=True)
            if not fs.exists(f"{root}/{_MARK}"):
                fs.pipe_file(f"{root}/{_MARK}", b"")
            _write(fs, root, file, data, new=new)

        self._ask(write, MOVE_S)

    def delete(self, name: str) -> bool:
        """Delete a voice; returns whether there was one."""
        file = _object(name)

        def remove(fs: Any, root: str) -> bool:
            path = f"{root}/{file}"
            there: bool = fs.exists(path)
            if there:
                with suppress(FileNotFoundError):  # another node was faster
                    fs.rm_file(path)
            return there

        return self._ask(remove, LIST_S)

    def check(self) -> None:
        """Raise `StoreLost` if the last call was lost: whoever calls `contents` finds out when the store is back."""
        if self._why is not None:
            raise self._lost(self._why)

    def close(self) -> None:
        """End the wait of the call that runs, if one does. Idempotent."""
        with suppress(InvalidStateError):
            self._call.set_exception(self._lost("is closed"))

    def _ask(self, work: Callable[[Any, str], T], deadline_s: float) -> T:
        """The result of a call, from another thread. Raises `StoreLost`, `FileExistsError`."""
        with self._starting:
            if not self._call.done():
                raise self._lost("has not answered yet")
            self._call = call = in_daemon(lambda: work(*self._connected()), "voice store")
        try:
            result = call.result(deadline_s)
        except (StoreLost, FileExistsError):
            raise
        except TimeoutError:
            self._why = f"did not answer within {deadline_s:g} s"
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            logger.debug("the voice store {}: {}", self._address, error)
            self._why = f"cannot be reached ({type(error).__name__})"
        else:
            self._why = None
            return result
        raise self._lost(self._why)

    def _connected(self) -> tuple[Any, str]:
        if self._place is None:
            from fsspec.core import url_to_fs

            fs, root = url_to_fs(self._address, use_listings_cache=False, skip_instance_cache=True)
            self._place = fs, root.rstrip("/")
        return self._place

    @staticmethod
    def _lost(why: str) -> StoreLost:
        return StoreLost(f"the voice store (voices.folder) {why}: try again", retry_after_ms=RETRY_MS)


def _object(name: str) -> str:
    return checked_name(name) + _SUFFIX


def _is_disk(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _identity(entry: Mapping[str, Any]) -> str:
    """A digest of the content where the store has one; otherwise size and times."""
    digest = entry.get("ETag") or entry.get("etag")
    return str(digest) if digest else f"{entry['size']} {entry.get('mtime')} {entry.get('created')}"


def _write(fs: Any, root: str, file: str, data: bytes, *, new: bool) -> None:
    path = f"{root}/{file}"
    if not _is_disk(fs):
        fs.pipe_file(path, data, mode="create" if new else "overwrite")
        return
    # A disk shows a file while it is written: this one gets its name when it is whole.
    for left in fs.glob(f"{root}/{_TEMPORARY}*"):  # by a node that died; others write now
        with suppress(FileNotFoundError):
            if age_s(os.stat(left).st_mtime_ns) > LEFT_S:
                os.unlink(left)
    temporary = f"{root}/{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        fs.pipe_file(temporary, data)
        if new:
            os.link(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _packed(files: Files) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return data.getvalue()


def _fetch(fs: Any, root: str, names: Iterable[str]) -> list[tuple[str, Files | None]]:
    paths = {name: f"{root}/{_object(name)}" for name in names}
    found = fs.cat(list(paths.values()), on_error="return")
    fetched = []
    for name, path in paths.items():
        data = found[path]
        if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):
            raise data
        fetched.append((name, _unpacked(data) if isinstance(data, bytes) else None))
    return fetched


def _unpacked(data: bytes) -> Files | None:
    """The files in an archive, with their checksums verified; None if it is damaged or not yet whole."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
                return None
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError):
        return None
