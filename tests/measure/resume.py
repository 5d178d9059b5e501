"""How long a listener waits when the node that speaks is killed, and which words are heard.

    python -m tests.measure.resume espeak tone

Two nodes behind a small load balancer; the first is killed with SIGKILL in the middle of a sentence. The listener plays
from the first audio on. Prints the longest wait, the words, and what a recogniser hears of espeak.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from agent_tts.client.moving import connect
from agent_tts.messages import Audio, Words
from tests.two_nodes import TEXT, kill, two_nodes


async def measure(engine: str, lead_ms: int) -> str:
    with tempfile.TemporaryDirectory() as name:
        async with two_nodes(Path(name), "--engine", engine) as (first, _, url):
            async with connect(url, moves=True, lead_ms=lead_ms) as connection:
                speech = await connection.open()
                speech.write(TEXT)
                speech.end()
                words: dict[int, str] = {}
                played_s, waited_s, began = 0.0, 0.0, None
                async for event in speech.events():
                    if isinstance(event, Words) and event.kind == "aligned":
                        words |= {word.char_start: word.word for word in event.words}
                    elif isinstance(event, Audio):
                        now = time.monotonic()
                        began = now if began is None else began
                        late_s = now - began - played_s - waited_s  # beyond the end of what was there to play
                        if late_s > 0:
                            waited_s += late_s
                        played_s += len(event.payload) / 48_000
                        if first.process.poll() is None and played_s > 2:
                            kill(first)
        said = [words[place] for place in sorted(words)]
        whole = "all words once" if said == TEXT.split() else f"words {said}"
        return f"{engine:7} lead {lead_ms:5} ms: silence {1_000 * waited_s:4.0f} ms, {whole}, {played_s:.2f} s"


async def main() -> None:
    for engine in sys.argv[1:] or ("tone", "espeak"):
        for lead_ms in (1_000, 400, 120):
            print(await measure(engine, lead_ms), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
