"""A checkpoint's JSON files: objects as typed dataclasses, and which files hold its weights.

Errors say which file and which entry. No torch here: `config.hub` checks checkpoints in processes without it.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import typing
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Any, Literal, Self, TypeVar

from agent_tts.errors import SettingsError

T = TypeVar("T")
Shape = tuple[int, ...]

# A file in the folder of the index.
_SHARD = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


MAX_MESSAGE = 2_000  # characters
MAX_JSON_BYTES = 16 << 20  # an index of the released models has 0.1 MB


def brief(value: object) -> str:
    """A value of a file for an error message; a long one without its middle."""
    return _BRIEF.repr(value)


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 120


class CheckpointError(SettingsError):
    """A checkpoint that cannot be used; the message names the file, the entry, and what is wrong with it.

    Of a message longer than `MAX_MESSAGE` the end is left out: names in a file may be of any length.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}...")


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object, and its place for error messages."""

    entries: dict[str, Any]
    where: str

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """The object that a file of a folder holds, of `MAX_JSON_BYTES` at most."""
        if not (folder / name).is_file():
            raise CheckpointError(f"{name}: missing from the checkpoint")
        with (folder / name).open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise CheckpointError(f"{name}: more than {MAX_JSON_BYTES >> 20} MiB")
        try:
            entries = json.loads(data.decode())
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deep
            raise CheckpointError(f"{name}: not valid JSON: {error}") from error
        if not isinstance(entries, dict):
            raise CheckpointError(f"{name}: has to be an object")
        return cls(entries, name)

    def section(self, entry: str) -> JsonObject:
        """The object that an entry holds; an empty one where it is left out or null."""
        inner = self.entries.get(entry)
        where = f"{self.where}: {entry}"
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise CheckpointError(f"{where}: has to be an object")
        return JsonObject(inner, where)

    def require(self, entry: str, value: object, *, default: object = None) -> None:
        """Refuses any other value of an entry; `default` is what leaving it out means."""
        found = self.entries.get(entry, default)
        if found != value:
            raise CheckpointError(f"{self.where}: {entry} is {brief(found)}; only {value!r} is supported")

    def typed(self, kind: type[T], **others: object) -> T:
        """A dataclass from the entries of the same names, and `others`. Other entries are ignored."""
        hints = typing.get_type_hints(kind)
        own = [field for field in fields(kind) if field.name not in others]  # pyrefly: ignore[bad-argument-type]
        needed = [field for field in own if field.default is MISSING and field.default_factory is MISSING]
        missing = [field.name for field in needed if field.name not in self.entries]
        if missing:
            raise CheckpointError(f"{self.where}: missing {', '.join(missing)}")
        values = {
            field.name: _value(hints[field.name], self.entries[field.name], f"{self.where}: {field.name}")
            for field in own
            if field.name in self.entries
        }
        return kind(**values, **others)


def _value(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as a field's type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict and isinstance(value, dict):
        return {name: _value(arguments[1], entry, f"{where}: {name}") for name, entry in value.items()}
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], entry, where) for entry in value)
    with suppress(OverflowError):
        if _fits(kind, value):
            return float(value) if kind is float else value
    raise CheckpointError(f"{where}: {brief(value)} is not {getattr(kind, '__name__', kind)}")


def _fits(kind: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (UnionType, typing.Union):
        return any(_fits(option, value) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in arguments)
    if kind in (int, float):  # in Python, true and false are numbers
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return origin is None and isinstance(value, kind)


def index_of(weights: str) -> str:
    """The name of the index that replaces a weights file."""
    return f"{weights}.index.json"


def read_index(folder: Path, weights: str) -> dict[str, str]:
    """Name of each tensor -> the file of the folder that has it, beside the index of `weights`.

    Raises CheckpointError: it is not an index.
    """
    index = index_of(weights)
    shards = JsonObject.load(folder, index).section("weight_map").entries
    if not shards:
        raise CheckpointError(f"{index}: weight_map names no tensors")
    for name, shard in shards.items():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise CheckpointError(f"{index}: {name} is in {brief(shard)}, not in a .safetensors file beside the index")
    return {name: PurePosixPath(weights).with_name(shard).as_posix() for name, shard in shards.items()}


def tensor_shapes(folder: Path, weights: str, most: int | None = None) -> dict[str, Shape]:
    """The shape of each tensor, by the header of a file of a folder, which may have `most` bytes, None any.

    Raises CheckpointError: the file is missing, too large, or not safetensors.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / weights
    if not path.is_file():
        raise CheckpointError(f"{weights}: missing from the checkpoint; only safetensors are read")
    if not os.access(path, os.R_OK):  # safetensors says it were not there, and writes files like this
        raise CheckpointError(f"{weights}: this user may not read it: chmod a+r")
    if most is not None and path.stat().st_size > most:
        raise CheckpointError(f"{weights}: more than {most >> 20} MiB")
    try:
        with safe_open(path, "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{weights}: not a safetensors file: {error}") from error
