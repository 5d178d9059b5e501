"""Run a node until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable

from loguru import logger

from agent_tts import open_files
from agent_tts.config.hub import with_local_models
from agent_tts.config.settings import Limits, Settings
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.in_child import settle
from agent_tts.serve.app import Extension, create_app
from agent_tts.serve.server import NodeServer, listen
from agent_tts.serve.telemetry.logs import log_to_stderr, report_fault

# Python's are 700, 10, 10. A full collection stops the loop for 0.1 ms a connection; it is hardly ever needed, because
# what clients leave behind is not in cycles.
GC_THRESHOLDS = (700, 10, 200)


def run(settings: Settings, on_ready: Callable[[str], None] | None = None, extension: Extension | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns the exit code: 0 after a drain, 128 + the signal when a second one ended the drain, 1 when an engine does
    not start or keeps dying.

    Args:
        on_ready: called once, with the node's URL, when it takes requests.

    Raises:
        SettingsError: the node or its engine cannot be set up with these settings, or a model cannot be fetched.
    """

    def ready(url: str) -> None:
        app.openapi()  # takes 90 ms, and is kept
        settle()  # after all imports
        gc.set_threshold(*GC_THRESHOLDS)
        if on_ready:
            on_ready(url)

    log = log_to_stderr(settings.log_level, settings.log_format)
    with contextlib.ExitStack() as closing:
        closing.callback(logger.remove)
        raise_limit_of_files(settings.limits)
        settings = with_local_models(settings)
        listener = closing.enter_context(contextlib.closing(listen(settings)))
        app = create_app(settings, extension=extension)
        lost = app.state.node.metrics.log_lost
        log.on_lost = lambda why: lost.labels(why).inc()
        server = NodeServer(app, settings, ready)
        # uvicorn would log the traceback of an engine that does not start; its message is logged below.
        logging.getLogger("uvicorn.error").addFilter(lambda _: app.state.start_error is None)
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.get_loop().set_exception_handler(report_fault)
            try:
                runner.run(server.serve(sockets=[listener]))
            except EngineLost as error:
                reason: EngineLost | SettingsError = app.state.start_error or error
                if isinstance(reason, SettingsError):
                    raise reason from None
                logger.error("{}", reason)
                return 1
            finally:
                gc.unfreeze()
        return server.exit_code


def raise_limit_of_files(limits: Limits) -> None:
    """Allow this process the file descriptors that its clients need, or warn that it may not open so many."""
    needed, limit = open_files.needed(limits.connections, limits.rtc_peers), open_files.allowed()
    open_files.raise_limit(needed)
    if limit < needed:
        logger.warning(
            "{} connections and {} WebRTC peers need {} open files, and this process may open {}: connections give way "
            "before their limit; raise the hard limit (ulimit -Hn, LimitNOFILE)",
            *(limits.connections, limits.rtc_peers, needed, limit),
        )


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, except on Windows: it halves the cost of small writes."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
