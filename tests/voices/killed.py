"""Changes a library in children that are killed: `python -m tests.voices.killed FOLDER ADAPTER`; Linux.

A child is traced from system call to system call, and killed as soon as its n-th one has changed the folder, for every
n: so the folder is left in each state that a kill can leave, and is looked at as the next process finds it. On stdout,
for each change: how many states there were, or what is wrong with the first that lost something.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agent_tts.errors import UnknownVoice
from agent_tts.system.records import Records
from agent_tts.text.entries import Lexicon
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary

TRACEME, SYSCALL = 0, 24  # of ptrace
LEXICON = Lexicon.of({"nginx": "engine x"})
ARRAYS = {"vector_64": np.ones(64, np.float32)}
CONSENT = Consent("she agreed")


def add(folder: Path, name: str) -> None:
    VoiceLibrary(folder, 9).add(StoredVoice(name=name, kind="cloned", consent=CONSENT), ARRAYS)


def put_again(folder: Path) -> None:
    """Replace a voice as a whole, as by one of the store."""
    records = Records(folder, "voice", str.isalnum, lambda path: path)
    with records.changing("copied"), records.temporary() as made:
        shutil.copytree(folder / "bob", made)
        records.put(made, "bob")


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "add": lambda folder, _: add(folder, "bob"),
    "replace": lambda folder, _: put_again(folder),
    "adapter": lambda folder, adapter: VoiceLibrary(folder, 9).set_adapter("bob", adapter),
    "lexicon": lambda folder, _: VoiceLibrary(folder, 9).set_lexicon("bob", LEXICON),
    "delete": lambda folder, _: VoiceLibrary(folder, 9).delete("bob"),
}


def state(folder: Path) -> list[tuple[str, int, int]]:
    """What tells one state of a folder from another."""
    at = {path: path.lstat() for path in sorted(folder.rglob("*"))}
    return [(str(path), found.st_ino, found.st_size) for path, found in at.items()]


def run_killed(change: Callable[[], object], folder: Path, number: int) -> bool:
    """Run a change in a child that is killed when it has changed the folder so many times; False: it ended before."""
    ptrace = ctypes.CDLL(None).ptrace
    if (child := os.fork()) == 0:
        ptrace(TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        change()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSTOPPED(status)
    known, changes = state(folder), 0
    while changes < number:
        ptrace(SYSCALL, child, None, None)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            assert status == 0, f"the child ended with {status}"
            return False
        now = state(folder)
        changes += now != known
        known = now
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def check(folder: Path, *, may_be_gone: bool) -> str | None:
    """What is wrong with the library that a kill has left; None: nothing."""
    library = VoiceLibrary(folder, 9)
    try:
        found = library.get("bob")
        vector = library.arrays("bob")["vector_64"]
        if found.consent != CONSENT or library.lexicon("bob") not in (None, LEXICON) or vector.tolist() != [1.0] * 64:
            return "the voice is another one"
        if found.adapter:
            library.adapter("bob")
    except UnknownVoice as error:
        if not may_be_gone or "damaged" in error.message:
            return error.message
    if "eve" not in {each.name for each in library.voices()}:
        return "another voice is gone"
    os.utime(folder, (1, 1))  # nobody has changed it for long
    VoiceLibrary(folder, 9).voices()
    if left := [path.name for path in folder.iterdir() if path.name.startswith((".aside", ".temporary"))]:
        return f"{left} is left"
    library.set_lexicon("eve", LEXICON)
    return None


def states(what: str) -> str:
    """Their number for a change, or what is wrong with one."""
    base, adapter = Path(sys.argv[1], what), Path(sys.argv[2])
    for number in range(1, 1_000):
        folder = base / str(number)
        add(folder, "eve")
        if what != "add":
            add(folder, "bob")
        if not run_killed(lambda: CHANGES[what](folder, adapter), folder, number):  # noqa: B023
            return str(number - 1)
        if wrong := check(folder, may_be_gone=what in ("add", "delete")):
            return f"state {number}: {wrong}"
    raise AssertionError("it never ends")


if __name__ == "__main__":
    for change in CHANGES:
        print(f"{change}: {states(change)}", flush=True)
