"""The engine process: `python -m agent_tts.ipc.child PARENT_PID`; commands on stdin, events on stdout.

It loads the engine, says `Hello`, and turns the engine loop until `Stop`. It never outlives the front: the end of
stdin ends it at once, whatever the engine is doing, and on Linux so does the death of its parent.

Exit codes: 0 after `Stop` or when the front is gone, 70 when the engine is lost; the reason is on stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from agent_tts.errors import SettingsError
from agent_tts.events import EngineCommand, EngineEvent
from agent_tts.ipc.wire import TO_ENGINE, Decoder, Setup, WireError, encode
from agent_tts.processes import die_with, settle

if TYPE_CHECKING:
    from agent_tts.engine.loop import EngineLoop

EXIT_ENGINE_LOST = 70
READ_BYTES = 1 << 16
# Commands read and not yet taken by the loop. Only a hung engine lets them pile up, and the front kills it soon.
MAX_INBOX_BYTES = 8 << 20
# The reader must get the interpreter soon while the engine runs Python code; the default of 5 ms is a fifth of a step.
SWITCH_INTERVAL_S = 0.000_5
PIPE_BYTES = 1 << 20  # a step of 64 streams is 250 kB


def take_pipes() -> tuple[int, int]:
    """Keep stdin and stdout for ourselves; whoever else reads or prints gets nothing and stderr.

    The duplicates are not inherited, so no process that the engine may start keeps the front's pipes open.
    """
    commands, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return commands, out


def arrange_signals() -> None:
    """Leave stopping to the front, and show all stacks on a crash or, but for Windows, on SIGUSR1.

    Ctrl-C and a service manager's SIGTERM may reach every process of the node, and running speech has to go on.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR1, all_threads=True)


def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: report what ended the engine, and leave at once, without the finalizers of a broken engine.

    The message is shown only of errors that speak of the machine: any other may quote text that is being spoken.
    """
    of_the_machine = (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, SettingsError, WireError)
    traceback.print_tb(trace)
    print(f"{kind.__name__}: {error}" if isinstance(error, of_the_machine) else kind.__name__, file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_ENGINE_LOST)


class Inbox:
    """What the front sends. A thread reads it, so that the end of the front is noticed whatever the engine does."""

    def __init__(self, fd: int) -> None:
        # The reading end of the front's pipe.
        self._fd = fd
        # Chunks as they came. Bounded by `MAX_INBOX_BYTES`.
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # Bytes put into `_chunks`; written by the reader thread alone.
        self._read = 0
        # Bytes taken out of `_chunks`; written by the engine's thread alone.
        self._taken = 0
        # Messages out of chunks; used by the engine's thread alone.
        self._decoder: Decoder[Setup | EngineCommand] = Decoder(TO_ENGINE)

    def start(self) -> None:
        """Start the reader; it lives as long as the process."""
        threading.Thread(target=self._run, name="inbox", daemon=True).start()

    def receive(self, timeout_s: float | None) -> list[Setup | EngineCommand]:
        """All that is there; waits up to `timeout_s` (None: without end) for the first byte."""
        messages: list[Setup | EngineCommand] = []
        with contextlib.suppress(queue.Empty):
            chunk = self._chunks.get(timeout=timeout_s)
            while True:
                self._taken += len(chunk)
                messages += self._decoder.feed(chunk)
                chunk = self._chunks.get_nowait()
        return messages

    def _run(self) -> None:
        while data := self._next():
            self._read += len(data)
            if self._read - self._taken > MAX_INBOX_BYTES:
                print("the engine does not take its commands", file=sys.stderr, flush=True)
                os._exit(EXIT_ENGINE_LOST)
            self._chunks.put(data)
        os._exit(0)

    def _next(self) -> bytes:
        try:
            return os.read(self._fd, READ_BYTES)
        except OSError:  # a socket whose other end died with bytes unread
            return b""


class Outbox:
    """Events to the front, which always reads: a write may block."""

    def __init__(self, fd: int) -> None:
        # The writing end of the front's pipe.
        self._fd = fd
        if sys.platform == "linux":
            import fcntl

            # A larger pipe takes a whole step in one write. Refused where it is a socket, or above the user's limit.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def send(self, new: Sequence[EngineEvent]) -> None:
        """All events of a turn in one write. Ends the process when the front is gone."""
        data = memoryview(b"".join([encode(event) for event in new]))
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            os._exit(0)


def serve(loop: EngineLoop, inbox: Inbox, outbox: Outbox) -> None:
    """Say `Hello`, then turn the loop until `Stop`. An exception means that the engine is lost."""
    outbox.send([loop.hello()])
    while not loop.stopped:
        for command in inbox.receive(loop.wait_s()):
            if isinstance(command, Setup):
                raise WireError("a second setup")
            loop.submit(command)
        if new := loop.step():
            outbox.send(new)
    loop.close()


def main() -> None:
    """The process. The pipes are taken before any library is imported: it might print."""
    commands, out = take_pipes()
    die_with(int(sys.argv[1]))
    arrange_signals()
    sys.excepthook = leave
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    from loguru import logger

    from agent_tts.config.settings import Settings
    from agent_tts.engine.factory import create_loop

    logger.remove()
    logger.add(sys.stderr, format="{message}", diagnose=False)  # the front's log gives it a time

    inbox = Inbox(commands)
    inbox.start()
    first: list[Setup | EngineCommand] = []
    while not first:
        first = inbox.receive(None)
    setup = first[0]
    if len(first) > 1 or not isinstance(setup, Setup):
        raise WireError("the setup has to come first, and alone until the hello")
    loop = create_loop(Settings.model_validate_json(setup.settings))
    settle()
    serve(loop, inbox, Outbox(out))
    gc.unfreeze()


if __name__ == "__main__":
    main()
