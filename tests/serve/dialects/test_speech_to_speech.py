"""Hugging Face's speech-to-speech with `--tts openai`: its handler, unmodified, on a real node."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import numpy as np
import pytest
from speech_to_speech.arguments_classes.openai_tts_arguments import OpenAICompatibleTTSHandlerArguments
from speech_to_speech.pipeline.cancel_scope import CancelScope
from speech_to_speech.pipeline.events import ResponseFailedEvent
from speech_to_speech.pipeline.messages import TTSInput

from tests.serve.dialects.hearing import FIRST, LONG, NEXT, VOICE, check_spoken
from tests.serve.dialects.stock import MARIN, Stock
from tests.support import until

pytestmark = [pytest.mark.node, pytest.mark.real_time, pytest.mark.asyncio(loop_scope="module")]

RATE = 16_000  # Hz of its pipeline


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def handler_of(stock: Stock, **options: Any) -> Any:
    """As its pipeline makes it of `--openai_tts_...`: it speaks a word first, and raises if that fails."""
    from speech_to_speech.TTS.openai_compatible_handler import OpenAICompatibleTTSHandler  # imports scipy, in a second

    given = {"base_url": f"{stock.url}/v1", "model": "tts-1", "voice": MARIN} | options
    return OpenAICompatibleTTSHandler(Event(), Queue(), Queue(), (Event(),), given)


def said(handler: Any, *texts: str) -> bytes:
    return b"".join(block.tobytes() for text in texts for block in handler.process(TTSInput(text=text)))


# Several at once: to hear each of them takes a second.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"response_format": "wav", "task_type": "CustomVoice", "instructions": "Speak calmly.", "language": "English"},
    {"stream": True, "language": "en", "gen_kwargs": {"seed": 7, "temperature": 0.5}},  # as vLLM-Omni streams
    {
        "base_url": "{url}/v1/",
        "language": "auto",
        "detect_llm_output_language": True,
        "gen_kwargs": {"speed": None, "seed": None, "instructions": None},
    },
    {"speed": 1.1, "voice": VOICE, "model": "gpt-4o-mini-tts-2025-12-15", "api_key": "none", "blocksize": 4_096},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_it_speaks(stock: Stock, options: dict[str, Any]) -> None:
    """In sentences, one request each; its resampler to 16 kHz included."""
    options = {name: value.format(url=stock.url) if name == "base_url" else value for name, value in options.items()}

    def run() -> bytes:
        return said(handler_of(stock, **options), FIRST, NEXT)

    check_spoken(await asyncio.to_thread(run), FIRST, NEXT, rate=RATE)


async def test_an_interruption_stops_the_speech_at_once(stock: Stock) -> None:
    scope = CancelScope()
    handler = await asyncio.to_thread(handler_of, stock, cancel_scope=scope)

    def interrupted() -> int:
        with closing(handler.process(TTSInput(text=LONG * 10, cancel_generation=scope.generation))) as blocks:
            heard: Iterator[Any] = (np.abs(block).max() for block in blocks)
            assert next(peak for peak in heard if peak > 1_000)
            scope.cancel()
            return sum(1 for _ in heard)

    assert await asyncio.to_thread(interrupted) == 0
    await until(lambda: stock.node.node.service.speaking == 0)
    check_spoken(await asyncio.to_thread(said, handler, NEXT), NEXT, rate=RATE)
    assert handler.queue_out.empty()


async def test_a_wrong_voice_fails_at_its_start_with_the_status(stock: Stock) -> None:
    from speech_to_speech.TTS.openai_compatible_handler import SpeechRequestError

    with pytest.raises(SpeechRequestError, match="HTTP 400"):
        await asyncio.to_thread(handler_of, stock, voice="nobody")


async def test_a_refusal_is_told_to_its_pipeline(stock: Stock) -> None:
    handler = await asyncio.to_thread(handler_of, stock)
    assert await asyncio.to_thread(said, handler, "x " * 20_001) == b""
    event = handler.queue_out.get_nowait()
    assert isinstance(event, ResponseFailedEvent)
    assert event.message == "speech server returned HTTP 413"


async def test_the_page_names_its_options() -> None:
    page = (Path(__file__).parents[3] / "web/docs/clients/speech-to-speech.md").read_text()
    named = re.findall(r"^\| (`.*?) \|", page, re.M)
    options = {f"openai_tts_{name}" for row in named for name in re.findall(r"`(\w+)`", row)}
    options |= set(re.findall(r"--(openai_tts_\w+) ", page))
    assert options <= {field.name for field in fields(OpenAICompatibleTTSHandlerArguments)}
    assert OpenAICompatibleTTSHandlerArguments().openai_tts_model in page
