"""The gates: a test that leaves a task, thread, child process or file descriptor behind fails, and so does too much
memory."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import inspect
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import hypothesis
import pytest
import pytest_asyncio

from tests import virtual_time
from tests.examples import examples

virtual_time.install()

import httpx._transports.default as httpx_transports  # noqa: E402
from httpx._config import create_ssl_context  # noqa: E402

TESTS = Path(__file__).parent

# Folders in which every test needs a process, a socket or a browser, and counts as marked `node`.
WITH_NODES = {"agent", "browser", "cli", "client", "deploy", "doctor", "fault", "gpu", "integrations", "measure"}

# Marks whose tests may be left out, and what matches a file whose tests all have one.
MARKED = {
    mark: re.compile(rf"^pytestmark = .*pytest\.mark\.{mark}\b", re.MULTILINE) for mark in ("node", "model", "slow")
}

# `sys.audit` events that a test without the mark `node` must not cause.
OUTSIDE = {"os.fork", "os.posix_spawn", "socket.bind", "socket.connect", "subprocess.Popen"}

# Wait for executor threads and closing sockets, on a busy machine, s.
GRACE_S = 10.0

# The most memory that a process of tests may have had, MB; and the size from which memory is the system's again when it
# is freed, bytes: the C library would keep it for blocks of other sizes.
MOST_MB = 1_500
MAPPED_BYTES = 1 << 20
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
# So much more memory than after the modules before is worth a look at what is garbage, MB.
GROWN_MB = 24

# To ask torch takes 2 s, also in the process that only hands out tests.
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))

# Run kernels without a GPU: triton interprets them if this is set before its first import, by a folder's conftest.
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

# Models as small as those of the tests are slower on more threads, in this process and in those that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    if "SHARED_BY_TESTS" not in os.environ:  # in the first of the processes, which inherit it
        folder = mkdtemp(prefix="agent-tts-tests-")
        os.environ["SHARED_BY_TESTS"] = folder
        config.add_cleanup(partial(shutil.rmtree, folder))
    gc.disable()  # until all is collected: what is imported stays
    hypothesis.settings.register_profile("tests", examples(100), deadline=None)  # a limit in real time fails under load
    hypothesis.settings.load_profile("tests")
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    asyncio.set_event_loop_policy(virtual_time.Policy())
    # Without this every httpx client would read all root certificates, which takes 30 ms.
    cached = functools.cache(lambda certificates, *args, **options: create_ssl_context(*args, **options))
    httpx_transports.create_ssl_context = lambda *args, **options: cached(
        os.environ.get("SSL_CERT_FILE"), *args, **options
    )
    # Make Ctrl-C reach processes that tests start: a background job of a shell inherits that SIGINT is ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Pipecat's turn detection imports this library, which would otherwise open its own database and send telemetry.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Nodes in processes have one front, on a machine with more cores too. The fixture `fronts` changes it.
    os.environ["AGENT_TTS_FRONTS"] = "1"
    # uvloop opens a pipe for the life of the process when its first loop runs.
    if find_spec("uvloop"):
        with asyncio.Runner(loop_factory=import_module("uvloop").new_event_loop) as runner:
            runner.run(asyncio.sleep(0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test to run are not imported, because some imports take seconds."""
    selected = config.option.markexpr
    if TESTS not in collection_path.parents:
        return None
    if "not node" in selected and collection_path.relative_to(TESTS).parts[0] in WITH_NODES:
        return True
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text("utf-8")
    unmarked = selected.split()[:1] == ["alone"] and "mark.alone" not in text
    left_out = any(f"not {mark}" in selected and whole.search(text) for mark, whole in MARKED.items())
    return True if unmarked or left_out else None


def pytest_collection_finish() -> None:
    """Exempt what was imported and collected, some million objects, from the collections of garbage in tests."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in WITH_NODES:
            item.add_marker(pytest.mark.node)
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(inspect.unwrap(item.obj)):
            marker = item.get_closest_marker("asyncio")
            if marker is not None and marker.kwargs.get("loop_scope") == "module":  # of tests that share a node
                item.fixturenames.insert(0, "module_loop")
                item.fixturenames.append("no_leaked_tasks_in_module_loop")
            else:
                item.fixturenames.append("no_leaked_tasks")
    # Files of tests that take minutes come first: of one that begins last the other cores wait for the end.
    long = {item.path for item in items if item.get_closest_marker("timeout")}
    items.sort(key=lambda item: item.path not in long)


class _Guard:
    """Refuses `OUTSIDE` to tests that are not marked `node`, because `make quick` must not need any of it.

    With RECORD_NODE_TESTS=FILE it writes the names of such tests to a file instead; these need the mark.
    """

    # Id of the running test, including its fixtures, if it is not marked; otherwise None.
    test: str | None = None

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.test is None or event not in OUTSIDE:
            return
        if record := os.environ.get("RECORD_NODE_TESTS"):
            with open(record, "a") as file:
                file.write(self.test + "\n")
        else:
            raise AssertionError(f"{event} {args!r}: mark this test `node`")


_guard = _Guard()
sys.addaudithook(_guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _guard.test = None if "node" in item.keywords else item.nodeid
    try:
        return (yield)
    finally:
        _guard.test = None


@pytest.fixture(scope="session", autouse=True)
def bounded_memory() -> Iterator[None]:
    """The process has never had more than `MOST_MB`; a machine has one for each core, and one more.

    Beside a GPU it may: models of the released sizes pass through it. RECORD_MEMORY=FILE tells after which modules it
    had more than before.
    """
    yield
    if HAS_GPU:
        return
    if record := os.environ.get("RECORD_MEMORY"):
        with open(record, "a") as file:
            file.writelines(f"{os.getpid()} {mb} MB {module}\n" for module, mb in _most_mb.items())
    most_mb = _memory_mb("VmHWM")
    allowed = f"of {MOST_MB} that are allowed: RECORD_MEMORY=FILE tells where"
    assert most_mb <= MOST_MB, f"the tests of this process took {most_mb} MB at most, {allowed}"


def _memory_mb(name: str) -> int:
    """Of this process, by its name in /proc; 0 where there is none."""
    status = Path("/proc/self/status")
    found = re.search(rf"^{name}:\s*(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found[1]) // 1_024 if found else 0


# Memory after a module's tests, when it was last given back, MB; and the most so far after each module that took more.
_settled_mb = 0
_most_mb: dict[str, int] = {}


@pytest.fixture(scope="module", autouse=True)
def memory_of_a_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a module's tests took is the system's again after them, models included, which its tests share."""
    global _settled_mb
    yield
    if (most_mb := _memory_mb("VmHWM")) > max(_most_mb.values(), default=0):
        _most_mb[request.node.nodeid] = most_mb
    if recogniser := sys.modules.get("tests.recogniser"):
        recogniser.hearing.cache_clear()
    if people := sys.modules.get("agent_tts.bench.people"):
        people._voice.cache_clear()
    if dnsmos := sys.modules.get("speechmos.dnsmos"):
        dnsmos.__dict__["dnsmos"] = None  # its sessions: 190 MB
    if tiny := sys.modules.get("tests.model.tiny"):
        tiny.models.cache_clear()
        tiny.oracle.load.cache_clear()
    if _memory_mb("VmRSS") > _settled_mb + GROWN_MB:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _settled_mb = _memory_mb("VmRSS")


@pytest.fixture(autouse=True)
def virtual_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """The event loop's clock jumps, except in tests that are marked `real_time`."""
    with virtual_time.jumping("real_time" not in request.keywords):
        yield


@pytest.fixture(params=[1, 2], ids=["1 front", "2 fronts"])
def fronts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the test with one front and with several: nodes that it starts as processes have so many."""
    monkeypatch.setenv("AGENT_TTS_FRONTS", str(request.param))
    return int(request.param)


@contextlib.asynccontextmanager
async def tasks_end(most_fds: int | None = None) -> AsyncIterator[None]:
    """Every task that starts in the block ends soon after it, and none fails without being awaited.

    Args:
        most_fds: so many file descriptors are waited for, too.
    """
    before = asyncio.all_tasks()
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    yield
    deadline = time.monotonic() + GRACE_S
    while (left := asyncio.all_tasks() - before - {asyncio.current_task()}) or (most_fds and _fds().total() > most_fds):
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.01)
    assert not left, f"leaked tasks: {[task.get_name() for task in left if task]}"
    assert not unseen, f"failed unseen: {unseen}"


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """See `tasks_end`."""
    async with tasks_end():
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_loop() -> None:
    """The loop is made before the first test, whose gate would count its descriptors."""


@pytest_asyncio.fixture(loop_scope="module")
async def no_leaked_tasks_in_module_loop() -> AsyncIterator[None]:
    """See `tasks_end`, in the loop that a module's tests share; each of them has threads of its own.

    It waits for the ends of connections too, because the loop does not run when the gate for file descriptors looks.
    """
    loop = asyncio.get_running_loop()
    async with tasks_end(most_fds=_fds().total()):
        with ThreadPoolExecutor() as threads:
            loop.set_default_executor(threads)
            yield
        loop.set_default_executor(ThreadPoolExecutor())  # without a thread before the next test


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())


def _children() -> Counter[str]:
    found: Counter[str] = Counter()
    if virtual_time.is_childless():
        return found
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found.update(virtual_time.read(f"/proc/self/task/{thread}/children").decode().split())
    return found


def _fds() -> Counter[str]:
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd") if Path("/proc/self/fd").is_dir() else ():
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of this listing
            continue
        found[target.split(":")[0] if target.startswith(("socket:", "pipe:", "anon_inode:")) else target] += 1
    return found


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Threads, child processes and file descriptors are the same as before the test."""
    probes = {"thread": _threads, "child process": _children, "file descriptor": _fds}
    if not Path("/proc/self/fd").is_dir():
        probes = {"thread": _threads}
    before = {kind: probe() for kind, probe in probes.items()}
    yield
    deadline = time.monotonic() + GRACE_S
    while True:
        left = {kind: dict(probe() - before[kind]) for kind, probe in probes.items()}
        left = {kind: names for kind, names in left.items() if names}
        if not left or time.monotonic() > deadline:
            break
        gc.collect()
        time.sleep(0.01)
    assert not left, f"leaked: {left}"
