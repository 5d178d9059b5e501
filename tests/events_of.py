"""Every event of an utterance in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agent_tts.speech.utterance import Told, Utterance


async def events_of(speech: Utterance) -> AsyncIterator[Told]:
    """All events, `Started` among them; a failure raises nothing."""
    arrived = asyncio.Event()
    speech.waker = arrived.set
    while speech.done is None or speech.has_events:
        if (event := speech.poll()) is not None:
            yield event
            continue
        arrived.clear()
        await arrived.wait()
