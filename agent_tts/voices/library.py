"""The user's own voices on disk: the only code that joins the name of a voice to a path.

A voice is a folder. NAME/voice.json describes it; NAME/lexicon.json, if there is one, is how words are said in it. A
cloned voice also has NAME/voice.safetensors, with one or more `vector_{H}` float32[H], the speaker for models of hidden
size H, and, with a transcript, `codes` int16[T, 16], the frames of the clip. NAME/adapter, if there is one, is a LoRA
adapter of the model that speaks it.

A rename adds or removes a whole folder, so any number of processes may share a library.

With the address of a store (`store.py`) the folder is this machine's copy of it: what is read is always in the folder,
what is changed is changed in the store first, and `refresh` brings what others have changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from loguru import logger
from pydantic import BaseModel, ConfigDict, Field

from agent_tts.config.settings import Voices
from agent_tts.errors import Internal, SettingsError, StorageFull, UnknownVoice, Unsupported, VoiceExists, VoiceLimit
from agent_tts.file_lock import LOCK_S, file_lock
from agent_tts.model.adapter_file import CONFIG, WEIGHTS, AdapterFile
from agent_tts.text.entries import Lexicon
from agent_tts.voices.names import checked_name, did_you_mean, is_name, library_name
from agent_tts.voices.store import Files, StoreLost, VoiceStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

CODEBOOKS = 16
MAX_JSON_BYTES = 65_536
MAX_LEXICON_BYTES = 16 << 20  # more than the longest one has

_JSON, _ARRAYS, _LEXICON, _ADAPTER = "voice.json", "voice.safetensors", "lexicon.json", "adapter"
# All files of a voice that a store keeps; and which state of the store's voice a folder has.
_FILES = (_JSON, _ARRAYS, _LEXICON, f"{_ADAPTER}/{CONFIG}", f"{_ADAPTER}/{WEIGHTS}")
_ORIGIN = "origin"
# Held by the process that changes the store's voices or their copies; its modification time is that of the last copy.
_LOCK = ".lock"
_VECTOR = re.compile(r"vector_([1-9][0-9]{0,4})")
# Folders that are being added or deleted. One that is this old was left by a process that died.
_TEMPORARY = ".temporary-"
_TEMPORARY_S = 3_600
# A folder that was just changed may change again within the same modification time.
_SETTLED_S = 1


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Consent:
    """The speaker's consent: who gave it, when it was recorded, and to what."""

    statement: str  # how the speaker agreed, and to what
    by: str | None = None  # who gave it; None: the statement alone says it
    clip_sha256: str | None = None  # of the file that was cloned, which is not kept; None for a vector
    recorded_at: datetime = field(default_factory=_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVoice:
    """A voice of the library."""

    name: str
    kind: Literal["designed", "cloned"]
    description: str = ""
    prompt: str | None = None  # description of a designed voice, for the model
    transcript: str | None = None  # the words of a cloned voice's clip; None: only its vectors are stored
    consent: Consent | None = None  # None for a designed voice
    created_at: datetime = field(default_factory=_now)
    version: str = field(default_factory=lambda: secrets.token_hex(16))  # differs when a name is used again
    vector_sizes: tuple[int, ...] = ()  # hidden sizes of the models that can speak a cloned voice
    frames: int = 0  # of codes
    lexicon: Lexicon | None = None  # how words are said in this voice
    adapter: bool = False  # whether it has a LoRA adapter


class _Card(BaseModel):
    """voice.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)

    kind: Literal["designed", "cloned"]
    description: str
    prompt: str | None
    transcript: str | None
    consent: Consent | None
    created_at: datetime
    version: str = Field(pattern=r"^[0-9a-f]{32}$")


class VoiceLibrary:
    """The voices in a folder, at most `limit`; the folder is made when the first one is added.

    Every method may be called in any thread. With a store, all that changes a voice takes up to a minute, and raises
    `StoreLost` when it does not answer.
    """

    def __init__(self, folder: Path, limit: int, store: VoiceStore | None = None) -> None:
        self._folder = folder
        self._limit = limit
        self.store = store  # whose copy the folder is; None: it is no copy
        # States of the store's voices that were copied, or are damaged, by name.
        self._origins: dict[str, str] = {}
        # Held while the folder is read.
        self._reading = threading.Lock()
        # Modification time of the folder when it was last read, ns; None: it must be read again.
        self._read_at: int | None = None
        # Entries with a valid name: (inode, modification time) when read, or None if it must be read again; and the
        # voice, or None if it is damaged.
        self._entries: dict[str, tuple[tuple[int, int] | None, StoredVoice | None]] = {}
        self._voices: tuple[StoredVoice, ...] = ()
        self._sweep()

    @classmethod
    def of(cls, settings: Voices) -> Self:
        """The library of these settings. Raises `SettingsError` if there is no absolute folder, or no such store."""
        address = settings.folder if settings.folder and VoiceStore.is_address(settings.folder) else None
        try:
            if address is not None:
                digest = hashlib.sha256(address.encode()).hexdigest()[:16]
                return cls(default_folder().with_name("voice-copies") / digest, settings.limit, VoiceStore(address))
            folder = Path(settings.folder).expanduser() if settings.folder else default_folder()
        except RuntimeError as error:
            raise SettingsError("voices.folder: there is no home folder; set an absolute path") from error
        if not folder.is_absolute():
            raise SettingsError("voices.folder: it has to be absolute, start with ~, or be an address such as s3://")
        return cls(folder, settings.limit)

    # ------------------------------------------------------------ reading

    def voices(self) -> tuple[StoredVoice, ...]:
        """All voices, sorted by name; the same object until a process changes the library.

        A damaged voice is left out and logged. Without changes, this takes two system calls.
        """
        with self._reading:
            try:
                modified = self._folder.stat().st_mtime_ns
                if modified != self._read_at:
                    settled = _is_settled(modified)
                    self._scan()
                    self._read_at = modified if settled else None
            except OSError as error:
                self._read_at, self._entries, self._voices = None, {}, ()
                if not isinstance(error, FileNotFoundError):
                    logger.error("the voice library cannot be read: {}", error.strerror)
            return self._voices

    def get(self, name: str) -> StoredVoice:
        """The voice of a name, with or without `clone:`; raises `UnknownVoice` if there is none, or it is damaged."""
        name = library_name(name)
        for voice in self.voices():
            if voice.name == name:
                return voice
        if name in self._entries:
            raise _damaged(name)
        raise self._unknown(name)

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a cloned voice: `vector_{H}` float32[H]; `codes` int64[T, 16], none negative.

        Raises `UnknownVoice` as `get` does.
        """
        import numpy as np
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        voice = self.get(name)
        if voice.kind == "designed":
            return {}
        try:
            arrays = load_file(_regular(self._path(voice.name) / _ARRAYS))
            _check(voice, arrays)
        except (OSError, ValueError, SafetensorError) as error:
            logger.error("the voice {!r} cannot be read: {}", voice.name, error)
            raise _damaged(voice.name) from None
        return arrays | ({"codes": arrays["codes"].astype(np.int64)} if "codes" in arrays else {})

    def adapter(self, name: str) -> AdapterFile:
        """The adapter of a voice that has one. Raises `UnknownVoice` as `get` does."""
        folder = self._path(self.get(name).name) / _ADAPTER
        try:
            for file in (CONFIG, WEIGHTS):
                _regular(folder / file)
            return AdapterFile.read(folder)
        except (OSError, ValueError) as error:
            logger.error("the adapter of the voice {!r} cannot be read: {}", name, error)
            raise _damaged(name) from None

    def _scan(self) -> None:
        entries = {}
        with os.scandir(self._folder) as found:
            for entry in found:
                if not is_name(entry.name):
                    continue
                try:
                    at = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                identity = (at.st_ino, at.st_mtime_ns)
                known = self._entries.get(entry.name)
                if known is None or known[0] != identity:
                    voice, settled = self._read(entry.name), _is_settled(at.st_mtime_ns)
                    known = (identity if settled or voice is None else None, voice)  # its successor may get its inode
                entries[entry.name] = known
        self._entries = entries
        voices = tuple(voice for _, (_, voice) in sorted(entries.items()) if voice is not None)
        if voices != self._voices:
            self._voices = voices

    def _read(self, name: str) -> StoredVoice | None:
        folder = self._path(name)
        try:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise ValueError("not a folder")
            with _regular(folder / _JSON).open("rb") as file:
                card = _Card.model_validate_json(file.read(MAX_JSON_BYTES))
            voice = StoredVoice(name=name, **dict(card))
            sizes, frames = _parts(voice, _shapes(folder / _ARRAYS) if card.kind == "cloned" else {})
            lexicon = _read_lexicon(folder / _LEXICON)
        except (OSError, ValueError) as error:
            # The text of the error may quote the file.
            logger.warning("the voice {!r} is damaged and left out: {}", name, type(error).__name__)
            return None
        return replace(voice, vector_sizes=sizes, frames=frames, lexicon=lexicon, adapter=(folder / _ADAPTER).is_dir())

    # ------------------------------------------------------------ writing

    def check_room(self, name: str) -> None:
        """Raise `InvalidRequest`, `VoiceExists` or `VoiceLimit` unless a voice of this name can be added."""
        checked_name(name)
        self.voices()
        if name in self._entries:
            raise _exists(name)
        if len(self._entries) >= self._limit:
            raise self._is_full()

    def add(self, voice: StoredVoice, arrays: Arrays) -> StoredVoice:
        """Store a voice, completely or not at all; its `vector_sizes` and `frames` are taken from the arrays.

        Raises:
            InvalidRequest, VoiceExists, VoiceLimit: see `check_room`.
            ValueError: the arrays do not fit the voice.
            StorageFull: the disk is full.
            Internal: the disk refuses it.
        """
        self.check_room(voice.name)
        sizes, frames = _check(voice, arrays)
        with self._changing("stored"), self._alone():
            self._write(voice, arrays)
        self.voices()
        if len(self._entries) > self._limit:  # another process was as fast
            self.delete(voice.name)
            raise self._is_full()
        return replace(voice, vector_sizes=sizes, frames=frames)

    def set_lexicon(self, name: str, lexicon: Lexicon | None) -> None:
        """How words are said in a voice from now on; None: as in every voice.

        Raises `UnknownVoice` if there is none of this name, `StorageFull` or `Internal` if the disk refuses.
        """
        name, data = self.get(name).name, None
        if lexicon is not None and len(lexicon):
            data = json.dumps(lexicon.mapping(), ensure_ascii=False, indent=1).encode()
        with self._changing("changed"), self._alone():
            self._publish(name, self._path(name), {_LEXICON: data})
            self._put(name, _LEXICON, data)

    def _put(self, name: str, file: str, data: bytes | None) -> None:
        """Replace a file of a voice, or remove it."""
        folder = self._path(name)
        if data is None:
            (folder / file).unlink(missing_ok=True)
        else:
            temporary = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
            _write_file(temporary, data)
            temporary.replace(folder / file)
        os.utime(self._folder)  # for the other processes, which look at this alone

    def set_adapter(self, name: str, source: Path | None) -> None:
        """Speak a cloned voice by the adapter in a folder from now on, which is copied; None: by the model as it is.

        The voice gets a new version: requests that have begun keep the adapter they have.

        Raises:
            UnknownVoice, Unsupported: there is none of this name, or it is designed.
            CheckpointError: the folder has no adapter of the talker.
            StorageFull, Internal: the disk refuses.
        """
        voice = self.get(name)
        if voice.kind != "cloned":
            raise Unsupported(f"the voice {voice.name!r} is {voice.kind}: only cloned voices have adapters")
        if source is not None:
            AdapterFile.read(source)
        with self._changing("changed"), self._alone(), self._new_folder() as made:
            for path in self._path(voice.name).iterdir():
                if path.name in (_ARRAYS, _LEXICON):
                    _write_file(made / path.name, path.read_bytes())
            if source is not None:
                (made / _ADAPTER).mkdir(mode=0o700)
                for file in (CONFIG, WEIGHTS):
                    shutil.copyfile(source / file, made / _ADAPTER / file)
            self._write_card(made, replace(voice, version=secrets.token_hex(16)))
            self._publish(voice.name, made)
            self._swap(made, voice.name)

    def _swap(self, made: Path, name: str) -> None:
        """Put a finished folder in the place of a voice's."""
        target, doomed = self._path(name), self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        target.rename(doomed)
        try:
            made.rename(target)
        except BaseException:
            doomed.rename(target)
            raise
        _remove(doomed)

    def delete(self, name: str) -> None:
        """Delete a voice, damaged or not.

        Raises `InvalidRequest` or `UnknownVoice` if there is none of this name, `Internal` if the disk refuses.
        """
        name = checked_name(library_name(name))
        with self._changing("deleted"), self._alone():
            stored = self.store is not None and self.store.delete(name)
            if not self._drop(name) and not stored:
                raise self._unknown(name)

    def _drop(self, name: str) -> bool:
        """Remove a voice's folder; returns whether there was one."""
        doomed = self._folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            self._path(name).rename(doomed)
        except FileNotFoundError:
            return False
        _remove(doomed)
        return True

    # ------------------------------------------------------------ the store

    def refresh(self, max_age_s: float | None = None) -> None:
        """Take over what others have changed in the store; nothing without one.

        Args:
            max_age_s: age of a copy that is good enough, and no wait for a process that makes one; None: a new one.

        Raises `StoreLost` if the store does not answer: all voices of the folder stay.
        """
        if self.store is None:
            return
        with self._trying("copied"), self._alone(wait=max_age_s is None) as copied_at:
            if copied_at is None or (max_age_s is not None and _now().timestamp() - copied_at < max_age_s):
                return
            found = self.store.contents()
            self.voices()
            if found is None:
                if self._entries:
                    raise StoreLost("the voice store (voices.folder) is empty, or is not mounted: see its folder")
                found = {}
            gone = self._entries.keys() - found.keys()
            changed = {
                name: size for name, (identity, size) in found.items() if self._origin(name, identity) != identity
            }
            if gone or changed:
                with self._changing("copied"):
                    self._take_over(gone, changed, found)
            os.utime(self._folder / _LOCK)

    def _take_over(self, gone: Set[str], changed: Mapping[str, int], found: Mapping[str, tuple[str, int]]) -> None:
        for name in gone:
            self._drop(name)
        assert self.store is not None
        for name, files in self.store.read(changed):
            identity, _ = found[name]
            if files is not None:
                self._copy(name, files, identity)
            elif name not in self._entries:
                logger.warning("the voice {!r} in the store is damaged and left out", name)
            self._origins[name] = identity

    def _origin(self, name: str, wanted: str) -> str | None:
        """Which state of the store's voice the folder has, read again unless it is the one that is wanted."""
        if self._origins.get(name) != wanted:
            try:
                self._origins[name] = _regular(self._path(name) / _ORIGIN).read_text()
            except (OSError, ValueError):
                return None
        return self._origins[name]

    def _copy(self, name: str, files: Files, identity: str) -> None:
        """Make a voice what the store has."""
        card = files.get(_JSON, b"")
        here = self._path(name)
        if name in self._entries and _content(here / _JSON) == card:  # nothing else may differ
            self._put(name, _LEXICON, files.get(_LEXICON))
            self._put(name, _ORIGIN, identity.encode())
            return
        with self._new_folder() as made:
            for file in _FILES:
                if file in files:
                    (made / file).parent.mkdir(mode=0o700, exist_ok=True)
                    _write_file(made / file, files[file])
            _write_file(made / _ORIGIN, identity.encode())
            if os.path.lexists(here):
                self._swap(made, name)
            else:
                self._claim(made, name)

    def _publish(
        self, name: str, folder: Path, changes: Mapping[str, bytes | None] | None = None, *, new: bool = False
    ) -> None:
        """Have the store keep the files of a folder, with some changed or left out."""
        if self.store is None:
            return
        files = {file: _content(folder / file) for file in _FILES} | dict(changes or {})
        try:
            self.store.put(name, {file: data for file, data in files.items() if data is not None}, new=new)
        except FileExistsError:
            raise _exists(name) from None

    @contextmanager
    def _alone(self, *, wait: bool = True) -> Iterator[float | None]:
        """Keep other processes of this machine from the store and its copies: the time of the last copy, in seconds.

        None while another process has it, which without `wait` is no error. Without a store: 0, and nothing is kept.
        """
        if self.store is None:
            yield 0.0
            return
        with ExitStack() as locked:
            try:
                lock = locked.enter_context(file_lock(self._folder / _LOCK, LOCK_S if wait else 0))
            except BlockingIOError:
                if wait:
                    raise StoreLost("another process changes the voices: try again", retry_after_ms=1_000) from None
                yield None
                return
            if os.fstat(lock.fileno()).st_size == 0:  # there has been no copy
                lock.write(b"\n")
                lock.flush()
                os.utime(lock.fileno(), (0, 0))
            yield os.fstat(lock.fileno()).st_mtime

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        try:
            with self._trying(what):
                yield
        finally:
            self._read_at = None

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Raise `StorageFull` or `Internal` if the disk refuses."""
        try:
            yield
        except OSError as error:
            logger.error("a voice cannot be {}: {}", what, error.strerror)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"the voice cannot be {what}: the node's disk is full") from error
            raise Internal(f"the voice cannot be {what}; the reason is in the node's log") from error

    def _write(self, voice: StoredVoice, arrays: Arrays) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._new_folder() as temporary:
            self._write_card(temporary, voice)
            if arrays:
                import numpy as np
                from safetensors.numpy import save

                # `save` writes the memory of an array as it is, which is wrong for a transposed one.
                ordered = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
                _write_file(temporary / _ARRAYS, save(ordered))
            self._publish(voice.name, temporary, new=True)
            self._claim(temporary, voice.name)

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        """A temporary folder, which is removed after an error."""
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self._folder))  # mode 0700
        try:
            yield temporary
        except BaseException:
            _remove(temporary)
            raise

    @staticmethod
    def _write_card(folder: Path, voice: StoredVoice) -> None:
        _write_file(folder / _JSON, _Card.model_validate(voice).model_dump_json(indent=2).encode())

    def _claim(self, made: Path, name: str) -> None:
        """Rename a finished folder to the voice's name. Raises `VoiceExists` if another process was faster."""
        target = self._path(name)
        if os.path.lexists(target):  # a rename would replace an empty folder
            raise _exists(name)
        try:
            made.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _exists(name) from None
            raise

    def _sweep(self) -> None:
        """Remove the temporary folders of processes that died."""
        for left in self._folder.glob(f"{_TEMPORARY}*"):
            try:
                age_s = _now().timestamp() - left.lstat().st_mtime
            except OSError:  # another process was faster
                continue
            if age_s > _TEMPORARY_S:
                _remove(left)

    def _path(self, name: str) -> Path:
        return self._folder / checked_name(name)

    def _is_full(self) -> VoiceLimit:
        return VoiceLimit(f"this node stores {self._limit} voices at most: delete one first")

    def _unknown(self, name: str) -> UnknownVoice:
        return UnknownVoice(f"the library has no such voice{did_you_mean(name, self._entries)}")


def _read_lexicon(path: Path) -> Lexicon | None:
    if not os.path.lexists(path):
        return None
    with _regular(path).open("rb") as file:
        return Lexicon.of(json.loads(file.read(MAX_LEXICON_BYTES)))


def _is_settled(modified_ns: int) -> bool:
    """Whether what was changed then cannot change again within the same modification time."""
    return _now().timestamp() - modified_ns / 1e9 > _SETTLED_S


def default_folder() -> Path:
    """`agent-tts/voices` in the user's data folder: $XDG_DATA_HOME or ~/.local/share; %LOCALAPPDATA% on Windows.

    Raises `RuntimeError` if there is no home folder.
    """
    variable, default = (
        ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_DATA_HOME", ".local/share")
    )
    base = Path(os.environ.get(variable, ""))
    if not base.is_absolute():  # the XDG specification says to ignore it
        base = Path.home() / default
    return base / "agent-tts" / "voices"


def _parts(voice: StoredVoice, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    """Sizes of the vectors and frames of codes in arrays of these shapes; ValueError if they do not fit the voice."""
    sizes, frames = [], 0
    for name, shape in shapes.items():
        if vector := _VECTOR.fullmatch(name):
            sizes.append(int(vector[1]))
            fits = shape == (sizes[-1],)
        else:
            frames = shape[0] if shape else 0
            fits = name == "codes" and shape == (frames, CODEBOOKS) and frames > 0
        if not fits:
            raise ValueError(f"an array {name!r} of shape {shape}")
    if voice.kind == "designed":
        whole = bool(voice.prompt) and not shapes
    else:
        whole = bool(sizes) and voice.consent is not None and (frames > 0) == (voice.transcript is not None)
    if not whole:
        raise ValueError(f"an incomplete {voice.kind} voice")
    return tuple(sorted(sizes)), frames


def _check(voice: StoredVoice, arrays: Arrays) -> tuple[tuple[int, ...], int]:
    """As `_parts`, for arrays with their values."""
    import numpy as np

    parts = _parts(voice, {name: array.shape for name, array in arrays.items()})
    for name, array in arrays.items():
        if name == "codes":
            good = np.issubdtype(array.dtype, np.integer) and array.min() >= 0
        else:
            good = array.dtype == np.float32 and np.isfinite(array).all()
        if not good:
            raise ValueError(f"an array {name!r} of {array.dtype} with invalid values")
    return parts


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a file; only its header is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(_regular(path), framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _content(path: Path) -> bytes | None:
    """The content of a file; None if there is none."""
    try:
        return _regular(path).read_bytes()
    except FileNotFoundError:
        return None


def _regular(path: Path) -> Path:
    """Return `path`; raise ValueError for a link, which could lead out of the library."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    return path


def _write_file(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)


def _remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _exists(name: str) -> VoiceExists:
    return VoiceExists(f"there is a voice {name!r} already: delete it first, or choose another name")


def _damaged(name: str) -> UnknownVoice:
    return UnknownVoice(f"the voice {name!r} is damaged: delete it and add it again")
