"""What the doctor finds on the machine that runs the tests, and on worse ones."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from agent_tts import doctor
from agent_tts.doctor import Finding, Verdict, examine
from agent_tts.errors import EngineLost


def test_this_machine_can_run_a_node_and_really_speaks() -> None:
    findings = {finding.what: finding for finding in examine(0)}
    assert {"python", "packages", "encoders", "espeak", "gpu", "open files", "port", "player"} <= findings.keys()
    assert [finding for finding in findings.values() if finding.verdict is Verdict.BAD] == []
    assert "first audio after" in findings["espeak"].found


def test_a_taken_port_is_noted_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finding = doctor._port(taken.getsockname()[1])
    assert finding.verdict is Verdict.NOTE
    assert "--port" in finding.advice


def test_an_engine_that_does_not_start_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> tuple[int, float]:
        raise EngineLost("no library")

    monkeypatch.setattr(doctor, "_speak", fail)
    finding = doctor._espeak()
    assert (finding.verdict, finding.found) == (Verdict.BAD, "no library")


def test_a_missing_package_is_bad_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["numpy>=1", "no-such-thing>=1", "dev; extra == 'x'"])
    good, bad = doctor._packages()
    assert good.found.startswith("numpy ")
    assert (bad.verdict, bad.advice) == (Verdict.BAD, "pip install no-such-thing")


@pytest.mark.parametrize("error", [ImportError("no libav"), OSError("cannot load")])
def test_a_broken_library_does_not_stop_the_others_from_being_looked_at(error: Exception) -> None:
    def probe() -> Finding:
        raise error

    checked: Callable[[Callable[[], Finding]], Finding] = doctor._safely
    assert checked(probe).verdict is Verdict.BAD
