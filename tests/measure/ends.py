"""Measure whether a listener notices speech with a fault: a piece that ends early, loops or never ends.

`python -m tests.measure.ends CHECKPOINT [--slots 64] [--device cuda]`. For each fault it changes a few weights in a
copy of the checkpoint (`tests.model.crafted`), and runs one request, and as many as there are slots, all faulty. Each
has two pieces with a flush between them; a listener plays each frame at its time, from the first on. Printed for each:
what was cut, how much is heard, the longest wait of a listener for audio and the longest time without an audible
sample, and the least audio it had when a piece ended. 40 s a fault at 1.7B, most of it to load the model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from agent_tts import messages
from agent_tts.bench.report import device as machine
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.loop import EngineLoop
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.requests import Policy
from agent_tts.engine.scheduler import Scheduler
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE
from agent_tts.options import EngineOptions, TextMode
from agent_tts.sound.silence import AUDIBLE_PEAK
from tests.model import crafted

PIECES = "Hello there, how are you?", "It was good to hear from you."
# How the checkpoint is changed, and the mode in which the fault shows.
FAULTS: dict[str, tuple[Callable[[Path], None], TextMode]] = {
    "ends early": (crafted.ending, "whole"),
    "loops": (crafted.looping, "live"),
    "never ends": (crafted.endless, "live"),
}
LIMIT_S = 30.0


@dataclass(slots=True)
class Listener:
    """Plays one request. Times in seconds, from the beginning of all requests."""

    first: float | None = None  # when its audio began
    audio: float = 0.0
    plays_until: float = 0.0  # when it will have played all audio so far
    heard_at: float | None = None  # when it will have played the last audible sample
    wait: float = 0.0  # the longest for want of audio
    wait_at: float = 0.0  # how much of its audio was heard then
    gap: float = 0.0  # the longest time between two audible samples
    left: list[float] = field(default_factory=list)  # audio that it had when a piece ended
    done: messages.Finished | None = None

    def take(self, event: messages.RequestEvent, now: float) -> None:
        """What the engine tells of the request."""
        if isinstance(event, messages.Audio):
            samples = np.frombuffer(event.payload, "<i2").astype(np.int32)
            begins = max(self.plays_until, now)
            if self.audio and begins - self.plays_until > self.wait:
                self.wait, self.wait_at = begins - self.plays_until, self.audio
            self.first = now if self.first is None else self.first
            heard = begins + np.flatnonzero(np.abs(samples) > AUDIBLE_PEAK) / SAMPLE_RATE
            if len(heard):
                before = heard[0] if self.heard_at is None else self.heard_at
                self.gap = max(self.gap, float(np.diff(heard, prepend=before).max()))
                self.heard_at = float(heard[-1])
            self.audio += len(samples) / SAMPLE_RATE
            self.plays_until = begins + len(samples) / SAMPLE_RATE
        elif isinstance(event, messages.Flushed | messages.Finished):
            self.left.append(self.plays_until - now)
            self.done = event if isinstance(event, messages.Finished) else None


def listen(
    engine: Qwen3Engine,
    slots: int,
    count: int,
    text: Callable[[int], Iterable[messages.EngineCommand]],
    mode: TextMode = "live",
) -> list[Listener]:
    """`count` requests that begin together, each with the commands of `text`; at most `LIMIT_S` of them."""
    loop = EngineLoop(engine, Scheduler(Policy(slots=slots, queue=0, batch_sizes=engine.batch_sizes)))
    listeners = [Listener() for _ in range(count)]
    for number in range(count):
        loop.submit(messages.Open(number, EngineOptions(seed=number, lead_ms=1_000, text_mode=mode)))
        for command in text(number):
            loop.submit(command)
        loop.submit(messages.End(number))
    began = time.monotonic()
    while any(listener.done is None for listener in listeners) and time.monotonic() < began + LIMIT_S:
        new = loop.step()
        now = time.monotonic() - began
        for event in new:
            if isinstance(event, messages.Audio):
                loop.submit(messages.Credit(event.id, -(-len(event.payload) // FRAME_BYTES)))
            if isinstance(event, messages.Audio | messages.Flushed | messages.Finished):
                listeners[event.id].take(event, now)
        if not new:
            time.sleep(min(0.002, loop.wait_s() or 0.0))
    for number in range(count):
        loop.submit(messages.Cancel(number))
    loop.step()
    return listeners


def told(listeners: Sequence[Listener]) -> str:
    """What the listeners heard, in words."""
    cuts = ", ".join(sorted({why for one in listeners if one.done for why in one.done.cut})) or "nothing"
    audio = sorted(one.audio for one in listeners)
    first = max((one.first for one in listeners if one.first is not None), default=float("nan"))
    late = sum(one.done is None for one in listeners)
    waited = max(listeners, key=lambda one: one.wait)
    return (
        f"x {len(listeners):>3}: cut {cuts}; audio {audio[0]:.2f} to {audio[-1]:.2f} s, first after "
        f"{1_000 * first:.0f} ms at most; longest wait for audio {1_000 * waited.wait:.0f} ms, after "
        f"{waited.wait_at:.2f} s; longest gap {1_000 * max(one.gap for one in listeners):.0f} ms; "
        f"least audio left at the end of a piece "
        f"{1_000 * min((left for one in listeners for left in one.left), default=float('nan')):.0f} ms"
        + (f"; {late} not done after {LIMIT_S:g} s" if late else "")
    )


@contextmanager
def opened(checkpoint: Path, craft: Callable[[Path], None], device: str, slots: int) -> Iterator[Qwen3Engine]:
    """An engine with a changed copy of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkpoint"
        shutil.copytree(checkpoint, copy)
        craft(copy)
        qwen3 = Qwen3(models=(Checkpoint(source=str(copy)),), device=device)
        settings = Settings(qwen3=qwen3, voices=Voices(folder=str(Path(folder) / "voices")))
        with closing(Qwen3Engine(settings, slots)) as engine:
            yield engine


def say_where(tool: str, checkpoint: Path, slots: int, device: str) -> None:
    """Print the command, the machine and the versions."""
    command = f"python -m tests.measure.{tool} {checkpoint} --slots {slots} --device {device}"
    print(json.dumps({"command": command, "device": device, "machine": machine()}), flush=True)


def pieces(number: int) -> Iterator[messages.EngineCommand]:
    """The text of a request."""
    for text in PIECES:
        yield messages.Append(number, text)
        yield messages.Flush(number, text)


def main(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint with named speakers.")],
    slots: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 64,
    device: Annotated[str, typer.Option()] = "cuda",
) -> None:
    """See the module."""
    say_where("ends", checkpoint, slots, device)
    for fault, (craft, mode) in FAULTS.items():
        with opened(checkpoint, craft, device, slots) as engine:
            for count in sorted({1, slots}):
                print(f"{fault:>10} {told(listen(engine, slots, count, pieces, mode))}", flush=True)


if __name__ == "__main__":
    typer.run(main)
