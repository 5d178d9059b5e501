"""The browser of the page's tests: one for all of a test process. A test opens a tab with a storage of its own."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import numpy as np
import pytest
import pytest_asyncio

from tests.measure.chromium import DevTools, Page, chromium
from tests.support import RunningNode, running_node, until

MICROPHONE_HZ = 700
# A name that browsers do not treat as this machine.
ELSEWHERE = "talk.test"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def loop_thread() -> AsyncIterator[None]:
    """aiortc encodes on a thread of the loop: it starts before the first test looks for leaks."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    await loop.run_in_executor(None, int)
    yield
    await loop.shutdown_default_executor()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory, loop_thread: None) -> AsyncIterator[DevTools]:
    """A browser whose microphone records one tone."""
    path = tmp_path_factory.mktemp("microphone") / "tone.wav"
    at = np.arange(48_000) / 48_000
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 48_000, 0, "NONE", ""))
        file.writeframes((8_000 * np.sin(2 * np.pi * MICROPHONE_HZ * at)).astype("<i2").tobytes())
    flags = (
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",  # the shell has no permissions of its own
        f"--use-file-for-fake-audio-capture={path}",
        "--ignore-certificate-errors",  # those of proxies sign themselves
        f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
    )
    async with chromium(*flags) as running:
        yield running


def assert_clean(page: Page, url: str, expected: str | None = None) -> None:
    """The page has logged no complaint (except `expected`), and loaded nothing but from the node at `url`."""
    assert [error for error in page.errors if expected is None or expected not in error] == []
    host = f"//{url.split('//')[1]}/"
    assert [each for each in page.requests if host not in each and not each.startswith("data:")] == []


# The node of a module whose tests use `shared`.
SHARED: list[RunningNode] = []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared() -> AsyncIterator[None]:
    async with running_node() as node:
        SHARED.append(node)
        yield
        SHARED.clear()


@asynccontextmanager
async def left_as_it_was(node: RunningNode) -> AsyncIterator[RunningNode]:
    """A node that several tests use, one after another: each must leave it without sessions and connections.

    Connections that a browser keeps for its next request are closed here: the server would wait five seconds for one.
    """
    yield node
    there, connections = node.node, node.server.server_state.connections
    await until(lambda: not (there.sessions or there.peers or there.service.speaking))
    for kept in list(connections):
        kept.shutdown()
    await until(lambda: not connections)
    assert there.service.ready
