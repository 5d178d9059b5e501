"""For modules whose tests share one event loop (`asyncio(loop_scope="module")`), in which a node lives on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from tests.support import until

# Of clients: a connection that is kept would be left behind by the test that opened it.
NOT_KEPT = httpx.Limits(max_keepalive_connections=0)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def module_loop() -> None:
    """The loop is made before the first test, whose gate would count its descriptors."""


@pytest_asyncio.fixture(loop_scope="module")
async def no_leaked_tasks() -> AsyncIterator[None]:
    """The suite's gate in this loop: every task of the test has ended, and none failed without being awaited.

    It waits for the ends of connections too, because the loop does not run when the gate for file descriptors looks;
    and each test has threads of its own.
    """
    before, files, loop = asyncio.all_tasks(), _open_files(), asyncio.get_running_loop()
    unseen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    with ThreadPoolExecutor() as threads:
        loop.set_default_executor(threads)
        yield
    loop.set_default_executor(ThreadPoolExecutor())  # without a thread before the next test
    await until(lambda: asyncio.all_tasks() <= {*before, asyncio.current_task()} and _open_files() <= files)
    assert not unseen, f"failed unseen: {unseen}"
