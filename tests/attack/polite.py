"""The polite caller: a process that speaks without a pause beside an attack, and measures what it gets.

It writes an LLM's words into one paced context after the other, pings the node 50 times a second on the same
connection, and opens another connection each second, as a newcomer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.statistics import Player, background, percentile
from agent_tts.bench.workers import KEY, ready, report, work
from agent_tts.engine_info import FRAME_MS, SAMPLE_RATE
from agent_tts.errors import SpeechError

TEXT = "While all of this goes on, somebody else speaks calmly, word by word, and hears each one in time."
WORD_S = 0.04  # an LLM's pace
PING_S = 0.02
NEWCOMER_S = 1.0  # between two new connections
PATIENCE_S = 20.0  # for one context of about 6 s of audio
MEASURED_S = 10.0  # for the first answer to a ping, before figures are told without one
BYTES_PER_S = SAMPLE_RATE * 2


@dataclass(slots=True)
class Figures:
    """What the caller got since the last report. Times in ms."""

    round_trips: list[float] = field(default_factory=list)
    first_audio: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    connects: list[float] = field(default_factory=list)
    contexts: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "p50_ms": percentile(self.round_trips, 50),
            "p99_ms": percentile(self.round_trips, 99),
            "max_ms": max(self.round_trips, default=None),
            "first_audio_ms": max(self.first_audio, default=None),
            "gap_ms": max(self.gaps, default=0.0),
            "connect_ms": max(self.connects, default=None),
            "contexts": self.contexts,
            "errors": dict(self.errors),
        }


class Heard:
    """A context's listener: a player that starts one frame after the first audio."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._player = Player(start_after_s=FRAME_MS / 1_000)
        self._written_at = time.monotonic()
        self.done = asyncio.Event()
        self._bytes = 0

    def heard(self, now: float, pcm: bytes | memoryview) -> None:
        if self._player.started_at is None:
            self._caller.figures.first_audio.append((now - self._written_at) * 1_000)
        if gap_s := self._player.take(now, len(pcm) / BYTES_PER_S):
            self._caller.figures.gaps.append(1_000 * gap_s)
        self._bytes += len(pcm)

    def told(self, now: float, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self._caller.figures.errors[message["code"]] += 1
            self.done.set()
        elif message["type"] == "context.done":
            if message["reason"] not in ("end", "length") or not self._bytes:
                self._caller.figures.errors[f"ended by {message['reason']}, {self._bytes} bytes"] += 1
            self._caller.figures.contexts += 1
            self.done.set()


class Caller:
    """The tasks of the polite caller. `figures` is replaced by each report."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._key = key
        self.figures = Figures()
        # When each ping was sent that has no answer yet.
        self._unanswered: dict[int, float] = {}
        # It is set when a ping has been answered since the last report.
        self._answered = asyncio.Event()

    async def report(self) -> dict[str, Any]:
        """The figures since the last report, of one ping at least; one without an answer counts with its age."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEASURED_S):
                await self._answered.wait()
        self._answered.clear()
        now = time.monotonic()
        self.figures.round_trips += [(now - sent) * 1_000 for sent in self._unanswered.values()]
        told, self.figures = self.figures.told(), Figures()
        return told

    async def speak(self) -> None:
        """Speak for ever on one connection; a lost one is an error, and opened anew."""
        while True:
            connection = None
            try:
                connection = await dial(self._url, self._key)
                async with background(self._ping(connection), "pings"):
                    for number in itertools.count():
                        await self._say(connection, str(number))
            except (SpeechError, TimeoutError) as error:
                self.figures.errors[getattr(error, "code", "no answer")] += 1
                await asyncio.sleep(0.1)
            finally:
                if connection is not None:
                    await connection.close()

    async def _say(self, connection: RawConnection, context_id: str) -> None:
        heard = Heard(self)
        connection.listen(context_id, heard)
        for word in TEXT.split():
            connection.send("text.append", context_id=context_id, text=f"{word} ")
            await asyncio.sleep(WORD_S)
        connection.send("context.end", context_id=context_id)
        async with asyncio.timeout(PATIENCE_S):
            await heard.done.wait()
        if connection.closed.done():
            raise SpeechError("the connection was lost")

    async def _ping(self, connection: RawConnection) -> None:
        sent = self._unanswered = {}

        def take(message: dict[str, Any]) -> None:
            if message["type"] == "pong":
                self.figures.round_trips.append((time.monotonic() - sent.pop(message["t"])) * 1_000)
                self._answered.set()

        connection.observer = take
        for number in itertools.count():
            sent[number] = time.monotonic()
            connection.send("ping", t=number)
            await asyncio.sleep(PING_S)

    async def come(self) -> None:
        """Open and close another connection each second."""
        while True:
            began = time.monotonic()
            try:
                connection = await dial(self._url, self._key)
                self.figures.connects.append((time.monotonic() - began) * 1_000)
                await connection.close()
            except (SpeechError, TimeoutError) as error:
                self.figures.errors[f"newcomer: {getattr(error, 'code', 'no answer')}"] += 1
            await asyncio.sleep(NEWCOMER_S)


async def main(job: dict[str, Any]) -> dict[str, Any]:
    """Speak until the word is `last`; each word is answered with the figures since the one before."""
    caller = Caller(job["url"], os.environ.get(KEY))
    async with background(caller.speak(), "speech"), background(caller.come(), "newcomers"):
        word = await ready()
        while True:
            if "last" in word:
                return await caller.report()
            word = await report(await caller.report())


if __name__ == "__main__":
    work(main)
