"""A page's microphone that speaks when a test says so, however long the machine takes for what comes before."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.agent.node import RunningAgent
from tests.measure.chromium import DevTools, Page

# `say` speaks pcm_s16le of 24 kHz, and resolves when it has been spoken. Before and after it there is silence.
_MICROPHONE = """
  navigator.mediaDevices.getUserMedia = async () => {
    const context = new AudioContext({ sampleRate: 24_000 });
    const speaker = context.createMediaStreamDestination();
    globalThis.say = (pcm) => new Promise((resolve) => {
      const bytes = Uint8Array.from(atob(pcm), (character) => character.charCodeAt(0));
      const samples = Float32Array.from(new Int16Array(bytes.buffer), (sample) => sample / 32_768);
      const speech = new AudioBufferSourceNode(context, {
        buffer: new AudioBuffer({ length: samples.length, sampleRate: 24_000 }),
      });
      speech.buffer.copyToChannel(samples, 0);
      speech.connect(speaker);
      speech.onended = resolve;
      speech.start();
    });
    return speaker.stream;
  };
"""


@asynccontextmanager
async def speaking_page(browser: DevTools) -> AsyncIterator[Page]:
    """A tab with that microphone, from the next document on; it may be used."""
    async with browser.page() as page:
        await page.allow("microphone", "granted")
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=_MICROPHONE)
        yield page


async def say(page: Page, agent: RunningAgent, text: str) -> None:
    """Speak a text into the microphone of a call."""
    pcm = base64.b64encode(await agent.speech(text)).decode()
    await page.js(f"say({json.dumps(pcm)})")
