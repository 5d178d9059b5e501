"""`agent-tts voices`."""

from __future__ import annotations

from typing import Annotated

import typer

from agent_tts.cli.options import AddFlags, Key, ListFlags, Url, command, settings_of
from agent_tts.errors import SettingsError

voices = typer.Typer(invoke_without_command=True)

LIST, ADD = ListFlags(), AddFlags()
Name = Annotated[str, typer.Argument(help="Name of the voice: a-z, 0-9, _ and -.")]


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

    show(flags, settings_of(context))


@voices.command()
@command
def add(name: Name, flags: AddFlags = ADD) -> None:
    """Add a voice of your own to a running node (--url) or to the library of this machine.

    A clone needs a Base model: --model, or qwen3.models in the settings.
    """
    from agent_tts.cli.voices_run import clone, design

    if (flags.audio is None) == (flags.prompt is None):
        raise SettingsError("give either --audio FILE, to clone its speaker, or --prompt, to design a voice")
    if flags.audio is not None:
        clone(name, flags.audio, flags)
    elif flags.prompt is not None:
        design(name, flags.prompt, flags)


@voices.command()
@command
def delete(name: Name, url: Url = None, key: Key = None) -> None:
    """Delete a voice of your own from a running node (--url) or from the library of this machine."""
    from agent_tts.cli.voices_run import delete as delete_voice

    delete_voice(name, url, key)
