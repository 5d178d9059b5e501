"""Which encodings and rates a client may ask for, without what makes them: a client needs no codecs."""

from __future__ import annotations

from agent_tts.errors import UnsupportedFormat

ENCODINGS = ("pcm_s16le", "pcm_f32le", "mulaw", "alaw", "opus", "ogg_opus", "mp3")
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)

# Of the encodings that do not have them all. Ogg counts Opus' samples at 48 kHz, whatever the sound.
RATES_OF = {"opus": (8_000, 16_000, 24_000, 48_000), "ogg_opus": (48_000,)}


def check_format(encoding: str, sample_rate: int) -> None:
    """Raise `UnsupportedFormat` unless `make_encoder` takes them; it says which encodings and rates there are."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"encoding is one of {', '.join(ENCODINGS)}")
    rates = RATES_OF.get(encoding, SAMPLE_RATES)
    if sample_rate not in rates:
        raise UnsupportedFormat(f"sample_rate of {encoding} is one of {', '.join(map(str, rates))}")
