"""What a command's process does first: it opens streams that are closed, and is an init where it is PID 1."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

# Signals that an init passes on to its node.
PASSED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def enter(*, hangs_up: bool) -> None:
    """Begin a command, before the imports that take time. `hangs_up`: SIGHUP ends it."""
    open_streams()
    if sys.platform != "win32":
        if os.getpid() == 1:
            be_init()
        if not hangs_up:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until somebody handles it


def open_streams() -> None:
    """Give stdin, stdout and stderr a place: otherwise a socket has their number, and libraries write to it.

    Characters that an encoding lacks are written as their numbers.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def be_init() -> None:
    """Go on in a child; this process, PID 1 of a container, reaps those that lose their parents, such as the workers
    of an engine that was killed. It passes signals on, and ends with the child, whose exit code it has."""
    child = os.fork()
    if child == 0:
        os.setsid()  # a terminal's Ctrl-C comes once: from the init
        return
    for name in PASSED:
        signal.signal(getattr(signal, name), lambda signum, _: _pass_on(child, signum))
    ended, status = 0, 0
    while ended != child:
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _pass_on(child: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signum)
