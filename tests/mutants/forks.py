"""Runs the tests of one module on its mutants: collects them once, and forks for each mutant.

`python -m tests.mutants.forks MODULE DESCRIPTOR JOBS EVERY LIKE` writes a JSON line to the descriptor for each result.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from tests.mutants.modules import MODULES, PACKAGE
from tests.mutants.mutations import Mutant, functions, live, mutants

SURVIVED, KILLED, NO_MUTANT = 0, 1, 3

# Limits of a mutant: in each test, seconds of CPU and a multiple of what it takes on right code; of all, by the clock;
# and bytes more than the process has when it is forked.
MORE_CPU_S, TIMES = 1.0, 5
MOST_S = 120
MORE_BYTES = 2 << 30


class Forks:
    """A plugin of pytest that runs the collected tests once for each mutant."""

    def __init__(self, name: str, out: int, jobs: int, every: int, like: str) -> None:
        self._file = str(PACKAGE / f"{name}.py")
        self._out, self._jobs = out, jobs
        self._source = Path(self._file).read_text("utf-8")
        self._mutants = [m for m in mutants(self._source) if like in m.function][::every]
        self._tries = False  # whether this process is to notice a mutant
        # Failures of the tests in this process: what they said.
        self._failures: list[str] = []

    def pytest_configure(self) -> None:
        import hypothesis  # not before: pytest rewrites its plugins when it imports them

        # One failure is enough: it is not shrunk, nor remembered.
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", phases=phases, database=None, deadline=None, derandomize=True)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._tries:
            os._exit(KILLED)
        if report.failed:
            self._failures.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        found = list(live(self._file))
        self._functions = [one for one in found if isinstance(one, FunctionType)]
        self._caches = [one for one in found if not isinstance(one, FunctionType)]
        codes = functions(self._source)
        callers = self._run_once(session.items)
        if callers is None:
            return True
        self._tell(mutants=len(self._mutants))
        running: dict[int, tuple[Mutant, float]] = {}  # by process: and when its time is over
        for mutant in self._mutants:
            # A test that does not call the function cannot notice; quick ones are asked first.
            took_s = callers[mutant.function]
            places = sorted(took_s, key=lambda place: took_s[place])
            items, limits = [session.items[place] for place in places], [_Limit(took_s[place]) for place in places]
            while len(running) >= self._jobs:
                self._wait(running)
            if (pid := os.fork()) == 0:
                _forked(lambda: self._try(mutant, codes[mutant.function, mutant.nth], items, limits))  # noqa: B023
            running[pid] = mutant, time.monotonic() + MOST_S
        while running:
            self._wait(running)
        return True

    def _run_once(self, items: list[pytest.Item]) -> defaultdict[str, dict[int, float]] | None:
        """Run all on right code: which items call a function, and the seconds that they take; None if one fails."""
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:

            def run() -> int:
                calls = [_Calls(self._file, self._caches) for _ in items]
                _run(items, calls)
                seen = [(call.took_s, sorted(call.functions)) for call in calls]
                with open(writer, "w") as file:
                    json.dump({"failures": self._failures, "seen": seen}, file)
                return 0

            _forked(run)
        os.close(writer)
        with open(reader) as file:
            found = json.loads(file.read() or '{"failures": ["it ended"]}')
        os.waitpid(pid, 0)
        if found["failures"]:
            self._tell(failed=found["failures"][0])
            return None
        callers: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for place, (took_s, called) in enumerate(found["seen"]):
            for name in called:
                callers[name.partition(".<locals>")[0]][place] = took_s
        return callers

    def _try(self, mutant: Mutant, right: CodeType, items: list[pytest.Item], limits: list[_Limit]) -> int:
        mutated = [function for function in self._functions if function.__code__ == right]
        try:
            for function in mutated:
                function.__code__ = mutant.code
        except (SyntaxError, ValueError):  # no Python, or with other variables of the class around it
            return NO_MUTANT
        self._tries = True
        assert mutated, f"nothing has the code of {mutant.function}"
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MORE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        _run(items, limits)
        return SURVIVED

    def _wait(self, running: dict[int, tuple[Mutant, float]]) -> None:
        """Wait until one has ended, and tell how."""
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                break
            for late in (pid for pid, (_, until) in running.items() if time.monotonic() > until):
                os.kill(late, signal.SIGKILL)
            time.sleep(0.002)
        with suppress(ProcessLookupError):  # what the tests of a killed one left
            os.killpg(pid, signal.SIGKILL)
        mutant, _ = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code == SURVIVED:
            self._tell(survived=mutant.change)
        else:
            self._tell(killed=code != NO_MUTANT)

    def _tell(self, **what: object) -> None:
        os.write(self._out, (json.dumps(what) + "\n").encode())


class _Calls:
    """Which functions of a file a test calls, and how many seconds of CPU it takes."""

    def __init__(self, file: str, caches: list[Any]) -> None:
        self._file, self._caches = file, caches
        self.functions: set[str] = set()
        self.took_s = 0.0

    def __enter__(self) -> None:
        for cache in self._caches:
            cache.cache_clear()
        self._began = time.process_time()
        sys.setprofile(self._see)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self.took_s = time.process_time() - self._began

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == self._file:
            self.functions.add(frame.f_code.co_qualname)


class _Limit:
    """Ends the process if a test that takes so many seconds of CPU on right code takes much more."""

    def __init__(self, took_s: float) -> None:
        self._most_s = MORE_CPU_S + TIMES * took_s

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._most_s)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _run(items: list[pytest.Item], around: Sequence[_Calls | _Limit]) -> None:
    """Run tests as pytest does, each in its context."""
    for item, following, context in zip(items, [*items[1:], None], around, strict=True):
        with context:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _forked(run: Any) -> None:
    """End this process, which has just been forked, with what `run` returns."""
    code = KILLED
    try:
        os.setpgid(0, 0)
        code = run()
    finally:
        os._exit(code)


def main(name: str, out: str, jobs: str, every: str, like: str) -> None:
    tests = [f"tests/{test}" for test in MODULES[name].tests]
    forks = Forks(name, int(out), int(jobs), int(every), like)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[forks]))


if __name__ == "__main__":
    main(*sys.argv[1:])
