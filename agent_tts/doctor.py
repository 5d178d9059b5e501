"""What this machine has for a node, what it lacks, and what to do about it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from agent_tts.errors import SettingsError, SpeechError

MIN_FILES = 2_048  # 512 connections, WebRTC's sockets, pipes
ENCODERS = {"mp3": "libmp3lame", "opus": "libopus", "aac": "aac", "flac": "flac"}


class Verdict(Enum):
    """How bad it is."""

    GOOD = "good"
    NOTE = "note"  # something is missing that a node can do without
    BAD = "bad"  # a node cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""  # what to do, unless good


def examine(port: int) -> Iterator[Finding]:
    """Look at everything, one finding after the other.

    Args:
        port: where the node is going to listen.
    """
    yield _python()
    yield from _packages()
    for probe in (_event_loop, _encoders, _espeak, _gpu, _files, lambda: _port(port), _player):
        yield _safely(probe)


def _safely(probe: Callable[[], Finding]) -> Finding:
    """A library that is broken must not keep the others from being looked at."""
    try:
        return probe()
    except (ImportError, OSError) as error:
        name = getattr(probe, "__name__", "probe").strip("_").replace("_", " ")
        return Finding(name, Verdict.BAD, f"{type(error).__name__}: {error}", "install agent-tts again")


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    good = sys.version_info >= (3, 11)
    return Finding("python", Verdict.GOOD if good else Verdict.BAD, found, "" if good else "use Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    """What the package says that it needs, and which versions are there."""
    versions, missing = [], []
    for requirement in importlib.metadata.requires("agent-tts") or []:
        marker = requirement.partition(";")[2]
        match = re.match(r"[\w.-]+", requirement)
        if "extra" in marker or match is None:
            continue
        name = match.group()
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            if not ("win32" in marker and sys.platform == "win32"):
                missing.append(name)
    yield Finding("packages", Verdict.GOOD, ", ".join(versions))
    if missing:
        yield Finding("packages", Verdict.BAD, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")


def _event_loop() -> Finding:
    from agent_tts.serve.run import event_loop_factory

    factory = event_loop_factory()
    return Finding("event loop", Verdict.GOOD, "asyncio" if factory is None else factory.__module__)


def _encoders() -> Finding:
    import av

    missing = []
    for format_, codec in ENCODERS.items():
        try:
            av.Codec(codec, "w")
        except ValueError:  # of which PyAV's UnknownCodecError is one
            missing.append(format_)
    if missing:
        advice = "install PyAV's own wheel: pip install --force-reinstall --only-binary av av"
        return Finding("encoders", Verdict.NOTE, f"no {', '.join(missing)}", advice)
    return Finding("encoders", Verdict.GOOD, ", ".join(ENCODERS))


def _espeak() -> Finding:
    """Speak: an engine process is started, and its first audio is timed."""
    try:
        voices, ttfa_ms = asyncio.run(_speak())
    except (SpeechError, SettingsError) as error:
        return Finding("espeak", Verdict.BAD, str(error), "pip install --force-reinstall espeakng-loader")
    return Finding("espeak", Verdict.GOOD, f"{voices} voices, first audio after {ttfa_ms:.1f} ms")


async def _speak() -> tuple[int, float]:
    from agent_tts.cli.link import engine
    from agent_tts.events import SpeechOptions
    from agent_tts.settings import Settings

    async with engine(Settings(engine="espeak", slots=1, queue=1)) as (service, info):
        speech = service.open(SpeechOptions(lead_ms=None))
        speech.write("All is well.")
        speech.end()
        begin = time.monotonic()
        async for _ in speech:
            return len(info.voices), (time.monotonic() - begin) * 1_000
    raise SpeechError("it made no audio")


def _gpu() -> Finding:
    driver = Path("/proc/driver/nvidia/version")
    if not driver.exists():
        return Finding("gpu", Verdict.GOOD, "none, and none is needed")
    try:
        torch = f"torch {importlib.metadata.version('torch')}"
    except importlib.metadata.PackageNotFoundError:
        torch = "no torch"
    return Finding("gpu", Verdict.GOOD, f"NVIDIA driver, {torch}; an engine on each of two: --device cuda:0,cuda:1")


def _files() -> Finding:
    if sys.platform == "win32":
        return Finding("open files", Verdict.GOOD, "no limit of the process")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_FILES:
        return Finding("open files", Verdict.NOTE, f"at most {soft}", f"for 512 connections: ulimit -n {MIN_FILES}")
    return Finding("open files", Verdict.GOOD, f"{soft} (up to {hard})")


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding("port", Verdict.NOTE, f"{port}: {error.strerror}", "agent-tts serve --port another")
    return Finding("port", Verdict.GOOD, f"{port} is free")


def _player() -> Finding:
    from agent_tts.cli.sinks import PLAYERS, find_player

    player = find_player()
    if player is None:
        names = ", ".join(command[0] for command in PLAYERS)
        return Finding("player", Verdict.NOTE, "none", f"for `agent-tts say --play`, install one of {names}")
    return Finding("player", Verdict.GOOD, player[0])
