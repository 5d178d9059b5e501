"""Old names of modules and classes that work for one more version; each import warns with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
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


class Finder(MetaPathFinder, Loader):
    """Finds and loads the modules of `MODULES`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        new = MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)
