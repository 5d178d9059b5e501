"""Audio in one of a stream's encodings as the body of a response. Pure."""

from __future__ import annotations

from agent_tts.errors import SpeechError
from agent_tts.protocol.context import Words
from agent_tts.speech.audio.encoding import Chunk, make_encoder
from agent_tts.speech.audio.files import wav_header


class AudioBody:
    """See `Body`.

    Args:
        bit_rate: as `make_encoder` has it.
        is_wav: a WAV header goes before the first sound, for an encoding that a WAV file may have.
    """

    def __init__(self, encoding: str, sample_rate: int, bit_rate: int | None = None, *, is_wav: bool = False) -> None:
        self._encoder = make_encoder(encoding, sample_rate, bit_rate)
        # What goes before the first bytes of sound.
        self._head = wav_header(None, sample_rate, encoding) if is_wav else b""

    def words(self, words: Words) -> bytes:
        """See `Body`: audio has no place for them."""
        return b""

    def audio(self, pcm: bytes) -> bytes:
        """See `Body`."""
        return self._joined(self._encoder.encode(pcm))

    def end(self) -> bytes:
        """See `Body`."""
        return self._joined(self._encoder.flush())

    def error(self, error: SpeechError) -> bytes | None:
        """See `Body`: a part of the audio says nothing of itself."""
        return None

    def close(self) -> None:
        """See `Body`: encoders free themselves."""

    def _joined(self, chunks: list[Chunk]) -> bytes:
        head, self._head = self._head, b""
        return head + b"".join(payload for payload, _ in chunks)
