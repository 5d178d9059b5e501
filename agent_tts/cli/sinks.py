"""Outputs for audio: a file, standard output, or a player. All take pcm_s16le, 24 kHz, mono.

`write` waits while an output is slower than the speech. `close` ends it, after playing everything if `whole`, at once
otherwise; it is idempotent.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SettingsError, SpeechError
from agent_tts.speech.audio.files import WAV_MARK, FileEncoder, wav_header
from agent_tts.speech.audio.manifest import SIGNABLE, ManifestSigner
from agent_tts.system.processes import ends

FORMATS = {
    ".wav": "wav",
    ".mp3": "mp3",
    ".flac": "flac",
    ".opus": "opus",
    ".ogg": "opus",
    ".aac": "aac",
    ".pcm": "pcm",
    ".raw": "pcm",
}

PLAYED_S = 10.0  # timeout for the player's end, beyond the length of the audio


class FileSink:
    """A file in the format of its suffix, signed if there is a signer for it. Raises SettingsError: it cannot be made.

    It is written beside its place. If closed early it is valid, and gets its place only where no file was before.
    """

    def __init__(self, path: Path, signer: ManifestSigner | None = None) -> None:
        format_ = FORMATS.get(path.suffix.lower())
        if format_ is None:
            raise SettingsError(f"-o {path.name}: the name ends in one of {', '.join(FORMATS)}; or - for raw pcm")
        self._format = format_
        self._signer = signer if format_ in SIGNABLE else None
        # It is behind symbolic links; a pipe or a device is written to as it is.
        self._path = path.resolve()
        self._beside = self._path
        if self._path.is_file() or not self._path.exists():
            self._beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        self._encoder = FileEncoder(format_)
        try:
            if self._path.is_file():
                self._path.open("ab").close()  # it may be written to
            self._file = self._beside.open("wb")
        except OSError as error:
            self._encoder.close()
            raise SettingsError(f"-o {path}: {error.strerror}") from None
        self._samples = 0
        # Whether its header is written when its length is known.
        self._is_wav = format_ == "wav" and self._file.seekable()
        if self._is_wav:
            self._encoder = FileEncoder("pcm")
            self._file.write(wav_header(0))

    async def write(self, pcm: bytes) -> None:
        self._file.write(self._encoder.encode(pcm))
        self._samples += len(pcm) // 2

    async def close(self, whole: bool) -> None:
        if self._file.closed:
            return
        try:
            with self._file:
                self._file.write(self._encoder.close())
                if self._is_wav:
                    self._file.write(WAV_MARK)
                    self._file.seek(0)
                    self._file.write(wav_header(self._samples))
            if self._signer is not None and self._beside != self._path and whole:
                self._beside.write_bytes(self._signer.sign(self._beside.read_bytes(), self._format))
            if self._beside != self._path and (whole or (self._samples and not self._path.exists())):
                self._beside.replace(self._path)
        finally:
            if self._beside != self._path:
                self._beside.unlink(missing_ok=True)


class StdoutSink:
    """Raw pcm on standard output, but for a terminal (SettingsError). `write` may raise `BrokenPipeError`."""

    def __init__(self, fd: int = 1) -> None:
        if os.isatty(fd):
            raise SettingsError("-o - writes raw audio, which no terminal can show: send it to a pipe or a file")
        self._fd = fd
        self._was_blocking = os.get_blocking(fd)
        if sys.platform != "win32":
            os.set_blocking(fd, False)

    async def write(self, pcm: bytes) -> None:
        rest = memoryview(pcm)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                await self._writable()

    async def close(self, whole: bool) -> None:
        if sys.platform != "win32":
            os.set_blocking(self._fd, self._was_blocking)

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)


class PlayerSink:
    """A player program, started with the first audio."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._written = 0

    async def write(self, pcm: bytes) -> None:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(pcm)
        self._written += len(pcm)
        try:
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise PlayerEnded(f"{self._command[0]} ended before the speech: does it work? Or use -o FILE") from None

    async def close(self, whole: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if not await ends(process, self._written / (2 * SAMPLE_RATE) + PLAYED_S if whole else 0) and whole:
            raise TimeoutError


class PlayerEnded(SpeechError):
    """The player program has ended early."""


Sink = FileSink | StdoutSink | PlayerSink
