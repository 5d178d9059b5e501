"""`agent-tts say`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from agent_tts.cli.link import Speaker, local, own_settings, refuse_engine_flags, remote
from agent_tts.cli.progress import Progress
from agent_tts.cli.sinks import FileSink, PlayerSink, Sink, StdoutSink
from agent_tts.cli.text_source import arriving, once
from agent_tts.errors import SettingsError
from agent_tts.events import SpeechOptions
from agent_tts.protocol.context import AnyUtterance
from agent_tts.speech.audio.players import find_player
from agent_tts.text.segments import Segmenter

SEGMENT_CHARS = 1_000  # about a minute of speech
OPEN_AHEAD = 2  # open contexts: one is played while the next is made
SLOTS = 4  # of the command's own engine
NOTHING = "there is nothing to speak"


def say(
    text: str,
    options: SpeechOptions,
    *,
    output: str | None,
    play: bool,
    url: str | None,
    key: str | None,
    flags: dict[str, Any],
    quiet: bool,
) -> None:
    """Speak `text`, or stdin if it is "-", until all audio is written or played.

    Args:
        url: of a running node; None starts an engine.
        flags: settings of that engine; None where not given.

    Raises:
        SettingsError: no text, no output for the audio, or an invalid setting.
        SpeechError: the text cannot be spoken.
        BrokenPipeError: the reader of standard output has closed it.
        KeyboardInterrupt: raised after all resources are released.
    """
    if not text.strip():
        raise SettingsError(NOTHING)
    if url:
        refuse_engine_flags(flags)
        speaker = remote(url, key, options)
    else:
        speaker = local(own_settings(flags | {"slots": SLOTS}), options)
    asyncio.run(_say(text, options.speed, speaker, output, play, quiet))


async def _say(
    text: str,
    speed: float,
    open_speaker: AbstractAsyncContextManager[Speaker],
    output: str | None,
    play: bool,
    quiet: bool,
) -> None:
    fd = sys.stdin.fileno() if text == "-" else None
    source = once(text) if fd is None else arriving(fd, lines=os.isatty(fd))
    # Slow speech gets shorter contexts, because their duration is limited, too.
    segmenter = Segmenter(round(SEGMENT_CHARS * min(1.0, speed)))
    sinks = _sinks(output, play)
    whole = False
    with Progress(quiet) as progress:
        try:
            async with open_speaker as speaker:
                await _speak(source, segmenter, speaker, sinks, progress)
            whole = True
        finally:
            async with AsyncExitStack() as stack:  # close every sink, even if another fails
                for sink in sinks:
                    stack.push_async_callback(sink.close, whole)


def _sinks(output: str | None, play: bool) -> list[Sink]:
    sinks: list[Sink] = []
    if play or output is None:
        player = find_player()
        if player is None:
            raise SettingsError("no program that plays audio was found (see `agent-tts doctor`): use -o FILE")
        sinks.append(PlayerSink(player))
    if output is not None:
        sinks.append(StdoutSink() if output == "-" else FileSink(Path(output)))
    return sinks


async def _speak(
    source: AsyncIterator[str | None], segmenter: Segmenter, speaker: Speaker, sinks: list[Sink], progress: Progress
) -> None:
    """Send the text of `source` to the speaker and its audio to the sinks, both as they arrive."""
    utterances: asyncio.Queue[AnyUtterance | None] = asyncio.Queue()  # bounded by `room`
    room = asyncio.Semaphore(OPEN_AHEAD)

    async def write() -> None:
        try:
            await _write(source, segmenter, speaker, utterances, room, progress)
        finally:
            utterances.put_nowait(None)

    writer = asyncio.create_task(write(), name="text writer")
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


async def _write(
    source: AsyncIterator[str | None],
    segmenter: Segmenter,
    speaker: Speaker,
    utterances: asyncio.Queue[AnyUtterance | None],
    room: asyncio.Semaphore,
    progress: Progress,
) -> None:
    current: AnyUtterance | None = None
    opened = False
    async for text in source:
        if text is None:
            segmenter.cut()
        for piece in [None] if text is None else segmenter.feed(text):
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
    if current is not None:
        current.end()
    if not opened:
        raise SettingsError(NOTHING)
