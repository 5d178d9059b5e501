"""Makes the sounds that the README links: `python -m tests.measure.sounds`.

Each of `SAID` is a text by a voice, `interrupted.mp3` an answer, written word by word as a language model does, up to
where somebody interrupts it. Needs `agent-tts[voice]`. Prints which words were heard: the README tells them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import agent_tts
from agent_tts.bench.node import own_node
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.speech.audio.files import FileEncoder

FOLDER = Path(__file__).parents[2] / "web" / "sounds"
VOICE = "heart"
# By file: the voice and the text.
SAID = {
    "named": (VOICE, "Hello there. I'm spoken on a plain processor, as fast as a language model writes."),
    "numbers": (VOICE, 'Your table for 4 is booked for March 3rd. <break time="600ms"/> That is $23.50 a person.'),
    "robot": ("en-us", "I am the robot voice. I need no download, and I speak more than a hundred languages."),
}
INTERRUPTED = "Of course. Your parcel left our warehouse on Tuesday, and it should arrive tomorrow before noon."
WORD_S = 0.04  # between two words of a language model
PLAYED_MS = 4_300  # when it is interrupted


async def speech(
    url: str, voice: str, text: str, word_s: float = 0.0, played_ms: int | None = None
) -> tuple[bytes, str]:
    """What a listener hears of a text, pcm_s16le at 24 kHz, and its words; `played_ms`: interrupted after so much."""
    async with agent_tts.connect(url) as node:
        said = await node.open(voice=voice, seed=1)

        async def write() -> None:
            for word in text.split(" "):
                said.write(f"{word} ")
                await asyncio.sleep(word_s)
            said.end()

        heard, pcm = text, b""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            async for more in said:
                pcm += more
                if played_ms is not None and len(pcm) >= (most := 2 * played_ms * SAMPLE_RATE // 1_000):
                    heard = (await said.cancel(played_ms)).heard_text
                    pcm = pcm[:most]
                    break
        return pcm, heard


async def main() -> None:
    async with own_node("serve", engine="hibari", web=False) as node:
        sounds = {name: await speech(node.url, voice, text) for name, (voice, text) in SAID.items()}
        sounds["interrupted"] = await speech(node.url, VOICE, INTERRUPTED, WORD_S, PLAYED_MS)
    FOLDER.mkdir(exist_ok=True)
    for name, (pcm, heard) in sounds.items():
        encoder = FileEncoder("mp3")
        content = encoder.encode(pcm) + encoder.close()
        (FOLDER / f"{name}.mp3").write_bytes(content)
        print(f"{name}.mp3: {len(pcm) / 2 / SAMPLE_RATE:.1f} s, {len(content):,} bytes, heard: {heard!r}")


if __name__ == "__main__":
    asyncio.run(main())
