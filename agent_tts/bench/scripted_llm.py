"""A server of OpenAI's chat completions whose answers are scripted and take no time."""

from __future__ import annotations

import http.server
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent_tts.bench.statistics import serving

TOKEN_S = 0.01  # to the first token and between tokens
MODEL = "scripted"


@contextmanager
def scripted_llm(answer_to: Callable[[str], str]) -> Iterator[str]:
    """Run the server in a thread of its own; yields its base URL. `answer_to` is given the user's last words."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._begin("application/json")
            self.wfile.write(json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode())

        def do_POST(self) -> None:
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            said = [str(message.get("content") or "") for message in messages if message["role"] == "user"]
            self._begin("text/event-stream")
            try:
                for token in re.findall(r"\S+\s*", answer_to(said[-1] if said else "")):
                    time.sleep(TOKEN_S)
                    self._tell({"content": token}, None)
                self._tell({}, "stop")
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:  # the client wants no more of an answer
                pass

        def _begin(self, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()

        def _tell(self, delta: dict[str, str], finish: str | None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

        def log_message(self, format: str, *_: object) -> None:
            """Silent."""

    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler), "scripted LLM") as server:
        yield f"http://127.0.0.1:{server.server_port}/v1"
