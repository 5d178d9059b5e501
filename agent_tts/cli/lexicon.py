"""`agent-tts lexicon try`: what would be said for a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_tts.config.lexicon import node_lexicon, read_lexicon
from agent_tts.config.loading import find_config, load_settings
from agent_tts.directives import Say
from agent_tts.text.entries import Lexicon
from agent_tts.text.feed import Reader, Reading
from agent_tts.text.lexicon import LexiconReader
from agent_tts.text.markup.reader import MarkupReader
from agent_tts.voices.library import VoiceLibrary

NOTHING = "no word of this text is in a lexicon"


def try_(
    text: str,
    lexicon: Path | None,
    voice: str | None,
    language: str,
    normalize: bool | None,
    config: str | None,
    settings: dict[str, Any],
) -> None:
    """Print what an engine would say for a text, and the words in it that a lexicon has.

    Raises SettingsError: of the settings or a file; UnknownVoice: the library has no voice of this name.
    """
    wanted = load_settings(find_config(config), settings)
    lexicons = {
        "--lexicon": None if lexicon is None else read_lexicon(lexicon),
        f"the voice {voice}": VoiceLibrary.of(wanted.voices).lexicon(voice) if voice else None,
        "the settings": node_lexicon(wanted),
    }
    given = {name: entries for name, entries in lexicons.items() if entries is not None}
    normalizes = wanted.normalize if normalize is None else normalize
    said, found = read(text, list(given.values()), Reading(True, language if normalizes else None))
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(said.strip(), style="bold"))
    if not found:
        Console(stderr=True, highlight=False).print(f"agent-tts: {NOTHING}", style="dim")
        return
    table = Table("written", "alias", "IPA", "from", box=None, header_style="bold", pad_edge=False)
    for say in dict.fromkeys(found):
        row = (say.text, say.alias or "", say.ipa or "", _source(say, given))
        table.add_row(*map(Text, row))
    console.print(table)


def read(text: str, lexicons: list[Lexicon], reading: Reading) -> tuple[str, list[Say]]:
    """What an engine that does not speak IPA says for a text, and what of it the lexicons have."""
    markup, lexicon = MarkupReader(), LexiconReader(lexicons)
    out: list[str] = []
    reader = Reader(reading, lambda ch, _: out.append(ch))
    found: list[Say] = []
    for item in [*markup.read(text), *markup.end(), None]:
        looked_up = lexicon.append(item) if isinstance(item, str) else lexicon.flush()
        found += [said for said in looked_up if isinstance(said, Say)]
        for said in [*looked_up, item] if isinstance(item, Say) else looked_up:
            for ch in said if isinstance(said, str) else said.alias or said.text:
                reader.push(ch, 0)
    reader.flush(0)
    return "".join(out), found


def _source(say: Say, lexicons: Mapping[str, Lexicon]) -> str:
    """The first lexicon that says this."""
    return next((name for name, lexicon in lexicons.items() if read(say.text, [lexicon], Reading())[1] == [say]), "")
