"""Clips from untrusted sources: accepted ones, refused ones, and limits of the decoder."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import soxr

from agent_tts.errors import InvalidRequest
from agent_tts.voices.decode_child import ClipRefused, Refusal, container_format
from agent_tts.voices.enroll import LOUDEST, decode
from tests.support import dominant_hz
from tests.voices import clips
from tests.voices.clips import KINDS, SECONDS, TONE_HZ, Kind, good, mutated, tone, wav

pytestmark = pytest.mark.node

MAX_S = 5.0


@pytest.mark.parametrize("name", KINDS)
async def test_every_format_is_decoded(name: str) -> None:
    """To 24 kHz mono: the tone keeps its frequency, length and loudness."""
    waveform = await decode(good(name), max_s=MAX_S)
    assert waveform.dtype == np.float32
    assert len(waveform) == pytest.approx(SECONDS * 24_000, abs=1_000)  # encoders pad to whole frames
    middle = waveform[12_000:36_000]
    assert dominant_hz((middle * 32_767).astype(np.int16)) == pytest.approx(TONE_HZ, abs=2)
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.usefixtures("decodes_here")
@pytest.mark.parametrize("other", [0.0, 1.0, 0.5, -0.1, -1.0, -0.98, -0.5, -2.0])
async def test_channels_are_averaged_unless_they_cancel_one_another(other: float) -> None:
    """One of them inverted, or nearly: their mean is silent, or -40 dB. Mutation: FFmpeg's own mix adds 3 dB."""
    both = np.stack((tone(), np.float32(other) * tone()), axis=1)
    expected = both.mean(axis=1) if other >= -0.1 else both[:, int(abs(other) > 1)]
    found = await decode(wav(both, channels=2, block=8), max_s=MAX_S)
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.usefixtures("decodes_here")
@pytest.mark.parametrize("peak", [0.5, 1.5])
async def test_samples_at_24_khz_stay_as_they_are(peak: float) -> None:
    """Also floating-point samples above full scale."""
    assert np.array_equal(await decode(wav(tone(peak=peak)), max_s=MAX_S), tone(peak=peak))


@pytest.mark.usefixtures("decodes_here")
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
async def test_other_rates_are_resampled_as_by_the_reference(rate: int) -> None:
    """librosa's "soxr_hq", in pieces."""
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 2 * rate).astype(np.float32)
    expected = soxr.resample(noise, rate, 24_000, "HQ")
    assert np.array_equal(await decode(wav(noise, rate=rate), max_s=MAX_S), expected)


async def test_the_format_is_read_from_the_bytes_not_the_name() -> None:
    assert container_format(good("mp3")[:100]) == "mp3"
    assert container_format(b"\xff\xfb\x90\x00") == "mp3"
    for stranger in (b"", b"\xff", b"\xff\xf1\x50\x80", b"#EXTM3U", b"RIFF\0\0\0\0AVI ", b"wvpk"):
        with pytest.raises(ClipRefused) as refused:
            container_format(stranger)
        assert refused.value.refusal is Refusal.FORMAT


@pytest.mark.usefixtures("decodes_here")
@pytest.mark.parametrize(
    ("clip", "why"),
    [
        (b"Hello", "it has to be WAV, FLAC, MP3"),
        (good("m4a")[:100], "damaged"),
        (wav(tone(0.9)), "1 to 5 seconds long; it is shorter"),
        (wav(tone(5.1)), "1 to 5 seconds long; it is longer"),
        (wav(tone(peak=5e-4)), "silent"),
        (wav(tone() * np.float32(np.nan)), "not finite numbers"),
        (wav(tone(), rate=4_000), "4000 Hz; it has to .* 8000 to 192000 Hz"),
        (wav(tone(), channels=6, block=24), "6 channels.* mono or stereo"),
        (clips.encoded(Kind("wav", "adpcm_ms", "s16", 24_000), tone()), "it is ADPCM Microsoft; .* mono or stereo"),
        (clips.encoded(Kind("mp4", "libmp3lame", "fltp", 24_000), tone()[:100]), "shorter"),
        (clips.encoded(Kind("mp4", "alac", "s16p", 24_000), tone()), "it is ALAC .*it has to"),
        (clips.encoded(Kind("mp4", "aac", "fltp", 24_000, "5.1"), tone()), "it is AAC .*, 5.1, 24000 Hz.*it has to"),
        (b"\xff\xf1" + bytes(100), "it is AAC in ADTS; it has to"),
        (b"FORM\0\0\0\x20AIFFCOMM" + bytes(32), "it is AIFF; it has to"),
        (b"#!AMR\n" + bytes(32), "it is AMR; it has to"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_refusal_names_what_the_clip_is_and_the_allowed_values(clip: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^audio_sample: .*{why}") as refused:
        await decode(clip, max_s=MAX_S)
    assert refused.value.param == "audio_sample"


@pytest.mark.usefixtures("decodes_here")
async def test_the_limits_themselves_are_allowed() -> None:
    assert len(await decode(wav(tone(1.0)), max_s=MAX_S)) == 24_000
    assert len(await decode(wav(tone(5.0)), max_s=MAX_S)) == 5 * 24_000


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
async def test_damaged_clips_are_decoded_or_refused(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clips that are valid in part, every sixth or all; a node's test sends others.

    No other error occurs and no file is written; the leak gate checks for processes.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    outcomes: list[bool] = []
    valid_in_part = (one for one in mutated() if re.search("500 bits|hole|twice|middle|claims|samples of", one[0]))
    tried = islice(valid_in_part, None, None, every)

    async def try_them() -> None:
        for name, clip in tried:
            try:
                waveform = await decode(clip, max_s=MAX_S)
            except InvalidRequest:
                outcomes.append(False)
            else:
                outcomes.append(True)
                assert 24_000 <= len(waveform) <= MAX_S * 24_000, name
                assert np.abs(waveform).max() <= LOUDEST, name

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(try_them())
    assert sum(outcomes) > 20 / every < outcomes.count(False)  # both results occur often enough
    assert not os.listdir(tmp_path)


async def test_a_hung_decoder_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.voices.enroll.DECODE_TIMEOUT_S", 0.01)
    with pytest.raises(InvalidRequest, match="within the limits"):
        await decode(good("mp3"), max_s=MAX_S)


# ---------------------------------------------------------------- limits of the process


def powerless(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the decoder's state after `give_up_powers`."""
    first = "import os, socket, subprocess, sys\nfrom agent_tts.voices.decode_child import give_up_powers\n"
    command = [sys.executable, "-c", f"{first}give_up_powers()\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")


@POSIX
@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("open('/etc/passwd')", "Too many open files"),
        ("socket.socket()", "Too many open files"),
        ("bytes(1 << 29)", "MemoryError"),
        ("subprocess.run(['true'])", "Too many open files|Resource temporarily unavailable"),
    ],
)
def test_the_decoder_has_only_the_resources_that_it_needs(program: str, error: str) -> None:
    """Mutation: without each limit one of these programs succeeds."""
    done = powerless(program)
    assert done.returncode == 1
    assert any(words in done.stderr for words in error.split("|")), done.stderr


@POSIX
def test_the_decoder_cannot_write_to_files(tmp_path: Path) -> None:
    """Including files that were open before."""
    written = tmp_path / "written"
    program = "os.write(1, b'x')"
    with written.open("wb") as file:
        command = f"from agent_tts.voices.decode_child import give_up_powers\ngive_up_powers()\nimport os\n{program}"
        done = subprocess.run([sys.executable, "-c", command], stdout=file, stderr=subprocess.PIPE, timeout=30)
    assert done.returncode != 0
    assert written.read_bytes() == b""


@POSIX
def test_the_decoder_s_time_is_limited() -> None:
    program = "import resource; print(*resource.getrlimit(resource.RLIMIT_CPU), os.nice(0))"
    assert powerless(program).stdout.split() == ["5", "5", str(min(19, os.nice(0) + 10))]
