"""The voice agent on the telephone: 8 kHz over a WebSocket, as the media streams of Twilio, Telnyx and Plivo have it.

    python pipelines/phone.py --config agent --port 8100 --set agent.stt.model=base.en

In Twilio, let the number answer with this (the parameter only if the node has keys):

    <Response><Connect><Stream url="wss://your.host/api/phone/twilio">
      <Parameter name="key" value="one of auth.api_keys" />
    </Stream></Connect></Response>

In Plivo, with the key in the address:

    <Response><Stream bidirectional="true" keepCallAlive="true" contentType="audio/x-mulaw;rate=8000">
      wss://your.host/api/phone/plivo?key=one of auth.api_keys
    </Stream></Response>

In Telnyx, give `wss://your.host/api/phone/telnyx?key=...` as `stream_url`, with `stream_bidirectional_mode` rtp.

With the carrier's credentials in the environment (see below), the agent hangs up when it ends, and refuses calls that
Twilio or Plivo has not signed. Other carriers differ in `Carrier`: Pipecat has serializers for Exotel, Vonage, Genesys.
"""

from agent_tts.system.entrance import enter

if __name__ == "__main__":
    enter(hangs_up=False)

import argparse
import asyncio
import base64
import contextlib
import hmac
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI
from loguru import logger
from pipecat.frames.frames import Frame, InputAudioRawFrame
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from agent_tts.agent.server import AgentServer
from agent_tts.cli.serve import welcome
from agent_tts.config.loading import find_config, load_settings
from agent_tts.errors import BadMessage, SettingsError, SpeechError, Unsupported
from agent_tts.protocol.validation import parse
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.node import Node
from agent_tts.serve.processes.process import leave
from agent_tts.serve.processes.run import run
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports.websocket import CLOSE_CODES, close_reason

RATE = 8_000  # Hz
START_S = 5.0  # for the carrier's first messages
# Audio is taken little faster than it is spoken: Pipecat keeps without a bound what its models have not heard. After a
# stop of the network some seconds come at once.
SPEED, BURST_S = 1.25, 5.0
KEY_S = 0.1  # that a key of the telephone counts as: nobody presses more
MAX_MESSAGE = 16_384  # characters: more than a second of audio; carriers send 20 ms, and models hear a message at once
WORK_S = 0.001  # of the event loop, for a message: its audio passes all processors
MAX_SIGNATURES = 8  # of a handshake that are compared; Plivo sends one for each token of an account
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_:=+-]{0,255}")  # no part of it is a path


Message = dict[str, Any]


def _text(message: Message, *path: str) -> str:
    """A text in a carrier's message; raises `BadMessage` without one."""
    found: Any = message
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, str) or not found:
        raise BadMessage(f"the carrier's start has no {'.'.join(path)}")
    return found


def _id(message: Message, *path: str) -> str:
    """A carrier's id: part of an address when a call is ended, and of each message of audio; raises `BadMessage`."""
    found = _text(message, *path)
    if not ID.fullmatch(found):
        raise BadMessage(f"{'.'.join(path)} is no id of a call or stream")
    return found


def twilio(message: Message) -> FrameSerializer:
    sid, token = os.environ.get("TWILIO_ACCOUNT_SID"), os.environ.get("TWILIO_AUTH_TOKEN")
    hangs_up = TwilioFrameSerializer.InputParams(auto_hang_up=bool(sid and token))
    call = _id(message, "start", "callSid")
    return TwilioFrameSerializer(_id(message, "start", "streamSid"), call, sid, token, params=hangs_up)


def telnyx(message: Message) -> FrameSerializer:
    key = os.environ.get("TELNYX_API_KEY")
    hangs_up = TelnyxFrameSerializer.InputParams(auto_hang_up=bool(key))
    encoding = _text(message, "start", "media_format", "encoding")
    if encoding not in ("PCMU", "PCMA"):
        raise BadMessage("media_format.encoding is PCMU or PCMA")
    call = _id(message, "start", "call_control_id")
    # What is sent has Telnyx's default, `stream_bidirectional_codec: PCMU`.
    return TelnyxFrameSerializer(_id(message, "stream_id"), encoding, "PCMU", call, key, hangs_up)


def plivo(message: Message) -> FrameSerializer:
    name, token = os.environ.get("PLIVO_AUTH_ID"), os.environ.get("PLIVO_AUTH_TOKEN")
    hangs_up = PlivoFrameSerializer.InputParams(auto_hang_up=bool(name and token))
    call = _id(message, "start", "callId")
    return PlivoFrameSerializer(_id(message, "start", "streamId"), call, name, token, hangs_up)


def _addresses(handshake: HTTPConnection) -> Iterator[str]:
    """The address that the carrier was given, as it may be: proxies change scheme and host. The signature decides."""
    scope, headers = handshake.scope, handshake.headers
    path = "?".join(filter(None, (scope["path"], scope["query_string"].decode("latin-1"))))
    for host in filter(None, (headers.get("host"), headers.get("x-forwarded-host"))):
        for scheme in ("wss", "https"):
            yield f"{scheme}://{host}{path}"


def _has(signatures: str | None, token: str, algorithm: str, texts: Iterator[str]) -> bool:
    """Whether one of the signatures is that of one of the texts."""
    right = [base64.b64encode(hmac.digest(token.encode(), text.encode(), algorithm)) for text in texts]
    given = [each.strip().encode() for each in (signatures or "").split(",", MAX_SIGNATURES)[:MAX_SIGNATURES]]
    return any(hmac.compare_digest(each, known) for each in given for known in right)


def signed_by_twilio(handshake: HTTPConnection) -> bool:
    """Whether `X-Twilio-Signature` is right; without `TWILIO_AUTH_TOKEN`, it is not checked."""
    token = os.environ.get("TWILIO_AUTH_TOKEN")
    texts = (f"{address}{end}" for address in _addresses(handshake) for end in ("", "/"))
    return not token or _has(handshake.headers.get("x-twilio-signature"), token, "sha1", texts)


def signed_by_plivo(handshake: HTTPConnection) -> bool:
    """Whether `X-Plivo-Signature-V3` is right; without `PLIVO_AUTH_TOKEN`, it is not checked."""
    token, headers = os.environ.get("PLIVO_AUTH_TOKEN"), handshake.headers
    texts = (f"{address}.{headers.get('x-plivo-signature-v3-nonce', '')}" for address in _addresses(handshake))
    return not token or _has(headers.get("x-plivo-signature-v3"), token, "sha256", texts)


@dataclass(frozen=True, slots=True)
class Carrier:
    """How a carrier is spoken to."""

    serializer: Callable[[Message], FrameSerializer]  # of a call, from its `start`; raises `BadMessage`
    signed: Callable[[HTTPConnection], bool] = lambda _: True  # whether the handshake is the carrier's


# By the last part of the path. Telnyx signs no handshakes.
CARRIERS = {
    "twilio": Carrier(twilio, signed_by_twilio),
    "telnyx": Carrier(telnyx),
    "plivo": Carrier(plivo, signed_by_plivo),
}


class Line(FrameSerializer):
    """A carrier's serializer, for messages as they come: it may be given anything, at any speed."""

    def __init__(self, carriers: FrameSerializer, flow: Flow) -> None:
        super().__init__()
        self._carriers = carriers
        self._flow = flow
        self._clock = asyncio.get_running_loop().time
        self._allowed = TokenBucket(SPEED, BURST_S, self._clock())

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await self._carriers.setup(setup)

    async def serialize(self, frame: Frame) -> str | bytes | None:
        return await self._carriers.serialize(frame)

    async def deserialize(self, data: str | bytes) -> Frame | None:
        """What a message holds, when its audio may have been spoken; None for what is no message of a carrier's."""
        await self._flow.wait(WORK_S)
        if len(data) > MAX_MESSAGE:
            return None
        try:
            parse(data, "a message is a JSON object")
            frame = await self._carriers.deserialize(data)
        except Exception as error:  # noqa: BLE001 - Pipecat would read no more of this call
            logger.debug("agent: a carrier's message is left out: {}", type(error).__name__)
            return None
        if frame is not None:
            seconds = len(frame.audio) / (2 * frame.sample_rate) if isinstance(frame, InputAudioRawFrame) else KEY_S
            await asyncio.sleep(self._allowed.take(self._clock(), seconds))
        return frame


class PhoneServer(AgentServer):
    """The agent's server, with a route for the telephone calls of each carrier."""

    def install(self, app: FastAPI, node: Node) -> None:
        super().install(app, node)
        self.node = node
        for name, carrier in CARRIERS.items():
            app.router.routes.append(WebSocketRoute(f"/api/phone/{name}", partial(self.converse, carrier)))

    async def converse(self, carrier: Carrier, websocket: WebSocket) -> None:
        """One call, from its first message to its last."""
        timeouts = self.node.settings.timeouts
        code, why = 1000, None
        try:
            if not carrier.signed(websocket):
                async with asyncio.timeout(timeouts.write_s):
                    await websocket.close()  # HTTP 403
                return
            async with asyncio.timeout(timeouts.handshake_s):
                await websocket.accept()
            async with asyncio.timeout(START_S):
                message = await _start(websocket)
            client = await self.node.guard.identify(_with_key(websocket, message), key_query=("key",))
            if self.calls.deaf is not None:
                logger.warning("agent: a telephone call is ended, because nobody would hear it: {}", self.calls.deaf)
                raise Unsupported("there is no speech recognition now")
            params = FastAPIWebsocketParams(
                audio_in_enabled=True,
                audio_out_enabled=True,
                audio_out_10ms_chunks=2,
                serializer=Line(carrier.serializer(message), Flow(self.node.fair_queue.share(client.key_id))),
            )
            transport = FastAPIWebsocketTransport(websocket, params)
            await self.calls.converse("phone", transport, RATE, client, lambda: _gone(websocket))
        except (TimeoutError, WebSocketDisconnect):
            pass
        except SpeechError as error:
            self.node.metrics.refused.labels(error.code).inc()
            code, why = CLOSE_CODES.get(error.code, 1008), close_reason(error.message)
        finally:
            if _gone(websocket) is None and websocket.application_state is WebSocketState.CONNECTED:
                with contextlib.suppress(Exception):  # the caller hung up just now
                    async with asyncio.timeout(timeouts.write_s):
                        await websocket.close(code, why)


async def _start(websocket: WebSocket) -> Message:
    """The carrier's message with its `start`: the first, or the second after `connected`."""
    otherwise = "a call must begin with the carrier's `start`"
    for _ in range(2):
        received = await websocket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received["code"])
        message = parse(received.get("text") or "", otherwise)
        if isinstance(message.get("start"), dict):
            return message
    raise BadMessage(otherwise)


def _with_key(websocket: WebSocket, message: Message) -> HTTPConnection:
    """The handshake, with the key among Twilio's parameters, which allows none in the address."""
    parameters = message["start"].get("customParameters")
    key = parameters.get("key") if isinstance(parameters, dict) else None
    if not isinstance(key, str):
        return websocket
    headers = [(b"authorization", f"Bearer {key}".encode(errors="replace")), *websocket.scope["headers"]]
    return HTTPConnection(dict(websocket.scope) | {"headers": headers})


def _gone(websocket: WebSocket) -> str | None:
    is_there = websocket.client_state is WebSocketState.CONNECTED
    return None if is_there and not websocket.scope["extensions"][CONNECTION].has_left else "the caller has hung up"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a YAML file, or one of the package by name: agent")
    parser.add_argument("--port", help="port to listen on")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    args = parser.parse_args()
    try:
        chosen = dict(each.split("=", 1) for each in args.set)
        if args.port is not None:
            chosen["port"] = args.port
        settings = load_settings(find_config(args.config), chosen)
        if settings.agent.stt.kind == "none":
            raise SettingsError("a telephone has no keyboard: agent.stt.kind is whisper, not none")
        leave(run(settings, lambda url: welcome(settings, url), PhoneServer(settings.agent)))
    except SettingsError as error:
        sys.exit(f"agent-tts: {error}")
