"""A client process: `python -m agent_tts.bench.client`, see `workers`. It makes its part of a scenario's calls.

Its job is a scenario, the node's address, the transports of its calls, and which part of them is its own. It is ready
once its WebRTC peers are connected, if it has any; the word to go says when; its answer is a sample for each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from agent_tts.bench.connection import OPEN_S, dial, send_text
from agent_tts.bench.scenario import LAST, CallListener, CallSample, Scenario, ScenarioCall
from agent_tts.bench.statistics import lag_watched, percentiles
from agent_tts.bench.workers import KEY, ready, work
from agent_tts.client.connection import stream_url
from agent_tts.errors import SpeechError
from agent_tts.serve.processes.process import event_loop_factory

if TYPE_CHECKING:
    from agent_tts.bench.rtc_peer import ListeningPeer

CONTEXT = "call"  # the only one on its connection
REFUSED_S = 0.1  # before a closed loop asks again, so that refusals do not become a storm
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
Send = Callable[..., None]  # of a connection: the type of a message, and its fields
CPU_READ_S = 0.1  # after the measurement its process is still there
SETTLE_S = 5.0  # for the node to say that it is over, and to answer a ping after it


class Caller:
    """Makes calls to one node. Errors of a call are in its sample."""

    def __init__(self, url: str, key: str | None, scenario: Scenario) -> None:
        self._url = url
        self._key = key
        self._scenario = scenario
        # `run` sets them; audio is measured in the window.
        self._start = 0.0
        self._window = (0.0, math.inf)
        # Calls that still listen then interrupt.
        self._leave_at = math.inf
        # They were connected before the start.
        self._peers: list[ListeningPeer] = []
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=OPEN_S, limits=limits)
        self._numbers = itertools.count()
        self.samples: list[CallSample] = []

    async def connect(self, peers: int) -> None:
        """Connect so many WebRTC peers, one after the other. Raises SpeechError: the node refuses one."""
        for _ in range(peers):
            self._peers.append(await self._peer())

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
                for place, number in enumerate(range(part, scenario.concurrency or 0, parts)):
                    tasks.create_task(self._chain(number, place))
                numbered = enumerate(scenario.calls(), scenario.concurrency or 0)
                ours = (item for item in numbered if item[1].transport in transports)
                for number, call in itertools.islice(ours, part, None, parts):
                    await _until(start + call.after_s)
                    tasks.create_task(self.speak(call, start + call.after_s, number))
                await _until(start + scenario.end_s + CPU_READ_S)

    async def speak(self, call: ScenarioCall, begin: float, caller: int = 0, place: int = 0) -> CallSample:
        """One call that was to begin at `begin`, from its connection to its end.

        `place` says which of the peers that were connected before the start it uses.
        """
        sample = CallSample(call.transport, call.leaving, caller, begin, call.kind)
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
            listener.leave()
        return sample

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers), self._http.aclose())

    async def _chain(self, number: int, place: int) -> None:
        played_at = 0.0
        for call in self._scenario.chain(number):
            due = max(self._start + call.after_s, played_at)
            await _until(due)
            now = max(due, time.monotonic())  # a sleep may end a moment early, which is before the measurement
            if now >= self._start + self._scenario.end_s:
                return
            sample = await self.speak(call, now, number, place)
            if self._scenario.once:
                return
            if self._scenario.in_phase:
                played_at = now + sample.audio_s
            if sample.error is not None:
                await asyncio.sleep(REFUSED_S)

    def _options(self, call: ScenarioCall) -> dict[str, Any]:
        """What a context is opened with."""
        session = self._scenario.session | call.session
        return {"timestamps": "none", **session, "language": call.language, "seed": call.seed}

    async def _over_websocket(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        if self._scenario.traced:
            listener.sample.trace_id = token_hex(TRACE_ID_BYTES)
        trace_id = listener.sample.trace_id
        parent = f"00-{trace_id}-{token_hex(SPAN_ID_BYTES)}-01" if trace_id is not None else None
        connection = await dial(stream_url(self._url), self._key, parent)
        listener.sample.connected_at = time.monotonic()
        try:
            connection.observer = listener.saw
            connection.listen(CONTEXT, listener)
            connection.send("context.open", context_id=CONTEXT, **self._options(call))
            await self._say(connection.send, CONTEXT, call, listener)
            await self._listen(call, listener, connection.send, CONTEXT)
            if call.leaving in ("heard_out", "barge_in"):
                await connection.hang_up()
        finally:
            listener.gone = True
            await connection.close(reset=call.leaving == "reset")

    async def _say(self, send: Send, context_id: str, call: ScenarioCall, listener: CallListener) -> None:
        """Send the text of an open context, word by word as a language model does, or at once."""
        sample, every_s = listener.sample, call.words_every_ms / 1_000
        if not every_s:
            sample.sent_at = sample.sent_at or time.monotonic()
            send_text(send, context_id, call.text)
            return
        due = time.monotonic()
        for word in call.text.split():
            due += every_s
            await _until(due)
            if listener.over.is_set():
                return
            now = time.monotonic()
            sample.sent_at = sample.sent_at or now
            sample.send_late_ms = max(sample.send_late_ms, 1_000 * (now - due))
            send("text.append", context_id=context_id, text=f"{word} ")
        send("context.end", context_id=context_id)

    async def _listen(self, call: ScenarioCall, listener: CallListener, send: Send, context_id: str) -> None:
        """Hear the speech as long as it is to be heard, and, of a load, what the node has to say of its end."""
        if self._scenario.tail_s is None:
            await listener.over.wait()
            return
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
        asked, every_s = self._options(call), call.words_every_ms / 1_000
        named = ("voice", "instructions", "model" if "model" in asked else "language")  # OpenAI's API has no language
        body = {"input": call.text, "response_format": "pcm"} | {name: asked[name] for name in named if asked.get(name)}
        listener.sample.sent_at = time.monotonic() + every_s
        await asyncio.sleep(every_s * len(call.text.split()))  # a request has the whole text
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
                        listener.heard(time.monotonic(), piece)
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
            await peer.begin(self._http)
        except BaseException:
            await peer.close()
            raise
        return peer

    async def _over_rtc(self, call: ScenarioCall, listener: CallListener, place: int) -> None:
        peer = self._peers[place] if self._peers else await self._peer()
        sample = listener.sample
        peer.listen(listener)
        sample.sent_at = time.monotonic()
        try:
            while sample.error is None:
                listener.over.clear()
                context_id = f"c{next(self._numbers)}"
                peer.send("context.open", context_id=context_id, **self._options(call))
                await self._say(peer.send, context_id, call, listener)
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
        parts = urlsplit(self._url)
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
    trace = [ScenarioCall(**call) for call in job["scenario"]["trace"]]
    scenario, part, parts = Scenario(**job["scenario"] | {"trace": trace}), job["part"], job["parts"]
    caller = Caller(job["url"], os.environ.get(KEY), scenario)
    try:
        await caller.connect(len(range(part, scenario.peers, parts)))
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
