"""Records what the processes of a node do, into a file for each process. It patches classes as they are imported.

An event is a tuple: what, when, and more by what it is. Recording one takes less than a microsecond; nothing is written
before the end.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import marshal
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LAG_S = 0.005  # between two looks at the lag of the front's event loop
LINE_S = 0.000_3  # shorter waits in the front's line are not recorded

now = time.monotonic
events: list[tuple[Any, ...]] = []
_seen: set[Any] = set()
_files: dict[str, int] = {}


def install(folder: Path) -> None:
    """Patch what this process will import, and write its events into `folder` at its end."""
    sys.meta_path.insert(0, _Finder())
    atexit.register(_write, folder)
    leave = os._exit

    def write_and_leave(status: int) -> NoReturn:
        _write(folder)
        leave(status)

    os._exit = write_and_leave
    gc.callbacks.append(_collected)


def _write(folder: Path) -> None:
    path = folder / f"{os.getpid()}.events"
    if events and not path.exists():
        path.write_bytes(marshal.dumps(events))


class _Finder(MetaPathFinder):
    """Finds modules as ever, and patches some after they are executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = PATCHES.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if patch else None
        if spec is None or spec.loader is None or patch is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


_gc_began = 0.0


def _collected(phase: str, info: dict[str, int]) -> None:
    global _gc_began
    if phase == "start":
        _gc_began = now()
    else:
        events.append(("gc", _gc_began, now(), info["generation"]))


def _usage() -> tuple[float, float, int, int]:
    """Of this thread so far: s on a CPU, s ready without one, minor and major page faults."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    if "schedstat" not in _files:
        try:
            _files["schedstat"] = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            _files["schedstat"] = -1
    ready_s = 0.0
    if (file := _files["schedstat"]) >= 0:
        ready_s = int(os.pread(file, 100, 0).split()[1]) / 1e9
    return used.ru_utime + used.ru_stime, ready_s, used.ru_minflt, used.ru_majflt


def _timed(owner: Any, name: str, what: str) -> None:
    """Record begin and end of each call of a method."""
    act = getattr(owner, name)

    def timed(*args: Any, **options: Any) -> Any:
        began = now()
        try:
            return act(*args, **options)
        finally:
            events.append((what, began, now()))

    setattr(owner, name, timed)


# ---------------------------------------------------------------- engine


def _loop(module: Any) -> None:
    """A turn: `wait`, the inbox, commands (`cmd`), `step` to `stepped`, the outbox; then the next `wait`."""
    owner = module.EngineLoop
    submit, step, wait_s, close = owner.submit, owner.step, owner.wait_s, owner.close

    def submitted(self: Any, command: Any, first_id: int = 0) -> None:
        kind = type(command).__name__
        if kind in ("OpenRequest", "AppendText", "EndText", "CancelRequest"):
            seed = command.options.seed if kind == "OpenRequest" else None
            events.append(("cmd", now(), kind, first_id + command.request_id, seed))
        submit(self, command, first_id)

    def stepped(self: Any) -> Any:
        events.append(("step", now()))
        new: list[Any] = []
        try:
            new = step(self)
            return new
        finally:
            events.append(("stepped", now(), *_usage()))
            events.extend(("pong", now(), one.step_ms) for one in new if type(one).__name__ == "EnginePong")

    def waits(self: Any) -> Any:
        began = now()
        found = wait_s(self)
        events.append(("wait", began, -1.0 if found is None else found))
        return found

    def closed(self: Any) -> None:
        _write(Path(os.environ["PYTHON_TAIL_OUT"]))  # now: the front may kill a process that takes long to end
        close(self)

    owner.submit, owner.step, owner.wait_s, owner.close = submitted, stepped, waits, closed


def _scheduler(module: Any) -> None:
    owner = module.Scheduler
    schedule, update = owner.schedule, owner.update

    def scheduled(self: Any, at: float) -> Any:
        began = now()
        step = schedule(self, at)
        new = [request.id for request in step.requests if not request.frames]
        starts = [one.epoch for one in step.inputs if type(one).__name__ == "StartRequest"]
        sizes = (len(step.inputs), len(step.requests), len(self._running), self.queued)
        events.append(("schedule", began, now(), self._steps, sizes, new, starts))
        return step

    def updated(self: Any, outputs: Any, steps: Any, at: float, step_s: float) -> Any:
        outputs = list(outputs)
        kinds: list[tuple[int, str]] = []
        for output in outputs:
            if output.epoch not in _seen:
                kinds.append((output.epoch, type(output).__name__))
                if type(output).__name__ == "FrameOutput":
                    _seen.add(output.epoch)
        began = now()
        found = update(self, outputs, steps, at, step_s)
        events.append(("update", began, now(), self._steps, kinds, len(outputs)))
        return found

    owner.schedule, owner.update = scheduled, updated


def _qwen3(module: Any) -> None:
    owner = module.Qwen3Engine
    launch = owner._launch

    def launched(self: Any, rows: Any, began: float) -> Any:
        begun = now()
        new = [
            (row.feed.epoch, type(row.state).__name__[0], row.runs, len(row.feed.segments[0].tokens), row._in_flight)
            for row in rows
            if not row.heard and row.feed.segments
        ]
        found = launch(self, rows, began)
        events.append(("launch", begun, now(), new))
        return found

    owner._launch = launched
    for name in ("_apply", "_schedule", "_collect"):
        _timed(owner, name, name)


def _graphs(module: Any) -> None:
    import torch

    owner = module.FrameGraphs
    step = owner.step
    on_device: list[tuple[float, Any, Any]] = []

    def stepped(self: Any, rows: Any, parts: Any = (), **how: Any) -> Any:
        entries = sum(len(part.positions) for part in parts)
        began = now()
        timers: list[Any] = []
        if self._queues:
            timers = [torch.cuda.Event(enable_timing=True) for _ in "01"]  # type: ignore[no-untyped-call]
            timers[0].record()
        found = step(self, rows, parts, **how)
        if timers:
            timers[1].record()
            on_device.append((began, timers[0], timers[1]))
        size = found[0].size if found[0] is not None else 0
        events.append(("graph", began, now(), len(rows), size, entries, len(parts)))
        while len(on_device) > 1 and on_device[0][2].query():
            at, first, last = on_device.pop(0)
            events.append(("device", at, first.elapsed_time(last)))
        return found

    owner.step = stepped


def _runner(module: Any) -> None:
    for name in ("update",):
        _timed(module.ModelRunner, name, f"runner.{name}")


# ---------------------------------------------------------------- front


def _session(module: Any) -> None:
    owner = module.Session
    admit, append, tell = owner._admit, owner._append, owner._tell

    def admitted(self: Any, context_id: str, config: Any) -> Any:
        _probe_loop()
        began = now()
        utterance = admit(self, context_id, config)
        events.append(("open", began, context_id, utterance.request.engine, utterance.request.request_id))
        return utterance

    def appended(self: Any, context_id: str, text: str) -> None:
        began = now()
        append(self, context_id, text)
        events.append(("text", began, now(), context_id))

    def told(self: Any, utterance: Any, what: Any) -> None:
        what = list(what)
        if utterance.context_id not in _seen and any(type(one).__name__ == "Audio" for one in what):
            _seen.add(utterance.context_id)
            events.append(("told", now(), utterance.context_id))
        tell(self, utterance, what)

    owner._admit, owner._append, owner._tell = admitted, appended, told


def _handle(module: Any) -> None:
    owner = module.EngineHandle
    on_events = owner._on_events

    def arrived(self: Any, new: Any) -> None:
        began = now()
        firsts = []
        for event in new:
            if type(event).__name__ == "RequestAudio" and (key := (self.number, event.request_id)) not in _seen:
                _seen.add(key)
                firsts.append(key)
        on_events(self, new)
        events.append(("arrive", began, now(), len(new), firsts))

    owner._on_events = arrived


def _line(module: Any) -> None:
    owner = module.FairQueue
    wait = owner.wait

    async def waited(self: Any, *args: Any) -> None:
        began = now()
        await wait(self, *args)
        if (end := now()) - began > LINE_S:
            events.append(("line", began, end, len(self._line)))

    owner.wait = waited


def _probe_loop() -> None:
    if "lag" in _seen:
        return
    _seen.add("lag")
    loop = asyncio.get_running_loop()

    def look(due: float) -> None:
        at = now()
        events.append(("lag", at, at - due, *_usage()))
        loop.call_later(LAG_S, look, now() + LAG_S)

    look(now())


def _websocket(module: Any) -> None:
    owner = module.StreamEndpoint
    call = owner.__call__

    async def called(self: Any, scope: Any, receive: Any, send: Any) -> None:
        events.append(("stranger", now()))
        await call(self, scope, receive, send)

    owner.__call__ = called
    _timed(module.Connection, "_send_all", "send")


PATCHES: dict[str, Callable[[Any], None]] = {
    "agent_tts.engine.loop": _loop,
    "agent_tts.engine.scheduler": _scheduler,
    "agent_tts.engine.qwen3.engine": _qwen3,
    "agent_tts.engine.qwen3.graphs": _graphs,
    "agent_tts.engine.qwen3.runner": _runner,
    "agent_tts.serve.session": _session,
    "agent_tts.speech.engine_handle": _handle,
    "agent_tts.serve.access.fair_queue": _line,
    "agent_tts.serve.transports.websocket": _websocket,
}
