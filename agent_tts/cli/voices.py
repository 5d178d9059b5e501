"""`agent-tts voices`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agent_tts.cli.options import Device, Dtype, Engine, Key, Models, Url, command, settings_of
from agent_tts.errors import SettingsError

voices = typer.Typer(invoke_without_command=True)

Name = Annotated[str, typer.Argument(help="Name of the voice: a-z, 0-9, _ and -.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlags:
    """Whose voices are listed, and how."""

    language: Annotated[str | None, typer.Option(help="Only voices that speak this language: de, en, zh.")] = None
    json: Annotated[bool, typer.Option("--json", help="Print JSON, like /v1/audio/voices.")] = False
    url: Url = None
    key: Key = None
    engine: Engine = None
    model: Models = None
    device: Device = None
    dtype: Dtype = None


LIST = ListFlags()


@voices.callback()
@command
def bare(context: typer.Context, flags: ListFlags = LIST) -> None:
    """List voices; add and delete your own. Without a command: list."""
    if context.invoked_subcommand is None:
        _list(context, flags)


@voices.command("list")
@command
def list_(context: typer.Context, flags: ListFlags = LIST) -> None:
    """List the voices of a running node (--url) or of the engine of this machine."""
    _list(context, flags)


def _list(context: typer.Context, flags: ListFlags) -> None:
    from agent_tts.cli.voices_run import show

    show(flags.language, as_json=flags.json, url=flags.url, key=flags.key, flags=settings_of(context))


@voices.command()
@command
def add(
    name: Name,
    audio: Annotated[Path | None, typer.Option(help="Clone the speaker of this file: 3 to 30 s, one speaker.")] = None,
    text: Annotated[str | None, typer.Option(help="The exact words of the file; makes the voice closer.")] = None,
    consent: Annotated[str | None, typer.Option(help="How the speaker agreed; stored with the voice.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Instead, design a voice: a calm old man.")] = None,
    description: Annotated[str, typer.Option(help="For the list of voices.")] = "",
    url: Url = None,
    key: Key = None,
    model: Models = None,
) -> None:
    """Add a voice of your own to a running node (--url) or to the library of this machine.

    A clone needs a Base model: --model, or qwen3.models in the settings.
    """
    from agent_tts.cli.voices_run import clone, design

    if (audio is None) == (prompt is None):
        raise SettingsError("give either --audio FILE, to clone its speaker, or --prompt, to design a voice")
    if audio is not None:
        clone(name, audio, text=text, consent=consent, description=description, url=url, key=key, models=model)
    elif prompt is not None:
        design(name, prompt, description=description, url=url, key=key)


@voices.command()
@command
def delete(name: Name, url: Url = None, key: Key = None) -> None:
    """Delete a voice of your own from a running node (--url) or from the library of this machine."""
    from agent_tts.cli.voices_run import delete as delete_voice

    delete_voice(name, url, key)
