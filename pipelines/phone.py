"""The voice agent on the telephone: 8 kHz over a WebSocket, as Twilio's media streams have it.

    python pipelines/phone.py --config agent --set agent.stt.model=base.en

In Twilio, let the number answer with this (the parameter only if the node has keys):

    <Response><Connect><Stream url="wss://your.host/api/phone/twilio">
      <Parameter name="key" value="one of auth.api_keys" />
    </Stream></Connect></Response>

With TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN set, the agent hangs up when it ends. Other carriers differ in the
serializer alone: Pipecat has those of Telnyx, Plivo, Exotel, Vonage and Genesys.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from typing import Any

from fastapi import FastAPI
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from agent_tts.agent.server import AgentServer
from agent_tts.config.loading import find_config, load_settings
from agent_tts.errors import BadMessage, SettingsError, SpeechError
from agent_tts.serve.node import Node
from agent_tts.serve.run import run

RATE = 8_000  # Hz
START_S = 5.0  # for the carrier's first messages
TRY_AGAIN_LATER, POLICY_VIOLATION = 1013, 1008


class PhoneServer(AgentServer):
    """The agent's server, with a route for telephone calls."""

    def install(self, app: FastAPI, node: Node) -> None:
        super().install(app, node)
        self.node = node
        app.router.routes.append(WebSocketRoute("/api/phone/twilio", self.twilio))

    async def twilio(self, websocket: WebSocket) -> None:
        """One call, from its first message to its last."""
        await websocket.accept()
        try:
            async with asyncio.timeout(START_S):
                start = await _start(websocket)
            parameters = start.get("customParameters")
            key = parameters.get("key") if isinstance(parameters, dict) else None
            headers = dict(websocket.headers) | ({"authorization": f"Bearer {key}"} if key else {})
            client = self.node.guard.authorize(headers, {})
            params = FastAPIWebsocketParams(
                audio_in_enabled=True, audio_out_enabled=True, audio_out_10ms_chunks=2, serializer=_serializer(start)
            )
            transport = FastAPIWebsocketTransport(websocket, params)
            await self.calls.converse("phone", transport, RATE, client, lambda: _gone(websocket))
        except (TimeoutError, WebSocketDisconnect):
            pass
        except SpeechError as error:
            code = TRY_AGAIN_LATER if error.status == 503 else POLICY_VIOLATION
            await websocket.close(code, error.message[:120])
        finally:
            if _gone(websocket) is None and websocket.application_state is WebSocketState.CONNECTED:
                with contextlib.suppress(WebSocketDisconnect):  # the caller hung up just now
                    await websocket.close()


async def _start(websocket: WebSocket) -> dict[str, Any]:
    """The carrier's `start` message."""
    for _ in range(2):
        try:
            message = await websocket.receive_json()
        except ValueError:
            break
        start: Any = message.get("start") if isinstance(message, dict) else None
        if isinstance(start, dict) and isinstance(start.get("streamSid"), str):
            return start
    raise BadMessage("a call must begin with Twilio's `connected` and `start`")


def _serializer(start: dict[str, Any]) -> TwilioFrameSerializer:
    sid, token = os.environ.get("TWILIO_ACCOUNT_SID"), os.environ.get("TWILIO_AUTH_TOKEN")
    hangs_up = bool(sid and token and start.get("callSid"))
    return TwilioFrameSerializer(
        start["streamSid"],
        start.get("callSid"),
        sid if hangs_up else None,
        token if hangs_up else None,
        params=TwilioFrameSerializer.InputParams(auto_hang_up=hangs_up),
    )


def _gone(websocket: WebSocket) -> str | None:
    return None if websocket.client_state is WebSocketState.CONNECTED else "the caller has hung up"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a YAML file, or one of the package by name: agent")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting")
    args = parser.parse_args()
    try:
        chosen = dict(each.split("=", 1) for each in args.set)
        settings = load_settings(find_config(args.config) if args.config else None, chosen)
        sys.exit(run(settings, lambda url: print(f"agent-tts: {url}", file=sys.stderr), PhoneServer(settings.agent)))
    except SettingsError as error:
        sys.exit(f"agent-tts: {error}")
