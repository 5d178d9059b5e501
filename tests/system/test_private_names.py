from __future__ import annotations

from importlib.metadata import version

import pytest
from aioice import Connection
from aiortc import RTCSctpTransport
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.serve.app import create_app
from agent_tts.serve.transports.uvicorn_protocols import NodeConfig
from agent_tts.system.private_names import require


@pytest.mark.parametrize(
    ("library", "kind", "name"),
    [
        ("aiortc", RTCSctpTransport, "_handle_data"),
        ("aioice", Connection, "get_component_candidates"),
        ("uvicorn", HttpToolsProtocol, "_unsupported_upgrade_warning"),
    ],
)
def test_a_node_does_not_start_with_a_library_that_lacks_a_name(
    library: str, kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that is set in the place of a method of another name would be off, and nobody would know."""
    monkeypatch.delattr(kind, name)
    with pytest.raises(SettingsError, match=rf"{library} {version(library)} .*no {kind.__name__}\.{name};"):
        NodeConfig(create_app(Settings()), Settings())


class Library:
    def __init__(self) -> None:
        self.held = self.kept = 1

    def method(self) -> int:
        self.later = self.read
        return self.held

    read: int


def test_methods_count_and_attributes_that_methods_set() -> None:
    require("pytest", {Library: "held kept later method"})
    with pytest.raises(SettingsError, match=r"no Library\.left, Library\.lost, Library\.read;"):
        require("pytest", {Library: "lost held left read"})
