"""The encodings and sample rates that a client may request. Imports no codecs, so that clients need none."""

from __future__ import annotations

from typing import Literal, get_args

from agent_tts.errors import UnsupportedFormat

Encoding = Literal["pcm_s16le", "pcm_f32le", "mulaw", "alaw", "opus", "ogg_opus", "mp3"]
SampleRate = Literal[8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
SAMPLE_RATES: tuple[int, ...] = get_args(SampleRate)

# Sample rates of encodings with restrictions. Ogg counts Opus samples at 48 kHz regardless of the audio.
RATES_OF = {"opus": (8_000, 16_000, 24_000, 48_000), "ogg_opus": (48_000,)}


def check_format(encoding: str, sample_rate: int) -> None:
    """Raise `UnsupportedFormat`, with the allowed values, unless `make_encoder` supports the combination."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"encoding is one of {', '.join(ENCODINGS)}")
    rates = RATES_OF.get(encoding, SAMPLE_RATES)
    if sample_rate not in rates:
        raise UnsupportedFormat(f"sample_rate of {encoding} is one of {', '.join(map(str, rates))}")
