"""The package qwen-tts, which is no dependency of ours: who wants to compare with it installs it.

Its tokenizer for 25 Hz, which no model here uses, imports packages that need not be there, or fail beside another build
of torch. While it is imported, empty modules stand in for those.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

UNUSED = ("torchaudio.compliance.kaldi", "sox", "onnxruntime")
FAILURES = (ImportError, OSError, RuntimeError, AttributeError)  # of a package that is absent, or broken


def import_qwen_tts() -> Any:
    """The package. Raises ImportError, OSError: it is not installed, or something that it needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package and what it imports
        added = [name for package in UNUSED if not _works(package) for name in _stand_in(package)]
        try:
            return import_module("qwen_tts")
        finally:
            for name in added:
                del sys.modules[name]


def _works(package: str) -> bool:
    try:
        import_module(package)
    except FAILURES:
        return False
    return True


def _stand_in(package: str) -> list[str]:
    """Put empty modules in the place of a package and of those that it is in; their names."""
    names = package.split(".")
    added: list[str] = []
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        if name in sys.modules:
            continue
        sys.modules[name] = module_from_spec(ModuleSpec(name, None))
        added.append(name)
        if depth > 1:
            setattr(sys.modules[".".join(names[: depth - 1])], names[depth - 1], sys.modules[name])
    return added
