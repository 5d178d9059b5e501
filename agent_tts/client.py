"""The asyncio client of a node: text in word by word, speech out frame by frame, over one WebSocket.

    async with connect("http://127.0.0.1:8100") as node:
        speech = await node.open(voice="nova")
        for token in tokens:
            speech.write(token)
        speech.end()
        async for pcm in speech:  # 16-bit mono at 24 kHz
            player.write(pcm)

A connection is never made anew behind the caller's back: when it is lost, everything open on it fails with
`ConnectionLost`, and `connect` is called again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from agent_tts.errors import SlowConsumer, SpeechError, from_code
from agent_tts.serve.protocol import FLAG_FLUSH, FLAG_LAST, HEADER, SUBPROTOCOL
