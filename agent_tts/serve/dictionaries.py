"""Pronunciation dictionaries that clients keep on the node: a JSON file each, by id."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field

from agent_tts.config import settings as config
from agent_tts.errors import InvalidRequest, UnknownDictionary
from agent_tts.system.records import JsonRecords, folder_of, new_id
from agent_tts.system.threads import computing
from agent_tts.text.entries import Entry, Lexicon
from agent_tts.text.phones import to_ipa

MAX_RULES = 1_000  # of one dictionary
RULES_BYTES = 1_024 * MAX_RULES  # of a request with rules
MAX_VERSIONS = 8  # of one dictionary that are kept, the latest ones
KEPT_CHARS = 1 << 18  # of their rules; the latest two are kept however long they are
MAX_FILE_BYTES = 2 * RULES_BYTES * MAX_VERSIONS  # more than the longest one has
MAX_NAME = 256  # characters
MAX_DESCRIPTION = 2_048  # characters

_CACHED = 4 << 20  # characters of the compiled rules in memory, where they take five times as much
_LOADED = 8  # of one connection: texts that wait may each have others


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

    @property
    def chars(self) -> int:
        return sum(len(rule.written) + len(rule.said) for rule in self.rules)

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Self:
        """A new version. Raises `InvalidRequest` for too many rules, and for those that cannot be followed."""
        with computing:
            version = cls(new_id(), tuple(rules))
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
    created_at: AwareDatetime
    versions: Annotated[tuple[Version, ...], Field(min_length=1)]  # oldest first
    description: str = ""
    archived_at: AwareDatetime | None = None

    @property
    def latest(self) -> Version:
        return self.versions[-1]

    def version(self, version_id: str | None = None) -> Version:
        """One of the versions that are kept, by default the latest. Raises `UnknownDictionary`."""
        for version in reversed(self.versions):
            if version_id in (None, version.id):
                return version
        raise UnknownDictionary(f"this dictionary has no such version; at most {MAX_VERSIONS} are kept, the last ones")


Wanted = Sequence[tuple[str, str | None]]  # ids of dictionaries, and of their versions; None: the latest


class Dictionaries:
    """The dictionaries in a folder, at most `limit`; the folder is made when the first one is added.

    All may take a second of computing, or wait for other processes: threads call them.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.records = JsonRecords(
            folder, "pronunciation dictionary", Dictionary, UnknownDictionary, limit=limit, max_bytes=MAX_FILE_BYTES
        )
        # They are kept by the ids of versions, the oldest first, each with the characters of its rules.
        self._compiled: dict[tuple[str, ...], tuple[Lexicon, int]] = {}

    @classmethod
    def of(cls, settings: config.DictionarySettings) -> Self:
        """The dictionaries of these settings. Raises `SettingsError` if there is no absolute folder."""
        return cls(folder_of("dictionaries.folder", settings.folder, "dictionaries"), settings.limit)

    def all(self) -> list[Dictionary]:
        """All dictionaries, the newest first; a damaged one is left out and logged."""
        return sorted(self.records.all(), key=lambda each: (each.created_at, each.id), reverse=True)

    def lexicon(self, wanted: Wanted) -> Lexicon:
        """The lexicon of dictionaries, by id and version, where None is the latest; the first rule for a word counts.

        Raises `UnknownDictionary`.
        """
        versions = [self.records.by_id(dictionary_id).version(version_id) for dictionary_id, version_id in wanted]
        key = tuple(version.id for version in versions)
        if found := self._compiled.get(key):
            return found[0]
        with computing:
            if found := self._compiled.get(key):  # others have waited for the same
                return found[0]
            rules = (rule for version in reversed(versions) for rule in version.rules)
            try:
                lexicon = Lexicon(entry for rule in rules for entry in rule.entries())
            except ValueError:  # a rule in a file that others write
                raise UnknownDictionary("a pronunciation dictionary is damaged: delete it and add it again") from None
            self._compiled[key] = lexicon, sum(version.chars for version in versions)
            kept = sum(size for _, size in self._compiled.values())
            while len(self._compiled) > 1 and kept > _CACHED:
                kept -= self._compiled.pop(next(iter(self._compiled)))[1]
        return lexicon

    def add(self, name: str, rules: Iterable[Rule], description: str = "") -> Dictionary:
        """Store a new dictionary.

        Raises:
            InvalidRequest: there are too many dictionaries, and see `Version.of`.
            StorageFull, Internal: the disk is full or refuses it.
        """
        return self.records.add(Dictionary(new_id(), name, datetime.now(UTC), (Version.of(rules),), description))

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

        def changed(found: Dictionary) -> Dictionary:
            if name is not None:
                found = replace(found, name=name)
            if rules is not None:
                old = () if instead_of is None else found.latest.rules
                kept = [rule for rule in old if rule.written not in (instead_of or ())]
                versions = (*found.versions, Version.of((*kept, *rules)))[-MAX_VERSIONS:]
                while len(versions) > 2 and sum(one.chars for one in versions) > KEPT_CHARS:
                    versions = versions[1:]
                found = replace(found, versions=versions)
            if is_archived is not None:
                found = replace(found, archived_at=datetime.now(UTC) if is_archived else None)
            return found

        return self.records.change(dictionary_id, changed)


class LoadedDictionaries:
    """The dictionaries, as one connection uses them: a thread loads what a message names, before it is obeyed."""

    def __init__(self, dictionaries: Dictionaries) -> None:
        self._dictionaries = dictionaries
        # What was wanted last, and its lexicon or why there is none.
        self._loaded: dict[tuple[tuple[str, str | None], ...], Lexicon | str] = {}

    def load(self, wanted: Wanted) -> None:
        """Read and compile; for a thread."""
        try:
            found: Lexicon | str = self._dictionaries.lexicon(wanted)
        except UnknownDictionary as error:
            found = error.message
        self._loaded.pop(tuple(wanted), None)
        self._loaded[tuple(wanted)] = found
        if len(self._loaded) > _LOADED:
            del self._loaded[next(iter(self._loaded))]

    def lexicon(self, wanted: Wanted) -> Lexicon:
        """See `Dictionaries.lexicon`; of what was loaded, because it may be asked by the event loop."""
        found = self._loaded.get(tuple(wanted), "name the pronunciation dictionaries again, with the text")
        if isinstance(found, str):
            raise UnknownDictionary(found)
        return found
