"""Records what servers speak: a node's speech of streamed or whole text, and that of OpenAI-compatible servers."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import numpy as np

from agent_tts.bench.node import MeasuredNode
from agent_tts.bench.quality import Recording
from agent_tts.bench.statistics import background, together
from agent_tts.client.connection import ConnectionLost
from agent_tts.client.moving import connect
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SettingsError, SpeechError
from agent_tts.messages import Audio

SPEAK_S = 300.0  # timeout of one utterance
SEED = 1

Speak = Callable[[str, str, float], Awaitable[Recording]]  # text, language, ms between words: 0 sends it whole


async def record(
    speak: Speak, texts: Sequence[str], language: str, callers: int, words_every_ms: float, advance: Callable[[], None]
) -> list[Recording]:
    """Recordings of all texts, by callers who speak one after the other; each caller speaks, so texts may come again.

    One that failed is silent and has its error. Cancelling it ends all calls.
    """
    jobs = [texts[number % len(texts)] for number in range(max(callers, len(texts)))]
    found: list[Recording] = []
    waiting = iter(jobs)

    async def call() -> None:
        for text in waiting:
            try:
                async with asyncio.timeout(SPEAK_S):
                    found.append(await speak(text, language, words_every_ms))
            except (SpeechError, TimeoutError) as error:
                code = error.code if isinstance(error, SpeechError) else "timeout"
                found.append(Recording(text, language, np.zeros(0, np.int16), SAMPLE_RATE, error=code))
            advance()

    await together(call() for _ in range(callers))
    return sorted(found, key=lambda one: jobs.index(one.text))


def from_node(node: MeasuredNode) -> Speak:
    """Speaks on a node, each utterance on a connection of its own."""

    async def speak(text: str, language: str, words_every_ms: float) -> Recording:
        paced: dict[str, Any] = {} if words_every_ms else {"lead_ms": None}
        options: dict[str, Any] = {**node.session, **paced, "language": language, "timestamps": "word", "seed": SEED}
        async with connect(node.url, api_key=node.key) as connection:
            utterance = await connection.open(**options)

            async def write() -> None:
                for word in text.split() if words_every_ms else (text,):
                    utterance.write(f"{word} ")
                    await asyncio.sleep(words_every_ms / 1_000)
                utterance.end()

            chunks, seams = [], []
            async with background(write(), "text writer"):
                async for event in utterance.events():
                    if isinstance(event, Audio):
                        chunks.append(event.payload)
                        seams.append(event.first_sample)
            samples = np.frombuffer(b"".join(chunks), "<i2")
            return Recording(text, language, samples, SAMPLE_RATE, utterance.words, tuple(seams[1:]))

    return speak


@asynccontextmanager
async def from_openai(url: str, key: str | None, model: str, voice: str | None) -> AsyncIterator[Speak]:
    """Speaks on a server of OpenAI's API at `url`, which ends in /v1; for an `async with` block."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=SPEAK_S) as client:

        async def speak(text: str, language: str, words_every_ms: float) -> Recording:
            body = {"model": model, "input": text, "voice": voice or "alloy", "response_format": "wav"}
            try:
                answer = await client.post(f"{url.rstrip('/')}/audio/speech", json=body)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                raise ConnectionLost(f"the server does not answer: {error}") from None
            return decoded(io.BytesIO(answer.content), text, language)

        yield speak


def read_clip(path: Path, what: str = "--clip") -> Recording:
    """The sound of a file. Raises SettingsError: `what` cannot be read."""
    try:
        with path.open("rb") as file:
            return decoded(file, "", "")
    except (OSError, SpeechError) as error:
        raise SettingsError(f"{what} {path.name}: {error}") from None


def decoded(file: BinaryIO, text: str, language: str) -> Recording:
    """An audio file, its first channel. Raises SpeechError: it is none."""
    import soundfile

    try:
        samples, rate = soundfile.read(file, dtype="int16", always_2d=True)
    except soundfile.SoundFileError as error:
        raise SpeechError(f"this is no audio: {error}") from None
    return Recording(text, language, samples[:, 0], rate)
