"""The front's end of an engine connection, for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from agent_tts.config.settings import Settings
from agent_tts.ipc.engine_process import EngineProcess
from agent_tts.messages import Append, Audio, End, EngineEvent, EngineReady, Finished, Open
from agent_tts.options import EngineOptions
from agent_tts.speech.engine_handle import EngineClient

E = TypeVar("E", bound=EngineEvent)
WAIT_S = 20.0


def tone_settings(**values: Any) -> Settings:
    """Settings of a tone engine that obeys `fault:` instructions; `values` are other settings."""
    return Settings.model_validate({"engine": "tone", "tone": {"scripted_faults": True}, **values})


def shadow_numpy(folder: Path, code: str) -> str:
    """A PYTHONPATH on which `code` replaces numpy in the engine process."""
    (folder / "numpy.py").write_text(code)
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


class Listener:
    """Collects events and losses of an engine, and waits for more."""

    def __init__(self) -> None:
        # Events in order; a loss is its reason.
        self.seen: list[EngineEvent | str] = []
        # Set on every arrival.
        self._news = asyncio.Event()

    def on_events(self, new: list[EngineEvent]) -> None:
        self.seen += new
        self._news.set()

    def on_lost(self, why: str) -> None:
        self.seen.append(why)
        self._news.set()

    @property
    def losses(self) -> list[str]:
        """Reasons of all losses."""
        return [entry for entry in self.seen if isinstance(entry, str)]

    def all(self, kind: type[E]) -> list[E]:
        """All events of a kind."""
        return [event for event in self.seen if isinstance(event, kind)]

    def finished(self, stream: int) -> Finished[int] | None:
        """The last event of a request; waits for it."""
        return next((event for event in self.all(Finished) if event.id == stream), None)

    def pcm(self, stream: int) -> bytes:
        """All audio of a request so far."""
        return b"".join(event.payload for event in self.all(Audio) if event.id == stream)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an event or loss makes `condition` true.

        Raises:
            TimeoutError: not within `WAIT_S`.
        """
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def hellos(self, count: int) -> None:
        """Wait for the `count`-th `EngineReady`."""
        await self.until(lambda: len(self.all(EngineReady)) >= count)


@asynccontextmanager
async def engine_process(settings: Settings) -> AsyncIterator[tuple[EngineProcess, Listener]]:
    """A running engine process, closed at the end of the block."""
    listener = Listener()
    link = EngineProcess(settings, listener.on_events, listener.on_lost)
    await link.start()
    try:
        yield link, listener
    finally:
        await link.close()


def speak(link: EngineClient, stream: int, text: str = "a sentence for the tone engine", **options: Any) -> None:
    """Open a request with all of its text, unpaced unless `lead_ms` is given."""
    link.send(Open(stream, EngineOptions(**dict[str, Any](lead_ms=None) | options)))
    link.send(Append(stream, text))
    link.send(End(stream))
