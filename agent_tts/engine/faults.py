"""Faults that a test asks of an engine: `fault:KIND@K` in the instructions does KIND at the owner's frame K."""

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

# The owner alone fails, as it gets its slot.
AT_OPEN: Table = {"oom": lambda: _raise(MemoryError("scripted"))}
# The owner alone fails, before its frame K.
OF_SLOT: Table = {
    "raise": lambda: _raise(ValueError("scripted")),
    "nan": lambda: to_pcm16(np.full(FRAME_SAMPLES, np.nan, np.float32)),
}
# The engine hangs or is lost, before the owner's frame K.
OF_ENGINE: Table = {
    "hang": lambda: time.sleep(HANG_S),
    "hang_gil": lambda: ctypes.PyDLL(None).sleep(HANG_S),  # PyDLL keeps the GIL while it is in C
    "oom_step": lambda: _raise(MemoryError("scripted")),
    "crash": lambda: _raise(RuntimeError("scripted")),
    "exit": lambda: os._exit(7),
}
# From frame K on it neither ends nor runs dry; it ends before frame K; each step it speaks in takes K ms longer.
NEVER_END, DONE_AT, SLOW = "never_end", "done_at", "slow"


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault."""

    kind: str
    at: int  # number of a frame, from 0; milliseconds for `slow`

    @classmethod
    def parse(cls, instructions: str | None) -> Fault | None:
        """The fault that the instructions ask for, or None when they ask for none.

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
        """Do what `table` has for this kind, if it has something."""
        if self.kind in table:
            table[self.kind]()
