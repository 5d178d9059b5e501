"""Run a node until SIGTERM or SIGINT: one front in this process, or several below it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from loguru import logger

from agent_tts.config.files import FileContents, contents_of
from agent_tts.config.hub import with_local_models
from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost
from agent_tts.serve.fronts import roles
from agent_tts.serve.local_engine import service_of
from agent_tts.serve.processes.listener import listen, reserve, url_of
from agent_tts.serve.processes.process import raise_limit_of_files, runner, warm_up
from agent_tts.serve.processes.reload import Reader, Reload
from agent_tts.serve.telemetry.logs import StderrLog, log_to_stderr
from agent_tts.serve.transports.tls import server_context, warn_of_certificate
from agent_tts.system.in_child import settle, without_collections

if TYPE_CHECKING:
    from agent_tts.serve.app import Extension


def run(
    settings: Settings,
    on_ready: Callable[[str], None] = lambda url: None,
    extension: Extension | str | None = None,
    read_again: Reader | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns the exit code, for `process.leave`: 0 after a drain, 128 + the signal when a second one ended the drain, 1
    when an engine does not start, or an engine or a front keeps dying.

    Args:
        on_ready: called once, with the node's URL, when it takes requests.
        extension: what makes a part that is served beside the node's own routes, as `app.extension_of` takes it; or
            that part itself, with which the node has one front.
        read_again: reads the settings again at SIGHUP.

    Raises:
        SettingsError: the node or its engine cannot be set up with these settings, or a model cannot be fetched.
    """
    if sys.platform != "win32":
        for signum in (signal.SIGUSR1, signal.SIGUSR2):  # by which others open their log again: it would end the node
            signal.signal(signum, signal.SIG_IGN)
    log = log_to_stderr(settings.log_level, settings.log_format)
    with contextlib.ExitStack() as closing:
        closing.callback(logger.remove)
        parts = roles(settings, extension) if extension is None or isinstance(extension, str) else []
        raise_limit_of_files(settings)
        reload = None if read_again is None else Reload(read_again, settings)
        settings = with_local_models(settings)
        contents = contents_of(settings)
        server_context(settings.tls, contents)  # its errors come before anything has started
        if (cert := settings.tls.cert) is not None:
            warn_of_certificate(cert, contents[cert], datetime.now(UTC))
        if len(parts) > 1:
            reserved = closing.enter_context(reserve(settings))
            ready = partial(on_ready, url_of(reserved, settings))
            serving = _supervise(reload, settings, contents, parts, reserved.getsockname()[1], ready)
        else:
            listener = closing.enter_context(contextlib.closing(listen(settings)))
            serving = _serve(settings, contents, listener, log, on_ready, extension, reload)
        with runner() as running:
            try:
                return running.run(serving)
            except asyncio.CancelledError:
                return 128 + signal.SIGTERM
            except EngineLost as error:
                logger.error("{}", error)
                return 1
            finally:
                gc.unfreeze()


async def _supervise(reload: Reload | None, *arguments: Any) -> int:
    from agent_tts.serve.processes.supervisor import Supervisor

    return await Supervisor(*arguments).serve(reload)


async def _serve(
    settings: Settings,
    contents: FileContents,
    listener: socket.socket,
    log: StderrLog,
    on_ready: Callable[[str], None],
    extension: Extension | str | None,
    reload: Reload | None,
) -> int:
    """Serve with one front. The application, whose import takes 1 s, is made while the engines start."""

    def ready(url: str) -> None:
        settle()
        on_ready(url)

    async with contextlib.AsyncExitStack() as closing:
        service = service_of(settings, contents=contents)
        service.begin()
        closing.push_async_callback(service.close)
        with _ended_by_sigterm():
            with without_collections():
                await asyncio.to_thread(importlib.import_module, "agent_tts.serve.app")
                from agent_tts.serve.app import create_app, extension_of
                from agent_tts.serve.processes.server import NodeServer

                if isinstance(extension, str):
                    extension = await asyncio.to_thread(extension_of, settings, extension)
            app = create_app(settings, service, extension, contents=contents)
            warm_up(app)
            await asyncio.sleep(0)  # here it is cancelled, if it was
        log.on_lost = lambda why: app.state.node.metrics.log_lost.labels(why).inc()
        server = NodeServer(app, ready, reload, contents)
        # uvicorn would log the traceback of an engine that does not start, whose message `run` logs, and of what a
        # second signal has cut short.
        uvicorn_log = logging.getLogger("uvicorn.error")
        uvicorn_log.addFilter(lambda _: app.state.start_error is None and not server.force_exit)
        await server.serve(sockets=[listener])
    return server.exit_code


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM cancels this task, as SIGINT does; without a signal handler the engines would outlive this process.

    The task learns of it at once, not from the loop, which it may keep from running until the end of the block.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel(*_: object) -> None:
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # it may sleep

    before = signal.signal(signal.SIGTERM, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
