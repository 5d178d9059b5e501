"""Looks at start for the names that libraries do not promise: to set one that is gone succeeds, and does nothing."""

from __future__ import annotations

import dis
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from types import FunctionType

from agent_tts.errors import SettingsError


def require(library: str, names: Mapping[type, str]) -> None:
    """Check that classes of a library have these names, parted by spaces: methods, or attributes that `__init__` sets.

    Raises `SettingsError`, with the library's version and what it lacks.
    """
    lacking = [
        f"{kind.__name__}.{name}"
        for kind, wanted in names.items()
        if (of_instances := {name for name in wanted.split() if not hasattr(kind, name)})
        for name in sorted(of_instances - _stored(kind))
    ]
    if lacking:
        raise SettingsError(
            f"{library} {version(library)} cannot be used: it has no {', '.join(lacking)}; "
            "install a version that agent-tts was made for"
        )


@cache
def _stored(kind: type) -> set[str]:
    """The attributes that the `__init__` of a class and of its bases set."""
    begins = (begin for base in kind.__mro__ if isinstance(begin := vars(base).get("__init__"), FunctionType))
    steps = (step for begin in begins for step in dis.get_instructions(begin))
    return {step.argval for step in steps if step.opname == "STORE_ATTR"}
