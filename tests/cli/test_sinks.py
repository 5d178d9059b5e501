from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from agent_tts.cli.sinks import FORMATS, FileSink, PlayerSink, StdoutSink
from agent_tts.speech.audio.files import WAV_MARK
from agent_tts.speech.audio.players import PLAYERS, find_player
from tests.support import dominant_hz

TONE = (8_000 * np.sin(np.arange(24_000) * 2 * np.pi * 660 / 24_000)).astype("<i2").tobytes()
FRAMES = [TONE[start : start + 3_840] for start in range(0, len(TONE), 3_840)]


async def fill(path: Path, frames: list[bytes] = FRAMES, *, whole: bool = True) -> None:
    """Write these frames to a file, by default all of `TONE`."""
    sink = FileSink(path)
    for frame in frames:
        await sink.write(frame)
    await sink.close(whole)
    await sink.close(whole)


def decoded(path: Path) -> bytes:
    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=24_000)
        frames = [frame for raw in container.decode(audio=0) for frame in resampler.resample(raw)]
        return b"".join(frame.to_ndarray().tobytes() for frame in frames + resampler.resample(None))


@pytest.mark.parametrize("suffix", sorted(FORMATS.keys() - {".pcm", ".raw"}))
async def test_the_suffix_of_a_file_decides_its_format(tmp_path: Path, suffix: str) -> None:
    await fill(tmp_path / f"a{suffix.upper()}")
    pcm = decoded(tmp_path / f"a{suffix.upper()}")
    assert dominant_hz(pcm) == pytest.approx(660, abs=5)
    assert len(pcm) == pytest.approx(len(TONE), abs=4_800)


async def test_a_raw_file_is_the_audio_itself(tmp_path: Path) -> None:
    await fill(tmp_path / "a.pcm")
    assert (tmp_path / "a.pcm").read_bytes() == TONE


@pytest.mark.parametrize("whole", [True, False])
async def test_a_wav_file_is_valid_also_when_interrupted(tmp_path: Path, whole: bool) -> None:
    await fill(tmp_path / "a.wav", FRAMES[:1], whole=whole)
    assert decoded(tmp_path / "a.wav") == FRAMES[0]
    file = (tmp_path / "a.wav").read_bytes()
    assert file[44 : -len(WAV_MARK)] == FRAMES[0]  # some clients skip 44 bytes
    assert file.endswith(WAV_MARK)
    assert [int.from_bytes(file[at : at + 4], "little") for at in (4, 40)] == [len(file) - 8, len(FRAMES[0])]


@pytest.mark.parametrize("whole", [True, False])
async def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "a.pcm").write_bytes(b"before")
    (tmp_path / "link.pcm").symlink_to("a.pcm")
    sink = FileSink(tmp_path / "link.pcm")
    await sink.write(FRAMES[0])
    assert (tmp_path / "a.pcm").read_bytes() == b"before"
    await sink.close(whole)
    assert (tmp_path / "a.pcm").read_bytes() == (FRAMES[0] if whole else b"before")
    assert set(os.listdir(tmp_path)) == {"a.pcm", "link.pcm"}
    assert (tmp_path / "link.pcm").is_symlink()


async def test_nothing_is_left_of_a_file_without_audio_or_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await FileSink(tmp_path / "a.wav").close(False)
    assert os.listdir(tmp_path) == []
    sink = FileSink(tmp_path / "a.wav")
    await sink.write(FRAMES[0])

    def full(samples: int) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("agent_tts.cli.sinks.wav_header", full)
    with pytest.raises(OSError, match="No space"):
        await sink.close(True)
    assert os.listdir(tmp_path) == []


async def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pcm")
    read = os.open(tmp_path / "a.pcm", os.O_RDONLY | os.O_NONBLOCK)
    try:
        await fill(tmp_path / "a.pcm", FRAMES[:1])
        assert os.read(read, 8_192) == FRAMES[0]
    finally:
        os.close(read)


async def test_a_full_pipe_is_waited_for_and_its_mode_restored() -> None:
    read, write = os.pipe()
    try:
        sink = StdoutSink(write)
        writing = asyncio.create_task(sink.write(TONE * 4))
        taken = b""
        while len(taken) < len(TONE) * 4:
            await asyncio.sleep(0)
            assert not writing.done() or len(taken) + 65_536 >= len(TONE) * 4
            taken += os.read(read, 10_000)
        await writing
        await sink.close(True)
        assert taken == TONE * 4
        assert os.get_blocking(write)
    finally:
        os.close(read)
        os.close(write)


async def test_a_pipe_without_a_reader_is_broken() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        with pytest.raises(BrokenPipeError):
            await StdoutSink(write).write(TONE)
    finally:
        os.close(write)


async def test_an_interrupted_player_is_silent_at_once() -> None:
    sink = PlayerSink((sys.executable, "-c", "import time; time.sleep(60)"))
    await sink.write(FRAMES[0])
    async with asyncio.timeout(5):
        await sink.close(False)


async def test_no_player_is_started_without_audio() -> None:
    await PlayerSink(("/nowhere/player",)).close(True)


def test_an_installed_player_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_player() is None
    (tmp_path / "aplay").touch(mode=0o755)
    assert find_player() == next(command for command in PLAYERS if command[0] == "aplay")
