"""`agent-tts wyoming`."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from agent_tts.client.connection import http_url
from agent_tts.integrations.wyoming.conversation import Target
from agent_tts.integrations.wyoming.server import WyomingServer


def serve(uri: str, url: str, key: str | None) -> None:
    """Serve Home Assistant from a node until a signal ends it. The node need not be up yet.

    Raises:
        SettingsError: an address cannot be used.
        KeyboardInterrupt: all clients have been left.
    """
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_serve(uri, Target(http_url(url), key)))


async def _serve(uri: str, target: Target) -> None:
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with WyomingServer(target) as server:
        print(f"{await server.listen(uri)} speaks with {target.url}", flush=True)
        await asyncio.Event().wait()
