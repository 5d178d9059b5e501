"""Import rules and forbidden calls: layers import in one direction, the front imports no heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

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
    "integrations": {"client", "config", "protocol", "serve", "speech", "text"},
    "agent": {"config", "integrations", "ipc", "protocol", "serve", "speech", "system", "voices"},
    "doctor": {"config", "serve", "speech", "system", "voices"},
    "cluster": {"config", "serve", "system"},  # `ray` is imported by nothing else
    "bench": {"client", "config", "doctor", "model", "protocol", "serve", "sound", "system", "voices"},
}

# What is around the core, and may import all of it; and the files at the top that the core may import.
SURROUNDINGS = {"agent", "bench", "cli", "client", "cluster", "doctor", "integrations"}
TOP = {"directives", "engine_info", "errors", "events", "file_lock", "forecast", "messages", "options"}
ENTRANCES = {"__init__", "__main__", "livekit", "pipecat"}

# The rooms of `serve/`, and the files between them: each imports only what stands before it.
ROOMS = [
    {"connections", "dictionaries", "fronts", "high_water", "local_engine", "openai", "token_bucket"},
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


def imports(path: Path) -> set[str]:
    """Modules that a file imports, at any place in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def package_of(module: str) -> str | None:
    """The sub-package of agent_tts that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "agent_tts" and (PACKAGE / parts[1]).is_dir() else None


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    for path in (PACKAGE / layer).rglob("*.py"):
        used = {package_of(module) for module in imports(path)} - {None, layer}
        assert used <= LAYERS[layer], path.relative_to(PACKAGE)


def module_of(path: Path) -> str:
    """The name by which a file is imported."""
    parts = ("agent_tts", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_import_circle() -> None:
    """Imports for types count too."""
    modules = {module_of(path): path for path in FILES}
    graph = {name: imports(path) & modules.keys() - {name, "agent_tts"} for name, path in modules.items()}
    for used in graph.values():  # `from package import module` imports only the module
        used -= {name.rpartition(".")[0] for name in used}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_dangerous_call(path: Path) -> None:
    assert not imports(path) & BANNED_MODULES
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            # With `weights_only` a file cannot run code.
            is_safe_load = "weights_only=True" in map(ast.unparse, node.keywords)
            assert ast.unparse(node.func) not in BANNED_CALLS or (
                ast.unparse(node.func) == "torch.load" and is_safe_load
            )
            assert not any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)


def test_kernels_are_launched_only_by_launch() -> None:
    """A kernel that is launched without `launch` would not be compiled ahead."""
    launches = [
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "model").rglob("*.py")
        if "triton" in imports(path)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    ]
    assert launches == ["model/kernels/launch.py"]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.node
def test_the_front_never_imports_torch() -> None:
    heavy = {"torch", "transformers", "qwen_tts", "matplotlib"}
    assert not loaded_by("import agent_tts.serve.processes.run, agent_tts.serve.app") & heavy


@pytest.mark.node
def test_the_supervisor_imports_no_server_and_no_engine() -> None:
    """It carries no audio: its memory and its start are those of a few sockets. With one front the engines are spawned
    before the server is imported."""
    heavy = {"fastapi", "starlette", "uvicorn", "aiortc", "av", "torch", "transformers", "pipecat"}
    assert (
        not loaded_by(
            "import agent_tts.cli.app, agent_tts.cli.serve\n"
            "import agent_tts.serve.processes.supervisor, agent_tts.serve.processes.run"
        )
        & heavy
    )


@pytest.mark.node
def test_a_front_never_imports_an_engine() -> None:
    assert not loaded_by("import agent_tts.serve.processes.front") & {"torch", "transformers", "triton", "qwen_tts"}


def test_only_the_comparison_with_the_reference_imports_transformers() -> None:
    """A user's own version of it stands in no conflict with the node."""
    users = [path.relative_to(PACKAGE).as_posix() for path in FILES if "transformers" in imports(path)]
    assert users == ["bench/peer_process.py"]


def test_opentelemetry_is_imported_only_where_it_is_turned_on() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if any(name.split(".")[0] == "opentelemetry" for name in imports(path))
    }
    assert users == {"bench/collector.py", *(f"serve/telemetry/{name}.py" for name in ("spans", "tracing"))}


@pytest.mark.node
def test_pipecat_is_imported_only_by_its_own_packages() -> None:
    users = {
        path.relative_to(PACKAGE).parts[0] for path in FILES if any(m.split(".")[0] == "pipecat" for m in imports(path))
    }
    assert users == {"agent", "integrations"}
    others = {"text", "voices", "model", "engine", "ipc", "speech", "serve", "bench"}
    used = {m for path in FILES if path.relative_to(PACKAGE).parts[0] in others for m in imports(path)}
    assert not used & {"agent_tts.agent", "agent_tts.integrations.pipecat", "agent_tts.pipecat"}
    assert not loaded_by("import agent_tts.cli, agent_tts.serve.processes.run") & {"pipecat"}


@pytest.mark.node
def test_the_engine_process_never_imports_the_server() -> None:
    assert not loaded_by("import agent_tts.ipc.child, agent_tts.engine.espeak.engine") & {
        "fastapi",
        "uvicorn",
        "aiortc",
    }


def test_livekit_is_imported_only_by_its_own_package() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).as_posix() != "livekit.py" and "integrations/livekit" not in path.as_posix():
            used = imports(path)
            assert not {
                name
                for name in used
                if name.split(".")[0] == "livekit" or name.startswith("agent_tts.integrations.livekit")
            }


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
