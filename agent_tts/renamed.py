"""Old names of modules and classes that work for one more version; each import warns with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {
    "agent_tts.configuration": "agent_tts.config.loading",
    "agent_tts.hub": "agent_tts.config.hub",
    "agent_tts.remote": "agent_tts.client.utterance",
    "agent_tts.settings": "agent_tts.config.settings",
}

# Names of the package itself.
NAMES = {"RemoteSpeech": "RemoteUtterance"}


class Finder:
    """Meta path finder and loader of the modules of `MODULES`."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, Finder) if fullname in MODULES else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """The import system makes an empty one."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        new = MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


def install() -> None:
    """Make the old names importable. Idempotent."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
