from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from agent_tts.engine import tone
from agent_tts.engine.base import NotFinite
from agent_tts.engine.tone import AT_OPEN, OF_ENGINE, OF_SLOT, Fault


@pytest.mark.parametrize(
    ("instructions", "fault"),
    [
        *((ordinary, None) for ordinary in (None, "", "speak softly, at no fault:raise@3 of yours")),
        *(("fault:nan@12", Fault("nan", 12)), ("fault:slow@20", Fault("slow", 20)), ("fault:crash", Fault("crash", 0))),
    ],
)
def test_kind_and_position_are_parsed(instructions: str | None, fault: Fault | None) -> None:
    assert Fault.parse(instructions) == fault


@pytest.mark.parametrize("instructions", ["fault:", "fault:@3", "fault:Raise@3", "fault:raise@three"])
def test_an_unknown_fault_is_an_error(instructions: str) -> None:
    with pytest.raises(ValueError, match=r"no such fault|invalid literal"):
        Fault.parse(instructions)


def test_a_kind_strikes_only_in_its_own_table() -> None:
    Fault("raise", 0).strike(OF_ENGINE)
    with pytest.raises(ValueError, match="scripted"):
        Fault("raise", 0).strike(OF_SLOT)
    with pytest.raises(NotFinite):
        Fault("nan", 0).strike(OF_SLOT)
    with pytest.raises(MemoryError):
        Fault("oom", 0).strike(AT_OPEN)


@pytest.mark.node
def test_exit_ends_the_process_without_output() -> None:
    code = "from agent_tts.engine.tone import OF_ENGINE, Fault; Fault('exit', 0).strike(OF_ENGINE)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, b"", b"")


def test_only_hang_gil_stops_the_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, over = 0, threading.Event()

    def go_round() -> None:
        nonlocal rounds
        while not over.is_set():
            rounds += 1
            time.sleep(0.001)

    def rounds_while(kind: str, seconds: float) -> int:
        monkeypatch.setattr(tone, "HANG_S", seconds)
        before = rounds
        Fault(kind, 0).strike(OF_ENGINE)
        return rounds - before

    thread = threading.Thread(target=go_round)
    thread.start()
    try:
        assert rounds_while("hang_gil", 1) * 10 < rounds_while("hang", 0.2)
    finally:
        over.set()
        thread.join()
