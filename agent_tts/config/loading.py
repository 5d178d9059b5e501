"""`Settings` from flags, the environment and a YAML file, and YAML from `Settings`.

Strongest first: flags, `AGENT_TTS_*` variables (`AGENT_TTS_LIMITS__CONNECTIONS=64` is `limits.connections`), the file,
the defaults. An unknown key is an error that names the nearest known key and says where it was written.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

import agent_tts
from agent_tts.config.settings import ENV_PREFIX, Section, Settings, is_of_environment
from agent_tts.errors import SettingsError
from agent_tts.protocol.validation import Complaint

# What a document of YAML may have: a lexicon of 10 000 words has 60 000 values. A number has fewer characters.
MAX_YAML_BYTES, MAX_YAML_VALUES, MAX_NUMBER = 4 * 1024 * 1024, 200_000, 100

# Variables of the commands that talk to a node, which are not settings.
CLIENT_VARIABLES = frozenset({"AGENT_TTS_URL", "AGENT_TTS_KEY"})


def _fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield prefix + name, field
        if _is_section(field):
            yield from _fields(field.annotation, f"{prefix}{name}.")  # pyrefly: ignore[bad-argument-type]


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


# Every dotted key, sections included, in the order of their definition.
FIELDS: dict[str, FieldInfo] = dict(_fields(Settings))

_KEYS_BY_LAST_NAME = {key.rpartition(".")[2]: key for key in FIELDS}


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    sources: dict[str, str]  # dotted key -> "flag", "environment" or the file's name; no entry for a default


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str  # dotted
    value: Any
    source: str  # for `Loaded.sources`

    @property
    def written(self) -> str:
        """The key as messages tell it."""
        if self.source == "environment":
            return _spelt(self.key, self.source)
        return f"{self.key} on the command line" if self.source == "flag" else f"{self.key} in {self.source}"


def load_settings(
    config: Path | None = None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Settings from a YAML file, then `environ`, then `overrides` by dotted keys; a later source is stronger.

    Raises SettingsError, with one line for each problem: the key, what is wrong, what is allowed.
    """
    return load(config, overrides, environ).settings


def load(
    config: Path | None = None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Loaded:
    """Like `load_settings`, with the source of each value."""
    found = [] if config is None else [_Entry(*pair, config.name) for pair in _from_file(config)]
    found += [_Entry(*pair, "environment") for pair in _from_environment(environ)]
    found += [_Entry(*pair, "flag") for pair in (overrides or {}).items()]
    entries = [_parsed(entry) for entry in found]
    if wrong := [line for entry in entries if (line := _key_error(entry))]:
        raise SettingsError("\n".join(wrong))
    tree: dict[str, Any] = {}
    for entry in entries:
        *sections, name = entry.key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = entry.value
    strongest = {entry.key: entry for entry in entries}
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError("\n".join(_value_errors(error, strongest))) from None
    return Loaded(settings, {key: entry.source for key, entry in strongest.items()})


# ---------------------------------------------------------------- sources


def find_config(name: str | None) -> Path | None:
    """The file that `--config` names: a path, or a name of one in the package ("cpu"). Raises SettingsError: none."""
    if name is None:
        return None
    path = Path(name)
    if path.is_file():
        return path
    shipped = {found.stem: found for found in sorted(data_folder("configs").glob("*.yaml"))}
    if name in shipped:
        return shipped[name]
    wrong = "a folder, not a file" if path.is_dir() else "no such file"
    raise SettingsError(f"--config {name}: {wrong}; the package has {', '.join(shipped)}")


def data_folder(name: str) -> Path:
    """`configs`, `pipelines` or `web`: in the installed package, or beside it in a checkout."""
    package = Path(agent_tts.__file__).parent
    return next(place for place in (package / name, package.parent / name) if place.is_dir())


def _from_file(path: Path) -> Iterator[tuple[str, Any]]:
    tree = read_yaml_file(path)
    if tree is not None and not isinstance(tree, dict):
        raise SettingsError(f"{path.name}: must be keys with values, like `port: 8100`")
    return _flat(tree or {})


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted keys. An empty section gives none; a section that is a scalar is kept, for `_key_error`."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        field = FIELDS.get(key)
        if field is not None and _is_section(field) and (value is None or isinstance(value, dict)):
            yield from _flat(value or {}, f"{key}.")
        else:
            yield key, value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in environ.items():
        if is_of_environment(name) and name.upper() not in CLIENT_VARIABLES:
            yield name[len(ENV_PREFIX) :].lower().replace("__", "."), text


def read_yaml_file(path: Path) -> Any:
    """What is in a file, by `read_yaml`. Raises SettingsError, which names the file, and the line where it can."""
    try:
        with path.open("rb") as file:
            return read_yaml(file.read(MAX_YAML_BYTES + 1).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name}: cannot be read: {getattr(error, 'strerror', 'not UTF-8')}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{path.name}: not YAML{where}: {getattr(error, 'problem', 'unreadable')}") from None


def read_yaml(text: str | bytes) -> Any:
    """What is in a document of an operator's. It takes memory as the text is long, whatever it makes of itself.

    Raises yaml.YAMLError: it is no document, or too long, too deep, or too large with all that it names by aliases.
    """
    if len(text) > MAX_YAML_BYTES:
        raise yaml.MarkedYAMLError(problem=f"it has more than {MAX_YAML_BYTES} bytes")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _named(node, {}) > MAX_YAML_VALUES:
            raise yaml.MarkedYAMLError(problem=f"it has more than {MAX_YAML_VALUES} values, with those of aliases")
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="it is nested too deep") from None
    except ValueError as error:  # of a number or a date, which has the form of one alone
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    finally:
        loader.dispose()


_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`, which may stand there for each of several


def _named(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node has, those of aliases and merges as often as they are named."""
    if (count := known.get(id(node))) is None:
        known[id(node)] = MAX_YAML_VALUES  # of one that names itself, which has no end
        if isinstance(node, yaml.ScalarNode):
            try:  # JSON writes a character beyond U+FFFF as two escapes, which PyYAML takes for two characters
                node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                half = "an escape \\uD800 to \\uDFFF is half of a character"
                raise yaml.MarkedYAMLError(problem=half, problem_mark=node.start_mark) from None
            if "\0" in node.value:  # in no path, address or name
                raise yaml.MarkedYAMLError(problem="a NUL character", problem_mark=node.start_mark)
            if len(node.value) > MAX_NUMBER and node.tag.endswith((":int", ":float", ":timestamp")):
                raise yaml.MarkedYAMLError(problem="a number is too long", problem_mark=node.start_mark)
            inside = 0
        elif isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE]
            counts = Counter((key.tag, key.value) for key in keys)
            if len(keys) > len(counts):  # of two sections PyYAML would take the last alone
                twice = next(key for key in reversed(keys) if counts[key.tag, key.value] > 1)
                why = f"{twice.value[:MAX_NUMBER]!r} stands there twice"
                raise yaml.MarkedYAMLError(problem=why, problem_mark=twice.start_mark)
            inside = sum(_named(key, known) + _named(value, known) for key, value in node.value)
        else:
            inside = sum(_named(each, known) for each in node.value)
        count = known[id(node)] = 1 + inside
    return count


# ---------------------------------------------------------------- names and strings


def _spelt(key: str, source: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__") if source == "environment" else key


def _parsed(entry: _Entry) -> _Entry:
    """A string of a variable or a flag: kept for a text, split at commas for a list of texts, else read as YAML."""
    field, text = FIELDS.get(entry.key), entry.value
    if field is None or entry.source not in ("environment", "flag") or not isinstance(text, str):
        return entry
    if get_origin(field.annotation) is tuple and not text.lstrip().startswith("["):
        return replace(entry, value=tuple(part.strip() for part in text.split(",") if part.strip()))
    if field.annotation is str or isinstance(next(iter(get_args(field.annotation)), None), str):
        return entry
    try:
        return replace(entry, value=read_yaml(text))
    except yaml.YAMLError:
        return entry  # pydantic refuses it


# ---------------------------------------------------------------- errors


def _key_error(entry: _Entry) -> str | None:
    """What is wrong with the key of an entry, or None."""
    field = FIELDS.get(entry.key)
    if field is None:
        return f"{entry.written}: there is no such setting; {_suggestion(entry)}"
    if _is_section(field):
        first = next(key for key in FIELDS if key.startswith(f"{entry.key}."))
        return f"{entry.written}: this is a section: set one of its keys, like {first}"
    if isinstance(entry.value, str) and entry.value != entry.value.encode("utf-8", "replace").decode():
        return f"{entry.written}: not UTF-8"  # by which other processes get it
    return None


def _suggestion(entry: _Entry) -> str:
    if near := difflib.get_close_matches(entry.key, FIELDS, n=1):
        return f"did you mean {_spelt(near[0], entry.source)}?"
    if near := difflib.get_close_matches(entry.key.rpartition(".")[2], _KEYS_BY_LAST_NAME, n=1):
        return f"did you mean {_spelt(_KEYS_BY_LAST_NAME[near[0]], entry.source)}?"
    return "`agent-tts serve --print-config` shows all"


def _value_errors(error: ValidationError, strongest: Mapping[str, _Entry]) -> Iterator[str]:
    """One line for each error, without the values of secrets."""
    for found in error.errors(include_url=False):
        path, _, what = Complaint.of(found)
        if not path:
            yield what
            continue
        key = next((key for n in (3, 2, 1) if (key := ".".join(path[:n])) in FIELDS), path[0])
        written = strongest[key].written if key in strongest else key
        inside = path[key.count(".") + 1 :]
        got = "" if _is_secret(key) or isinstance(found["input"], (dict, list, tuple)) else f", not {found['input']!r}"
        meaning = FIELDS[key].description
        where = f"{written}, item {'.'.join(inside)}" if inside else written
        yield f"{where}: {what}{got}" + (f" ({meaning})" if meaning else "")


def _is_secret(key: str) -> bool:
    """Whether a value under `key` may be a secret, or hold one."""
    return key in ("ice_servers", "auth.keys") or SecretStr in get_args(FIELDS[key].annotation)


# ---------------------------------------------------------------- to YAML


def to_yaml(loaded: Loaded) -> str:
    """The settings as a file for `--config`, with secrets masked; each value has its meaning and source beside it."""
    tree = loaded.settings.model_dump(mode="json")
    return "\n".join(_yaml_lines(Settings, tree, loaded.sources)) + "\n"


def _yaml_lines(
    section: type[Section], tree: Mapping[str, Any], sources: Mapping[str, str], prefix: str = ""
) -> Iterator[str]:
    for name, field in section.model_fields.items():
        key = prefix + name
        if _is_section(field):
            yield f"{name}:"
            inner: type[Section] = field.annotation  # pyrefly: ignore[bad-assignment]
            yield from (f"  {line}" for line in _yaml_lines(inner, tree[name], sources, f"{key}."))
            continue
        text = yaml.safe_dump(tree[name], default_flow_style=True, sort_keys=False, width=10_000).splitlines()[0]
        yield f"{name}: {text}  # {field.description} [{sources.get(key, 'default')}]"
