"""Scripted faults for tests: `fault:KIND@K` in a request's instructions causes KIND at the request's frame K."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from agent_tts.engine.base import to_pcm16
from agent_tts.events import FRAME_SAMPLES

HANG_S = 60


def _raise(error: Exception) -> NoReturn:
    raise error


Table = Mapping[str, Callable[[], object]]

# The request alone fails, when it gets its slot.
AT_OPEN: Table = {"oom": lambda: _raise(MemoryError("scripted"))}
# The request alone fails, before its frame K.
OF_SLOT: Table = {
    "raise": lambda: _raise(ValueError("scripted")),
    "nan": lambda: to_pcm16(np.full(FRAME_SAMPLES, np.nan, np.float32)),
}
# The engine hangs or is lost, before the request's frame K.
OF_ENGINE: Table = {
    "hang": lambda: time.sleep(HANG_S),
    "hang_gil": lambda: ctypes.PyDLL(None).sleep(HANG_S),  # PyDLL keeps the GIL while it is in C
    "oom_step": lambda: _raise(MemoryError("scripted")),
    "crash": lambda: _raise(RuntimeError("scripted")),
    "exit": lambda: os._exit(7),
}
# The request: never ends nor runs dry after frame K; ends before frame K; makes each of its steps K ms longer.
NEVER_END, DONE_AT, SLOW = "never_end", "done_at", "slow"


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault."""

    kind: str
    at: int  # number of a frame, from 0; milliseconds for `slow`

    @classmethod
    def parse(cls, instructions: str | None) -> Fault | None:
        """The fault that the instructions ask for, or None.

        Raises:
            ValueError: there is no such fault.
        """
        if not instructions or not instructions.startswith("fault:"):
            return None
        kind, _, at = instructions.removeprefix("fault:").partition("@")
        if kind not in {*AT_OPEN, *OF_SLOT, *OF_ENGINE, NEVER_END, DONE_AT, SLOW}:
            raise ValueError("no such fault")
        return cls(kind, int(at or 0))

    def strike(self, table: Table) -> None:
        """Cause this fault if `table` has its kind."""
        if self.kind in table:
            table[self.kind]()
