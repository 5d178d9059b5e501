"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENT_TTS_URL", help="A running node: http(s)://, ws(s):// or host:port."),
]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="AGENT_TTS_KEY", show_envvar=True, help="Its API key; safer in the variable."),
]
Config = Annotated[str | None, typer.Option(help="A YAML file, or one of the package by name: cpu.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting: limits.rtc_peers=8.")]
Engine = Annotated[str | None, typer.Option(help="auto, espeak or tone.")]
Port = Annotated[int | None, typer.Option(min=0, max=65_535, help="0 picks a free one.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Contexts that may speak at once.")]
