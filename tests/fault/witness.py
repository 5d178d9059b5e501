"""A second client that speaks during a fault and must not be affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.wire import speak, wire

TEXT = "While this goes on, somebody else speaks calmly to the end."


@asynccontextmanager
async def undisturbed(url: str) -> AsyncIterator[None]:
    """Run a paced context during the block. Its audio must be bit-equal to a run without the fault."""
    expected = await speak(url, TEXT, seed=1, lead_ms=None)
    async with wire(url) as peer:
        await peer.say("witness", TEXT, seed=1, lead_ms=200)
        await peer.until_audio("witness")

        async def listen() -> None:
            done = await peer.until("context.done", "witness")
            assert done["reason"] == "end", done

        listener = asyncio.create_task(listen(), name="witness")
        try:
            yield
            await listener
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        assert peer.pcm("witness") == expected
