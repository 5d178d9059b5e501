"""`agent-tts voices`: list, add, show and delete, on a running node or on this machine; `agent-tts detect`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from agent_tts.cli.node import answer_of, own_settings, read_clip, refuse_engine_flags, request
from agent_tts.cli.options import AddFlags, ListFlags
from agent_tts.config.hub import watermark_folder
from agent_tts.config.lexicon import read_lexicon
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import Settings
from agent_tts.engine_info import FRAME_MS
from agent_tts.errors import SettingsError, UnsupportedLanguage
from agent_tts.model.config import ModelConfig
from agent_tts.model.entries import CheckpointError
from agent_tts.serve.local_engine import engine
from agent_tts.serve.openai import VoiceList, voice_list
from agent_tts.serve.routes.voices import VoiceAdded, VoiceDetails
from agent_tts.speech.routing import check_free
from agent_tts.text.entries import Lexicon
from agent_tts.voices.detection import Detection
from agent_tts.voices.detection import detect as find_marks
from agent_tts.voices.enroll import Enrolment
from agent_tts.voices.library import VoiceLibrary

CLIP_S = 300.0  # for a node to make a voice of a clip, or to look for marks in one, after those that wait before it
# Codes of constructed languages and of spellings for a joke, as espeak-ng has them. People speak Esperanto.
CONSTRUCTED = frozenset(("ia", "io", "jbo", "lfn", "piqd", "py", "qdb", "qya", "sjn", "en-shaw"))
QUESTION = "Does the speaker of this clip allow you to clone their voice?"
CONSENT = "The person who added this voice said on a terminal that the speaker allows to clone it."


def list_all(flags: ListFlags, settings: dict[str, Any]) -> None:
    """Print the voices of a node, or of an engine of this machine with these settings."""
    if flags.url:
        refuse_engine_flags(settings)
        found = answer_of(VoiceList, request("GET", flags.url, flags.key, "voices"))
    else:
        found = asyncio.run(_of_engine(own_settings(settings)))
    if (language := flags.language) is not None:
        spoken = [voice for voice in found.voices if any(_speaks(code, language) for code in voice.languages)]
        if not spoken:
            raise UnsupportedLanguage(f"no voice speaks {language!r}: without --language, all are listed")
        found = found.model_copy(update={"voices": spoken})
    if flags.json:
        print(found.model_dump_json(indent=2))
        return
    every = flags.all or language is not None
    shown = [voice for voice in found.voices if every or not CONSTRUCTED.issuperset(voice.languages)]
    shown.sort(key=lambda voice: voice.name != found.default)
    table = Table("voice", "", "languages", "aliases", box=None, header_style="bold", pad_edge=False)
    for voice in shown:
        name = f"{voice.name} *" if voice.name == found.default else voice.name
        languages = "" if voice.languages == [voice.name] else ", ".join(voice.languages)
        table.add_row(name, voice.description, languages, ", ".join(voice.aliases))
    console = Console(highlight=False)
    console.print(table)
    console.print("[dim]* is the default")
    if hidden := len(found.voices) - len(shown):
        console.print(f"[dim]{hidden} voices of constructed languages, such as Klingon: --all")


def add(name: str, flags: AddFlags) -> None:
    """Clone or design a voice, and print what was made."""
    if (flags.audio is None) == (flags.prompt is None):
        raise SettingsError("give either --audio FILE, to clone its speaker, or --prompt, to design a voice")
    added = _design(name, flags.prompt or "", flags) if flags.audio is None else _clone(name, flags.audio, flags)
    if added.type == "prompt":
        made = "designed from its prompt"
    elif added.frames:
        made = f"cloned, with {added.frames * FRAME_MS / 1_000:.1f} s of the clip ({added.frames} frames) as reference"
    else:
        made = "cloned from the speaker's vector only; --text makes it closer"
    _console().print(f"agent-tts: {added.name} is {made}")
    if added.live_chars:
        cost = f"until about {added.live_chars} characters of a live text are there, it is spoken clause by clause"
        _console().print(f"agent-tts: {cost}; a shorter clip wants fewer", style="dim")
    engine = "" if flags.url else " --engine qwen3"  # no other engine speaks voices of one's own
    _console().print(f'agent-tts: try `agent-tts say "Hello there." --voice {added.name}{engine}`', style="dim")


def _clone(name: str, audio: Path, flags: AddFlags) -> VoiceAdded:
    if flags.url and flags.model:
        raise SettingsError("--model: a running node (--url, AGENT_TTS_URL) has its own: leave it out")
    consent, text, description = flags.consent or _ask_consent(), flags.text, flags.description
    if flags.url:
        given = {"ref_text": text, "consent_by": flags.consent_by}
        form = {"name": name, "description": description, "consent": consent}
        form |= {field: value for field, value in given.items() if value}
        files = {"audio_sample": (audio.name, read_clip("--audio ", audio))}
        with _working("the node processes the clip"):
            answer = request("POST", flags.url, flags.key, "voices", data=form, files=files, timeout_s=CLIP_S)
        return answer_of(VoiceAdded, answer)
    settings = own_settings({"qwen3.models": flags.model or None})
    clip = read_clip("--audio ", audio, settings.voices.clip_bytes)
    enrolment = Enrolment(_library(settings, name), _base_checkpoints(settings), settings.voices.clip_s)
    with _working("processing the clip"):
        how: dict[str, Any] = {"consent": consent, "consent_by": flags.consent_by, "transcript": text}
        voice = asyncio.run(enrolment.enroll(name, clip, description=description, **how))
    return VoiceAdded.of(voice, "audio_sample")


def _design(name: str, prompt: str, flags: AddFlags) -> VoiceAdded:
    if flags.url:
        fields = {"type": "prompt", "name": name, "prompt": prompt, "description": flags.description}
        return answer_of(VoiceAdded, request("POST", flags.url, flags.key, "voices", json=fields))
    enrolment = Enrolment(_library(load_settings(), name), (), 0)
    return VoiceAdded.of(enrolment.design(name, prompt, description=flags.description), "prompt")


def show(name: str, url: str | None, key: str | None, *, as_json: bool) -> None:
    """Print one voice: every field that is set."""
    if url:
        found = answer_of(VoiceDetails, request("GET", url, key, _place(name)))
    else:
        found = VoiceDetails.of(_of_store(load_settings()).get(name), [])
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    for field, value in _lines(found):
        print(f"{field:<20} {value}")


def delete(name: str, url: str | None, key: str | None) -> None:
    if url:
        request("DELETE", url, key, _place(name))
    else:
        check_free(name)
        _of_store(load_settings()).delete(name)
    _console().print(f"agent-tts: {name} is deleted")


def lexicon(name: str, file: Path | None, *, clear: bool, url: str | None, key: str | None) -> None:
    """Set the lexicon of a voice from a file, remove it, or print it."""
    if clear and file is not None:
        raise SettingsError("--clear removes the lexicon: leave out the file")
    new = Lexicon(()) if clear else None if file is None else read_lexicon(file)
    if new is None:
        if url:
            said = json.loads(request("GET", url, key, f"{_place(name)}/lexicon"))
        else:
            kept = _of_store(load_settings()).lexicon(name)
            said = {} if kept is None else kept.mapping()
        print(json.dumps(said, ensure_ascii=False, indent=2))
        return
    if url:
        request("PUT", url, key, f"{_place(name)}/lexicon", json=new.mapping())
    else:
        _of_store(load_settings()).set_lexicon(name, new)
    _console().print(f"agent-tts: {name} has a lexicon of {len(new)} words" if new else f"agent-tts: {name} has none")


def adapter(name: str, folder: Path | None, *, clear: bool) -> None:
    """Set the LoRA adapter of a voice in the library of this machine, or remove it."""
    if (folder is None) != clear:
        raise SettingsError("give either the FOLDER of an adapter, or --clear")
    _of_store(load_settings()).set_adapter(name, folder)
    _console().print(f"agent-tts: {name} has {'no' if clear else 'an'} adapter")


def detect(file: Path, watermark: str | None, url: str | None, key: str | None, *, as_json: bool) -> None:
    """Print whether an audio file is synthetic speech, and by which of its marks."""
    if url:
        if watermark is not None:
            raise SettingsError("--watermark: a running node (--url, AGENT_TTS_URL) has its own: leave it out")
        files = {"audio_sample": (file.name, read_clip("", file))}
        found = answer_of(Detection, request("POST", url, key, "detect", files=files, timeout_s=CLIP_S))
    else:
        settings = load_settings(overrides={"watermark": watermark} if watermark else None)
        clip = read_clip("", file, settings.voices.clip_bytes)
        found = asyncio.run(find_marks(clip, watermark_folder(settings), max_s=settings.voices.clip_s))
    print(found.model_dump_json(indent=2) if as_json else _told(found))


# ---------------------------------------------------------------- this machine


async def _of_engine(settings: Settings) -> VoiceList:
    async with engine(settings) as (service, _):
        return voice_list(service.routing)


def _speaks(code: str, language: str) -> bool:
    code, language = code.lower(), language.lower()
    return code == language or code.startswith(f"{language}-")


def _library(settings: Settings, name: str) -> VoiceLibrary:
    """The library of this machine; raises an error if it cannot add a voice of this name."""
    check_free(name)
    library = _of_store(settings)
    library.check_room(name)
    return library


def _of_store(settings: Settings) -> VoiceLibrary:
    """The library of this machine, with all that others have changed in its store."""
    library = VoiceLibrary.of(settings.voices)
    library.refresh()
    return library


def _base_checkpoints(settings: Settings) -> list[tuple[Path, int]]:
    """Folders of the Base models, with the size of their speaker vectors. Raises SettingsError: there is none."""
    found = []
    for model in settings.qwen3.models:
        folder = Path(model.source)
        try:
            encoder = ModelConfig.read(folder).speaker_encoder
        except CheckpointError as error:
            raise SettingsError(f"{folder.name}: {error}") from error
        if encoder is not None:
            found.append((folder, encoder.enc_dim))
    if not found:
        raise SettingsError("cloning needs a Base model: --model FOLDER, or --model Qwen/Qwen3-TTS-12Hz-1.7B-Base")
    return found


def _ask_consent() -> str:
    """Ask on the terminal for the speaker's consent; returns what is stored. Raises SettingsError: none."""
    if not sys.stdin.isatty():
        raise SettingsError("--consent says how the speaker agreed; cloning a voice needs it")
    if not typer.confirm(QUESTION, err=True):
        raise SettingsError("no voice is cloned without the speaker's consent")
    return CONSENT


# ---------------------------------------------------------------- output


def _told(found: Detection) -> str:
    """The findings, a line each."""
    lines = ["comment: the file says that it is synthetic speech" if found.comment else "comment: none of a node"]
    if found.watermark is None:
        lines.append("watermark: not looked for; --watermark audioseal does")
    else:
        lines.append(f"watermark: in {found.watermark.share:.0%} of the audio, message {found.watermark.message}")
    lines.append("synthetic speech" if found.synthetic else "no mark was found, which proves nothing")
    return "\n".join(lines)


def _lines(voice: VoiceDetails) -> Iterator[tuple[str, str]]:
    """The fields of a voice that are set, and those of its consent, without control characters."""
    consent = asdict(voice.consent) if voice.consent else {}
    fields = voice.model_dump(exclude={"consent"}) | {f"consent {name}": value for name, value in consent.items()}
    for field, value in fields.items():
        if value not in (None, "", 0, []):
            listed = value if isinstance(value, list) else [value]
            told = ", ".join(f"{one:%Y-%m-%d %H:%M:%S %Z}" if isinstance(one, datetime) else str(one) for one in listed)
            yield field.replace("_", " "), "".join(one if one.isprintable() else " " for one in told)


def _place(name: str) -> str:
    """Of a voice, at a node."""
    return f"voices/{quote(name, safe='')}"


def _working(what: str) -> AbstractContextManager[object]:
    """A spinner, on a terminal."""
    console = _console()
    return console.status(f"{what} ...") if console.is_terminal else nullcontext()


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)
