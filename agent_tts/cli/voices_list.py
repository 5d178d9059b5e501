"""`agent-tts voices list`."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from agent_tts.cli import node
from agent_tts.cli.link import engine, own_settings, refuse_engine_flags
from agent_tts.client.connection import ConnectionLost
from agent_tts.config.settings import Settings
from agent_tts.errors import UnsupportedLanguage
from agent_tts.serve.routes.openai import VoiceList, voice_list


def show(language: str | None, *, as_json: bool, url: str | None, key: str | None, flags: dict[str, Any]) -> None:
    """Print the voices of a node, or of an engine of our own.

    Raises:
        SettingsError: a setting that cannot be had.
        SpeechError: the node cannot be reached, the engine does not start, or no voice speaks the language.
    """
    if url:
        refuse_engine_flags(flags)
        found = _of_node(url, key)
    else:
        found = asyncio.run(_of_engine(own_settings(flags)))
    if language is not None:
        spoken = [voice for voice in found.voices if any(_speaks(code, language) for code in voice.languages)]
        if not spoken:
            raise UnsupportedLanguage(f"no voice speaks {language!r}: without --language, all are listed")
        found = found.model_copy(update={"voices": spoken})
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    table = Table("voice", "languages", "", "also called", box=None, header_style="bold", pad_edge=False)
    for voice in found.voices:
        name = f"{voice.name} *" if voice.name == found.default else voice.name
        table.add_row(name, ", ".join(voice.languages), voice.description, ", ".join(voice.aliases))
    console = Console(highlight=False)
    console.print(table)
    console.print("[dim]* speaks when none is asked for")


def _speaks(code: str, language: str) -> bool:
    code, language = code.lower(), language.lower()
    return code == language or code.startswith(f"{language}-")


async def _of_engine(settings: Settings) -> VoiceList:
    async with engine(settings) as (service, _):
        return voice_list(service.routing)


def _of_node(url: str, key: str | None) -> VoiceList:
    try:
        return VoiceList.model_validate_json(node.request("GET", url, key))
    except ValidationError as error:
        raise ConnectionLost("what answers there is no node") from error
