"""The machine, and the software on it."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.metadata
import os
import platform
import re
import sys
import time
from collections.abc import Iterator

from agent_tts.config.settings import Settings
from agent_tts.doctor.finding import Finding, Verdict
from agent_tts.errors import SettingsError, SpeechError

ENCODERS = {"mp3": "libmp3lame", "opus": "libopus", "aac": "aac", "flac": "flac"}

# File descriptors of a connection (two while it is upgraded), of a WebRTC peer with its sockets, and of all else,
# connections without a session included.
FILES_OF_A_CONNECTION = 2
FILES_OF_A_PEER = 16
FILES_BESIDES = 256

CLOCK_UNSYNCHRONISED = 5  # TIME_ERROR, what adjtimex(2) gives


def python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    good = sys.version_info >= (3, 11)
    return Finding("python", Verdict.GOOD if good else Verdict.BAD, found, "" if good else "use Python 3.11 or newer")


def packages() -> Iterator[Finding]:
    """The versions of the packages that agent-tts requires."""
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


def event_loop() -> Iterator[Finding]:
    from agent_tts.serve.run import event_loop_factory

    factory = event_loop_factory()
    yield Finding("event loop", Verdict.GOOD, "asyncio" if factory is None else factory.__module__)


def encoders() -> Iterator[Finding]:
    import av

    missing = []
    for format_, codec in ENCODERS.items():
        try:
            av.Codec(codec, "w")
        except ValueError:  # of which PyAV's UnknownCodecError is one
            missing.append(format_)
    if missing:
        advice = "install PyAV's own wheel: pip install --force-reinstall --only-binary av av"
        yield Finding("encoders", Verdict.NOTE, f"no {', '.join(missing)}", advice)
        return
    yield Finding("encoders", Verdict.GOOD, ", ".join(ENCODERS))


def espeak() -> Iterator[Finding]:
    """Start an engine process, speak, and measure the time to first audio."""
    try:
        voices, ttfa_ms = asyncio.run(_speak())
    except (SpeechError, SettingsError) as error:
        yield Finding("espeak", Verdict.BAD, str(error), "pip install --force-reinstall espeakng-loader")
        return
    yield Finding("espeak", Verdict.GOOD, f"{voices} voices, first audio after {ttfa_ms:.1f} ms")


async def _speak() -> tuple[int, float]:
    from agent_tts.config.settings import Settings
    from agent_tts.events import SpeechOptions
    from agent_tts.serve.own_engine import engine

    async with engine(Settings(engine="espeak", slots=1, queue=1)) as (service, info):
        speech = service.open(SpeechOptions(lead_ms=None))
        speech.write("All is well.")
        speech.end()
        begin = time.monotonic()
        async for _ in speech:
            return len(info.voices), (time.monotonic() - begin) * 1_000
    raise SpeechError("it made no audio")


def open_files(settings: Settings) -> Iterator[Finding]:
    """The limit of file descriptors, against the need of all clients that the settings allow."""
    if sys.platform == "win32":
        yield Finding("open files", Verdict.GOOD, "no limit")
        return
    import resource

    limits = settings.limits
    needed = FILES_OF_A_CONNECTION * limits.connections + FILES_OF_A_PEER * limits.rtc_peers + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        advice = f"for {limits.connections} connections and {limits.rtc_peers} WebRTC peers: ulimit -n {needed}"
        yield Finding("open files", Verdict.NOTE, f"at most {soft}", advice)
        return
    yield Finding("open files", Verdict.GOOD, f"{soft} (up to {hard})")


def clock() -> Iterator[Finding]:
    """Whether the clock is synchronised: certificates, TURN credentials and log lines depend on it."""
    if sys.platform != "linux":
        yield Finding("clock", Verdict.GOOD, "not checked on this system")
        return
    if ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == CLOCK_UNSYNCHRONISED:
        advice = "run chrony or systemd-timesyncd on this machine, or on the host of this container"
        yield Finding("clock", Verdict.NOTE, "not synchronised", advice)
        return
    yield Finding("clock", Verdict.GOOD, "synchronised")


def player() -> Iterator[Finding]:
    from agent_tts.speech.audio.players import PLAYERS, find_player

    player = find_player()
    if player is None:
        names = ", ".join(command[0] for command in PLAYERS)
        yield Finding("player", Verdict.NOTE, "none", f"for `agent-tts say --play`, install one of {names}")
        return
    yield Finding("player", Verdict.GOOD, player[0])
