"""A second client that speaks during a fault and must not be affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support import ended
from tests.wire import Wire, speak, wire

TEXT = "While this goes on, somebody else speaks calmly to the end."


@asynccontextmanager
async def undisturbed(url: str, peer: Wire | None = None) -> AsyncIterator[None]:
    """Run a paced context during the block, on a connection of its own or on this one.

    Its audio must be bit-equal to a run without the fault.
    """
    if peer is None:
        async with wire(url) as own, undisturbed(url, own):
            yield
        return
    expected = await speak(url, TEXT, seed=1, lead_ms=None)
    await peer.say("witness", TEXT, seed=1, lead_ms=200)
    await peer.until_audio("witness")
    listener = asyncio.create_task(peer.until("context.done", "witness"), name="witness")
    try:
        yield
        assert (await listener)["reason"] == "end"
    finally:
        await ended(listener)
    assert peer.pcm("witness") == expected
