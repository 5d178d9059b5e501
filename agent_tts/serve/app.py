"""The node as an ASGI application: one port for the page, HTTP, WebSocket and WebRTC signalling."""

from __future__ import annotations

import asyncio
import functools
import gzip
import importlib
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI
from loguru import logger
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

import agent_tts
from agent_tts.config.files import FileContents, read
from agent_tts.config.loading import data_folder
from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost, SettingsError, SpeechError
from agent_tts.ipc.front_messages import ClosePeer, FrontPage
from agent_tts.serve.access.fair_queue import STRANGERS, Flow
from agent_tts.serve.access.guard import Guard
from agent_tts.serve.access.ledger_client import NodeLedger
from agent_tts.serve.access.supervisor_client import SupervisorClient
from agent_tts.serve.dialects import routes as dialects
from agent_tts.serve.local_engine import service_of
from agent_tts.serve.node import Node
from agent_tts.serve.routes import http, rtc, voices
from agent_tts.serve.routes.docs import Docs
from agent_tts.serve.routes.realtime import refuse_realtime
from agent_tts.serve.telemetry import pages
from agent_tts.serve.telemetry.metrics import EngineMetrics, Metrics
from agent_tts.serve.telemetry.tracing import spans_of
from agent_tts.serve.transports import aiortc_private
from agent_tts.serve.transports.websocket import NATIVE, StreamEndpoint
from agent_tts.speech.audio.manifest import signer_of
from agent_tts.speech.service import SpeechService
from agent_tts.voices.library import VoiceLibrary

LAG_PROBE_S = 0.5
STORE_POLL_S = 1.0  # between two looks for what other nodes have changed in the store of voices
REQUEST_S = 0.0005  # what a request counts; most take less
NO_REALTIME = "a node has realtime sessions where it is started by `agent-tts agent`"
MAX_PAGE_PATH = 200  # characters; the system looks up each part of a path

# The page loads nothing from other hosts, runs no inline script, and must not be framed.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; worker-src 'self' blob:; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; media-src 'self' blob: mediastream:; connect-src 'self' ws: wss:; manifest-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
# Policies are those of a document. On its scripts and styles they do nothing, and would be 20 KB of a first visit.
PART_HEADERS = {name: PAGE_HEADERS[name] for name in ("X-Content-Type-Options", "Cache-Control")}


class Extension(Protocol):
    """A part that is served on a node's port, such as the voice agent."""

    def install(self, app: FastAPI, node: Node) -> None:
        """Add its routes."""

    async def start(self) -> None:
        """Start it; the engines are up. Must not wait."""

    async def close(self) -> None:
        """Stop all that it started, within seconds; the engines are still up."""


def extension_of(settings: Settings, place: str | None) -> Extension | None:
    """The extension that a function makes from the settings; `place` is `module:function`, None for no extension.

    A name, because each of several fronts makes its own. Raises what the function raises.
    """
    if place is None:
        return None
    module, _, function = place.partition(":")
    made: Extension = getattr(importlib.import_module(module), function)(settings)
    return made


def create_app(
    settings: Settings,
    service: SpeechService | None = None,
    extension: Extension | None = None,
    supervisor: SupervisorClient | None = None,
    contents: FileContents | None = None,
) -> FastAPI:
    """A node as an application; its engines start with the lifespan.

    If one does not start, the lifespan fails and `app.state.start_error` holds the error, which servers do not report.

    Args:
        service: its engines, which may have begun to start; None: processes as set.
        supervisor: what it is a front of; None: it is the only one.
        contents: of the files that the settings name; None: as they are now.

    Raises:
        SettingsError: the voice library, the lexicon or telemetry cannot be set up with these settings, or a library
            lacks a name that the node uses.
    """
    aiortc_private.check()
    front = None if supervisor is None else supervisor.number
    spans = spans_of(settings.telemetry, front=front)
    metrics = Metrics(spans, front or 0)
    if service is None:
        service = service_of(settings)
    if supervisor is None:
        service.observe(EngineMetrics(metrics.registry))
    node = Node(settings, service, Guard(settings, metrics, ledger=supervisor), metrics, supervisor)
    content = read if contents is None else lambda _, path: contents[path]
    node.signer = signer_of(settings.c2pa.certificate, settings.c2pa.key, content)
    if supervisor is not None:
        supervisor.channel.handle(FrontPage, lambda _: asyncio.to_thread(pages.write, metrics.registry))
        supervisor.channel.handle(ClosePeer, partial(rtc.close_peer, node))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as closing:
            if spans is not None:
                closing.push_async_callback(spans.close)
            if service.library is not None:
                closing.push_async_callback(asyncio.to_thread, await asyncio.to_thread(service.library.follow))
            try:
                await service.start()
            except (EngineLost, SettingsError) as error:
                app.state.start_error = error
                raise
            closing.push_async_callback(service.close)
            closing.push_async_callback(rtc.close_all, node)
            if extension is not None:
                closing.push_async_callback(extension.close)
                await extension.start()
            closing.callback(asyncio.create_task(_probe_lag(node), name="loop lag probe").cancel)
            if isinstance(own := node.guard.ledger, NodeLedger) and own.fleet is not None:
                own.fleet.show(metrics.registry)
                closing.push_async_callback(_ended, asyncio.create_task(own.fleet.run(), name="fleet"))
            if service.library is not None and (store := service.library.store) is not None:
                lost = await _copy_voices(service.library)
                closing.callback(store.close)
                closing.callback(asyncio.create_task(_follow_store(service.library, lost), name="voice store").cancel)
            yield

    app = FastAPI(
        title="agent_tts",
        version=agent_tts.__version__,
        lifespan=lifespan,
        exception_handlers=http.ERROR_HANDLERS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # a redirect would name a scheme, which a proxy with TLS has changed
        telemetry={"tracing": False, "metrics": False, "logs": False},  # FastAPI's holds URLs and messages of faults
    )
    app.state.node = node
    app.state.start_error = None
    for router in (http.routes, voices.routes, rtc.routes, dialects.routes):
        app.router.routes += router.routes  # `include_router` would build each of them again, in 40 ms
    for path, dialect in {"/v1/tts/stream": NATIVE, **dialects.STREAMS}.items():
        app.router.routes.append(WebSocketRoute(path, StreamEndpoint(node, dialect)))
    if extension is None:
        refuse_realtime(app, node, NO_REALTIME)
    else:
        extension.install(app, node)
    app.add_api_route("/api/agent", lambda: None, include_in_schema=False)  # an agent's route comes first
    app.router.routes.append(Route("/openapi.json", _openapi_of(app)))
    if settings.web:
        _add_page(app)
    app.add_middleware(_Origins, node)
    if spans is not None:
        app.add_middleware(spans.middleware)
    app.add_middleware(lambda app: partial(_queued, node, app))
    return app


async def _queued(node: Node, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI middleware: each request waits for the event loop, in the share of its key or of all without one."""
    if scope["type"] != "lifespan":
        scope = _routed(scope)
        probe = scope["path"] if scope["path"] in http.PROBES else None
        name = probe or node.guard.key_of(Headers(scope=scope)) or STRANGERS
        await Flow(node.fair_queue.share(name)).wait(REQUEST_S)
    await app(scope, receive, send)


def _routed(scope: Scope) -> Scope:
    """A request as routes have it: a path without a slash at its end, and GET for HEAD, whose body uvicorn drops."""
    path: str = scope["path"]
    if path.endswith("/") and not path.startswith(("/docs/", "/web/")):  # links of a page are relative to its folder
        scope = {**scope, "path": path.rstrip("/") or "/"}
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


class _Origins(CORSMiddleware):
    """CORS for the origins that the settings allow now. Their pages may send every header and read every one."""

    def __init__(self, app: ASGIApp, node: Node) -> None:
        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
        super().__init__(app, allow_methods=methods, allow_headers=["*"], expose_headers=["*"])
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without such origins no answer depends on one."""
        app = super().__call__ if self._node.guard.origins else self.app
        await app(scope, receive, send)

    def is_allowed_origin(self, origin: str) -> bool:
        return origin.lower() in self._node.guard.origins


class _Page(StaticFiles):
    """The files of the page, packed for browsers that unpack them: 110 KB for the first visit, not 260."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """In a thread, which also packs the file: that takes milliseconds. PNG is packed already."""
        place, found = super().lookup_path(path) if len(path) <= MAX_PAGE_PATH else ("", None)
        if found is not None and stat.S_ISREG(found.st_mode) and not place.endswith(".png"):
            _packed(place, found.st_mtime_ns)
        return place, found

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        headers, asked = response.headers, Headers(scope=scope)
        kind = headers.get("content-type", "")
        headers.update(PART_HEADERS if os.fspath(full_path).endswith((".js", ".css")) else PAGE_HEADERS)
        if kind.startswith("text/markdown"):
            headers["content-type"] = "text/plain; charset=utf-8"  # Firefox downloads text/markdown
        if not isinstance(response, FileResponse) or kind == "image/png":
            return response
        headers.add_vary_header("Accept-Encoding")
        if "gzip" not in asked.get("accept-encoding", "") or "range" in asked:
            return response
        del headers["content-length"], headers["accept-ranges"]
        headers.update({"content-encoding": "gzip", "etag": f"W/{headers['etag']}"})
        return Response(_packed(os.fspath(full_path), stat_result.st_mtime_ns), headers=headers)


@functools.lru_cache(maxsize=256)  # more than there are files
def _packed(path: str, _modified_ns: int) -> bytes:
    return gzip.compress(Path(path).read_bytes())


def _openapi_of(app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    made = functools.cache(lambda: json.dumps(app.openapi()).encode())  # in 0.2 s

    async def openapi(_: Request) -> Response:
        return Response(await app.state.node.computing(made), media_type="application/json")

    return openapi


def _add_page(app: FastAPI) -> None:
    folder = data_folder("web")
    page = _Page(directory=folder)

    async def index(request: Request) -> Response:
        return await page.get_response("index.html", request.scope)

    async def home(request: Request) -> Response:
        return RedirectResponse("../" if request.url.path.endswith("/") else "./")

    docs = Docs(folder / "docs", PAGE_HEADERS)
    app.router.routes += [Route("/", index), Route("/docs", docs.serve), Route("/docs/{name:path}", docs.serve)]
    app.router.routes += [Route("/web", home), Route("/web/", home)]
    app.mount("/web", page)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _follow_store(library: VoiceLibrary, lost: str | None) -> None:
    """Keep the folder of a library the copy of its store; `lost` is why it is not now."""
    while True:
        await asyncio.sleep(STORE_POLL_S)
        lost = await _copy_voices(library, lost)


async def _copy_voices(library: VoiceLibrary, lost: str | None = None) -> str | None:
    """Bring the changes of other nodes; the fronts do it in turn. Returns why that is impossible, and logs it once."""
    try:
        await asyncio.to_thread(library.refresh, max_age_s=STORE_POLL_S / 2)
    except SpeechError as error:
        if error.message != lost:
            logger.error("{}; the voices that were copied can be used", error.message)
        return error.message
    if lost is not None:
        logger.info("the voice store answers again")
    return None


async def _probe_lag(node: Node) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(LAG_PROBE_S)
        node.metrics.loop_lag.observe(max(0.0, time.monotonic() - before - LAG_PROBE_S))
        node.metrics.tasks.set(len(asyncio.all_tasks()))
