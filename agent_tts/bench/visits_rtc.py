"""A process of visitors over WebRTC: `python -m agent_tts.bench.visits_rtc`, see `visits_client`."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from dataclasses import asdict
from typing import Any

import httpx

from agent_tts.bench.lag import lag_watched
from agent_tts.bench.rtc_peers import CONNECT_S, PING_S, Arrivals, Peer
from agent_tts.bench.statistics import percentile
from agent_tts.bench.streams_client import MESSAGE_CHARS
from agent_tts.bench.visits import Plan, Sample, Visit
from agent_tts.bench.visits_client import CONTEXT, Ear, listen, pay_all
from agent_tts.bench.workers import KEY, Turn, work


class Visitor(Peer):
    """A peer that hears one context. It counts packets, silent ones too: audio is on the track, not in messages."""

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear

    def _on_message(self, data: str) -> None:
        message = json.loads(data)
        self._ear.saw(message)
        if message.get("context_id") == CONTEXT:
            self._ear.told(time.monotonic(), message)
            if message["type"] == "context.started":
                self._ear.begun.set()


class Visitors:
    """Pay visits over WebRTC."""

    def __init__(self, plan: Plan, client: httpx.AsyncClient) -> None:
        self._plan = plan
        self._client = client

    async def pay(self, visit: Visit, sample: Sample, leave_at: float) -> None:
        """See `visits_client.Pay`."""
        ear = Ear(sample)
        peer = Visitor(ear)
        pinging: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                await peer.connect(self._client)
            peer.arrivals = Arrivals()
            pinging = asyncio.create_task(_ping(peer), name="pings")
            sample.sent_at = time.monotonic()
            self._speak(visit, peer)
            await listen(visit, ear, peer.send, leave_at)
            sample.lost = peer.arrivals.lost()
            sample.late_ms = percentile(peer.arrivals.lateness_ms(), 99)
        finally:
            if pinging is not None:
                pinging.cancel()
                await asyncio.gather(pinging, return_exceptions=True)
            await peer.close()

    def _speak(self, visit: Visit, peer: Visitor) -> None:
        voice = self._plan.session.get("voice")
        peer.send("context.open", context_id=CONTEXT, voice=voice, language=visit.language, timestamps="none")
        for start in range(0, len(visit.text), MESSAGE_CHARS):
            peer.send("text.append", context_id=CONTEXT, text=visit.text[start : start + MESSAGE_CHARS])
        peer.send("context.end", context_id=CONTEXT)


async def _ping(peer: Visitor) -> None:
    for turn in itertools.count():
        peer.send("ping", t=turn)
        await asyncio.sleep(PING_S)


async def main(job: dict[str, Any], turn: Turn) -> None:
    """See `work`."""
    plan, key = Plan(**job["plan"]), os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=job["urls"]["http"], headers=headers, timeout=CONNECT_S) as client:
        visitors = Visitors(plan, client)
        start = (await turn.ready())["start"]
        async with lag_watched() as lag:
            samples = await pay_all(plan, ("rtc",), job["part"], job["parts"], start, visitors.pay)
        turn.answer({"samples": [asdict(sample) for sample in samples], "lag_ms": lag.figures()})


if __name__ == "__main__":
    work(main)
