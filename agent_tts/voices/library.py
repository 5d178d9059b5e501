"""The user's own voices on disk: the only code that joins the name of a voice to a path.

A voice is a folder. NAME/voice.json describes it; NAME/lexicon.json, if there is one, is how words are said in it. A
cloned voice also has NAME/voice.safetensors, with one or more `vector_{H}` float32[H], the speaker for models of hidden
size H, and, with a transcript, `codes` int16[T, 16], the frames of the clip. NAME/adapter, if there is one, is a LoRA
adapter of the model that speaks it.

With the address of a store (`store.py`) the folder is this machine's copy of it: what is read is always in the folder,
what is changed is changed in the store first, and `refresh` brings what others have changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from loguru import logger
from pydantic import BaseModel, ConfigDict, Field

from agent_tts.config.settings import Voices
from agent_tts.errors import UnknownConsent, UnknownVoice, Unsupported, VoiceExists, VoiceLimit
from agent_tts.model.adapter_file import CONFIG, WEIGHTS, AdapterFile
from agent_tts.model.entries import tensor_shapes
from agent_tts.system.records import (
    ASIDE,
    LOCK_S,
    JsonRecords,
    Records,
    RecordsBusy,
    age_s,
    folder_of,
    new_id,
    regular,
    write_file,
)
from agent_tts.system.threads import computing
from agent_tts.text.entries import Lexicon
from agent_tts.voices.names import checked_name, did_you_mean, is_name, library_name
from agent_tts.voices.store import Files, StoreLost, VoiceStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

CODEBOOKS = 16
MAX_JSON_BYTES = 65_536
MAX_LEXICON_BYTES = 16 << 20  # more than the longest one has
KEPT_LEXICONS_BYTES = 8 << 20  # of the files of lexicons in memory, where they take five times as much
CONSENT_ID = "cons_"  # begins the ids of recorded consents, as OpenAI's
FOLLOW_S = 0.05  # between two looks at the folder
FIRST_LOOK_S = 2.0  # longest wait for the first

_JSON, _ARRAYS, _LEXICON, _ADAPTER = "voice.json", "voice.safetensors", "lexicon.json", "adapter"
# All files of a voice that a store keeps; and which state of the store's voice a folder has.
_FILES = (_JSON, _ARRAYS, _LEXICON, f"{_ADAPTER}/{CONFIG}", f"{_ADAPTER}/{WEIGHTS}")
_ORIGIN = "origin"
_CONSENTS = ".consents"  # a folder beside the voices
_COPIED = ".copied"  # its modification time is that of the last copy of the store
_VECTOR = re.compile(r"vector_([1-9][0-9]{0,4})")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Consent:
    """The speaker's consent: who gave it, when it was recorded, and to what."""

    statement: str  # how the speaker agreed, and to what
    by: str | None = None  # who gave it; None: the statement alone says it
    clip_sha256: str | None = None  # of the file that was cloned, which is not kept; None for a vector
    recorded_at: datetime = field(default_factory=_now)


class RecordedConsent(BaseModel):
    """A consent that a client recorded before it clones a voice with it. The recording stays with the client."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: new_id(CONSENT_ID))
    object: Literal["audio.voice_consent"] = "audio.voice_consent"
    created_at: int = Field(default_factory=lambda: int(_now().timestamp()))  # Unix time, in seconds
    name: str  # the client's, for its list
    language: str  # BCP 47
    sha256: str  # of the recording

    def statement(self) -> str:
        return f"{self.name}: recording in {self.language}, SHA-256 {self.sha256}, at {self.created_at} s of Unix time"


@dataclass(frozen=True, slots=True)
class StoredLexicon:
    """How words are said in a voice: a file, which is read when a request needs it."""

    voice: str
    size: int  # bytes
    state: tuple[int, int]  # inode and modification time in ns, which tell one file from another


DAMAGED = Lexicon(())  # in the place of one that cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVoice:
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
    lexicon: StoredLexicon | None = None
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

    Every method may be called in any thread. What changes a voice waits for other processes that do, up to ten seconds,
    and raises `RecordsBusy`. With a store it takes up to a minute, and raises `StoreLost` when that does not answer.
    """

    def __init__(self, folder: Path, limit: int, store: VoiceStore | None = None) -> None:
        self.folder = folder
        self._records = Records(folder, "voice", is_name, _read)
        self._limit = limit
        # Of this folder alone: a store has no consents but those of its voices.
        self.consents = JsonRecords(
            folder / _CONSENTS, "consent", RecordedConsent, UnknownConsent, limit=limit, max_bytes=MAX_JSON_BYTES
        )
        self.store = store  # whose copy the folder is; None: it is no copy
        self._origins: dict[str, str] = {}  # states of the store's voices that were copied, or are damaged, by name
        # The voices as they were read last; None unless a thread follows the folder.
        self._known: tuple[StoredVoice, ...] | None = None
        self._looking = threading.Lock()
        # Lexicons that were read, the last used last, and what is held while one is read or they change.
        self._lexicons: OrderedDict[StoredLexicon, Lexicon] = OrderedDict()
        self._told: dict[str, StoredLexicon] = {}  # the damaged ones that the log has named, by voice
        self._reading, self._keeping = threading.Lock(), threading.Lock()

    @classmethod
    def of(cls, settings: Voices) -> Self:
        """The library of these settings. Raises `SettingsError` if there is no absolute folder, or no such store."""
        address = settings.folder if settings.folder and VoiceStore.is_address(settings.folder) else None
        if address is None:
            allowed = "absolute, start with ~, or be an address such as s3://"
            return cls(folder_of("voices.folder", settings.folder, "voices", allowed), settings.limit)
        digest = hashlib.sha256(address.encode()).hexdigest()[:16]
        copies = folder_of("voices.folder", None, "voice-copies")
        return cls(copies / digest, settings.limit, VoiceStore(address))

    # ------------------------------------------------------------ reading

    def voices(self) -> tuple[StoredVoice, ...]:
        """All voices, sorted by name, see `Records.all`."""
        with self._looking:  # what was read before a change is not kept after what was read behind it
            found = self._records.all()
            if self._known is not None:
                self._known = found
        return found

    @property
    def known(self) -> tuple[StoredVoice, ...]:
        """All voices; where a thread follows the folder, as it read them last, without a wait."""
        return self.voices() if self._known is None else self._known

    def follow(self) -> Callable[[], None]:
        """Have a thread read the folder from now on; returns what ends that. Both wait `FIRST_LOOK_S` at most.

        Changes by this object are known at once, those by others after `FOLLOW_S`.
        """
        looked, ended = threading.Event(), threading.Event()

        def look() -> None:
            while not ended.is_set():
                self.voices()
                looked.set()
                ended.wait(FOLLOW_S)

        def end() -> None:
            ended.set()
            thread.join(FIRST_LOOK_S)

        self._known = ()
        thread = threading.Thread(target=look, name="voices", daemon=True)
        thread.start()
        looked.wait(FIRST_LOOK_S)
        return end

    def get(self, name: str) -> StoredVoice:
        """The voice of a name, with or without `clone:`; raises `UnknownVoice` if there is none, or it is damaged."""
        name = library_name(name)
        try:
            return self._records.get(name)
        except FileNotFoundError:
            raise self._unknown(name) from None
        except ValueError:
            raise _damaged(name) from None

    def lexicon(self, name: str) -> Lexicon | None:
        """How words are said in a voice; None: as in every voice. Raises `UnknownVoice` as `get` does."""
        stored = self.get(name).lexicon
        found = None if stored is None else self.read_lexicon(stored)
        if found is DAMAGED:
            raise _damaged(name)
        return found

    def kept_lexicon(self, stored: StoredLexicon) -> Lexicon | None:
        """A lexicon that was read before, without a wait; None: `read_lexicon` may have it."""
        with self._keeping:
            if stored in self._lexicons:
                self._lexicons.move_to_end(stored)
            return self._lexicons.get(stored)

    def read_lexicon(self, stored: StoredLexicon) -> Lexicon:
        """A lexicon; one of 10 000 words takes 0.2 s. `DAMAGED`, which is told once, where it cannot be read."""
        with self._reading:
            if (found := self.kept_lexicon(stored)) is None:
                try:
                    found = _read_lexicon(self._records.path(stored.voice) / _LEXICON)
                except Exception as error:  # noqa: BLE001 - a file that others write may raise any error
                    if self._told.get(stored.voice) != stored:
                        why = type(error).__name__  # its text may quote the file
                        logger.error("the lexicon of the voice {!r} is damaged and left out: {}", stored.voice, why)
                    self._told[stored.voice] = stored
                    if isinstance(error, OSError):  # says nothing of the file: the next request reads it again
                        return DAMAGED
                    found = DAMAGED
                with self._keeping:
                    self._lexicons[stored] = found
                    kept = sum(one.size for one, lexicon in self._lexicons.items() if lexicon is not DAMAGED)
                    while len(self._lexicons) > 1 and kept > KEPT_LEXICONS_BYTES:
                        one, lexicon = self._lexicons.popitem(last=False)
                        kept -= one.size if lexicon is not DAMAGED else 0
        return found

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
            arrays = load_file(regular(self._records.path(voice.name) / _ARRAYS))
            _check(voice, arrays)
        except (OSError, ValueError, SafetensorError) as error:
            logger.error("the voice {!r} cannot be read: {}", voice.name, error)
            raise _damaged(voice.name) from None
        return arrays | ({"codes": arrays["codes"].astype(np.int64)} if "codes" in arrays else {})

    def adapter(self, name: str) -> AdapterFile:
        """The adapter of a voice that has one. Raises `UnknownVoice` as `get` does."""
        folder = self._records.path(self.get(name).name) / _ADAPTER
        try:
            for file in (CONFIG, WEIGHTS):
                regular(folder / file)
            return AdapterFile.read(folder)
        except (OSError, ValueError) as error:
            logger.error("the adapter of the voice {!r} cannot be read: {}", name, error)
            raise _damaged(name) from None

    # ------------------------------------------------------------ writing

    def check_room(self, name: str) -> None:
        """Raise `InvalidRequest`, `VoiceExists` or `VoiceLimit` unless a voice of this name can be added."""
        names = self._records.names()
        if checked_name(name) in names:
            raise _exists(name)
        if len(names) >= self._limit:
            raise VoiceLimit(f"this node stores {self._limit} voices at most: delete one first")

    def add(self, voice: StoredVoice, arrays: Arrays) -> StoredVoice:
        """Store a voice, completely or not at all; its `vector_sizes` and `frames` are taken from the arrays.

        Raises:
            InvalidRequest, VoiceExists, VoiceLimit: see `check_room`.
            ValueError: the arrays do not fit the voice.
            StorageFull: the disk is full.
            Internal: the disk refuses it.
        """
        checked_name(voice.name)
        sizes, frames = _check(voice, arrays)
        with self._changing("stored"), self._records.temporary() as made:
            self.check_room(voice.name)
            made.mkdir(mode=0o700)
            _write_card(made, voice)
            if arrays:
                import numpy as np
                from safetensors.numpy import save

                # `save` writes the memory of an array as it is, which is wrong for a transposed one.
                ordered = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
                write_file(made / _ARRAYS, save(ordered))
            self._publish(voice.name, made, new=True)
            self._records.put(made, voice.name)
        return replace(voice, vector_sizes=sizes, frames=frames)

    def set_lexicon(self, name: str, lexicon: Lexicon | None) -> None:
        """How words are said in a voice from now on; None: as in every voice.

        Raises `UnknownVoice` if there is none of this name, `StorageFull` or `Internal` if the disk refuses.
        """
        self.get(name)
        data = None
        if lexicon is not None and len(lexicon):
            data = json.dumps(lexicon.mapping(), ensure_ascii=False, indent=1).encode()
        with self._changing("changed"):
            name = self.get(name).name
            self._publish(name, self._records.path(name), {_LEXICON: data})
            self._put(name, _LEXICON, data)

    @contextmanager
    def _changing(self, what: str, wait_s: float = LOCK_S, *, copies: bool = False) -> Iterator[None]:
        """See `Records.changing`; afterwards this object knows what has changed.

        While the store is known to be lost, nothing but a copy of it waits for it: `StoreLost`.
        """
        store = None if copies else self.store
        if store is not None:
            store.check()
        with self._records.changing(what, wait_s):
            if store is not None:
                store.check()
            yield
        if self._known is not None:
            self.voices()

    def _put(self, name: str, file: str, data: bytes | None) -> None:
        """Replace a file of a voice, or remove it."""
        path = self._records.path(name) / file
        # Both renames change the records' folder, too, which alone the other processes look at.
        with self._records.temporary() as made:
            if data is not None:
                write_file(made, data)
                made.replace(path)
            elif os.path.lexists(path):
                path.rename(made)

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
        with self._changing("changed"), self._records.temporary() as made:
            voice = self.get(name)
            made.mkdir(mode=0o700)
            for path in self._records.path(voice.name).iterdir():
                if path.name in (_ARRAYS, _LEXICON):
                    write_file(made / path.name, path.read_bytes())
            if source is not None:
                (made / _ADAPTER).mkdir(mode=0o700)
                for file in (CONFIG, WEIGHTS):
                    shutil.copyfile(source / file, made / _ADAPTER / file)
            _write_card(made, replace(voice, version=secrets.token_hex(16)))
            self._publish(voice.name, made)
            self._records.put(made, voice.name)

    def delete(self, name: str) -> None:
        """Delete a voice, damaged or not.

        Raises `InvalidRequest` or `UnknownVoice` if there is none of this name, `Internal` if the disk refuses.
        """
        name = checked_name(library_name(name))
        if self.store is None and name not in self._records.names():
            raise self._unknown(name)
        with self._changing("deleted"):
            stored = self.store is not None and self.store.delete(name)
            if not self._records.drop(name) and not stored:
                raise self._unknown(name)

    # ------------------------------------------------------------ the store

    def refresh(self, max_age_s: float | None = None) -> None:
        """Take over what others have changed in the store; nothing without one.

        Args:
            max_age_s: age of a copy that is good enough, and no wait for a process that makes one; None: a new one.

        Raises `StoreLost` if the store does not answer: all voices of the folder stay.
        """
        if self.store is None:
            return
        copied = self._records.folder / _COPIED
        try:
            with self._changing("copied", LOCK_S if max_age_s is None else 0, copies=True):
                if max_age_s is None or not copied.exists() or age_s(copied.stat().st_mtime_ns) >= max_age_s:
                    self._take_over(self.store)
                    copied.touch(mode=0o600)
        except RecordsBusy:
            if max_age_s is None:
                raise

    def _take_over(self, store: VoiceStore) -> None:
        found, here = store.contents(), self._records.names()
        if found is None:
            if here:
                raise StoreLost("the voice store (voices.folder) is empty, or is not mounted: see its folder")
            found = {}
        for name in here - found.keys():
            self._records.drop(name)
        changed = {name: size for name, (identity, size) in found.items() if self._origin(name, identity) != identity}
        for name, files in store.read(changed):
            identity, _ = found[name]
            if files is not None:
                self._copy(name, files, identity)
            elif name not in here:
                logger.warning("the voice {!r} in the store is damaged and left out", name)
            self._origins[name] = identity

    def _origin(self, name: str, wanted: str) -> str | None:
        """Which state of the store's voice the folder has, read again unless it is the one that is wanted."""
        if self._origins.get(name) != wanted:
            try:
                self._origins[name] = regular(self._records.path(name) / _ORIGIN).read_text()
            except (OSError, ValueError):
                return None
        return self._origins[name]

    def _copy(self, name: str, files: Files, identity: str) -> None:
        """Make a voice what the store has."""
        if _content(self._records.path(name) / _JSON) == files.get(_JSON, b""):  # nothing else may differ
            self._put(name, _LEXICON, files.get(_LEXICON))
            self._put(name, _ORIGIN, identity.encode())
            return
        with self._records.temporary() as made:
            made.mkdir(mode=0o700)
            for file in _FILES:
                if file in files:
                    (made / file).parent.mkdir(mode=0o700, exist_ok=True)
                    write_file(made / file, files[file])
            write_file(made / _ORIGIN, identity.encode())
            self._records.put(made, name)

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

    def _unknown(self, name: str) -> UnknownVoice:
        return UnknownVoice(f"the library has no such voice{did_you_mean(name, self._records.names())}")


def _read(folder: Path) -> StoredVoice:
    """The voice in a folder. Raises `OSError` or `ValueError` if it is damaged."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise ValueError("not a folder")
    with regular(folder / _JSON).open("rb") as file:
        card = _Card.model_validate_json(file.read(MAX_JSON_BYTES))
    voice = StoredVoice(name=folder.name.removeprefix(ASIDE), **dict(card))
    shapes = tensor_shapes(folder, regular(folder / _ARRAYS).name) if card.kind == "cloned" else {}
    sizes, frames = _parts(voice, shapes)
    lexicon, path = None, folder / _LEXICON
    if os.path.lexists(path):
        at = regular(path).stat()
        lexicon = StoredLexicon(voice.name, at.st_size, (at.st_ino, at.st_mtime_ns))
    return replace(voice, vector_sizes=sizes, frames=frames, lexicon=lexicon, adapter=(folder / _ADAPTER).is_dir())


def _write_card(folder: Path, voice: StoredVoice) -> None:
    write_file(folder / _JSON, _Card.model_validate(voice).model_dump_json(indent=2).encode())


def _read_lexicon(path: Path) -> Lexicon:
    with regular(path).open("rb") as file:
        data = file.read(MAX_LEXICON_BYTES)
    with computing:
        found = json.loads(data)
        if not isinstance(found, dict):
            raise ValueError("a lexicon is an object")
        return Lexicon.of(found)


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


def _content(path: Path) -> bytes | None:
    """The content of a file; None if there is none."""
    try:
        return regular(path).read_bytes()
    except FileNotFoundError:
        return None


def _exists(name: str) -> VoiceExists:
    return VoiceExists(f"there is a voice {name!r} already: delete it first, or choose another name")


def _damaged(name: str) -> UnknownVoice:
    return UnknownVoice(f"the voice {name!r} is damaged: delete it and add it again")
