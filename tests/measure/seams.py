"""Measure whether a listener notices the seam where a directive gives the rest of a sentence a prompt of its own.

`python -m tests.measure.seams CHECKPOINT [--slots 64] [--device cuda]`. In a copy of the checkpoint that draws the end
of speech soon after its text (`tests.model.crafted`) it runs as many requests as there are slots. A quarter of them
each changes nothing, its style, its speed and its loudness, twice. A listener plays each frame at its time, from the
first on. Printed: see `tests.measure.ends`; random weights make no pause, so that the longest gap is that of a seam,
and should be 120 ms at most. 30 s at 1.7B.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from agent_tts import messages
from agent_tts.directives import Directive, Prosody, Style
from tests.measure.ends import listen, opened, say_where, told
from tests.model import crafted

TEXT = " and then we went on to the next of the many houses"
CHANGES: dict[str, tuple[Directive, ...]] = {
    "no change": (),
    "style": (Style("Speak in an excited tone."), Style(None)),
    "speed": (Prosody(speed=1.2), Prosody()),
    "volume": (Prosody(volume=0.5), Prosody()),
}


def changing(number: int, change: tuple[Directive, ...]) -> Iterator[messages.EngineCommand]:
    """The text of a request: three parts, with the directives between them."""
    for place in range(3):
        if place and change:
            yield messages.Append(number, change[(place - 1) % len(change)])
        yield messages.Append(number, TEXT)


def main(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint with named speakers that takes instructions.")],
    slots: Annotated[int, typer.Option(min=len(CHANGES), help="Requests at once, of each change as many.")] = 64,
    device: Annotated[str, typer.Option()] = "cuda",
) -> None:
    """See the module."""
    say_where("seams", checkpoint, slots, device)
    changes = list(CHANGES.values())
    with opened(checkpoint, crafted.ending, device, slots) as engine:
        heard = listen(engine, slots, slots, lambda number: changing(number, changes[number % len(changes)]))
    for place, name in enumerate(CHANGES):
        print(f"{name:>10} {told(heard[place :: len(CHANGES)])}", flush=True)


if __name__ == "__main__":
    typer.run(main)
