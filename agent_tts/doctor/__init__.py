"""Checks whether a node with these settings can run on this machine, with advice for each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent_tts.config.settings import Settings
from agent_tts.doctor import gpu, machine, network, storage
from agent_tts.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict", "examine"]


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, one after another. Each ends within seconds."""
    yield machine.python()
    yield from machine.packages()
    probes: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("event loop", machine.event_loop),
        ("encoders", machine.encoders),
        ("espeak", machine.espeak),
        ("gpu", lambda: gpu.gpu(settings)),
        ("open files", lambda: machine.open_files(settings)),
        ("clock", machine.clock),
        ("disk", lambda: storage.disk(settings)),
        ("port", lambda: network.port(settings)),
        ("tls", lambda: network.tls(settings)),
        ("webrtc", lambda: network.webrtc(settings)),
        ("player", machine.player),
    )
    for what, probe in probes:
        yield from safely(what, probe)


def safely(what: str, probe: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run a check; a broken library becomes a finding, so that the other checks still run."""
    try:
        yield from probe()
    except (ImportError, OSError) as error:
        yield Finding(what, Verdict.BAD, f"{type(error).__name__}: {error}", "install agent-tts again")
