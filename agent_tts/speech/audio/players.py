"""Programs that play audio on this machine."""

from __future__ import annotations

import shutil

from agent_tts.engine_info import SAMPLE_RATE

# Commands that play pcm_s16le, 24 kHz, mono from stdin; those that write least to stderr first.
PLAYERS: tuple[tuple[str, ...], ...] = (
    ("paplay", "--raw", f"--rate={SAMPLE_RATE}", "--channels=1", "--format=s16le"),
    ("pw-cat", "--playback", "--raw", f"--rate={SAMPLE_RATE}", "--channels=1", "--format=s16", "-"),
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-r", str(SAMPLE_RATE), "-c", "1", "-"),
    (
        *("ffplay", "-nodisp", "-autoexit", "-loglevel", "error", "-probesize", "32", "-f", "s16le"),
        *("-ar", str(SAMPLE_RATE), "-ch_layout", "mono", "-i", "-"),
    ),
    (
        *("mpv", "--no-terminal", "--demuxer=rawaudio", f"--demuxer-rawaudio-rate={SAMPLE_RATE}"),
        *("--demuxer-rawaudio-channels=1", "--demuxer-rawaudio-format=s16le", "-"),
    ),
    ("play", "-q", "-t", "raw", "-r", str(SAMPLE_RATE), "-e", "signed", "-b", "16", "-c", "1", "-"),
)


def find_player() -> tuple[str, ...] | None:
    """The first command that is installed; None if none is."""
    return next((command for command in PLAYERS if shutil.which(command[0])), None)
