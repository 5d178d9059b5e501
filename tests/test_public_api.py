"""Public names of the package: this list changes only with the changelog."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import agent_tts

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
