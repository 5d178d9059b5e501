"""Measure whether a listener notices speech that leaves its text: a piece that loops or never ends, held back and cut.

`python -m tests.measure.ends CHECKPOINT [--slots 64] [--device cuda]`. For each fault it changes a few weights in a
copy of the checkpoint (`tests.model.crafted`), and runs one request, and as many as there are slots, all faulty. Each
has two pieces with a flush between them; a listener plays each frame at its time, from the first on. Printed: the
longest silence of a listener at the seam, and the least audio it had when a piece ended. 1 minute a fault at 1.7B.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from agent_tts import events
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.loop import EngineLoop
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.scheduler import Policy, Scheduler
from agent_tts.events import FRAME_MS, SpeechOptions
from tests.model import crafted

PIECES = "Hello there, how are you today? I hope that all is well.", "It was good to hear from you."
FAULTS = {"never ends": crafted.endless, "loops": crafted.looping}
LIMIT_S = 60.0


@dataclass(slots=True)
class Listener:
    """Plays one request. Times in seconds."""

    plays_until: float = 0.0  # when it will have played all audio so far
    silence: float = 0.0  # the longest for want of audio
    left: list[float] = field(default_factory=list)  # audio that it had when a piece ended
    audio: float = 0.0
    done: events.RequestFinished | None = None

    def take(self, event: object, now: float) -> None:
        if isinstance(event, events.RequestAudio):
            if self.audio:
                self.silence = max(self.silence, now - self.plays_until)
            self.plays_until = max(self.plays_until, now) + FRAME_MS / 1_000
            self.audio += FRAME_MS / 1_000
        elif isinstance(event, events.RequestFlushed):
            self.left.append(self.plays_until - now)
        elif isinstance(event, events.RequestFinished):
            self.left.append(self.plays_until - now)
            self.done = event


def listen(engine: Qwen3Engine, count: int, slots: int) -> list[Listener]:
    """`count` requests that begin together."""
    loop = EngineLoop(engine, Scheduler(Policy(slots=slots, queue=0, batch_sizes=engine.batch_sizes)))
    listeners = {number: Listener() for number in range(count)}
    for number in listeners:
        loop.submit(events.OpenRequest(number, SpeechOptions(seed=number, lead_ms=1_000)))
        for text in PIECES:
            loop.submit(events.AppendText(number, text))
            loop.submit(events.FlushText(number, text))
        loop.submit(events.EndText(number))
    until = time.monotonic() + LIMIT_S
    while any(listener.done is None for listener in listeners.values()) and time.monotonic() < until:
        new = loop.step()
        now = time.monotonic()
        for event in new:
            if isinstance(event, events.RequestAudio):
                loop.submit(events.GrantCredit(event.request_id, 1))
            if isinstance(event, events.RequestEvent):
                listeners[event.request_id].take(event, now)
        if not new:
            time.sleep(min(0.002, loop.wait_s() or 0.0))
    return list(listeners.values())


def told(fault: str, listeners: Sequence[Listener]) -> str:
    cuts = sorted({why for one in listeners if one.done for why in one.done.cut})
    audio = sorted(one.audio for one in listeners)
    silence = max(one.silence for one in listeners)
    left = min((left for one in listeners for left in one.left), default=0.0)
    return (
        f"{fault:>10} x {len(listeners):>3}: cut {', '.join(cuts)}; audio {audio[0]:.2f} to {audio[-1]:.2f} s; longest "
        f"silence {1_000 * silence:.0f} ms; least audio left at the end of a piece {1_000 * left:.0f} ms"
    )


def main(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint with named speakers.")],
    slots: Annotated[int, typer.Option(help="Requests at once.")] = 64,
    device: Annotated[str, typer.Option()] = "cuda",
) -> None:
    """See the module."""
    for fault, craft in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "checkpoint"
            shutil.copytree(checkpoint, copy)
            craft(copy)
            qwen3 = Qwen3(models=(Checkpoint(source=str(copy)),), device=device)
            engine = Qwen3Engine(Settings(qwen3=qwen3, voices=Voices(folder=str(Path(folder) / "voices"))), slots)
            try:
                for count in (1, slots):
                    print(told(fault, listen(engine, count, slots)), flush=True)
            finally:
                engine.close()


if __name__ == "__main__":
    typer.run(main)
