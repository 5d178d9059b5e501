"""Pronunciation dictionaries that clients keep on the node: a JSON file each, by id.

A file is replaced as a whole, and changes wait for each other, so any number of processes may share the folder.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from loguru import logger
from pydantic import TypeAdapter

from agent_tts.config import settings as config
from agent_tts.errors import Internal, InvalidRequest, SettingsError, StorageFull, UnknownDictionary
from agent_tts.file_lock import file_lock
from agent_tts.text.entries import Entry, Lexicon
from agent_tts.text.phones import to_ipa
from agent_tts.voices.library import default_folder

MAX_RULES = 1_000  # of one dictionary
RULES_BYTES = 1_024 * MAX_RULES  # of a request with rules
MAX_VERSIONS = 8  # of one dictionary that are kept, the latest ones
MAX_NAME = 256  # characters
MAX_DESCRIPTION = 2_048  # characters

_ID = re.compile(r"[0-9a-f]{20}")
_TEMPORARY = ".temporary-"
_LOCK = ".lock"
_CACHED = 64  # compiled lexicons in memory


def _new_id() -> str:
    return secrets.token_hex(10)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a word or phrase is said."""

    written: str
    said: str  # an alias, or a transcription, whose phones may be parted by "|"
    alphabet: str | None = None  # of the transcription; None for an alias
    # Which capitals it is found in: any, as written, or also with a capital first letter if it has none.
    capitals: Literal["any", "written", "sentence"] = "written"
    whole_word: bool = True  # otherwise also within a word

    def entries(self) -> list[Entry]:
        """The entries of a lexicon. Raises `ValueError` for what they do not allow, and for an unknown alphabet."""
        entry = Entry(self.written, self.said, match_case=self.capitals != "any", whole_word=self.whole_word)
        if self.alphabet is not None:
            entry = replace(entry, alias=None, ipa=to_ipa(self.said.replace("|", ""), self.alphabet))
        entries = [entry]
        capital = self.written[:1].upper() + self.written[1:]
        if self.capitals == "sentence" and self.written == self.written.lower() != capital:
            entries.append(replace(entry, written=capital))
        return entries


@dataclass(frozen=True, slots=True)
class Version:
    """The rules of a dictionary at one time; of rules for one word the last counts."""

    id: str
    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Self:
        """A new version. Raises `InvalidRequest` for too many rules, and for those that cannot be followed."""
        version = cls(_new_id(), tuple(rules))
        if len(version.rules) > MAX_RULES:
            raise InvalidRequest(f"a dictionary has at most {MAX_RULES} rules", "rules")
        for number, rule in enumerate(version.rules):
            try:
                rule.entries()
            except ValueError as error:
                raise InvalidRequest(f"rules.{number}: {error}", "rules") from None
        return version


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A dictionary of a client."""

    id: str
    name: str
    created_at: datetime
    versions: tuple[Version, ...]  # oldest first; at least one
    description: str = ""
    archived_at: datetime | None = None

    @property
    def latest(self) -> Version:
        return self.versions[-1]

    def version(self, version_id: str | None = None) -> Version:
        """One of the versions that are kept, by default the latest. Raises `UnknownDictionary`."""
        for version in reversed(self.versions):
            if version_id in (None, version.id):
                return version
        raise UnknownDictionary(f"this dictionary has no such version; the last {MAX_VERSIONS} are kept")


_FILE = TypeAdapter(Dictionary)


class Dictionaries:
    """The dictionaries in a folder, at most `limit`; the folder is made when the first one is added.

    `all`, `add` and `change` may take a second of computing: any thread may call them.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._changing = threading.Lock()
        # By id: (inode, modification time) when read, and the dictionary.
        self._read: dict[str, tuple[tuple[int, int], Dictionary]] = {}
        # By the ids of versions, the oldest first.
        self._compiled: dict[tuple[str, ...], Lexicon] = {}

    @classmethod
    def of(cls, settings: config.Dictionaries) -> Self:
        """The dictionaries of these settings. Raises `SettingsError` if there is no absolute folder."""
        try:
            given = settings.folder
            folder = Path(given).expanduser() if given else default_folder().with_name("dictionaries")
        except RuntimeError as error:
            raise SettingsError("dictionaries.folder: there is no home folder; set an absolute path") from error
        if not folder.is_absolute():
            raise SettingsError("dictionaries.folder: it has to be absolute or start with ~")
        return cls(folder, settings.limit)

    def all(self) -> list[Dictionary]:
        """All dictionaries, the newest first; a damaged one is left out and logged."""
        found = []
        for name in self._names():
            try:
                found.append(self.get(name))
            except UnknownDictionary:  # damaged, or deleted meanwhile
                continue
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def get(self, dictionary_id: str) -> Dictionary:
        """The dictionary of an id; raises `UnknownDictionary` if there is none, or it is damaged."""
        path = self._path(dictionary_id)
        try:
            with path.open("rb") as file:
                at = os.fstat(file.fileno())
                identity = (at.st_ino, at.st_mtime_ns)
                known = self._read.get(dictionary_id)
                if known is None or known[0] != identity:
                    known = self._read[dictionary_id] = (identity, _FILE.validate_json(file.read()))
        except FileNotFoundError:
            self._read.pop(dictionary_id, None)
            raise _unknown() from None
        except (OSError, ValueError) as error:
            logger.warning("the dictionary {!r} is damaged and left out: {}", dictionary_id, type(error).__name__)
            raise UnknownDictionary("this pronunciation dictionary is damaged: delete it and add it again") from None
        return known[1]

    def lexicon(self, wanted: Sequence[tuple[str, str | None]]) -> Lexicon:
        """The lexicon of dictionaries, by id and version, where None is the latest; the first rule for a word counts.

        Raises `UnknownDictionary`.
        """
        versions = [self.get(dictionary_id).version(version_id) for dictionary_id, version_id in wanted]
        key = tuple(version.id for version in versions)
        lexicon = self._compiled.get(key)
        if lexicon is None:
            rules = (rule for version in reversed(versions) for rule in version.rules)
            lexicon = self._compiled[key] = Lexicon(entry for rule in rules for entry in rule.entries())
            if len(self._compiled) > _CACHED:
                del self._compiled[next(iter(self._compiled))]
        return lexicon

    def add(self, name: str, rules: Iterable[Rule], description: str = "") -> Dictionary:
        """Store a new dictionary.

        Raises:
            InvalidRequest: there are too many dictionaries, and see `Version.of`.
            StorageFull, Internal: the disk is full or refuses it.
        """
        version = Version.of(rules)
        with self._alone():
            if len(self._names()) >= self._limit:
                raise InvalidRequest(
                    f"this node stores {self._limit} pronunciation dictionaries at most: delete one first"
                )
            return self._store(Dictionary(_new_id(), name, datetime.now(UTC), (version,), description))

    def change(
        self,
        dictionary_id: str,
        *,
        name: str | None = None,
        rules: Iterable[Rule] | None = None,
        instead_of: Container[str] | None = None,
        is_archived: bool | None = None,
    ) -> Dictionary:
        """Change what is not None; rules make a new version. Raises `UnknownDictionary` and what `add` raises.

        Args:
            instead_of: the words whose rules `rules` replace; None: all.
        """
        self.get(dictionary_id)
        with self._alone():
            changed = self.get(dictionary_id)
            old = () if instead_of is None else changed.latest.rules
            kept = (rule for rule in old if instead_of is not None and rule.written not in instead_of)
            version = None if rules is None else Version.of((*kept, *rules))
            if name is not None:
                changed = replace(changed, name=name)
            if version is not None:
                changed = replace(changed, versions=(*changed.versions, version)[-MAX_VERSIONS:])
            if is_archived is not None:
                changed = replace(changed, archived_at=datetime.now(UTC) if is_archived else None)
            return self._store(changed)

    def delete(self, dictionary_id: str) -> None:
        """Delete a dictionary with all its versions. Raises `UnknownDictionary`, or `Internal` if the disk refuses."""
        with self._alone():
            self._read.pop(dictionary_id, None)
            try:
                self._path(dictionary_id).unlink()
            except FileNotFoundError:
                raise _unknown() from None
            except OSError as error:
                raise _refused("deleted", error) from error

    # ------------------------------------------------------------ inside

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads, and other processes of this machine, from changing a dictionary."""
        with self._changing, ExitStack() as locked:
            try:
                locked.enter_context(file_lock(self._folder / _LOCK))
            except BlockingIOError:
                raise Internal("another process changes the dictionaries: try again", retry_after_ms=1_000) from None
            except OSError as error:
                raise _refused("changed", error) from error
            yield

    def _names(self) -> list[str]:
        try:
            return [path.stem for path in self._folder.iterdir() if path.suffix == ".json" and _ID.fullmatch(path.stem)]
        except FileNotFoundError:
            return []

    def _path(self, dictionary_id: str) -> Path:
        if not _ID.fullmatch(dictionary_id):
            raise _unknown()
        return self._folder / f"{dictionary_id}.json"

    def _store(self, dictionary: Dictionary) -> Dictionary:
        path = self._path(dictionary.id)
        temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                temporary.write_bytes(_FILE.dump_json(dictionary))
                temporary.chmod(0o600)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise _refused("stored", error) from error
        return dictionary


def _unknown() -> UnknownDictionary:
    return UnknownDictionary("this node has no such pronunciation dictionary: add it first")


def _refused(what: str, error: OSError) -> StorageFull | Internal:
    logger.error("a pronunciation dictionary cannot be {}: {}", what, error.strerror)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"the dictionary cannot be {what}: the node's disk is full")
    return Internal(f"the dictionary cannot be {what}; the reason is in the node's log")
