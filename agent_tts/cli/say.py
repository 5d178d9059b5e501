"""`agent-tts say`."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from agent_tts.cli.node import Speaker, local, own_settings, refuse_engine_flags, remote
from agent_tts.cli.options import speech_options
from agent_tts.cli.sinks import FileSink, PlayerSink, Sink, StdoutSink
from agent_tts.config import files
from agent_tts.config.lexicon import read_lexicon
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import ENV_PREFIX, C2pa
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SettingsError
from agent_tts.messages import Finished
from agent_tts.protocol.utterance import AnyUtterance
from agent_tts.speech.audio.manifest import signer_of
from agent_tts.speech.audio.players import find_player
from agent_tts.text.segments import Pieces

SEGMENT_CHARS = 1_000  # about a minute of speech
OPEN_AHEAD = 2  # open contexts: one is played while the next is made
SLOTS = 4  # of the command's own engine
NOTHING = "there is nothing to speak"
READ_BYTES = 4_096
READ_AHEAD = 8  # chunks of standard input that may wait
# Seconds without input after which the pending text is spoken: well below a node's limit for an open context (15 s).
IDLE_S = 5.0
REFRESH_S = 0.1  # of the progress on a terminal


def say(
    *,
    text: str,
    speech: Any,
    lexicon: Path | None,
    url: str | None,
    key: str | None,
    model: str | None,
    output: str | None,
    play: bool,
    quiet: bool,
    settings: dict[str, Any],
) -> None:
    """Speak `text`, or stdin if it is "-", until all audio is written or played.

    Raises BrokenPipeError: the reader of standard output has closed it; KeyboardInterrupt: raised after all resources
    are released.
    """
    if not text.strip():
        raise SettingsError(NOTHING)
    options = speech_options(speech, model if url else None, None if lexicon is None else read_lexicon(lexicon))
    if model:
        settings["qwen3.models"] = None if url else [model]
    if url:
        refuse_engine_flags(settings)
        speaker = remote(url, key, options)
        signing = f"{ENV_PREFIX}C2PA__"  # the only settings that are of this machine
        own = load_settings(environ={name: value for name, value in os.environ.items() if name.startswith(signing)})
    else:
        own = own_settings(settings | {"slots": SLOTS})
        speaker = local(own, options)
    fd = sys.stdin.fileno() if text == "-" else None
    source = once(text) if fd is None else arriving(fd, lines=os.isatty(fd))
    # Slow speech gets shorter contexts, because their duration is limited, too.
    pieces = Pieces(round(SEGMENT_CHARS * min(1.0, options.speed)))
    asyncio.run(_say(source, pieces, speaker, _sinks(output, play, own.c2pa), Progress(quiet)))


async def _say(
    source: AsyncIterator[str | None],
    pieces: Pieces,
    open_speaker: AbstractAsyncContextManager[Speaker],
    sinks: Sequence[Sink],
    progress: Progress,
) -> None:
    whole = False
    with progress:
        try:
            async with open_speaker as speaker:
                await _speak(source, pieces, speaker, sinks, progress)
            whole = True
        finally:
            async with AsyncExitStack() as stack:  # close every sink, even if another fails
                for sink in sinks:
                    stack.push_async_callback(sink.close, whole)


def _sinks(output: str | None, play: bool, c2pa: C2pa) -> list[Sink]:
    sinks: list[Sink] = []
    if play or output is None:
        player = find_player()
        if player is None:
            raise SettingsError("no program that plays audio was found (see `agent-tts doctor`): use -o FILE")
        sinks.append(PlayerSink(player))
    if output is not None:
        signer = signer_of(c2pa.certificate, c2pa.key, files.read)
        sinks.append(StdoutSink() if output == "-" else FileSink(Path(output), signer))
    return sinks


async def _speak(
    source: AsyncIterator[str | None], pieces: Pieces, speaker: Speaker, sinks: Sequence[Sink], progress: Progress
) -> None:
    """Send the text of `source` to the speaker and its audio to the sinks, both as they arrive."""
    utterances: asyncio.Queue[AnyUtterance | None] = asyncio.Queue()  # bounded by `room`; None after the last
    room = asyncio.Semaphore(OPEN_AHEAD)

    async def write() -> None:
        current: AnyUtterance | None = None
        opened = False
        async for text in source:
            for piece in pieces.end() if text is None else pieces.feed(text):
                if piece is None:
                    if current is not None:
                        current.end()
                    current = None
                    continue
                if current is None:
                    piece = piece.lstrip()  # do not open a context for white space
                    if not piece:
                        continue
                    await room.acquire()
                    current = await speaker()
                    opened = True
                    utterances.put_nowait(current)
                progress.text()
                current.write(piece)
        if not opened:
            raise SettingsError(NOTHING)

    writer = asyncio.create_task(write(), name="text writer")
    writer.add_done_callback(lambda _: utterances.put_nowait(None))
    try:
        while (utterance := await utterances.get()) is not None:
            async for pcm in utterance:
                progress.audio(pcm)
                for sink in sinks:
                    await sink.write(pcm)
            assert utterance.done is not None
            progress.ended(utterance.done)
            room.release()
        await writer
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)


async def once(text: str) -> AsyncIterator[str | None]:
    """A complete text, then None."""
    yield text
    yield None


async def arriving(fd: int, *, lines: bool, idle_s: float = IDLE_S) -> AsyncIterator[str | None]:
    """UTF-8 text from a file descriptor as it arrives; None where the text so far is complete: at its end, after a
    pause, and with `lines` behind each line.

    A thread reads, because files, terminals and pipes have no common asynchronous interface. If the iteration is
    abandoned, the thread stays blocked in `read`.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()  # bounded by `permits`
    permits = threading.Semaphore(READ_AHEAD)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while permits.acquire():
                try:
                    data = os.read(fd, READ_BYTES)
                except OSError:
                    data = b""
                loop.call_soon_threadsafe(chunks.put_nowait, data)
                if not data:
                    return

    threading.Thread(target=read, name="text reader", daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    complete = True
    while True:
        try:
            async with asyncio.timeout(None if complete else idle_s):
                data = await chunks.get()
        except TimeoutError:
            complete = True
            yield None
            continue
        permits.release()
        text = decoder.decode(data, final=not data)
        if text:
            yield text
            complete = lines and text.endswith("\n")
            if complete:
                yield None
        if not data:
            yield None
            return


class Progress:
    """Shows time to first audio, length and speed: a live line on a terminal, otherwise one line at the end."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        # It is refreshed by hand, which takes no thread.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._text_at: float | None = None
        self._ttfa_s: float | None = None
        self._samples = 0
        # They count the contexts that have ended; `_busy_s` is the time of their engine.
        self._busy_s = 0.0
        self._busy_samples = 0
        self._drawn_at = 0.0

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if not self._quiet and self._samples:
            self._console.print(self._line())

    def text(self) -> None:
        if self._text_at is None:
            self._text_at = time.monotonic()

    def audio(self, pcm: bytes) -> None:
        now = time.monotonic()
        if self._ttfa_s is None and self._text_at is not None:
            self._ttfa_s = now - self._text_at
        self._samples += len(pcm) // 2
        if self._live.is_started and now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            self._live.update(self._line(), refresh=True)

    def ended(self, done: Finished[str]) -> None:
        self._busy_s += (done.rtf or 0.0) * done.audio_ms / 1_000
        self._busy_samples = self._samples
        if done.reason == "length" and not self._quiet:
            self._console.print("agent-tts: the node cut a piece of the text: it was too long", style="yellow")

    def _line(self) -> Text:
        parts = [f"{self._samples / SAMPLE_RATE:.2f} s of speech"]
        if self._ttfa_s is not None:
            parts.append(f"first audio after {self._ttfa_s * 1_000:.1f} ms")
        if self._busy_samples:
            parts.append(f"real-time factor {self._busy_s * SAMPLE_RATE / self._busy_samples:.4f}")
        return Text(" · ".join(parts), style="dim")
