"""The process above several fronts: it owns the port, the engines, the fronts and the ledger, and carries no audio."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import cast

from loguru import logger

from agent_tts.config.files import FileContents
from agent_tts.config.settings import Settings
from agent_tts.engine_info import EngineInfo
from agent_tts.errors import EngineLost, SettingsError, SpeechError
from agent_tts.ipc import front_messages
from agent_tts.ipc.channel import NoAnswer
from agent_tts.ipc.engine_process import EngineProcess, engine_processes
from agent_tts.messages import EnginePong, EngineState
from agent_tts.serve.access.node_counts import NodeCounts
from agent_tts.serve.fronts import Role
from agent_tts.serve.processes.front_process import FrontProcess
from agent_tts.serve.processes.process import raise_limit_of_files
from agent_tts.serve.processes.reload import Change, Reload, with_secrets
from agent_tts.serve.transports.tls import server_context
from agent_tts.speech.engine_handle import EngineHandle, EngineObserver
from agent_tts.speech.service import SpeechService
from agent_tts.system.processes import Deaths

# Before the restart of a front after its 1st, 2nd, ... death within a minute; one more ends the node.
BACKOFF_S = (0.0, 0.1, 0.2, 0.5)
RESPAWN_S = 1.0  # before the next attempt to spawn a front that could not be spawned
SETUP_S = 60.0  # for a front to import its code and to be set up; two seconds on an idle machine
LINK_S = 5.0  # for a front to take a link
RELINK_S = 0.2  # before the next attempt
USE_S = 30.0  # for a front to use new settings
CUT_S = 10.0  # beyond `timeouts.drain_s`, for fronts to end their last responses (2 s) and to play out peers (5 s)


class Supervisor(EngineObserver):
    """A node with several fronts."""

    def __init__(
        self, settings: Settings, contents: FileContents, roles: Sequence[Role], port: int, on_ready: Callable[[], None]
    ) -> None:
        self._settings = settings
        # Of the files of the settings, as they were accepted: fronts that start later get the same.
        self._contents = contents
        self._port = port
        self._on_ready = on_ready
        # What the fronts ask for, and what is counted for all of them.
        self._counts = NodeCounts(settings)
        self._service = SpeechService(engine_processes(settings), observer=self)
        # The fronts by number, between the spawn of each and its end.
        self._fronts: dict[int, FrontProcess] = {}
        self._roles = roles  # of all, by number
        # Set when all engines have started.
        self._engines_up = asyncio.Event()
        # Whether all fronts have been ready, and whether the node drains.
        self._started = False
        self._draining = False
        # The exit code, or why the node cannot start; and whether it ends at once.
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._at_once = False

    async def serve(self, reload: Reload | None = None) -> int:
        """Run until a signal ends it; returns the exit code. Raises `SettingsError` and `EngineLost`."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop_once_or_twice, signum)
        tasks = [] if reload is None else [asyncio.create_task(reload.serve(self._use), name="reload")]
        tasks += [
            asyncio.create_task(self._run_engines(), name="engines"),
            asyncio.create_task(self._run_fronts(), name="fronts"),
        ]
        if (fleet := self._counts.ledger.fleet) is not None:
            tasks.append(asyncio.create_task(fleet.run(), name="fleet"))
        for task in tasks:
            task.add_done_callback(self._done)
        try:
            return await self._end
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if self._at_once else None):
                    await self._service.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("the supervisor of the {} failed", task.get_name())
            self._finish(1)

    def _finish(self, end: int | Exception, *, at_once: bool = False) -> None:
        self._at_once |= at_once
        if self._end.done():
            return
        if isinstance(end, int):
            self._end.set_result(end)
        else:
            self._end.set_exception(end)

    # ------------------------------------------------------------ signals

    def _stop_once_or_twice(self, signum: int) -> None:
        if self._draining or not any(front.serves for front in self._fronts.values()):
            self._finish(128 + signum, at_once=True)
            return
        name = signal.Signals(signum).name
        logger.info("{}: draining until open contexts have finished; repeat it to exit now", name)
        self._draining = True
        loop, late_s = asyncio.get_running_loop(), self._settings.timeouts.drain_s + CUT_S
        for front in self._fronts.values():
            if front.serves:
                front.channel.tell(front_messages.Drain())
                loop.call_later(late_s, front.lose, "it did not end its drain")
            else:
                front.lose("it was starting when the node ended")

    def _use(self, change: Change) -> None:
        """Use settings that were read again. Raises `SettingsError`; all is as before."""
        settings = change.apply(self._settings)
        server_context(settings.tls, change.contents)
        raise_limit_of_files(settings)
        self._settings = settings
        signing = (settings.c2pa.certificate, settings.c2pa.key)
        self._contents = dict(change.contents) | {path: self._contents[path] for path in signing if path is not None}
        self._counts.ledger.configure(settings)
        for front in self._fronts.values():
            if front.set_up:  # others get them as soon as they are
                front.run(self._have_used(front, settings), "new settings")

    async def _have_used(self, front: FrontProcess, settings: Settings) -> None:
        try:
            refused = await front.channel.ask(front_messages.UseSettings(with_secrets(settings), self._files()), USE_S)
        except SpeechError as error:
            if front.channel.closed:  # it has drained, or its successor gets them
                return
            refused = error.message
        if refused is not None:
            logger.error("front {} does not use the new settings: {}", front.number, refused)

    def _files(self) -> dict[str, str]:
        return {path: content.decode("latin1") for path, content in self._contents.items()}

    # ------------------------------------------------------------ engines

    async def _run_engines(self) -> None:
        try:
            await self._service.start()
        except (EngineLost, SettingsError) as error:
            self._finish(error)
            return
        self._engines_up.set()
        async with asyncio.TaskGroup() as watches:
            for engine in self._service.engines:
                watches.create_task(self._watch_engine(engine), name=f"end of engine {engine.number}")

    async def _watch_engine(self, engine: EngineHandle) -> None:
        await engine.client.failed.wait()
        if self._service.failed:
            logger.error("no engine can be kept running: the node exits")
            self._finish(1)
        else:
            self._tell(engine.number, "failed")

    def started(self, engine: int, info: EngineInfo) -> None:
        self._counts.engines.started(engine, info)
        self._tell(engine, "starting")
        for front in self._fronts.values():
            if front.set_up:
                front.run(self._link(front, engine), f"link to engine {engine}")

    def ready(self, engine: int) -> None:
        self._tell(engine, "ready")

    def pulse(self, engine: int, pong: EnginePong) -> None:
        self._counts.engines.pulse(engine, pong)

    def lost(self, engine: int) -> None:
        self._counts.engines.lost(engine)
        self._tell(engine, "lost")

    def _tell(self, engine: int, state: EngineState) -> None:
        for front in self._fronts.values():
            front.channel.tell(front_messages.EngineIs(engine, state))

    async def _link(self, front: FrontProcess, engine: int) -> None:
        """Give a front a link to an engine, unless it has one, or the engine is down: then its next start does."""
        client = cast(EngineProcess, self._service.engines[engine].client)
        async with front.linking[engine]:
            while (greeting := client.greeting) is not None and front.links.get(engine) is not greeting:
                if not client.late:  # otherwise it may hang: the front has lost its link because of that
                    up = front_messages.EngineUp(engine, greeting)
                    try:
                        await front.channel.ask(up, LINK_S, [client.attach().detach()])
                    except EngineLost:  # it has just died
                        pass
                    except (OSError, SpeechError) as error:
                        if front.channel.closed:
                            return
                        why = "it does not answer in time" if isinstance(error, NoAnswer) else error
                        logger.warning("front {} has no link to engine {}: {}", front.number, engine, why)
                    else:
                        front.links[engine] = greeting
                        return
                await asyncio.sleep(RELINK_S)

    def _relink(self, front: FrontProcess, engine: int) -> None:
        front.links.pop(engine, None)
        front.run(self._link(front, engine), f"link to engine {engine}")

    # ------------------------------------------------------------ fronts

    async def _run_fronts(self) -> None:
        """Keep all fronts running; it ends when a drain has ended them."""
        async with asyncio.TaskGroup() as keepers:
            for number in range(len(self._roles)):
                keepers.create_task(self._keep(number), name=f"keeper of front {number}")
        self._finish(0)

    async def _keep(self, number: int) -> None:
        """Run a front and its successors until the node drains, or one has died too often."""
        deaths = Deaths(BACKOFF_S)
        clock = asyncio.get_running_loop().time
        while not self._draining:
            try:
                drained = await self._run_front(number)
            except (OSError, SettingsError) as error:  # of the machine, or of files beside the settings: no death
                why = error.strerror if isinstance(error, OSError) else error
                logger.error("front {} cannot be spawned: {}", number, why)
                await asyncio.sleep(RESPAWN_S)
                continue
            if drained or self._draining:
                break
            pause_s = deaths.pause_s(clock())
            if pause_s is None:
                logger.error("front {} died {} times within a minute: the node exits", number, len(BACKOFF_S) + 1)
                self._finish(1)
                break
            await asyncio.sleep(pause_s)

    async def _run_front(self, number: int) -> bool:
        """Run one front to its end; returns whether it has drained. Raises why it cannot be spawned or set up."""
        front = self._fronts[number] = FrontProcess(number, self._settings.timeouts.engine_heartbeat_s)
        try:
            await front.start()
            front.channel.handle(front_messages.FrontReady, lambda _: self._on_front_ready(front))
            front.channel.handle(front_messages.LinkLost, lambda lost: self._relink(front, lost.engine))
            front.run(self._set_up(front), "setup")
            why = await front.gone
        finally:
            del self._fronts[number]
            await front.end()
            self._counts.lose(number)
        drained = self._draining and front.exit_code == 0
        if not drained:
            logger.warning("{} is lost: {}; the end of its stderr: {}", front, why, front.tail or "none")
        return drained

    async def _set_up(self, front: FrontProcess) -> None:
        settings, role = self._settings, self._roles[front.number]
        self._counts.attach(front.number, front.channel)  # before this nobody asks it: the setup has to come first
        setup = front_messages.FrontSetup(
            front.number,
            with_secrets(settings),
            self._files(),
            self._port if role.listens else None,
            len(self._service.engines),
            role.extension,
            self._counts.ledger.secret.hex(),
        )
        try:
            refused = await front.channel.ask(setup, SETUP_S)
        except SpeechError as error:
            if not front.channel.closed:  # otherwise its end is the reason
                late = isinstance(error, NoAnswer)
                front.lose(f"it was not set up within {SETUP_S:g} s" if late else f"setup failed: {error.message}")
            return
        if refused is not None:
            refusal = SettingsError(refused)
            front.lose(refusal) if self._started else self._finish(refusal)
            return
        front.run(front.watch(), "heartbeats")
        front.set_up = True
        for engine in self._service.engines:
            front.channel.tell(front_messages.EngineIs(engine.number, engine.state))
        if settings is not self._settings:  # they were read again meanwhile
            await self._have_used(front, self._settings)
        await self._engines_up.wait()
        await asyncio.gather(*[self._link(front, engine.number) for engine in self._service.engines])
        front.serves = True
        front.channel.tell(front_messages.Serve())

    def _on_front_ready(self, front: FrontProcess) -> None:
        front.ready = True
        if not self._roles[front.number].listens:
            self._counts.for_calls.add(front.number)
        if self._started:
            logger.info("{} takes requests", front)
            front.channel.tell(front_messages.NodeReady())
        elif len(self._fronts) == len(self._roles) and all(one.ready for one in self._fronts.values()):
            self._started = True
            for one in self._fronts.values():
                one.channel.tell(front_messages.NodeReady())
            self._on_ready()
