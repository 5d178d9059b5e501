"""Public names of the package: this list changes only with the changelog."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

import agent_tts
from agent_tts.renamed import MODULES, NAMES

PUBLIC = {
    "Audio",
    "Cancelled",
    "ConnectionLost",
    "Finished",
    "Flushed",
    "Mark",
    "MovingConnection",
    "NodeConnection",
    "RemoteUtterance",
    "ResumableUtterance",
    "SpeechError",
    "Word",
    "Words",
    "__version__",
    "connect",
}


def test_public_names() -> None:
    assert set(agent_tts.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(agent_tts, name) is not None


def test_a_private_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        agent_tts.conect  # noqa: B018


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_an_old_module_name_warns_and_gives_the_new_module(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        module = import_module(old)
    assert module is import_module(new)
    sys.modules.pop(old)


@pytest.mark.parametrize(("old", "new"), NAMES.items())
def test_an_old_name_warns_and_gives_the_new_one(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"agent_tts.{old} is now agent_tts.{new}"):
        assert getattr(agent_tts, old) is getattr(agent_tts, new)


def test_version_is_the_installed_one() -> None:
    assert agent_tts.__version__ == version("agent-tts")


@pytest.mark.node
def test_importing_the_package_imports_no_library() -> None:
    """Every engine process pays the time of `import agent_tts`."""
    code = "import sys; before = set(sys.modules); import agent_tts; print(*set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in found} <= {"agent_tts"} | sys.stdlib_module_names


@pytest.mark.node
def test_the_client_needs_neither_server_nor_engine() -> None:
    code = "import sys; from agent_tts import connect; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"fastapi", "uvicorn", "numpy", "av", "aiortc", "torch"}.isdisjoint(found)
