"""Measure what Opus' complexity does to speech, by PESQ and ViSQOL. `python -m tests.measure.opus_quality --help`.

Packets come from the node's encoder. libopus decodes them, with the FEC of the next packet in place of a lost one, as a
browser's jitter buffer does. Needs `pip install pesq visqol-python`, and recordings: Debian's `pocketsphinx-testdata`
has some of LibriVox, at 16 kHz.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import av
import numpy as np
import soundfile  # type: ignore[import-untyped]
import soxr
import typer
from numpy.typing import NDArray

from agent_tts.bench import report
from agent_tts.cli.options import command
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.speech.audio import opus

PACKET = SAMPLE_RATE * 20 // 1_000  # samples
WIDE_BAND = 16_000  # Hz, of PESQ and of ViSQOL for speech
FULL_BAND = 48_000  # Hz, of ViSQOL for audio
LOOKAHEAD = SAMPLE_RATE * 65 // 10_000
Sound = NDArray[np.int16]


def libopus() -> Any:
    """The library inside PyAV's wheel. For measurements only: its name is not an interface."""
    (path,) = (Path(av.__file__).parents[1] / "av.libs").glob("libopus-*")
    library = ctypes.CDLL(str(path))
    library.opus_decoder_create.restype = ctypes.c_void_p
    return library


class Decoder:
    """Opus at 24 kHz, mono."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._state = ctypes.c_void_p(library.opus_decoder_create(SAMPLE_RATE, 1, None))

    def decode(self, packet: bytes | None, fec: bool = False) -> Sound:
        """20 ms of a packet; or of the FEC that it has of the one before; or, for None, made up."""
        sound = np.zeros(PACKET, np.int16)
        there, size = sound.ctypes.data_as(ctypes.c_void_p), len(packet or b"")
        count = self._library.opus_decode(self._state, packet, size, there, PACKET, int(fec))
        assert count == PACKET, count
        return sound

    def close(self) -> None:
        self._library.opus_decoder_destroy(self._state)


def heard(packets: Sequence[bytes], lost: NDArray[np.bool_], library: Any) -> Sound:
    """What a listener hears, with the encoder's delay taken out."""
    decoder, pieces = Decoder(library), []
    for index, packet in enumerate(packets):
        if not lost[index]:
            pieces.append(decoder.decode(packet))
        elif index + 1 < len(packets) and not lost[index + 1]:
            pieces.append(decoder.decode(packets[index + 1], fec=True))
        else:
            pieces.append(decoder.decode(None))
    decoder.close()
    return np.concatenate(pieces)[LOOKAHEAD:]


def recordings(folder: Path) -> dict[str, Sound]:
    """Speech of a folder by file, 24 kHz, mono; shorter files of one folder are joined: PESQ needs some seconds."""
    pieces: dict[str, list[Sound]] = {}
    for path in sorted(folder.rglob("*.wav")):
        sound, rate = soundfile.read(path, dtype="int16", always_2d=True)
        sound = soxr.resample(sound[:, 0], rate, SAMPLE_RATE)
        name = path.stem if len(sound) > 2.5 * SAMPLE_RATE else path.parent.name
        pieces.setdefault(name, []).append(sound)
    return {name: np.concatenate(found) for name, found in pieces.items()}


class Judge:
    """The two measures. Both compare with the original, and answer with a MOS (1 to 5)."""

    def __init__(self) -> None:
        self._pesq: Any = import_module("pesq").pesq
        self._visqol: dict[str, Any] = {}
        for mode in ("speech", "audio"):
            self._visqol[mode] = import_module("visqol").VisqolApi()
            self._visqol[mode].create(mode=mode)

    def scores(self, original: Sound, sound: Sound) -> dict[str, float]:
        """PESQ and ViSQOL of speech up to 8 kHz, and ViSQOL of all of the band."""
        wide = [soxr.resample(one, SAMPLE_RATE, WIDE_BAND) for one in (original, sound)]
        full = [soxr.resample(one, SAMPLE_RATE, FULL_BAND) for one in (original, sound)]
        return {
            "pesq": float(self._pesq(WIDE_BAND, *wide, "wb")),
            "visqol speech": self._mos("speech", WIDE_BAND, wide),
            "visqol audio": self._mos("audio", FULL_BAND, full),
        }

    def _mos(self, mode: str, rate: int, sounds: list[Sound]) -> float:
        original, sound = [one / 32_768 for one in sounds]
        return float(self._visqol[mode].measure_from_arrays(original, sound, rate).moslqo)


def encoded(sound: Sound, complexity: int, bit_rate: int) -> tuple[list[bytes], float]:
    """Packets of the node's encoder, and CPU in us a packet."""
    kept = opus.RTP_COMPLEXITY, opus.RTP_BIT_RATE
    opus.RTP_COMPLEXITY, opus.RTP_BIT_RATE = complexity, bit_rate
    try:
        encoder = opus.OpusEncoder()
    finally:
        opus.RTP_COMPLEXITY, opus.RTP_BIT_RATE = kept
    begin = time.process_time()
    packets = encoder.encode(sound.tobytes()) + encoder.flush()
    return packets, (time.process_time() - begin) * 1e6 / len(packets)


@command
def main(
    folder: Annotated[Path, typer.Argument(help="Recordings: WAV files, in folders.", exists=True)],
    way: Annotated[list[str], typer.Option(help="COMPLEXITY:BITS_A_SECOND; others are compared with the first.")] = [  # noqa: B006
        "5:32000",
        "2:32000",
    ],
    loss: Annotated[float, typer.Option(help="Share of packets lost in the second half of the rows.")] = 0.1,
    seeds: Annotated[int, typer.Option(help="Patterns of loss.")] = 3,
) -> None:
    """Opus on recordings: each score is the mean over them, behind it the difference from the first row, and its
    standard error, recording by recording."""
    library, judge, rows = libopus(), Judge(), []
    sounds = recordings(folder)
    ways = [tuple(map(int, one.split(":"))) for one in way]
    for share, patterns in ((0.0, 1), (loss, seeds)):
        first: dict[str, NDArray[np.float64]] = {}
        for level, rate in ways:
            found: dict[str, list[float]] = {}
            sizes, costs = [], []
            for sound in sounds.values():
                packets, cost = encoded(sound, level, rate)
                sizes.append(sum(map(len, packets)) * 8 / (len(packets) * 0.02) / 1_000)
                costs.append(cost)
                for seed in range(patterns):
                    lost = np.random.default_rng(seed).random(len(packets)) < share
                    out = heard(packets, lost, library)
                    count = min(len(out), len(sound))
                    for name, score in judge.scores(sound[:count], out[:count]).items():
                        found.setdefault(name, []).append(score)
            row: list[Any] = [f"{share:.0%}", level, rate // 1_000, f"{np.mean(sizes):.1f}", f"{np.median(costs):.0f}"]
            for name, values in found.items():
                scores = np.array(values)
                change = scores - first.setdefault(name, scores)
                error = change.std() / len(change) ** 0.5
                row.append(f"{scores.mean():.3f} ({change.mean():+.3f} ± {error:.3f})")
            rows.append(row)
    total_s = sum(map(len, sounds.values())) / SAMPLE_RATE
    title = f"{len(sounds)} recordings, {total_s:.0f} s, {seeds} patterns of {loss:.0%} loss"
    report.table(
        title, ["loss", "complexity", "asked kb/s", "kb/s", "us", "PESQ", "ViSQOL speech", "ViSQOL audio"], rows
    )


if __name__ == "__main__":
    typer.run(main)
