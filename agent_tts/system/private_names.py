"""Looks at start for the names that libraries do not promise: to set one that is gone succeeds, and does nothing."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from types import FunctionType

from agent_tts.errors import SettingsError


def require(library: str, names: Mapping[type, str]) -> None:
    """Check that classes of a library have these names, parted by spaces: methods, or attributes that methods set.

    Raises `SettingsError`, with the library's version and what it lacks.
    """
    lacking = [
        f"{kind.__name__}.{name}"
        for kind, wanted in names.items()
        for name in sorted(set(wanted.split()))
        if not (hasattr(kind, name) or any(_stores(method, name) for method in _methods(kind)))
    ]
    if lacking:
        raise SettingsError(
            f"{library} {version(library)} cannot be used: it has no {', '.join(lacking)}; "
            "install a version that agent-tts was made for"
        )


def _methods(kind: type) -> Iterator[FunctionType]:
    return (each for base in kind.__mro__ for each in vars(base).values() if isinstance(each, FunctionType))


def _stores(method: FunctionType, name: str) -> bool:
    if name not in method.__code__.co_names:  # to read the steps of all methods takes 50 ms
        return False
    return any(step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(method))
