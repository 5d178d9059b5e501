"""Counts the work of a computation, where a time would depend on the machine's load."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

LIBRARIES = ("/agent_tts/", "/aiortc/")


def work(run: Callable[[], object]) -> int:
    """Lines of `LIBRARIES` that are run, and characters of the texts that their functions are given.

    A text that is given again with each character of it makes the work quadratic, as lines alone would not.
    """
    done, known = 0, dict[CodeType, tuple[str, ...] | None]()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        done += 1
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        code = frame.f_code
        if code not in known:
            known[code] = _arguments(code)
        if (names := known[code]) is None:
            return None
        if names:
            given = frame.f_locals
            done += sum(len(given[name]) for name in names if type(given.get(name)) is str)
        return line

    before = sys.gettrace()
    sys.settrace(call)
    try:
        run()
    finally:
        sys.settrace(before)
    return done


def _arguments(code: CodeType) -> tuple[str, ...] | None:
    """Names of a function's arguments; none of a generator, each of whose items is a call. None outside `LIBRARIES`."""
    if not any(library in code.co_filename for library in LIBRARIES):
        return None
    return () if code.co_flags & inspect.CO_GENERATOR else code.co_varnames[: code.co_argcount]


def more_than_linear(cases: Iterable[Any], run: Callable[[Any, int], object], chars: int = 500) -> dict[Any, float]:
    """Cases for which four times as many characters are more than five times the work; and how many times it is.

    Args:
        run: computes a case with a number of characters.
    """
    return {
        case: round(times, 1)
        for case in cases
        if (times := work(lambda: run(case, 4 * chars)) / work(lambda: run(case, chars))) > 5  # noqa: B023
    }
