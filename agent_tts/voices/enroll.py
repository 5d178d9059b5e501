"""Adding voices to the library: cloned from a clip, designed from a description, or given as a vector."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import RETRY_MS, AtCapacity, Internal, InvalidRequest, SettingsError, Unsupported
from agent_tts.system.in_child import REFUSAL
from agent_tts.system.processes import ModuleResult, run_module
from agent_tts.system.records import LOCK_S
from agent_tts.voices.decode_child import MAX_CHANNELS, MAX_RATE, MIN_RATE, Refusal
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_S = 1.0
SILENCE = 1e-3  # a peak of -60 dB; full scale is 1
LOUDEST = 8.0  # a peak of 18 dB: floating-point clips may be louder than full scale, damaged ones are by far
CANCELS = 0.2  # of the power of the louder channel: less than of a mean with silence, which has a quarter
DECODE_TIMEOUT_S = 10.0

_FORMATS = "WAV, FLAC, MP3, Ogg (Opus, Vorbis), MP4 or M4A (AAC), WebM"
_REFUSALS: dict[int, str] = {
    Refusal.FORMAT: f"it has to be {_FORMATS}",
    Refusal.TRACK: f"it has to hold a mono or stereo audio track of {MIN_RATE} to {MAX_RATE} Hz, as {_FORMATS}",
    Refusal.DAMAGED: f"it is damaged, or not of the format that its header names; it has to be {_FORMATS}",
    Refusal.LIMITS: "it cannot be decoded within the limits of memory and time",
}

MAX_CONSENT_CHARS = 2_000
MAX_CONSENT_BY_CHARS = 200
MAX_TRANSCRIPT_CHARS = 1_000
MAX_DESCRIPTION_CHARS = 500
MAX_PROMPT_CHARS = 2_000  # as `instructions`
ENCODE_TIMEOUT_S = 120.0
MAX_ENCODED_BYTES = 4 << 20  # ten minutes of codes take 0.25 MB

_BASE = "a Base model (Qwen/Qwen3-TTS-12Hz-1.7B-Base) to qwen3.models"


class Enrolment:
    """Makes voices, one clip of at most `max_s` at a time. A failed or cancelled one leaves nothing behind.

    A voice is made for all `checkpoints`: folders of Base models with their hidden sizes.
    """

    def __init__(self, library: VoiceLibrary, checkpoints: Iterable[tuple[Path, int]], max_s: float) -> None:
        self._library = library
        # One folder for each hidden size: models of the same size share a speaker encoder.
        self._checkpoints = {size: folder for folder, size in checkpoints}
        self._max_s = max_s
        self._turn = asyncio.Lock()  # held while a clip is processed

    async def enroll(
        self,
        name: str,
        clip: bytes,
        *,
        consent: str,
        consent_by: str | None = None,
        transcript: str | None = None,
        description: str = "",
    ) -> StoredVoice:
        """Clone the speaker of a clip. Cancelling it is safe.

        Args:
            clip: an untrusted audio file.
            consent: how the speaker agreed, and to what; stored with the voice, as is the clip's digest.
            consent_by: who gave it.
            transcript: the words of the clip; with it, the voice stores the codes of the clip, too.
        Raises:
            InvalidRequest, VoiceExists, VoiceLimit: the name, the clip or a text is not allowed; the library is full.
            StorageFull: the disk is full.
            Unsupported: there is no Base model.
            AtCapacity: the machine cannot start a process.
            SettingsError: a checkpoint cannot be used.
            Internal: encoding failed or took too long.
        """
        transcript = _text("ref_text", transcript or "", MAX_TRANSCRIPT_CHARS) or None
        agreed = await asyncio.to_thread(_consent, consent, consent_by, clip)  # the digest of 10 MB takes milliseconds
        voice = _cloned(name, description, agreed, transcript)
        await asyncio.to_thread(self._library.check_room, name)
        self._require_checkpoint()
        async with self._turn:
            await asyncio.to_thread(self._library.check_room, name)
            waveform = await decode(clip, max_s=self._max_s)
            arrays = await _encode(waveform, self._checkpoints.values(), reference=transcript is not None)
        return await self._add(voice, arrays)

    async def _add(self, voice: StoredVoice, arrays: dict[str, NDArray[Any]]) -> StoredVoice:
        """Store a voice in a thread; a cancellation takes it back."""
        adding = asyncio.create_task(asyncio.to_thread(self._library.add, voice, arrays), name=f"storing {voice.name}")
        try:
            return await asyncio.shield(adding)
        except asyncio.CancelledError:
            await asyncio.wait([adding], timeout=LOCK_S)  # a folder that hangs keeps what it stores later
            if adding.done() and adding.exception() is None:
                await asyncio.to_thread(self._library.delete, voice.name)
            raise

    def design(self, name: str, prompt: str, *, description: str = "") -> StoredVoice:
        """Store a voice that a text describes; raises the errors of `VoiceLibrary.add`, `InvalidRequest` for a text."""
        description = _text("description", description, MAX_DESCRIPTION_CHARS)
        prompt = _text("prompt", prompt, MAX_PROMPT_CHARS, required=True)
        return self._library.add(StoredVoice(name=name, kind="designed", description=description, prompt=prompt), {})

    def embed(
        self,
        name: str,
        vector: Sequence[float],
        *,
        consent: str,
        consent_by: str | None = None,
        description: str = "",
    ) -> StoredVoice:
        """Store a speaker vector that was made elsewhere.

        Raises:
            InvalidRequest: the vector or a text is not allowed; the message says what is.
            Unsupported: there is no Base model.
            SpeechError: see `VoiceLibrary.add`.
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
        agreed = _consent(consent, consent_by)
        return self._library.add(_cloned(name, description, agreed), {f"vector_{len(values)}": values})

    def _require_checkpoint(self) -> None:
        if not self._checkpoints:
            raise Unsupported(f"this node has no model that clones voices: add {_BASE}")


async def decode(clip: bytes, *, max_s: float) -> NDArray[np.float32]:
    """The bytes of an audio file -> float32[n], 24 kHz mono, full scale 1. Cancelling it is safe: no process is left.

    The clip is untrusted; the caller bounds its size, and decoding stops after `max_s`. Raises `InvalidRequest` for a
    clip that is not allowed; the message says what is.
    """
    import numpy as np

    # One extra sample: the rate of a clip need not divide 24 kHz.
    most = 1 + 4 * MAX_CHANNELS * (round(max_s * SAMPLE_RATE) + 1)
    try:
        done = await run_child("decode_child", str(max_s), data=clip, output_bytes=most, timeout_s=DECODE_TIMEOUT_S)
    except TimeoutError:
        raise _refused(_REFUSALS[Refusal.LIMITS]) from None
    if done.code == Refusal.TOO_LONG:
        raise _refused(f"it has to be {MIN_S:g} to {max_s:g} seconds long; it is longer")
    if done.code in _REFUSALS:
        logger.debug("clip refused: {} {}", Refusal(done.code).name, done.errors)
        found = done.errors.strip().rpartition("\n")[2] if done.code in (Refusal.FORMAT, Refusal.TRACK) else ""
        raise _refused(f"it is {found}; {_REFUSALS[done.code]}" if found else _REFUSALS[done.code])
    if done.code < 0:
        logger.warning("the clip decoder was ended by signal {}", -done.code)
        raise _refused(_REFUSALS[Refusal.LIMITS])
    output = output_of(done, "the clip decoder")
    channels = output[0]
    waveform = _mixed(np.frombuffer(output, "<f4", offset=1).reshape(-1, channels))
    if len(waveform) < MIN_S * SAMPLE_RATE:
        raise _refused(f"it has to be {MIN_S:g} to {max_s:g} seconds long; it is shorter")
    if not np.isfinite(waveform).all():
        raise _refused("it has samples that are not finite numbers")
    if (peak := np.abs(waveform).max()) < SILENCE:
        raise _refused("it is silent")
    if peak > LOUDEST:
        raise _refused(f"it has samples above {LOUDEST:g} times full scale")
    return waveform


def _mixed(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[n, channels] -> float32[n]: the mean, or the louder channel where the channels cancel one another."""
    mean: NDArray[np.float32] = samples.mean(axis=1)
    power = (samples.astype(float) ** 2).sum(axis=0)
    louder = int(power.argmax())
    return samples[:, louder] if (mean.astype(float) ** 2).sum() < CANCELS * power[louder] else mean


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"audio_sample: {why}", "audio_sample")


async def _encode(
    waveform: NDArray[np.float32], checkpoints: Iterable[Path], *, reference: bool
) -> dict[str, NDArray[Any]]:
    """float32[n], 24 kHz mono, -> the arrays of a cloned voice, made in a child: the front must not import torch.

    Each checkpoint makes a vector; with `reference` there are codes of the clip and half a second of silence, too.
    """
    what = "reference" if reference else "vector"
    try:
        done = await run_child(
            "model_child",
            *(what, *map(str, checkpoints)),
            data=waveform.astype("<f4").tobytes(),
            output_bytes=MAX_ENCODED_BYTES,
            timeout_s=ENCODE_TIMEOUT_S,
        )
    except TimeoutError:
        raise Internal(f"making the voice took more than {ENCODE_TIMEOUT_S:g} s") from None
    from safetensors.numpy import load

    return load(output_of(done, "the voice encoder"))


async def run_child(child: str, *args: str, **options: Any) -> ModuleResult:
    """`run_module` for a child that ends with this process. Raises `AtCapacity` if the machine cannot start it."""
    try:
        return await run_module(f"agent_tts.voices.{child}", str(os.getpid()), *args, **options)
    except TimeoutError:
        raise
    except OSError as error:
        logger.error("{} cannot be started: {}", child, error.strerror)
        raise AtCapacity("the node cannot start a process for the clip: try again", retry_after_ms=RETRY_MS) from None


def output_of(done: ModuleResult, child: str) -> bytes:
    """The output of a child; `SettingsError` if it cannot use the settings, `Internal` if it failed."""
    if done.code == 0:
        return done.output
    last = done.errors.rpartition("\n")[2]
    if last.startswith(REFUSAL):
        raise SettingsError(last.removeprefix(REFUSAL))
    logger.error("{} failed with exit code {}: {}", child, done.code, done.errors)
    raise Internal("a fault of this node; see its log")


def _cloned(name: str, description: str, consent: Consent, transcript: str | None = None) -> StoredVoice:
    description = _text("description", description, MAX_DESCRIPTION_CHARS)
    return StoredVoice(name=name, kind="cloned", description=description, transcript=transcript, consent=consent)


def _consent(statement: str, by: str | None, clip: bytes | None = None) -> Consent:
    return Consent(
        _text("consent", statement, MAX_CONSENT_CHARS, required=True),
        _text("consent_by", by or "", MAX_CONSENT_BY_CHARS) or None,
        None if clip is None else hashlib.sha256(clip).hexdigest(),
    )


def _text(param: str, text: str, limit: int, *, required: bool = False) -> str:
    text = text.strip()
    if len(text) > limit or (required and not text):
        raise InvalidRequest(f"{param}: it has to have {int(required)} to {limit} characters", param)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(f"{param}: it has to be Unicode without lone surrogates", param)
    return text
