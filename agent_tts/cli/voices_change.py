"""`agent-tts voices add` and `agent-tts voices delete`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from pydantic import ValidationError
from rich.console import Console

from agent_tts.cli import node
from agent_tts.cli.link import own_settings
from agent_tts.client.connection import ConnectionLost
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.events import FRAME_MS
from agent_tts.model.config import ModelConfig
from agent_tts.model.entries import CheckpointError
from agent_tts.serve.routes.voices import VoiceAdded
from agent_tts.speech.routing import check_free
from agent_tts.voices.enroll import Enrolment
from agent_tts.voices.library import VoiceLibrary

CLONING_S = 300.0  # for a node to make a voice of a clip, after those that it makes before
ASKED = "Does whoever speaks there allow you to clone their voice?"
ANSWERED = "Whoever added this voice said on a terminal that the speaker allows to clone it."


def clone(
    name: str,
    audio: Path,
    *,
    text: str | None,
    consent: str | None,
    description: str,
    url: str | None,
    key: str | None,
    models: Sequence[str] | None,
) -> None:
    """Add a voice like the speaker's in a file, and say what was made.

    Raises:
        SettingsError: the file cannot be read, nobody consents, or there is no Base model.
        SpeechError: the node or the library refuses it; the message says why.
    """
    if url and models:
        raise SettingsError("--model: a running node (--url, AGENT_TTS_URL) has its own: leave it out")
    consent = consent or _ask_consent()
    if url:
        clip = _read(audio, None)
        form = {"name": name, "description": description, "consent": consent} | ({"ref_text": text} if text else {})
        with _working("the node listens to the clip"):
            files = {"audio_sample": (audio.name, clip)}
            _told(node.request("POST", url, key, data=form, files=files, timeout_s=CLONING_S))
        return
    settings = own_settings({"qwen3.models": models or None})
    clip = _read(audio, settings.voices.clip_bytes)
    enrolment = Enrolment(_library(settings, name), _base_checkpoints(settings), settings.voices.clip_s)
    with _working("listening to the clip"):
        voice = asyncio.run(enrolment.enroll(name, clip, consent=consent, transcript=text, description=description))
    _tell(VoiceAdded.of(voice, "audio_sample"))


def design(name: str, prompt: str, *, description: str, url: str | None, key: str | None) -> None:
    """Add a voice as a text describes it, and say so.

    Raises:
        SpeechError: the node or the library refuses it; the message says why.
    """
    if url:
        fields = {"type": "prompt", "name": name, "prompt": prompt, "description": description}
        _told(node.request("POST", url, key, json=fields))
        return
    enrolment = Enrolment(_library(load_settings(), name), (), 0)
    _tell(VoiceAdded.of(enrolment.design(name, prompt, description=description), "prompt"))


def delete(name: str, url: str | None, key: str | None) -> None:
    """Delete a voice.

    Raises:
        SpeechError: there is none that could be deleted.
    """
    if url:
        node.request("DELETE", url, key, name)
    else:
        check_free(name)
        VoiceLibrary.of(load_settings().voices).delete(name)
    _console().print(f"agent-tts: {name} is deleted")


# ---------------------------------------------------------------- inside


def _library(settings: Settings, name: str) -> VoiceLibrary:
    """The library of this machine, which may take a voice of this name."""
    check_free(name)
    library = VoiceLibrary.of(settings.voices)
    library.check_room(name)
    return library


def _base_checkpoints(settings: Settings) -> list[tuple[Path, int]]:
    """Folders of the models that clone voices, with the size of their vectors.

    Raises:
        SettingsError: a checkpoint cannot be used, or there is none.
    """
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
        raise SettingsError(
            "to clone a voice takes a Base model: --model FOLDER, or --model Qwen/Qwen3-TTS-12Hz-1.7B-Base"
        )
    return found


def _ask_consent() -> str:
    """What is recorded as the speaker's consent, asked for on a terminal.

    Raises:
        SettingsError: there is no terminal, or the answer is no.
    """
    if not sys.stdin.isatty():
        raise SettingsError("--consent says how the speaker agreed: a voice is cloned only with it")
    if not typer.confirm(ASKED, err=True):
        raise SettingsError("without the speaker's consent no voice is cloned")
    return ANSWERED


def _read(audio: Path, limit: int | None) -> bytes:
    try:
        clip = audio.read_bytes()
    except OSError as error:
        raise SettingsError(f"--audio {audio.name}: {error.strerror}") from error
    if limit is not None and len(clip) > limit:
        raise SettingsError(f"--audio {audio.name}: has more than {limit} bytes (voices.clip_bytes)")
    return clip


def _told(answer: bytes) -> None:
    try:
        _tell(VoiceAdded.model_validate_json(answer))
    except ValidationError as error:
        raise ConnectionLost("what answers there is no node") from error


def _tell(voice: VoiceAdded) -> None:
    if voice.type == "prompt":
        made = "designed by its prompt"
    elif voice.frames:
        made = f"cloned, with {voice.frames * FRAME_MS / 1_000:.1f} s of the clip ({voice.frames} frames) as reference"
    else:
        made = "cloned, by the speaker's vector alone; --text makes it closer"
    _console().print(f"agent-tts: {voice.name} is {made}")
    _console().print(f'agent-tts: use it by `agent-tts say "Hello there." --voice {voice.name}`', style="dim")


@contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner on a terminal."""
    console = _console()
    if not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield


def _console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)
