"""What this machine has for a node of these settings, what it lacks, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent_tts.config.settings import Settings
from agent_tts.doctor import gpu, machine, network, storage
from agent_tts.doctor.finding import Finding, Verdict

__all__ = ["Finding", "Verdict", "examine"]


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at everything, one finding after the other. Each look ends by itself within seconds."""
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
    """A library that is broken must not keep the others from being looked at."""
    try:
        yield from probe()
    except (ImportError, OSError) as error:
        yield Finding(what, Verdict.BAD, f"{type(error).__name__}: {error}", "install agent-tts again")
