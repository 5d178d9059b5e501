"""Servers in a thread: any, one of files, and a model hub with the part of its HTTP that its client uses."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPO = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
COMMIT = "5d83992436eae1d760afd27aff78a71d676296fc"
OTHER = "0" * 40  # a commit that the hub does not have


@dataclass
class Hub:
    """The hub's files, its behaviour, and a record of its requests."""

    files: dict[str, bytes]
    sizes: dict[str, int] = field(default_factory=dict)  # wrong file sizes to report, by file
    refusal: tuple[int, str] | None = None  # status and code of every answer
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)  # the same for other repositories
    gated: bool = False  # files are listed, but every download is refused
    breaks_off: dict[str, int] = field(default_factory=dict)  # bytes of a file after which the connection ends
    url: str = ""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range

    def fetched(self) -> dict[str, str | None]:
        """Range header of each file whose content was requested."""
        contents = [(path, asked) for method, path, asked in self.asked if method == "GET" and "/resolve/" in path]
        return {re.sub(r".*/resolve/\w+/", "", path): asked for path, asked in contents}


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, with_body: bool) -> None:
        self.hub.asked.append((self.command, self.path, self.headers["Range"]))
        if self.hub.refusal:
            return self._refuse(*self.hub.refusal)
        for repo, refusal in self.hub.refusals.items():
            if f"/{repo}" in self.path:
                return self._refuse(*refusal)
        if found := re.fullmatch(rf"/api/models/{REPO}(?:/revision/(\w+))?(?:\?.*)?", self.path):
            if found[1] not in (None, "main", COMMIT):
                return self._refuse(404, "RevisionNotFound")
            return self._send(json.dumps(self._model()).encode(), {"Content-Type": "application/json"})
        if found := re.fullmatch(rf"/{REPO}/resolve/(?:main|{COMMIT})/(.+)", self.path):
            return self._refuse(403, "GatedRepo") if self.hub.gated else self._file(found[1], with_body)
        return self._refuse(404, "RepoNotFound")

    def _model(self) -> dict[str, object]:
        files = [
            {"rfilename": name, "size": self.hub.sizes.get(name, len(content))}
            for name, content in self.hub.files.items()
        ]
        return {"id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "siblings": files}

    def _file(self, name: str, with_body: bool) -> None:
        content = self.hub.files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        start = int(re.findall(r"bytes=(\d+)-", self.headers["Range"] or "bytes=0-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        end = self.hub.breaks_off.get(name, len(content))
        self._send(content[start:end] if with_body else b"", headers, len(content) - start, 206 if start else 200)

    def _send(self, body: bytes, headers: dict[str, str], length: int | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(b"", {"X-Error-Code": code}, 0, status)


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def in_thread(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server with this handler, which a thread runs in the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def files_of(folder: Path) -> AbstractContextManager[str]:
    """The address of a server with the files of a folder."""
    return in_thread(partial(Files, directory=str(folder)))


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve the hub at `hub.url` inside the block."""
    with in_thread(type("OfThisHub", (Handler,), {"hub": hub})) as hub.url:
        yield hub
