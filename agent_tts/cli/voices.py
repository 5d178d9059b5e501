"""`agent-tts voices`."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from agent_tts.cli.link import engine as engine_process
from agent_tts.client import ConnectionLost, http_url
from agent_tts.configuration import load_settings
from agent_tts.errors import Unauthorized, UnsupportedLanguage
from agent_tts.serve.openai import VoiceList, voice_list

ANSWER_S = 10.0


def voices(language: str | None, *, as_json: bool, url: str | None, key: str | None, engine: str | None) -> None:
    """Print the voices of a node, or of an engine of our own.

    Raises:
        SpeechError: the node cannot be reached, the engine does not start, or no voice speaks the language.
    """
    found = _of_node(url, key) if url else asyncio.run(_of_engine(engine))
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


async def _of_engine(engine: str | None) -> VoiceList:
    async with engine_process(load_settings(overrides={"engine": engine} if engine else {})) as (_, info):
        return voice_list(info)


def _of_node(url: str, key: str | None) -> VoiceList:
    import httpx

    base = http_url(url)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{base}/v1/audio/voices", headers=headers, timeout=ANSWER_S)
        if answer.status_code == Unauthorized.status:
            asked = "the node does not take this API key" if key else "an API key is needed"
            raise Unauthorized(f"{asked}: set AGENT_TTS_KEY")
        answer.raise_for_status()
        return VoiceList.model_validate_json(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConnectionLost(f"no node answers at {urlsplit(base).netloc}: {type(error).__name__}") from error
