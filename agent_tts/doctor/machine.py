"""The machine, the software on it, and the folders that a node writes to."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable

from agent_tts.config.settings import Settings
from agent_tts.doctor.finding import Finding, bad, good, note, refused
from agent_tts.engine.factory import chosen_engine
from agent_tts.errors import SettingsError, SpeechError, to_install
from agent_tts.serve.fronts import connections, front_count, rtc_peers
from agent_tts.system import open_files
from agent_tts.system.cores import cores
from agent_tts.voices.library import VoiceLibrary

ENCODERS = {"mp3": "libmp3lame", "opus": "libopus", "aac": "aac", "flac": "flac"}

GIB = 1 << 30
ROOM_FOR_VOICES = 1 << 28  # bytes; a voice takes less than one MiB

CLOCK_UNSYNCHRONISED = 5  # TIME_ERROR, what adjtimex(2) gives


def python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return good("python", found) if sys.version_info >= (3, 11) else bad("python", found, "use Python 3.11 or newer")


def fronts(settings: Settings) -> list[Finding]:
    count = front_count(settings)
    found = f"{count} for {cores():g} cores"
    if count > 1 and count >= cores():
        return [note("fronts", found, "each uses a core, and an engine another: set `fronts` to less, or to auto")]
    return [good("fronts", found)]


def packages() -> list[Finding]:
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
    found = [good("packages", ", ".join(versions))]
    if missing:
        found.append(bad("packages", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}"))
    return found


def event_loop() -> list[Finding]:
    from agent_tts.serve.processes.process import event_loop_factory

    factory = event_loop_factory()
    return [good("event loop", "asyncio" if factory is None else factory.__module__)]


def encoders() -> list[Finding]:
    import av

    missing = []
    for format_, codec in ENCODERS.items():
        try:
            av.Codec(codec, "w")
        except ValueError:  # of which PyAV's UnknownCodecError is one
            missing.append(format_)
    if missing:
        advice = "install PyAV's own wheel: pip install --force-reinstall --only-binary av av"
        return [note("encoders", f"no {', '.join(missing)}", advice)]
    return [good("encoders", ", ".join(ENCODERS))]


def espeak(settings: Settings) -> list[Finding]:
    return _engine("espeak", settings, bad, "pip install --force-reinstall espeakng-loader")


def hibari(settings: Settings) -> list[Finding]:
    """The natural voice, without which espeak speaks."""
    if settings.engine not in ("auto", "hibari") or settings.qwen3.models:
        return []
    without = bad if settings.engine == "hibari" else note
    return _engine("hibari", settings, without, f"for a natural voice in English: {to_install('voice')}")


def _engine(name: str, settings: Settings, without: Callable[[str, str, str], Finding], advice: str) -> list[Finding]:
    """Start an engine process, speak, and measure the time to first audio: by the node's settings if it is its own."""
    own = settings if chosen_engine(settings) == name else Settings()
    try:
        voices, ttfa_ms = asyncio.run(_speak(own.model_copy(update={"engine": name, "slots": 1, "queue": 1})))
    except (SpeechError, SettingsError) as error:
        return [without(name, str(error), advice)]
    return [good(name, f"{voices} voices, first audio after {ttfa_ms:.1f} ms")]


async def _speak(settings: Settings) -> tuple[int, float]:
    from agent_tts.options import SpeechOptions
    from agent_tts.serve.local_engine import engine

    async with engine(settings) as (service, info):
        speech = service.open(SpeechOptions(lead_ms=None))
        speech.write("All is well.")
        speech.end()
        begin = time.monotonic()
        async for _ in speech:
            return len(info.voices), (time.monotonic() - begin) * 1_000
    raise SpeechError("it made no audio")


def file_limit(settings: Settings) -> list[Finding]:
    """The limit of file descriptors that a node may set itself, against the need of all clients of the settings."""
    clients, peers = connections(settings), rtc_peers(settings)
    needed, limit = open_files.needed(clients, peers), open_files.allowed()
    if limit < needed:
        advice = (
            f"{clients} connections and {peers} WebRTC peers need {needed}: raise the hard limit "
            "(ulimit -Hn, systemd's LimitNOFILE, docker's --ulimit nofile)"
        )
        return [note("open files", f"at most {limit}", advice)]
    return [good("open files", "no limit" if limit == sys.maxsize else f"up to {limit}")]


def clock() -> list[Finding]:
    """Whether the clock is synchronised: certificates, TURN credentials and log lines depend on it."""
    if sys.platform != "linux":
        return [good("clock", "not checked on this system")]
    if ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == CLOCK_UNSYNCHRONISED:
        advice = "run chrony or systemd-timesyncd on this machine, or on the host of this container"
        return [note("clock", "not synchronised", advice)]
    return [good("clock", "synchronised")]


def player() -> list[Finding]:
    from agent_tts.speech.audio.players import PLAYERS, find_player

    player = find_player()
    if player is None:
        names = ", ".join(command[0] for command in PLAYERS)
        return [note("player", "none", f"for `agent-tts say --play`, install one of {names}")]
    return [good("player", player[0])]


def disk(settings: Settings) -> list[Finding]:
    """Whether the folder of voices is writable and has room."""
    if not settings.voices.limit:
        return []
    try:
        folder = VoiceLibrary.of(settings.voices).folder
    except SettingsError as error:
        return [refused("voices", error)]
    advice = "set voices.folder to a folder of the node's user"
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return [bad("voices", f"{there} is not writable", advice)]
    free = shutil.disk_usage(there).free
    found = f"{folder}, {free / GIB:.1f} GiB free"
    return [good("voices", found) if free > ROOM_FOR_VOICES else note("voices", found, advice)]
