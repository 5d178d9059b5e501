"""Import rules and forbidden calls: layers import in one direction, the front imports no heavy libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

import agent_tts

PACKAGE = Path(agent_tts.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Allowed imports by folder; every folder may import the core files at the top of the package.
LAYERS = {
    "system": set(),
    "sound": set(),
    "config": {"model", "protocol", "text"},  # files with a checkpoint's weights; validation errors; lexicons
    "protocol": {"text"},
    "client": {"config", "protocol"},
    "text": set(),
    "voices": {"config", "model", "sound", "system", "text"},  # runs in a child process: the front has no torch
    "model": {"system"},
    "engine": {"config", "model", "sound", "system", "text", "voices"},
    "ipc": {"config", "engine", "system"},  # the child runs the engine's loop
    "speech": {"protocol", "sound", "text", "voices"},  # rules for numbers and abbreviations in text
    "serve": {"config", "ipc", "protocol", "sound", "speech", "system", "text", "voices"},
    "integrations": {"client", "config", "protocol", "serve", "speech", "system", "text"},
    "agent": {"config", "integrations", "ipc", "protocol", "serve", "speech", "system", "voices"},
    "doctor": {"config", "engine", "serve", "speech", "system", "voices"},
    "cluster": {"config", "serve", "system"},  # `ray` is imported by nothing else
    "bench": {"client", "config", "doctor", "engine", "model", "protocol", "serve", "sound", "system", "voices"},
}

# What is around the core, and may import all of it; and the files at the top that the core may import.
SURROUNDINGS = {"agent", "bench", "cli", "client", "cluster", "doctor", "integrations"}
TOP = {"directives", "engine_info", "errors", "forecast", "messages", "options"}
ENTRANCES = {"__init__", "__main__", "livekit", "pipecat"}

# The rooms of `serve/`, and the files between them: each imports only what stands before it.
ROOMS = [
    {"connections", "dictionaries", "fronts", "local_engine", "openai", "token_bucket"},
    {"telemetry"},
    {"access"},
    {"node"},
    {"session"},
    {"transports"},
    {"routes"},
    {"dialects"},
    {"app"},
    {"processes"},
]

BANNED_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "requests", "urllib.request"}
BANNED_CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "torch.load", "urlopen", "time.time"}


@dataclass
class Source:
    """What the rules ask of a file. The syntax trees of all files take 110 MB, which is why none is kept."""

    imports: set[str] = field(default_factory=set)  # modules, at any place in it
    calls: set[str] = field(default_factory=set)
    dangers: set[str] = field(default_factory=set)  # calls that must not be
    launches: int = 0  # calls of `kernel[grid]`
    classes: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # that it gives to functions, variables and attributes of its own
    words: set[str] = field(default_factory=set)  # of its strings
    private: set[tuple[str, str]] = field(default_factory=set)  # attributes with `_`: the name, and the expression

    def add(self, node: ast.AST) -> None:
        """Count a node of its syntax tree."""
        match node:
            case ast.Import(names=names):
                self.imports |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                self.imports |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case ast.Call(func=func, keywords=keywords):
                self.launches += isinstance(func, ast.Subscript)
                called = ast.unparse(func)
                given = {
                    word.arg: ast.unparse(word.value) for word in keywords if word.arg in ("shell", "weights_only")
                }
                self.calls.add(called)
                # With `weights_only` a file cannot run code.
                if called in BANNED_CALLS and not (called == "torch.load" and given.get("weights_only") == "True"):
                    self.dangers.add(called)
                if given.get("shell", "False") != "False":
                    self.dangers.add(f"{called} with a shell")
            case ast.ClassDef(name=name):
                self.classes.append(name)
            case ast.Constant(value=str(text)):
                self.words |= set(text.split())
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                self.names.add(name)
            case ast.Attribute(attr=name):
                if isinstance(node.ctx, ast.Store) and ast.unparse(node) == f"self.{name}":
                    self.names.add(name)
                if name.startswith("_") and not name.endswith("__"):
                    self.private.add((name, ast.unparse(node)))


@cache
def source(path: Path) -> Source:
    found = Source()
    for node in ast.walk(ast.parse(path.read_text())):
        found.add(node)
    return found


def imports(path: Path) -> set[str]:
    return source(path).imports


def importers(library: str) -> set[str]:
    """Files of the package that import a library or a part of it."""
    return {name_of(path) for path in FILES if any(used.split(".")[0] == library for used in imports(path))}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def package_of(module: str) -> str | None:
    """The sub-package of agent_tts that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "agent_tts" and (PACKAGE / parts[1]).is_dir() else None


def test_imports_go_one_way() -> None:
    upward = {
        f"{name_of(path)} imports {used}"
        for layer, allowed in LAYERS.items()
        for path in (PACKAGE / layer).rglob("*.py")
        for used in {package_of(module) for module in imports(path)} - {None, layer} - allowed
    }
    assert not upward


def module_of(path: Path) -> str:
    """The name by which a file is imported."""
    parts = ("agent_tts", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_import_circle() -> None:
    """Imports for types count too."""
    modules = {module_of(path): path for path in FILES}
    found = {name: imports(path) & modules.keys() - {name, "agent_tts"} for name, path in modules.items()}
    # `from package import module` imports only the module.
    graph = {name: used - {one.rpartition(".")[0] for one in used} for name, used in found.items()}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_dangerous_call_or_import() -> None:
    dangers = {path: source(path).dangers | (imports(path) & BANNED_MODULES) for path in FILES}
    assert not {f"{name_of(path)}: {danger}" for path, found in dangers.items() for danger in found}


def test_all_routes_read_their_bodies_at_one_door() -> None:
    ways = {*(f"request.{way}" for way in ("body", "json", "form", "stream")), "read_body"}
    calls = {f"{name_of(path)}: {call}" for path in FILES for call in source(path).calls & ways}
    assert calls == {"serve/routes/http.py: request.stream", "serve/routes/http.py: read_body"}


def test_kernels_are_launched_only_by_launch() -> None:
    """A kernel that is launched without `launch` would not be compiled ahead."""
    files = [path for path in (PACKAGE / "model").rglob("*.py") if "triton" in imports(path)]
    launches = {name_of(path): count for path in files if (count := source(path).launches)}
    assert launches == {"model/kernels/launch.py": 1}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.node
@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        pytest.param(
            "agent_tts.serve.processes.run, agent_tts.serve.app, agent_tts.serve.processes.front",
            "torch transformers triton qwen_tts matplotlib",
            id="a front",
        ),
        # The supervisor carries no audio: its memory and its start are those of a few sockets. With one front the
        # engines are spawned before the server is imported.
        pytest.param(
            "agent_tts.cli.app, agent_tts.cli.serve, "
            "agent_tts.serve.processes.run, agent_tts.serve.processes.supervisor",
            "fastapi starlette uvicorn aiortc av torch transformers pipecat",
            id="the supervisor",
        ),
        pytest.param("agent_tts.ipc.child, agent_tts.engine.espeak.engine", "fastapi uvicorn aiortc", id="an engine"),
        pytest.param("agent_tts.engine.vox.engine", "torch triton transformers", id="vox"),
    ],
)
def test_a_process_never_imports(modules: str, heavy: str) -> None:
    assert not loaded_by(f"import {modules}") & set(heavy.split())


def test_libraries_are_imported_only_where_they_belong() -> None:
    """transformers by the comparison with the reference and for a model of speakers that a user names: a user's own
    version stands in no conflict with the node. OpenTelemetry where it is turned on. Pipecat and LiveKit by their own
    packages."""
    assert importers("transformers") == {"bench/peer_process.py", "bench/quality.py"}
    tracing = {f"serve/telemetry/{name}.py" for name in ("spans", "tracing")}
    assert importers("opentelemetry") == {"bench/trace.py", *tracing}
    assert {name.split("/")[0] for name in importers("pipecat")} == {"agent", "integrations"}
    assert all(name == "livekit.py" or "integrations/livekit" in name for name in importers("livekit"))
    livekit = {name_of(path) for path in FILES if "agent_tts.integrations.livekit" in imports(path)}
    assert all(name == "livekit.py" or "integrations/livekit" in name for name in livekit)


def test_the_core_imports_nothing_of_what_is_around_it() -> None:
    """Each folder and each file at the top belongs to one of them."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == LAYERS.keys() | SURROUNDINGS
    assert {path.stem for path in PACKAGE.glob("*.py")} == TOP | ENTRANCES
    around = {f"agent_tts.{name}" for name in SURROUNDINGS | ENTRANCES}
    upward = {
        f"{relative} imports {used}"
        for path in FILES
        if (relative := path.relative_to(PACKAGE)).parts[0].removesuffix(".py") not in SURROUNDINGS | ENTRANCES
        for used in imports(path)
        if ".".join(used.split(".")[:2]) in around
    }
    assert not upward


def room_of(path: Path) -> str:
    """The room of a file of `serve/`, or the file's own name if it stands between them."""
    return path.relative_to(PACKAGE / "serve").parts[0].removesuffix(".py")


def test_the_rooms_of_serve_import_one_way() -> None:
    level = {name: number for number, names in enumerate(ROOMS) for name in names}
    files = [path for path in (PACKAGE / "serve").rglob("*.py") if room_of(path) != "__init__"]
    assert {room_of(path) for path in files} == level.keys()
    upward = {
        f"{room_of(path)} imports {used}"
        for path in files
        for module in imports(path)
        if module.startswith("agent_tts.serve.")
        if (used := module.split(".")[2]) != room_of(path) and level[used] >= level[room_of(path)]
    }
    assert not upward


# The only files that use names which a library does not promise. Each has a `require` of them.
PRIVATE = {
    "aioice": {"serve/transports/aiortc_private.py"},
    "aiortc": {"serve/transports/aiortc_private.py"},
    "livekit": {"integrations/livekit/tts.py"},
    "pipecat": {
        "agent/completions.py",
        "agent/detectors.py",
        "agent/stt.py",
        "integrations/pipecat/service.py",
    },
    "uvicorn": {"serve/transports/uvicorn_protocols.py"},
}
LOUD = {"os._exit", "ctypes._Pointer", "torch._foreach_copy_", "torch._weight_norm"}  # fail where they are used
HOOKS = {"_handle_fork"}  # of a library that calls it if it has it; without, there is nothing to do


@cache
def module_file(module: str) -> Path | None:
    """The source of a module, which is not imported: libraries take seconds. None of one without, or that is not."""
    top, *rest = module.split(".")
    spec = None if top in sys.builtin_module_names else find_spec(top)
    if spec is None or not rest:
        return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None
    places = [Path(place, *rest) for place in spec.submodule_search_locations or ()]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.exists()), None)


class Inheriting(NamedTuple):
    """What the rules about libraries ask of a class."""

    bases: tuple[str, ...]  # as they are written
    private: frozenset[str]  # names with `_` that it defines, or takes of itself


def inheriting(node: ast.ClassDef) -> Inheriting:
    found = set()
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self") | ast.Call(func=ast.Name(id="super")), attr=name):
                found.add(name)
    private = frozenset(name for name in found if name.startswith("_") and not name.endswith("__"))
    return Inheriting(tuple(ast.unparse(base).split("[")[0] for base in node.bases), private)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below one. Expressions, ten times as many nodes, are left out."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, part, ()):
            yield child
            yield from statements(child)


@cache
def scope(module: str) -> dict[str, Inheriting | str]:
    """The classes of a module, and the full names of what it imports."""
    file, found = module_file(module), dict[str, Inheriting | str]()
    if file is None:
        return found
    above = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in statements(ast.parse(file.read_text())):
        match node:
            case ast.ClassDef(name=name):
                found[name] = inheriting(node)
            case ast.Import(names=names):
                for one in names:
                    name = one.asname or one.name.split(".")[0]
                    found.setdefault(name, one.name if one.asname else name)
            case ast.ImportFrom(module=home, names=names, level=level):
                parts = [*(above[: len(above) - level + 1] if level else ()), *filter(None, [home])]
                for one in names:
                    found.setdefault(one.asname or one.name, ".".join([*parts, one.name]))
    return found


def class_of(name: str, module: str) -> tuple[str, Inheriting] | None:
    """The class that an expression such as `tts.TTS` means in a module, and the module that has it."""
    first, _, rest = name.partition(".")
    match scope(module).get(first):
        case Inheriting() as found if not rest:
            return module, found
        case str(full):
            parts = f"{full}.{rest}".strip(".").split(".")
            for number in range(len(parts) - 1, 0, -1):
                if module_file(home := ".".join(parts[:number])):
                    return class_of(".".join(parts[number:]), home) if home != module else None
    return None


def of_libraries(module: str, inheriting: Inheriting) -> set[str]:
    """The names with `_` that a class has of libraries, through its bases."""
    found = set[str]()
    for home, base in filter(None, (class_of(name, module) for name in inheriting.bases)):
        found |= of_libraries(home, base)
        if home.split(".")[0] != "agent_tts":
            found |= base.private
    return found


@cache
def taken(path: Path) -> set[str]:
    """The names of libraries' classes that classes of a file use or replace, by inheriting from them."""
    module = module_of(path)
    classes = [found for found in scope(module).values() if isinstance(found, Inheriting)]
    return set().union(*(one.private & of_libraries(module, one) for one in classes)) - HOOKS


def users_of_private_names() -> dict[str, set[str]]:
    """The names of libraries with `_` that each file uses. One is a library's if no class or module of ours has it
    that does not have it of a library."""
    ours = {"_replace"}.union(*(source(path).names - taken(path) for path in FILES))  # the first is of named tuples
    used = {
        path: taken(path) | {name for name, whole in source(path).private if name not in ours and whole not in LOUD}
        for path in FILES
    }
    return {name_of(path): names for path, names in used.items() if names - HOOKS}


def test_private_names_of_libraries_stand_in_few_files() -> None:
    assert users_of_private_names().keys() == set().union(*PRIVATE.values())


def test_private_names_of_libraries_are_looked_for_at_start() -> None:
    for name, used in users_of_private_names().items():
        file = source(PACKAGE / name)
        assert "require" in file.calls, name
        assert used <= file.words, name


def test_a_name_is_a_librarys_although_a_class_of_ours_sets_it() -> None:
    """Bases that are imported under another name, and those of bases of ours, count."""
    service = PACKAGE / "integrations" / "pipecat" / "service.py"
    assert "_settings" in taken(service)
    recogniser = PACKAGE / "agent" / "stt.py"
    assert {"_load", "_audio_buffer"} <= taken(recogniser)
    assert "_waiting" not in taken(recogniser)


@pytest.mark.parametrize("library", PRIVATE)
def test_a_library_of_private_names_has_an_upper_bound(library: str) -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    stated = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    bounds = [line for line in stated if re.match(rf"{library}(-ai|-agents)?(\[.*\])?>=", line)]
    assert bounds
    assert all("<" in line for line in bounds)


def test_no_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for name in source(path).classes:
            homes.setdefault(name, []).append(name_of(path))
    assert not {name: where for name, where in homes.items() if len(where) > 1}
