"""From the command line, the environment and a YAML file to `Settings`, and back to YAML for people to read.

Strongest first: flags, `AGENT_TTS_*` variables (`AGENT_TTS_LIMITS__CONNECTIONS=64` is `limits.connections`), the file,
the defaults. A key that does not exist is an error that names the nearest one that does, and where it was written.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from loguru import logger
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

import agent_tts
from agent_tts.config.settings import ENV_PREFIX, Section, Settings
from agent_tts.errors import SettingsError
from agent_tts.protocol.validation import Complaint

# Variables of the commands that talk to a node, which are not settings.
CLIENT_VARIABLES = frozenset({"AGENT_TTS_URL", "AGENT_TTS_KEY"})

# Old keys that work for one more version in files, variables and flags, with the key that replaced each.
RENAMED = {"qwen3.positions": "qwen3.max_model_len"}


def _fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key with its dots, sections included, in the order of their definition."""
    for name, field in section.model_fields.items():
        yield prefix + name, field
        if _is_section(field):
            yield from _fields(field.annotation, f"{prefix}{name}.")  # type: ignore[arg-type]


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


FIELDS: dict[str, FieldInfo] = dict(_fields(Settings))


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each of them comes from."""

    settings: Settings
    sources: dict[str, str]  # key with dots -> "flag", "environment" or the file's name; defaults are not in it


@dataclass(frozen=True, slots=True)
class _Value:
    """One value as somebody wrote it."""

    key: str  # with dots
    value: Any
    source: str  # for `Loaded.sources`
    written: str  # how the key is spelt there, for error messages


def load_settings(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from a YAML file, then `environ`, then `overrides` by keys with dots; the later the stronger.

    Raises:
        SettingsError: one line for each thing that is wrong: the key, what is wrong, what is allowed.
    """
    return load(config, overrides, environ).settings


def load(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """Like `load_settings`, with the source of each value."""
    found = [*_from_file(config), *_from_environment(environ), *_from_flags(overrides or {})]
    values = [_parsed(_renamed(value)) for value in found]
    if wrong := [line for value in values if (line := _misplaced(value))]:
        raise SettingsError("\n".join(wrong))
    tree: dict[str, Any] = {}
    strongest: dict[str, _Value] = {}
    for value in values:
        *sections, name = value.key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value.value
        strongest[value.key] = value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError("\n".join(_complaints(error, strongest))) from None
    return Loaded(settings, {key: value.source for key, value in strongest.items()})


# ---------------------------------------------------------------- sources


def find_config(name: str) -> Path:
    """The file that `--config` names: a path, or the name of a configuration that comes with the package ("cpu").

    Raises:
        SettingsError: there is none; the message lists those of the package.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = {found.stem: found for found in sorted(_configs_folder().glob("*.yaml"))}
    if name in shipped:
        return shipped[name]
    raise SettingsError(f"--config {name}: no such file; the package has {', '.join(shipped)}")


def _configs_folder() -> Path:
    """In the installed package, or beside it in a checkout."""
    package = Path(agent_tts.__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def _from_file(path: Path | None) -> Iterator[_Value]:
    if path is None:
        return
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name}: cannot be read: {getattr(error, 'strerror', 'not UTF-8')}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{path.name}: not YAML{where}: {getattr(error, 'problem', 'unreadable')}") from None
    if tree is None:
        return
    if not isinstance(tree, dict):
        raise SettingsError(f"{path.name}: must be keys with values, like `port: 8100`")
    for key, value in _flat(tree):
        yield _Value(key, value, path.name, f"{key} in {path.name}")


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by keys with dots. A section without values is nothing; one with a value of its own stays for pydantic."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        field = FIELDS.get(key)
        if field is not None and _is_section(field) and (value is None or isinstance(value, dict)):
            yield from _flat(value or {}, f"{key}.")
        else:
            yield key, value


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Value]:
    for name, text in environ.items():
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in CLIENT_VARIABLES:
            key = name[len(ENV_PREFIX) :].lower().replace("__", ".")
            yield _Value(key, text, "environment", name)


def _from_flags(overrides: Mapping[str, Any]) -> Iterator[_Value]:
    for key, value in overrides.items():
        yield _Value(key, value, "flag", f"{key} on the command line")


# ---------------------------------------------------------------- names and strings


def _renamed(value: _Value) -> _Value:
    if value.key not in RENAMED:
        return value
    key = RENAMED[value.key]
    _warn_of_new_name(value.written, _spelt(key, value.source))
    return replace(value, key=key)


@cache  # says it once
def _warn_of_new_name(written: str, new: str) -> None:
    logger.warning("{} is called {} now; the old name will go with the next version", written, new)


def _spelt(key: str, source: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__") if source == "environment" else key


def _parsed(value: _Value) -> _Value:
    """A string from a variable or a flag becomes what its setting takes; values of files are typed by YAML."""
    if value.source not in ("environment", "flag") or not isinstance(value.value, str):
        return value
    return replace(value, value=_parse(FIELDS.get(value.key), value.value))


def _parse(field: FieldInfo | None, text: str) -> Any:
    """A value out of a string: as it is where text is wanted, split at commas for lists of text, else as YAML."""
    if field is None:
        return text
    if get_origin(field.annotation) is tuple and not text.lstrip().startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if _takes_text(field):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # for pydantic to complain about


def _takes_text(field: FieldInfo) -> bool:
    return field.annotation is str or isinstance(next(iter(get_args(field.annotation)), None), str)


# ---------------------------------------------------------------- complaints


def _misplaced(value: _Value) -> str | None:
    """What is wrong with the key of a value, or None."""
    field = FIELDS.get(value.key)
    if field is None:
        return _unknown(value)
    if _is_section(field):
        return f"{value.written}: this is a section: set one of its keys, like {value.key}.{_names(field)[0]}"
    return None


def _names(section: FieldInfo) -> list[str]:
    return list(section.annotation.model_fields)  # type: ignore[union-attr]


def _unknown(value: _Value) -> str:
    near = difflib.get_close_matches(value.key, FIELDS, n=1) or difflib.get_close_matches(
        value.key.rpartition(".")[2], _by_last_name(), n=1
    )
    if not near:
        return f"{value.written}: there is no such setting; `agent-tts serve --print-config` shows all"
    key = near[0] if near[0] in FIELDS else _by_last_name()[near[0]]
    return f"{value.written}: there is no such setting; did you mean {_spelt(key, value.source)}?"


def _by_last_name() -> dict[str, str]:
    return {key.rpartition(".")[2]: key for key in FIELDS}


def _complaints(error: ValidationError, strongest: Mapping[str, _Value]) -> Iterator[str]:
    """One line for each error. The values of secrets are never repeated."""
    for found in error.errors(include_url=False):
        path, _, what = Complaint.of(found)
        if not path:
            yield what
            continue
        key = next((key for n in (3, 2, 1) if (key := ".".join(path[:n])) in FIELDS), path[0])
        written = strongest[key].written if key in strongest else key
        inside = path[key.count(".") + 1 :]
        got = "" if _is_secret(key) or isinstance(found["input"], dict | list | tuple) else f", not {found['input']!r}"
        meaning = FIELDS[key].description
        where = f"{written}, item {'.'.join(inside)}" if inside else written
        yield f"{where}: {what}{got}" + (f" ({meaning})" if meaning else "")


def _is_secret(key: str) -> bool:
    """Whether a value under `key` may be one; also tells of sections and lists that hold one."""
    return key == "ice_servers" or SecretStr in get_args(FIELDS[key].annotation)


# ---------------------------------------------------------------- to YAML


def to_yaml(loaded: Loaded) -> str:
    """The settings as a file that `--config` takes, but for its masked secrets; each with its meaning and source."""
    tree = loaded.settings.model_dump(mode="json")
    return "\n".join(_yaml_lines(Settings, tree, loaded.sources)) + "\n"


def _yaml_lines(
    section: type[Section], tree: Mapping[str, Any], sources: Mapping[str, str], prefix: str = ""
) -> Iterator[str]:
    for name, field in section.model_fields.items():
        key = prefix + name
        if _is_section(field):
            yield f"{name}:"
            inner: type[Section] = field.annotation  # type: ignore[assignment]
            yield from (f"  {line}" for line in _yaml_lines(inner, tree[name], sources, f"{key}."))
            continue
        value = tree[name]
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).splitlines()[0]
        source = sources.get(key, "default")
        yield f"{name}: {text}  # {field.description} [{source}]"
