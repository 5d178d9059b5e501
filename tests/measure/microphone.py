"""Audio of a fake microphone: a user who asks and then interrupts each answer."""

from __future__ import annotations

import io
import random
import wave
from collections.abc import Sequence

import httpx
import numpy as np

from agent_tts.bench.node import own_node
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import Internal

SENTENCES = ("Tell me a story.", "Please tell me another story.", "Now tell me something else.")
LEAD_S = 4.0  # until the call is established
ANSWER_S = (5.0, 8.0)  # between utterances: an answer begins and plays for some seconds
TAIL_S = 4.0  # until the last answer begins
SPEAK_S = 20.0


async def sentences() -> list[bytes]:
    """SENTENCES spoken by espeak-ng: pcm_s16le, mono, 24 kHz.

    Raises:
        SpeechError: it cannot speak.
    """
    async with own_node("serve", engine="espeak", web=False) as node, httpx.AsyncClient(timeout=SPEAK_S) as client:
        return [await _speech(client, node.url, text) for text in SENTENCES]


async def _speech(client: httpx.AsyncClient, url: str, text: str) -> bytes:
    body = {"model": "tts-1", "input": text, "voice": "en-gb", "response_format": "pcm"}
    reply = await client.post(f"{url}/v1/audio/speech", json=body)
    if not reply.is_success:
        raise Internal(f"espeak-ng does not speak: HTTP {reply.status_code}")
    return reply.content


def recording(spoken: Sequence[bytes], turns: int, seed: int) -> tuple[bytes, float]:
    """A wav file of one question and `turns` interruptions, at random times from `seed`; and its length in s."""
    draw = random.Random(seed)
    parts = [_silence(LEAD_S)]
    for number in range(turns + 1):
        parts += [spoken[number % len(spoken)], _silence(draw.uniform(*ANSWER_S) if number < turns else TAIL_S)]
    pcm = b"".join(parts)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        file.writeframes(pcm)
    return buffer.getvalue(), len(pcm) / 2 / SAMPLE_RATE


def _silence(seconds: float) -> bytes:
    return np.zeros(round(seconds * SAMPLE_RATE), np.int16).tobytes()
