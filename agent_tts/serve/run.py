"""Run a node with one front until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable

from loguru import logger

from agent_tts.config.hub import with_local_models
from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost
from agent_tts.serve.app import Extension, create_app
from agent_tts.serve.listener import listen
from agent_tts.serve.process import event_loop_factory, raise_limit_of_files, warm_up
from agent_tts.serve.reload import Reader, Reload
from agent_tts.serve.server import NodeServer
from agent_tts.serve.telemetry.logs import log_to_stderr, report_fault


def run(
    settings: Settings,
    on_ready: Callable[[str], None] = lambda url: None,
    extension: Extension | None = None,
    read_again: Reader | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns the exit code: 0 after a drain, 128 + the signal when a second one ended the drain, 1 when an engine does
    not start or keeps dying.

    Args:
        on_ready: called once, with the node's URL, when it takes requests.
        extension: served beside the node's own routes.
        read_again: reads the settings again at SIGHUP.

    Raises:
        SettingsError: the node or its engine cannot be set up with these settings, or a model cannot be fetched.
    """

    def ready(url: str) -> None:
        warm_up(app)
        on_ready(url)

    log = log_to_stderr(settings.log_level, settings.log_format)
    with contextlib.ExitStack() as closing:
        closing.callback(logger.remove)
        raise_limit_of_files(settings.limits)
        reload = None if read_again is None else Reload(read_again, settings)
        settings = with_local_models(settings)
        listener = closing.enter_context(contextlib.closing(listen(settings)))
        app = create_app(settings, extension=extension)
        lost = app.state.node.metrics.log_lost
        log.on_lost = lambda why: lost.labels(why).inc()
        server = NodeServer(app, settings, ready, reload)
        # uvicorn would log the traceback of an engine that does not start; its message is logged below.
        logging.getLogger("uvicorn.error").addFilter(lambda _: app.state.start_error is None)
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.get_loop().set_exception_handler(report_fault)
            try:
                runner.run(server.serve(sockets=[listener]))
            except EngineLost as error:
                logger.error("{}", error)
                return 1
            finally:
                gc.unfreeze()
        return server.exit_code
