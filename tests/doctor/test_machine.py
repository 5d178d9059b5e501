"""The doctor's findings about this machine, and about machines with faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tts.config.settings import Settings
from agent_tts.doctor import examine, machine, safely
from agent_tts.doctor.finding import Finding, Verdict
from agent_tts.errors import EngineLost
from tests.cli.process import invoke
from tests.without import NATURAL, without


@pytest.mark.slow
def test_this_machine_can_run_a_node_and_what_is_not_good_has_advice() -> None:
    findings = list(examine(Settings(port=0)))
    named = "python, packages, encoders, espeak, hibari, gpu, open files, clock, voices, port, tls, webrtc, udp, player"
    assert {*named.split(", ")} <= {finding.what for finding in findings}
    assert [finding for finding in findings if finding.verdict is Verdict.BAD] == []
    spoken = [finding.what for finding in findings if "first audio after" in finding.found]
    assert spoken == ["espeak", "hibari"]
    for finding in findings:
        assert bool(finding.advice) is (finding.verdict is not Verdict.GOOD), finding


def test_an_engine_that_does_not_start_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(settings: Settings) -> tuple[int, float]:
        raise EngineLost(f"no library for {settings.engine}")

    monkeypatch.setattr(machine, "_speak", fail)
    (finding,) = machine.espeak(Settings())
    assert (finding.verdict, finding.found) == (Verdict.BAD, "no library for espeak")


@pytest.mark.parametrize(("engine", "verdict"), [("auto", Verdict.NOTE), ("hibari", Verdict.BAD)])
def test_without_the_natural_voice_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, verdict: Verdict
) -> None:
    """The engine's process is one where hibari is not installed. A node with models does not need it."""
    for name, value in without(tmp_path, *NATURAL).items():
        monkeypatch.setenv(name, value)
    (finding,) = machine.hibari(Settings.model_validate({"engine": engine}))
    assert (finding.verdict, "is not installed: pip install" in finding.found) == (verdict, True)
    assert "pip install '.[voice]'" in finding.advice
    assert machine.hibari(Settings.model_validate({"qwen3": {"models": ["nowhere"]}})) == []


def test_a_missing_package_is_bad_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["numpy>=1", "no-such-thing>=1", "dev; extra == 'x'"])
    good, bad = machine.packages()
    assert good.found.startswith("numpy ")
    assert (bad.verdict, bad.advice) == (Verdict.BAD, "pip install no-such-thing")


def test_the_file_limit_is_judged_by_the_allowed_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1_024))
    (many,) = machine.file_limit(Settings())
    (few,) = machine.file_limit(Settings.model_validate({"limits": {"connections": 64, "rtc_peers": 8}}))
    assert (many.verdict, many.found, " need 2560: " in many.advice) == (Verdict.NOTE, "at most 1024", True)
    assert few.verdict is Verdict.GOOD


@pytest.mark.parametrize("error", [ImportError("no libav"), OSError("cannot load")])
def test_a_broken_library_does_not_stop_the_other_checks(error: Exception) -> None:
    def probe() -> Iterator[Finding]:
        raise error
        yield

    (finding,) = safely("encoders", probe)
    assert (finding.what, finding.verdict) == ("encoders", Verdict.BAD)


def test_the_command_takes_a_nodes_settings_and_fails_on_a_bad_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engines, which the test of this machine has tried."""
    for name in ("espeak", "hibari"):
        monkeypatch.setattr(machine, name, lambda _: [])
    broken = invoke("doctor", "--json", "--port", "0", "--tls-cert", "/no/such.pem", "--set", "limits.rtc_peers=0")
    assert broken.returncode == 1, broken.stderr
    assert b'"ok": false' in broken.stdout
    assert b"/no/such.pem cannot be read" in broken.stdout
    assert b"turned off (limits.rtc_peers)" in broken.stdout
    unknown = invoke("doctor", "--set", "limits.rtc_peer=0")
    assert (unknown.returncode, b"did you mean" in unknown.stderr) == (2, True)
