"""`agent-tts voices`: list, add, show and delete, on a running node or on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.table import Table

from agent_tts.cli.link import own_settings, refuse_engine_flags
from agent_tts.cli.options import AddFlags, ListFlags
from agent_tts.client.connection import ConnectionLost, http_url
from agent_tts.config.lexicon import read_lexicon
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError, SpeechError, Unauthorized, UnsupportedLanguage, from_code
from agent_tts.events import FRAME_MS
from agent_tts.lexicon import Lexicon
from agent_tts.model.config import ModelConfig
from agent_tts.model.entries import CheckpointError
from agent_tts.serve.own_engine import engine
from agent_tts.serve.routes.openai import ErrorBody, VoiceList, voice_list
from agent_tts.serve.routes.voices import VoiceAdded, VoiceDetails
from agent_tts.speech.routing import check_free
from agent_tts.voices.enroll import Enrolment
from agent_tts.voices.library import VoiceLibrary

ANSWER_S = 10.0  # for a node to answer
CLONING_S = 300.0  # for a node to make a voice, after the clips that wait before it
QUESTION = "Does the speaker of this clip allow you to clone their voice?"
CONSENT = "The person who added this voice said on a terminal that the speaker allows to clone it."

_Answer = TypeVar("_Answer", bound=BaseModel)


def list_all(flags: ListFlags, settings: dict[str, Any]) -> None:
    """Print the voices of a node, or of an engine of this machine with these settings."""
    if flags.url:
        refuse_engine_flags(settings)
        found = _answer(VoiceList, _request("GET", flags.url, flags.key))
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
    table = Table("voice", "languages", "", "aliases", box=None, header_style="bold", pad_edge=False)
    for voice in found.voices:
        name = f"{voice.name} *" if voice.name == found.default else voice.name
        table.add_row(name, ", ".join(voice.languages), voice.description, ", ".join(voice.aliases))
    console = Console(highlight=False)
    console.print(table)
    console.print("[dim]* is the default")


def add(name: str, flags: AddFlags) -> None:
    """Clone or design a voice, and print what was made."""
    if (flags.audio is None) == (flags.prompt is None):
        raise SettingsError("give either --audio FILE, to clone its speaker, or --prompt, to design a voice")
    if flags.audio is not None:
        _clone(name, flags.audio, flags)
    elif flags.prompt is not None:
        _design(name, flags.prompt, flags)


def _clone(name: str, audio: Path, flags: AddFlags) -> None:
    if flags.url and flags.model:
        raise SettingsError("--model: a running node (--url, AGENT_TTS_URL) has its own: leave it out")
    consent, text, description = flags.consent or _ask_consent(), flags.text, flags.description
    if flags.url:
        given = {"ref_text": text, "consent_by": flags.consent_by}
        form = {"name": name, "description": description, "consent": consent}
        form |= {field: value for field, value in given.items() if value}
        files = {"audio_sample": (audio.name, _read(audio, None))}
        with _working("the node processes the clip"):
            answer = _request("POST", flags.url, flags.key, data=form, files=files, timeout_s=CLONING_S)
        _print_added(_answer(VoiceAdded, answer))
        return
    settings = own_settings({"qwen3.models": flags.model or None})
    clip = _read(audio, settings.voices.clip_bytes)
    enrolment = Enrolment(_library(settings, name), _base_checkpoints(settings), settings.voices.clip_s)
    with _working("processing the clip"):
        how: dict[str, Any] = {"consent": consent, "consent_by": flags.consent_by, "transcript": text}
        voice = asyncio.run(enrolment.enroll(name, clip, description=description, **how))
    _print_added(VoiceAdded.of(voice, "audio_sample"))


def _design(name: str, prompt: str, flags: AddFlags) -> None:
    if flags.url:
        fields = {"type": "prompt", "name": name, "prompt": prompt, "description": flags.description}
        _print_added(_answer(VoiceAdded, _request("POST", flags.url, flags.key, json=fields)))
        return
    enrolment = Enrolment(_library(load_settings(), name), (), 0)
    _print_added(VoiceAdded.of(enrolment.design(name, prompt, description=flags.description), "prompt"))


def show(name: str, url: str | None, key: str | None, *, as_json: bool) -> None:
    """Print one voice: every field that is set."""
    if url:
        found = _answer(VoiceDetails, _request("GET", url, key, name))
    else:
        found = VoiceDetails.of(VoiceLibrary.of(load_settings().voices).get(name), [])
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    for field, value in _lines(found):
        print(f"{field:<20} {value}")


def delete(name: str, url: str | None, key: str | None) -> None:
    """Delete a voice."""
    if url:
        _request("DELETE", url, key, name)
    else:
        check_free(name)
        VoiceLibrary.of(load_settings().voices).delete(name)
    _console().print(f"agent-tts: {name} is deleted")


def lexicon(name: str, file: Path | None, *, clear: bool, url: str | None, key: str | None) -> None:
    """Set the lexicon of a voice from a file, remove it, or print it."""
    if clear and file is not None:
        raise SettingsError("--clear removes the lexicon: leave out the file")
    new = Lexicon(()) if clear else None if file is None else read_lexicon(file)
    if new is None:
        said = _lexicon_of(name, url, key)
        print(json.dumps(said, ensure_ascii=False, indent=2))
        return
    if url:
        _request("PUT", url, key, name, part="/lexicon", json=new.mapping())
    else:
        VoiceLibrary.of(load_settings().voices).set_lexicon(name, new)
    _console().print(f"agent-tts: {name} has a lexicon of {len(new)} words" if new else f"agent-tts: {name} has none")


def _lexicon_of(name: str, url: str | None, key: str | None) -> object:
    if url:
        return json.loads(_request("GET", url, key, name, part="/lexicon"))
    found = VoiceLibrary.of(load_settings().voices).get(name).lexicon
    return {} if found is None else found.mapping()


# ---------------------------------------------------------------- a running node


def _request(
    method: str,
    url: str,
    key: str | None,
    voice: str | None = None,
    *,
    part: str = "",
    timeout_s: float = ANSWER_S,
    **body: Any,
) -> bytes:
    """Send a request for one voice, or for all, to the node at `url`; returns its answer.

    Raises:
        SpeechError: the node refuses; the message says why.
        ConnectionLost: no node answers there.
    """
    base = http_url(url)
    host = urlsplit(base).netloc
    path = f"{base}/v1/audio/voices" + (f"/{quote(voice, safe='')}{part}" if voice is not None else "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(method, path, headers=headers, timeout=timeout_s, **body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionLost(f"no node answers at {host}: {type(error).__name__}") from error
    if answer.is_success:
        return answer.content
    if answer.status_code == Unauthorized.status:
        reason = "the node does not accept this API key" if key else "an API key is needed"
        raise Unauthorized(f"{reason}: set AGENT_TTS_KEY")
    raise _refusal(answer, host)


def _refusal(answer: httpx.Response, host: str) -> SpeechError:
    try:
        error = ErrorBody.model_validate_json(answer.content).error
    except ValidationError:
        return ConnectionLost(f"{host} answers with HTTP {answer.status_code}: is it a node?")
    return from_code(error.code, error.message)


def _answer(model: type[_Answer], answer: bytes) -> _Answer:
    try:
        return model.model_validate_json(answer)
    except ValidationError as error:
        raise ConnectionLost("what answers there is not a node") from error


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
    library = VoiceLibrary.of(settings.voices)
    library.check_room(name)
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


def _read(audio: Path, limit: int | None) -> bytes:
    try:
        clip = audio.read_bytes()
    except OSError as error:
        raise SettingsError(f"--audio {audio.name}: {error.strerror}") from error
    if limit is not None and len(clip) > limit:
        raise SettingsError(f"--audio {audio.name}: has more than {limit} bytes (voices.clip_bytes)")
    return clip


# ---------------------------------------------------------------- output


def _print_added(voice: VoiceAdded) -> None:
    if voice.type == "prompt":
        made = "designed from its prompt"
    elif voice.frames:
        made = f"cloned, with {voice.frames * FRAME_MS / 1_000:.1f} s of the clip ({voice.frames} frames) as reference"
    else:
        made = "cloned from the speaker's vector only; --text makes it closer"
    _console().print(f"agent-tts: {voice.name} is {made}")
    _console().print(f'agent-tts: try `agent-tts say "Hello there." --voice {voice.name}`', style="dim")


def _lines(voice: VoiceDetails) -> Iterator[tuple[str, str]]:
    """The fields of a voice that are set, and those of its consent, without control characters."""
    consent = voice.consent.model_dump() if voice.consent else {}
    fields = voice.model_dump(exclude={"consent"}) | {f"consent {name}": value for name, value in consent.items()}
    for field, value in fields.items():
        if value not in (None, "", 0, []):
            listed = value if isinstance(value, list) else [value]
            told = ", ".join(f"{one:%Y-%m-%d %H:%M:%S %Z}" if isinstance(one, datetime) else str(one) for one in listed)
            yield field.replace("_", " "), "".join(one if one.isprintable() else " " for one in told)


def _working(what: str) -> AbstractContextManager[object]:
    """A spinner, on a terminal."""
    console = _console()
    return console.status(f"{what} ...") if console.is_terminal else nullcontext()


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)
