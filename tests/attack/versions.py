"""Clients of other versions: they are heard as far as they are understood, or told what is spoken."""

from __future__ import annotations

import json
from typing import Any

from websockets.exceptions import InvalidStatus

from tests.attack.harness import Broken, Target, attack
from tests.rtc_peer import connected
from tests.support import until
from tests.wire import Wire, wire

SPOKEN = "agent_tts.v1"
LATER = "agent_tts.v2"
TEXT = "A client of a later version says what it always said."
LATER_FIELDS: dict[str, Any] = {"mood": {"joy": 0.5}, "then": ["t2"], "\u202e" * 100: None}
LATER_SESSION: dict[str, Any] = {**LATER_FIELDS, "output": {"gain": 2}, "sampling": {"min_p": 0.1}, "seed": 7}
FIELDS_A_MESSAGE = 16
MAX_ANSWER_BYTES = 16_384  # to fields that are not known, in one session


@attack("clients of a later version")
async def later(target: Target) -> str:
    try:
        async with wire(target.ws_url, subprotocols=[LATER], additional_headers=target.headers):
            raise Broken(f"{LATER} alone is taken for {SPOKEN}")
    except InvalidStatus as refusal:
        if refusal.response.headers.get("Sec-WebSocket-Protocol") != SPOKEN:
            raise Broken("a refused version is not told what is spoken") from None
    async with wire(target.ws_url, additional_headers=target.headers) as peer:
        expected = await _say(peer, {}, {"seed": 7})
    rounds = int(target.scaled(20, 2))
    for _ in range(rounds):
        async with wire(target.ws_url, subprotocols=[LATER, SPOKEN], additional_headers=target.headers) as peer:
            heard = await _say(peer, LATER_FIELDS, LATER_SESSION)
        warnings = [message for message in peer.messages if message["type"] == "warning"]
        if heard != expected or peer.socket.subprotocol != SPOKEN:
            raise Broken("fields of a later version change what is heard")
        if len(warnings) > 5 or any(message["type"] == "error" for message in peer.messages):
            raise Broken("fields of a later version are errors, or told again")
    async with connected(target.url, target.headers) as caller:
        told: list[str] = []
        channel = caller.connection.createDataChannel(LATER)
        channel.on("message", told.append)
        await until(lambda: channel.readyState == "closed")
        if not told or json.loads(told[0])["code"] != "unsupported_protocol":
            raise Broken("a data channel of a later version is closed without a word")
    return f"{rounds} conversations equal to those of {SPOKEN}"


@attack("fields of no version")
async def unknown(target: Target) -> str:
    """Each message has names that the node has not seen: it may not answer each."""
    sent = answered = 0
    async with wire(target.ws_url, additional_headers=target.headers) as peer:
        for number in range(int(target.scaled(20_000, 1_000))):
            fields = {f"{number} {index} ".ljust(80, "x"): index for index in range(FIELDS_A_MESSAGE)}
            message = json.dumps({"type": "playback.ack", "context_id": "t1", "played_ms": 0, **fields})
            if not number:
                await peer.send("text.append", context_id="t1", text="")
            await peer.socket.send(message)
            sent += len(message)
        await peer.send("ping", t=1)
        while True:
            answer = await peer.receive()
            if answer is not None and answer["type"] == "pong":
                break
            answered += len(json.dumps(answer))
    if answered > MAX_ANSWER_BYTES:
        raise Broken(f"{sent} bytes were answered with {answered}")
    return f"{sent} bytes answered with {answered}"


async def _say(peer: Wire, fields: dict[str, Any], session: dict[str, Any]) -> bytes:
    """A conversation with these fields in each message; returns the audio."""
    await peer.send("session.update", session=session, **fields)
    await peer.send("context.open", context_id="t1", **fields)
    for word in TEXT.split(" "):
        await peer.send("text.append", context_id="t1", text=f"{word} ", **fields)
    await peer.send("context.flush", context_id="t1", flush_id="f", **fields)
    await peer.send("playback.ack", context_id="t1", played_ms=0, **fields)
    await peer.send("ping", t=1, **fields)
    await peer.send("context.end", context_id="t1", **fields)
    done = await peer.until("context.done")
    if done["reason"] != "end":
        raise Broken(f"a conversation ended with {done['reason']}")
    return peer.pcm("t1")
