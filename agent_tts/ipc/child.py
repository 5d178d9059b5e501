"""The engine process: `python -m agent_tts.ipc.child PARENT_PID [FD]`; commands on stdin, events on stdout.

It loads the engine, sends `EngineReady`, and runs the engine loop until `StopEngine`. It exits as soon as stdin ends,
whatever the engine is doing, and on Linux when its parent dies. FD is a socket from which it takes links to fronts that
share the engine; see `links`.

Exit codes: 0 after `StopEngine` or when the owner is gone, 70 when the engine is lost; the reason is on stderr.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from agent_tts.errors import SettingsError
from agent_tts.ipc.links import BUFFER_BYTES, Arrivals, Links, LinkThread
from agent_tts.ipc.wire import TO_ENGINE, Setup, WireError, decode, encode, prepare
from agent_tts.messages import EngineCommand, EngineEvent
from agent_tts.system import in_child, open_files

if TYPE_CHECKING:
    from loguru import Message

    from agent_tts.engine.loop import EngineLoop

EXIT_ENGINE_LOST = 70
READ_BYTES = 1 << 16
# Bytes read and not yet taken by the loop. Only a hung engine reaches this, and the owner kills a hung engine.
MAX_INBOX_BYTES = 8 << 20


def take_pipes() -> tuple[int, int]:
    """Duplicates of stdin and stdout, not inherited; reads of the originals give nothing, and prints go to stderr."""
    commands = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return commands, in_child.take_stdout()


def leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: print the fault and exit at once, without running finalizers of a broken engine."""
    if isinstance(error, SettingsError):
        print(f"{in_child.REFUSAL}{error}", file=sys.stderr)
    else:
        # Other messages may quote text that is being spoken.
        about_machine = (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, WireError)
        traceback.print_tb(trace)
        print(f"{kind.__name__}: {error}" if isinstance(error, about_machine) else kind.__name__, file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_ENGINE_LOST)


def tell(message: Message) -> None:
    """Print a log record for the owner, whose log adds the time. Each line of a fault begins with its level."""
    level = message.record["level"].name
    mark = f"{level}: " if level in in_child.FAULTS else ""
    for line in message.splitlines():
        print(f"{mark}{line}", file=sys.stderr)


class Inbox:
    """What the fronts have sent. A thread reads stdin, so that the process exits with its owner while a step runs."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Chunks as read: those of stdin, whose link is None, at most `MAX_INBOX_BYTES` in all.
        self.arrivals: Arrivals = queue.SimpleQueue()
        # Bytes of stdin put into `arrivals`, written by the reader thread alone, and taken out, by the engine's thread.
        self._read = 0
        self._taken = 0
        # Bytes of an incomplete frame, for the engine's thread alone.
        self._rest = bytearray()
        threading.Thread(target=self._run, name="inbox", daemon=True).start()

    def receive(self, timeout_s: float | None, links: Links | None = None) -> list[Setup | EngineCommand]:
        """All messages that have come on stdin; `links` gets what has come on others.

        Waits up to `timeout_s` (None: forever) for the first byte.
        """
        messages: list[Setup | EngineCommand] = []
        with contextlib.suppress(queue.Empty):
            link, chunk = self.arrivals.get(timeout=timeout_s)
            while True:
                if link is not None:
                    assert links is not None
                    links.arrive(link, chunk)
                elif chunk is not None:
                    self._taken += len(chunk)
                    messages += decode(self._rest, chunk, TO_ENGINE)
                link, chunk = self.arrivals.get_nowait()
        return messages

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a socket whose other end died with bytes unread
            while data := os.read(self._fd, READ_BYTES):
                self._read += len(data)
                if self._read - self._taken > MAX_INBOX_BYTES:
                    print("the engine loop does not take its commands", file=sys.stderr, flush=True)
                    os._exit(EXIT_ENGINE_LOST)
                self.arrivals.put((None, data))
        os._exit(0)


def enlarge(fd: int) -> None:
    """Give a pipe a buffer that takes a whole step in one write."""
    with contextlib.suppress(OSError):  # above the user's limit
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        elif sys.platform == "linux":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, BUFFER_BYTES)


def send(fd: int, new: Sequence[EngineEvent]) -> None:
    """Write events to the owner at once, which may block: it always reads. Exits the process when it is gone."""
    data = memoryview(b"".join([encode(event) for event in new]))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        os._exit(0)


def serve(loop: EngineLoop, inbox: Inbox, out: int, links: Links) -> None:
    """Send `EngineReady`, then run the loop until `StopEngine`. An exception means that the engine is lost."""
    send(out, [loop.ready()])
    while not loop.stopped:
        waits_s = [loop.wait_s(), links.wait_s() if links.shared else None]
        wait_s = min((wait_s for wait_s in waits_s if wait_s is not None), default=None)
        for command in inbox.receive(wait_s, links):
            assert not isinstance(command, Setup), "it came twice"
            loop.submit(command)
        if links.shared:
            links.before_step()
        new = loop.step()
        if links.shared:
            new = links.after_step(new)
        if new:
            send(out, new)
    loop.close()


def main() -> None:
    """Run the engine process. It takes the pipes before it imports the engine, whose libraries might print."""
    commands, out = take_pipes()
    in_child.die_with(int(sys.argv[1]))
    open_files.keep(*map(int, sys.argv[2:]))
    in_child.arrange_signals()
    sys.excepthook = leave
    in_child.share_interpreter()

    with in_child.without_collections():
        from loguru import logger

        from agent_tts.config.settings import Settings
        from agent_tts.engine.factory import create_loop

        logger.remove()
        logger.add(tell, format="{message}", diagnose=False)

        inbox = Inbox(commands)
        first: list[Setup | EngineCommand] = []
        while not first:
            first = inbox.receive(None)
        setup = first[0]
        if len(first) > 1 or not isinstance(setup, Setup):
            raise WireError("Setup must be the first message, and the only one before EngineReady")
        settings = Settings.model_validate(setup.settings)
        loop = create_loop(settings)
    prepare(TO_ENGINE)
    in_child.settle()
    thread = None
    if len(sys.argv) > 2:
        control = socket.socket(fileno=int(sys.argv[2]))
        thread = LinkThread(control, inbox.arrivals, settings.timeouts.engine_heartbeat_s)
    enlarge(out)
    serve(loop, inbox, out, Links(loop, thread))
    gc.unfreeze()


if __name__ == "__main__":
    main()
