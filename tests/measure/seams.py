"""Measure whether a listener notices the seam where a directive gives the rest of a sentence a prompt of its own.

`python -m tests.measure.seams CHECKPOINT [--slots 64] [--device cuda]`. In a copy of the checkpoint that draws the end
of speech soon after its text (`tests.model.crafted`) it runs one request, and as many as there are slots, whose text
changes its style, its speed and its loudness four times each. A listener plays each frame at its time, from the first
on. Printed: how long the longest of them had no audio to play, and the time to the first audio. 1 minute at 1.7B.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from agent_tts import events
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.loop import EngineLoop
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.scheduler import Policy, Scheduler
from agent_tts.events import Directive, Prosody, SpeechOptions, Style
from tests.measure.ends import LIMIT_S, Listener
from tests.model import crafted

TEXT = " and then we went on to the next of the many houses"
CHANGES: dict[str, tuple[Directive | None, Directive | None]] = {
    "no change": (None, None),
    "style": (Style("Speak in an excited tone."), Style(None)),
    "speed": (Prosody(speed=1.2), Prosody()),
    "volume": (Prosody(volume=0.5), Prosody()),
}


def listen(engine: Qwen3Engine, count: int, slots: int, change: tuple[Directive | None, Directive | None]) -> str:
    """`count` requests that begin together."""
    loop = EngineLoop(engine, Scheduler(Policy(slots=slots, queue=0, batch_sizes=engine.batch_sizes)))
    listeners = {number: Listener() for number in range(count)}
    began, first = time.monotonic(), dict[int, float]()
    for number in listeners:
        loop.submit(events.OpenRequest(number, SpeechOptions(seed=number, lead_ms=1_000)))
        for directive in (None, *change, *change):
            if directive:
                loop.submit(events.Direct(number, directive))
            loop.submit(events.AppendText(number, TEXT))
        loop.submit(events.EndText(number))
    until = began + LIMIT_S
    while any(listener.done is None for listener in listeners.values()) and time.monotonic() < until:
        new = loop.step()
        now = time.monotonic()
        for event in new:
            if isinstance(event, events.RequestAudio):
                first.setdefault(event.request_id, now - began)
                loop.submit(events.GrantCredit(event.request_id, 1))
            if isinstance(event, events.RequestEvent):
                listeners[event.request_id].take(event, now)
        if not new:
            time.sleep(min(0.002, loop.wait_s() or 0.0))
    waited = max(one.silence for one in listeners.values())
    audio = sum(one.audio for one in listeners.values()) / count
    return (
        f"x {count:>3}: audio {audio:.2f} s, first after {1_000 * max(first.values()):.0f} ms at most; "
        f"longest wait for audio {1_000 * waited:.0f} ms"
    )


def main(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint with named speakers that takes instructions.")],
    slots: Annotated[int, typer.Option(help="Requests at once.")] = 64,
    device: Annotated[str, typer.Option()] = "cuda",
) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkpoint"
        shutil.copytree(checkpoint, copy)
        crafted.ending(copy)
        qwen3 = Qwen3(models=(Checkpoint(source=str(copy)),), device=device)
        engine = Qwen3Engine(Settings(qwen3=qwen3, voices=Voices(folder=str(Path(folder) / "voices"))), slots)
        try:
            for name, change in CHANGES.items():
                for count in (1, slots):
                    print(f"{name:>10} {listen(engine, count, slots, change)}", flush=True)
        finally:
            engine.close()


if __name__ == "__main__":
    typer.run(main)
