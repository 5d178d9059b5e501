"""File descriptors of this process: its limit, and the part that is kept for its child processes.

Connections can take every descriptor there is. So the soft limit stays below what is allowed, and is raised while a
child process is spawned: no connection can take what a new engine needs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import resource

# Descriptors of a connection (two while it is upgraded), of a WebRTC peer with its sockets, and of all else:
# connections without a session, too.
OF_A_CONNECTION = 2
OF_A_PEER = 16
BESIDES = 768

# The limit that a node sets itself, if it needs no more. macOS refuses more than its own.
USUAL = 10_240 if sys.platform == "darwin" else 65_536
FOR_CHILDREN = 32  # pipes of an engine and of a voice's decoder and encoder
FOR_A_SPAWN = 16  # pipes and sockets of one spawn, both ends, and what libuv needs for a moment
# Connections give way when fewer are free: newcomers, WebRTC peers and files need some.
HEADROOM = 128

_LIST = "/proc/self/fd"  # Linux since 6.2 gives its length as its size
LISTED = 8_192  # beyond this, an older system is not asked for the list

# The limit while a child is spawned; None before `raise_limit`.
_full: int | None = None


def needed(connections: int, rtc_peers: int) -> int:
    """Descriptors of a node that takes so many sessions and WebRTC peers."""
    return OF_A_CONNECTION * connections + OF_A_PEER * rtc_peers + BESIDES


def allowed() -> int:
    """The largest limit that this process may set itself; `sys.maxsize` where there is none."""
    if sys.platform == "win32":
        return sys.maxsize
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_limit(needs: int) -> None:
    """Raise the limit of this process as far as it is allowed and of use, and keep a part for children."""
    global _full
    _full = min(allowed(), max(USUAL, needs))
    _set(_full - FOR_CHILDREN)


def room() -> int:
    """Descriptors for connections and all else, without the headroom."""
    if sys.platform == "win32":
        return sys.maxsize
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(HEADROOM, soft // 2)


def in_use() -> int:
    """Open descriptors of this process; 0 where to count them is impossible, or takes long and they are plenty."""
    try:
        return os.stat(_LIST).st_size or (len(os.listdir(_LIST)) if room() <= LISTED else 0)
    except OSError:
        return 0


@contextlib.contextmanager
def spare() -> Iterator[None]:
    """Take descriptors in this block with those that are kept for child processes."""
    if _full is not None:
        _set(_full)
    try:
        yield
    finally:
        if _full is not None:
            _set(_full - FOR_CHILDREN)


@contextlib.contextmanager
def for_child() -> Iterator[None]:
    """Spawn a child in this block with the descriptors that are kept for it.

    Raises `OSError` if even these are in use; uvloop would lose some for good, and the reason.
    """
    with spare():
        _probe()
        yield


def keep(*fds: int) -> None:
    """Do not pass descriptors that came from another process to children of this one; uvloop closes none there."""
    for fd in fds:
        os.set_inheritable(fd, False)


@contextlib.contextmanager
def short(socket: Path) -> Iterator[str]:
    """A path to a socket in this block: the system takes 107 bytes at most. Raises `OSError` without its folder."""
    if sys.platform != "linux":
        yield str(socket)
        return
    folder = os.open(socket.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{socket.name}"
    finally:
        os.close(folder)


def _set(soft: int) -> None:
    if sys.platform == "win32":
        return
    with contextlib.suppress(ValueError, OSError):  # macOS refuses limits above its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _probe() -> None:
    """Raise `OSError` unless a spawn finds enough descriptors."""
    opened: list[int] = []
    try:
        for _ in range(FOR_A_SPAWN):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before a failure are closed
    except OSError as error:
        limit = (
            "the hard limit (ulimit -Hn, LimitNOFILE)" if error.errno == errno.EMFILE else "the system's fs.file-max"
        )
        raise OSError(error.errno, f"{error.strerror}: raise {limit}") from None
    finally:
        for fd in opened:
            os.close(fd)
