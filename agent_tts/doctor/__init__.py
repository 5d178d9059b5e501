"""Checks whether a node with these settings can run on this machine, with advice for each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from agent_tts.config.settings import Settings
from agent_tts.doctor import gpu, machine, network, node
from agent_tts.doctor.finding import Finding, Verdict, bad
from agent_tts.doctor.node import wants_agent

__all__ = ["Finding", "Verdict", "examine", "wants_agent"]


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, one after another. Each ends within seconds."""
    yield machine.python()
    yield from machine.packages()
    probes: dict[str, Callable[[], Iterable[Finding]]] = {
        "event loop": machine.event_loop,
        "fronts": partial(machine.fronts, settings),
        "encoders": machine.encoders,
        "espeak": partial(machine.espeak, settings),
        "hibari": partial(machine.hibari, settings),
        "gpu": partial(gpu.gpu, settings),
        "open files": partial(machine.file_limit, settings),
        "clock": machine.clock,
        "disk": partial(machine.disk, settings),
        "port": partial(network.port, settings),
        "tls": partial(network.tls, settings),
        "webrtc": partial(network.webrtc, settings),
        "player": machine.player,
        "node": partial(node.node, settings),
    }
    for what, probe in probes.items():
        yield from safely(what, probe)


def safely(what: str, probe: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Run a check; a broken library becomes a finding, so that the other checks still run."""
    try:
        yield from probe()
    except (ImportError, OSError) as error:
        yield bad(what, f"{type(error).__name__}: {error}", "install agent-tts again")
