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
    added: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package and what it imports
        try:
            for package in UNUSED:
                try:
                    import_module(package)
                except FAILURES:
                    added += _stand_in(package)
            return import_module("qwen_tts")
        finally:
            for name in added:
                del sys.modules[name]


def _stand_in(package: str) -> list[str]:
    """Put empty modules in the place of a package and of those that it is in; their names."""
    added: list[str] = []
    parts = package.split(".")
    for depth, part in enumerate(parts):
        parent, name = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
        if name not in sys.modules:
            added.append(name)
            sys.modules[name] = module_from_spec(ModuleSpec(name, None))
            if parent:
                setattr(sys.modules[parent], part, sys.modules[name])
    return added
