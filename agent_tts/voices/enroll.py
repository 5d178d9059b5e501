"""Adding voices to the library: cloned from a clip, designed by a description, or given as a vector."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent_tts.errors import InvalidRequest, Unsupported, at_capacity
from agent_tts.voices.decode import decode
from agent_tts.voices.encode import encode
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary

MAX_CONSENT_CHARS = 2_000
MAX_TRANSCRIPT_CHARS = 1_000
MAX_DESCRIPTION_CHARS = 500
MAX_PROMPT_CHARS = 2_000  # as `instructions`
MAX_WAITING = 4  # clips behind the one that is being worked on: each takes seconds of the machine

_BASE = "a Base model (Qwen/Qwen3-TTS-12Hz-1.7B-Base) to qwen3.models"


class Enrolment:
    """Makes voices, one clip at a time. Whatever fails or is cancelled leaves nothing behind.

    Args:
        checkpoints: folders of the type `base`, with the hidden size of each: a voice is made for all of them.
        max_s: longest clip.
    """

    def __init__(self, library: VoiceLibrary, checkpoints: Iterable[tuple[Path, int]], max_s: float) -> None:
        self._library = library
        # One folder for each hidden size: the speaker encoder of one is good for all of its size.
        self._checkpoints = {size: folder for folder, size in checkpoints}
        self._max_s = max_s
        # Held by the clip that is being worked on.
        self._turn = asyncio.Lock()
        # Clips that hold the lock or wait for it.
        self._clips = 0

    async def enroll(
        self, name: str, clip: bytes, *, consent: str, transcript: str | None = None, description: str = ""
    ) -> StoredVoice:
        """Clone the speaker of a clip. Cancelling it is safe.

        Args:
            clip: an audio file, from anybody.
            consent: why the speaker may be cloned, kept with the voice.
            transcript: what is said in the clip; with it the voice keeps the clip's sound, too.
        Raises:
            InvalidRequest: a name, clip or text that is not allowed; the message says what is.
            VoiceExists, VoiceLimit: the library does not take it.
            Unsupported: there is no checkpoint that could clone it.
            AtCapacity: too many clips wait.
            SettingsError: a checkpoint cannot be used.
            Internal: a fault, or it took too long.
        """
        transcript = _text("ref_text", transcript or "", MAX_TRANSCRIPT_CHARS) or None
        voice = StoredVoice(
            name=name,
            kind="cloned",
            description=_text("description", description, MAX_DESCRIPTION_CHARS),
            transcript=transcript,
            consent=_consent(consent),
        )
        self._library.check_room(name)
        self._require_checkpoint()
        if self._clips > MAX_WAITING:
            raise at_capacity("clips", MAX_WAITING + 1)
        self._clips += 1
        try:
            async with self._turn:
                self._library.check_room(name)
                waveform = await decode(clip, max_s=self._max_s)
                arrays = await encode(waveform, self._checkpoints.values(), reference=transcript is not None)
        finally:
            self._clips -= 1
        return self._library.add(voice, arrays)

    def design(self, name: str, prompt: str, *, description: str = "") -> StoredVoice:
        """Keep a voice that a text describes.

        Raises:
            InvalidRequest: a name or a text that is not allowed; the message says what is.
            VoiceExists, VoiceLimit: the library does not take it.
        """
        voice = StoredVoice(
            name=name,
            kind="designed",
            description=_text("description", description, MAX_DESCRIPTION_CHARS),
            prompt=_text("prompt", prompt, MAX_PROMPT_CHARS, required=True),
        )
        return self._library.add(voice, {})

    def embed(self, name: str, vector: Sequence[float], *, consent: str, description: str = "") -> StoredVoice:
        """Keep a speaker's vector that was made elsewhere.

        Raises:
            InvalidRequest: a name, vector or text that is not allowed; the message says what is.
            VoiceExists, VoiceLimit: the library does not take it.
            Unsupported: there is no model that could speak it.
        """
        import numpy as np

        self._require_checkpoint()
        if len(vector) not in self._checkpoints:
            sizes = " or ".join(map(str, sorted(self._checkpoints)))
            raise InvalidRequest(f"speaker_embedding: it has to have {sizes} values", "speaker_embedding")
        with np.errstate(over="ignore"):
            values = np.asarray(vector, np.float32)
        if not np.isfinite(values).all():
            raise InvalidRequest("speaker_embedding: it has to hold finite numbers", "speaker_embedding")
        voice = StoredVoice(
            name=name,
            kind="cloned",
            description=_text("description", description, MAX_DESCRIPTION_CHARS),
            consent=_consent(consent),
        )
        return self._library.add(voice, {f"vector_{len(values)}": values})

    def _require_checkpoint(self) -> None:
        if not self._checkpoints:
            raise Unsupported(f"this node has no model that clones voices: add {_BASE}")


def _consent(statement: str) -> Consent:
    return Consent(_text("consent", statement, MAX_CONSENT_CHARS, required=True))


def _text(param: str, text: str, limit: int, *, required: bool = False) -> str:
    """The text without the space around it."""
    text = text.strip()
    if len(text) > limit or (required and not text):
        raise InvalidRequest(f"{param}: it has to have {int(required)} to {limit} characters", param)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(f"{param}: it has to be Unicode without lone surrogates", param)
    return text
