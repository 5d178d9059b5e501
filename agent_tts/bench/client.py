"""A client process: `python -m agent_tts.bench.client`, see `workers`. It makes its part of a scenario's calls.

Its job is a scenario, the node's addresses, the transports of its calls, and which part of them is its own. It is ready
once it is connected, where the scenario asks for that; the word to go says when; its answer is a sample for each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from agent_tts.bench.connection import OPEN_S, RawConnection, dial, dial_all, send_text
from agent_tts.bench.scenario import LAST, CallListener, CallSample, Scenario, ScenarioCall
from agent_tts.bench.statistics import lag_watched, percentiles
from agent_tts.bench.workers import KEY, ready, work
from agent_tts.errors import SpeechError
from agent_tts.serve.process import event_loop_factory

if TYPE_CHECKING:
    from agent_tts.bench.rtc_peer import ListeningPeer

REFUSED_S = 0.1  # before a closed loop asks again, so that refusals do not become a storm
SETTLE_S = 5.0  # for the node to say that it is over, and to answer a ping after it


class Caller:
    """Makes calls to one node. Errors of a call are in its sample."""

    def __init__(self, urls: dict[str, str], key: str | None, scenario: Scenario) -> None:
        self._urls = urls
        self._key = key
        self._scenario = scenario
        # When the scenario starts; set by `run`. Audio is measured in the window.
        self._start = 0.0
        self._window = (0.0, math.inf)
        # When calls that still listen interrupt.
        self._leave_at = math.inf
        # Connections that were made before the start, and those that are open and unused.
        self._connections: list[RawConnection] = []
        self._unused: list[RawConnection] = []
        self._peers: list[ListeningPeer] = []
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=urls.get("http", ""), headers=headers, timeout=OPEN_S, limits=limits)
        self._numbers = itertools.count()
        # Of all calls that have begun.
        self.samples: list[CallSample] = []

    async def connect(self, calls: int) -> None:
        """Make the connections of so many calls at once. Raises SpeechError: one of them cannot be had."""
        if self._scenario.transport == "rtc":
            for _ in range(calls):
                self._peers.append(await self._peer())
        else:
            count = -(-calls // self._scenario.per_connection)
            self._connections = await dial_all(self._urls["ws"], self._key, count, self._session)

    async def run(self, start: float, transports: list[str], part: int, parts: int) -> None:
        """Make every call of our part at its time. Cancelling it gives up all calls."""
        scenario, self._start = self._scenario, start
        if scenario.duration_s:
            self._window = (start + scenario.warmup_s, start + scenario.end_s)
        if scenario.tail_s is not None:
            self._leave_at = start + scenario.last_s + scenario.tail_s
        end = _on_loop(start + scenario.end_s) if scenario.hang_up else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end), asyncio.TaskGroup() as tasks:
                if scenario.concurrency is not None:
                    for place, number in enumerate(range(part, scenario.concurrency, parts)):
                        tasks.create_task(self._chain(number, place))
                else:
                    ours = (call for call in scenario.calls() if call.transport in transports)
                    for call in itertools.islice(ours, part, None, parts):
                        await _until(start + call.after_s)
                        tasks.create_task(self.speak(call, start + call.after_s))

    async def speak(self, call: ScenarioCall, begin: float, place: int = 0) -> CallSample:
        """One call that was to begin at `begin`, from its first text to its end.

        `place` says which of the connections that were made before the start it uses.
        """
        sample = CallSample(call.transport, call.leaving, begin)
        self.samples.append(sample)
        listener = CallListener(sample, self._scenario.player_delay_ms, self._window)
        make = {
            "websocket": self._over_websocket,
            "http": self._over_http,
            "rtc": self._over_rtc,
            "health": self._ask_for_health,
            "idle": self._stay_idle,
        }[call.transport]
        timeout_s = self._scenario.timeout_s
        deadline = self._leave_at + SETTLE_S if timeout_s is None else time.monotonic() + timeout_s
        try:
            async with asyncio.timeout_at(_on_loop(deadline) if math.isfinite(deadline) else None):
                await make(call, listener, place)
        except SpeechError as error:
            sample.error = sample.error or error.code
        except TimeoutError:
            sample.error = "timeout"
        finally:
            listener.leave(self._scenario.hang_up)
        return sample

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(
            *(connection.close() for connection in (*self._connections, *self._unused)),
            *(peer.close() for peer in self._peers),
            self._http.aclose(),
        )

    async def _chain(self, number: int, place: int) -> None:
        for call in self._scenario.chain(number):
            await _until(self._start + call.after_s)
            if time.monotonic() >= self._start + self._scenario.end_s:
                return
            sample = await self.speak(call, time.monotonic(), place)
            if self._scenario.once:
                return
            if sample.error is not None:
                await asyncio.sleep(REFUSED_S)

    @property
    def _session(self) -> dict[str, Any]:
        return {"timestamps": "none", **self._scenario.session}

    async def _over_websocket(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        context_id = f"c{next(self._numbers)}"
        async with self._connection(call, listener, place) as connection:
            connection.listen(context_id, listener)
            listener.sample.sent_at = sent_at = time.monotonic()
            if every_s := self._scenario.words_every_ms / 1_000:
                for number, word in enumerate(call.text.split()):
                    if number:
                        await _until(sent_at + number * every_s)
                    connection.send("text.append", context_id=context_id, text=f"{word} ")
                connection.send("context.end", context_id=context_id)
            else:
                send_text(connection.send, context_id, call.text)
            if self._scenario.keep_open or self._connections:
                await listener.over.wait()
            else:
                await self._listen(call, listener, connection.send, context_id)

    @asynccontextmanager
    async def _connection(self, call: ScenarioCall, listener: CallListener, place: int) -> AsyncIterator[RawConnection]:
        if self._connections:
            yield self._connections[place % len(self._connections)]
            return
        self._unused = [connection for connection in self._unused if not connection.closed.done()]
        connection = self._unused.pop() if self._unused else None
        reuse = False
        try:
            if connection is None:
                connection, _ = await dial(self._urls["ws"], self._key)
                language = {} if call.language is None else {"language": call.language}
                await connection.update({**self._session, **language})
            connection.observer = listener.saw
            yield connection
            reuse = self._scenario.keep_open  # not after an error: the context may still speak
        finally:
            listener.gone = True
            if connection is not None and reuse:
                self._unused.append(connection)
            elif connection is not None:
                await connection.close(reset=call.leaving == "reset")

    async def _listen(
        self, call: ScenarioCall, listener: CallListener, send: Callable[..., None], context_id: str
    ) -> None:
        """Hear the speech as long as it is to be heard, and then what the node has to say of its end."""
        if call.leaving in ("fin", "reset"):
            await _came(listener.over, call.patience_s)
            return
        if call.leaving == "barge_in":
            await listener.begun.wait()
        if not await _came(listener.over, self._patience_s(call)):
            send("context.cancel", context_id=context_id)
            await listener.over.wait()
        # The node answers in order: whatever it had to say of the context came before.
        send("ping", t=LAST)
        await _came(listener.answered, SETTLE_S)

    def _patience_s(self, call: ScenarioCall) -> float:
        """How long the call waits for the end, from now on."""
        return min(call.patience_s, max(0.0, self._leave_at - time.monotonic()))

    async def _over_http(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        voice = self._scenario.session.get("voice")
        body = {"input": call.text, "voice": voice, "language": call.language, "response_format": "pcm"}
        listener.sample.sent_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._hear(body, listener), name="call over HTTP")
            if call.leaving == "barge_in":
                await listener.begun.wait()
            patience_s = self._patience_s(call)
            await asyncio.wait({hearing}, timeout=patience_s if math.isfinite(patience_s) else None)
            hearing.cancel()

    async def _hear(self, body: dict[str, Any], listener: CallListener) -> None:
        try:
            async with self._http.stream("POST", "/v1/audio/speech", json=body) as answer:
                if answer.status_code == 200:
                    async for piece in answer.aiter_raw():
                        listener.heard(time.monotonic(), len(piece))
                else:
                    await answer.aread()
                    listener.sample.error = answer.json()["error"]["code"]
        except (httpx.HTTPError, ValueError):
            listener.sample.error = "connection_lost"
        listener.sample.ends += 1
        listener.begun.set()

    async def _ask_for_health(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        listener.sample.sent_at = time.monotonic()
        try:
            status = (await self._http.get("/health", timeout=SETTLE_S)).status_code
            listener.sample.error = None if status == 200 else f"http_{status}"
        except httpx.HTTPError:
            listener.sample.error = "connection_lost"

    async def _peer(self) -> ListeningPeer:
        from agent_tts.bench.rtc_peer import ListeningPeer

        peer = ListeningPeer()
        try:
            await peer.connect(self._http)
        except BaseException:
            await peer.close()
            raise
        return peer

    async def _over_rtc(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        peer = self._peers[place] if self._peers else await self._peer()
        sample, session = listener.sample, self._scenario.session
        asked = {name: session[name] for name in ("voice", "instructions") if session.get(name) is not None}
        peer.listen(listener)
        sample.sent_at = time.monotonic()
        try:
            while sample.error is None:
                listener.over.clear()
                context_id = f"c{next(self._numbers)}"
                peer.open(context_id, call.text, language=call.language, **asked)
                if not self._peers:
                    await self._listen(call, listener, peer.send, context_id)
                    return
                await listener.over.wait()  # then the text is spoken again, until the scenario ends
            await asyncio.Event().wait()  # packets go on
        finally:
            begin, end = self._window if self._peers else (sample.sent_at, math.inf)
            sample.late_ms, sample.lost = peer.arrivals.between(begin, end)
            if not self._peers:
                await peer.close()

    async def _stay_idle(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        parts = urlsplit(self._urls["http"])
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        except OSError:
            listener.sample.error = "connection_lost"
            return
        listener.sample.sent_at = time.monotonic()
        try:
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            listener.sample.ends += 1
        finally:
            writer.transport.abort()


async def _until(when: float) -> None:
    await asyncio.sleep(when - time.monotonic())


def _on_loop(at: float) -> float:
    """A time of the monotonic clock on the event loop's."""
    return asyncio.get_running_loop().time() + at - time.monotonic()


async def _came(event: asyncio.Event, seconds: float) -> bool:
    """Wait for it so long; whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds if math.isfinite(seconds) else None):
            await event.wait()
    return event.is_set()


async def main(job: dict[str, Any]) -> dict[str, Any]:
    """See `work`."""
    scenario, part, parts = Scenario(**job["scenario"]), job["part"], job["parts"]
    caller = Caller(job["urls"], os.environ.get(KEY), scenario)
    try:
        if scenario.per_connection:
            await caller.connect(len(range(part, scenario.concurrency or 0, parts)))
        start = (await ready())["start"]
        async with lag_watched() as lag_ms:
            asyncio.get_running_loop().call_later(start + scenario.warmup_s - time.monotonic(), lag_ms.clear)
            await caller.run(start, job["transports"], part, parts)
        samples = [asdict(sample) for sample in caller.samples]
        return {"samples": samples, "lag_ms": percentiles(lag_ms, 50, 99, 100)}
    finally:
        await caller.close()


if __name__ == "__main__":
    work(main, event_loop_factory())
