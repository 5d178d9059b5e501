"""A sentence of English as samples: hibari's dictionary, its network with the durations of phonemes, its vocoder.

The network is a vocoder's front end: from phonemes it computes, for each 12.5 ms, spectra of the parts of a voice and
the pitch. Pitch and speeds beyond its own are set there, so that nothing is resampled.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from hibari import dsp, voices
from hibari.g2p import G2P
from hibari.g2p.token import Tok
from numpy.typing import NDArray

from agent_tts.engine.espeak.voices import LIKE
from agent_tts.engine_info import Voice
from agent_tts.sound.silence import AUDIBLE_PEAK
from agent_tts.text.chars import SOUND

DURATIONS = "/Clip_output_0"  # an inner value of the network: units of `UNIT_SAMPLES` for each phoneme
UNIT_SAMPLES = 600  # 25 ms, two frames of the vocoder
MAX_PHONEMES = 400  # hibari.tts.MAX_PHONEMES: what the network was trained on
FASTEST = 2.0  # speed above which phonemes do not get shorter: their least length is one unit
# By which a phoneme sounds before its units: the median of 36 words after a silence, at speeds of 0.5 to 3.
EARLY_S = 0.050
GAIN = 1.8  # brings the voices from -26 LUFS to the -20.5 of espeak-ng's, which speak in the same node and utterance
CODES = {True: "en-gb", False: "en-us"}  # by whether a voice is British
NEAR = {"female": "f1", "male": "m3"}  # the variant of espeak-ng that says what is not English
PUNCTUATION = frozenset(';:,.!?—…"()“” ')  # phonemes of a pause

# Sounds that the alphabet of the dictionary has letters for (misaki's, as its README lists them).
_LETTERS = (
    *(("eɪ", "A"), ("aɪ", "I"), ("oʊ", "O"), ("əʊ", "Q"), ("aʊ", "W"), ("ɔɪ", "Y"), ("dʒ", "ʤ"), ("tʃ", "ʧ")),
    *(("ɝ", "ɜɹ"), ("ɚ", "əɹ"), ("r", "ɹ"), ("g", "ɡ"), ("ɫ", "l"), ("e", "ɛ"), ("'", "ˈ"), (",", "ˌ"), (":", "ː")),
)
_UNHEARD = re.compile("[./|‿\u0361\u035c\u0329\u032f]")
_AMERICAN = frozenset("AIOWYbdfhijklmnpstuvwzæðŋɑɔəɛɜɡɪɹɾʃʊʌʒʤʧˈˌθᵊᵻʔ ")
_BRITISH = frozenset("AIQWYabdfhijklmnpstuvwzðŋɑɒɔəɛɜɡɪɹʃʊʌʒʤʧˈˌːθᵊ ")


class Sentence(NamedTuple):
    """Words of a sentence as they are spoken together."""

    samples: NDArray[np.float32]  # float32[n] at 24 kHz, in the range of int16
    words: tuple[tuple[int, int], ...]  # where each word sounds, in samples; an empty range if it has no sound
    cuts: tuple[int, ...]  # after each word, the place between it and the next; after the last, the end of its sound


class Phonemes(NamedTuple):
    text: str  # in the alphabet of the network
    words: tuple[int, ...]  # for each phoneme, the number of its word


@lru_cache(maxsize=2)
def dictionary(british: bool) -> G2P:
    """Its 100 MB are shared by all voices of an accent. The network for words that it lacks is loaded with it."""
    found = G2P(british=british)
    found.oov("ok")
    return found


def to_alphabet(ipa: str, british: bool) -> str | None:
    """IPA in the letters of the dictionary; None if it has no letter for one of the sounds."""
    said = _UNHEARD.sub("", ipa.strip())
    for sound, letter in _LETTERS:
        said = said.replace(sound, letter)
    said = said.replace("Q", "O").replace("ɒ", "ɑ").replace("ː", "") if not british else said.replace("O", "Q")
    return said if said and (_BRITISH if british else _AMERICAN).issuperset(said) else None


class HibariVoice:
    """One voice. Threads may share it.

    Raises:
        OSError, RuntimeError: its file cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        self.facts: dict[str, Any] = voices.VOICES[name]
        self.british = bool(self.facts["british"])
        self._path = Path(voices.voice_path(name, download_missing=False))
        self._loading = threading.Lock()
        if not self._path.is_file():
            raise FileNotFoundError(self._path.name)

    @cached_property
    def _network(self) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # callers are spoken side by side
        options.enable_cpu_mem_arena = False  # an arena keeps what the longest sentence took
        options.log_severity_level = 3
        content = self._path.read_bytes() + _output(DURATIONS)
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def load(self) -> None:
        """Load the network and the dictionary, unless they are."""
        with self._loading:
            dictionary(self.british)
            _ = self._network, _vocabulary()

    def phonemes(self, words: Sequence[str], ipa: Sequence[str] = ()) -> Phonemes:
        """How the words are said, given as parts of a text that are joined. `ipa` gives the sounds of each `SOUND`.

        Raises:
            ValueError: there is no letter for a sound.
        """
        text = "".join(words)
        starts = np.cumsum([0, *map(len, words)])[1:]
        sounds = iter(ipa)
        g2p = dictionary(self.british)
        tokens: list[Tok] = []
        for part in re.split(f"({SOUND})", text):
            if part == SOUND:
                said = to_alphabet(next(sounds), self.british)
                if said is None:
                    raise ValueError("no letter for a sound")
                tokens.append(Tok(SOUND, "NN", phonemes=said, rating=5))
            else:
                if tokens and part[:1] == " ":
                    tokens[-1].whitespace = " "
                pairs = g2p.tokenizer(part.lstrip())
                tags = g2p.tagger([pair[0] for pair in pairs])
                tokens += [Tok(word, tag, space) for (word, space), tag in zip(pairs, tags, strict=True)]
        letters, numbers = [], []
        at = 0
        for token in g2p.phonemize_tokens(tokens) if tokens else ():
            number = int(np.searchsorted(starts, at, "right"))
            for letter in [*(token.phonemes or ""), *(" " if token.whitespace else "")]:
                if letter in _vocabulary():
                    letters.append(letter)
                    numbers.append(min(number, len(words) - 1))
            at += len(token.text) + len(token.whitespace)
        return Phonemes("".join(letters), tuple(numbers))

    def speak(
        self, words: Sequence[str], ipa: Sequence[str], *, speed: float = 1.0, pitch: float = 1.0, seed: int = 0
    ) -> Sentence:
        """Speak words together. Equal arguments give equal samples.

        Raises:
            ValueError: there are too many phonemes, or there is no letter for a sound in IPA.
            Exception: hibari fails on the text.
        """
        said = self.phonemes(words, ipa)
        if len(said.text) > MAX_PHONEMES:
            raise ValueError("too many phonemes at once")
        vocabulary = _vocabulary()
        ids = np.array([[0, *(vocabulary[letter] for letter in said.text), 0]], np.int64)
        given = {"ids": ids, "speed": np.array([min(speed, FASTEST)], np.float32)}
        *found, units = self._network.run(None, given)
        frames = [each[0] for each in found]
        early = round(EARLY_S * dsp.SR * max(1.0, speed**-2))
        ends = np.maximum(np.cumsum(units.ravel()) * UNIT_SAMPLES - early, 0)
        if speed > FASTEST:
            kept = np.arange(0, frames[-1].shape[-1], speed / FASTEST).astype(int)
            frames = [np.ascontiguousarray(each[..., kept]) for each in frames]
            ends = ends * FASTEST / speed
        *spectra, tone = frames
        made = dsp.synth(*spectra, tone * np.float32(pitch), np.random.default_rng(seed))
        return _sentence(made * np.float32(GAIN * 32_767), said, ends.astype(int), len(words))


def _sentence(samples: NDArray[np.float32], said: Phonemes, ends: NDArray[np.int_], count: int) -> Sentence:
    """`ends` are those of the phonemes in samples, with the silence before the first one and after the last one."""
    spans: list[tuple[int, int]] = []
    last = int(ends[0])
    pause_from = [0] * count
    for number in range(count):
        own = [place for place, word in enumerate(said.words) if word == number]
        sounding = [place for place in own if said.text[place] not in PUNCTUATION]
        spans.append((int(ends[sounding[0]]), int(ends[sounding[-1] + 1])) if sounding else (last, last))
        paused = [place for place in own if said.text[place] != " "]
        last = pause_from[number] = int(ends[paused[-1] + 1]) if paused else last
    # The last phoneme's units go on in the silence behind it.
    loud = np.flatnonzero(np.abs(samples) > AUDIBLE_PEAK)
    start, end = spans[-1]
    spans[-1] = start, max(start, min(end, int(loud[-1]) if len(loud) else 0))
    # A space is cut in its middle: the words on both sides sound into it.
    cuts = [(end + max(end, start)) // 2 for end, (start, _) in zip(pause_from, spans[1:], strict=False)]
    return Sentence(samples, tuple(spans), (*cuts, spans[-1][1]))


@lru_cache(maxsize=1)
def _vocabulary() -> dict[str, int]:
    found: dict[str, int] = json.loads(Path(voices.ASSETS, "vocab.json").read_text("utf-8"))
    return found


def _output(name: str) -> bytes:
    """What makes an inner value one more output of a network, behind its bytes.

    Protocol buffers merge a message that is given twice: 7 is the graph of onnx.ModelProto, 12 the outputs of its
    GraphProto, 1 the name of a ValueInfoProto.
    """
    content = name.encode()
    for number in (1, 12, 7):
        content = bytes((number << 3 | 2, len(content))) + content
    return content


def installed() -> dict[str, dict[str, Any]]:
    """The voices whose files are here, the one of the package first, with hibari's facts about each."""
    return {
        name: facts
        for name, facts in voices.VOICES.items()
        if facts.get("bundled") or Path(voices.cache_dir(), facts["file"]).is_file()
    }


def listed(facts: Mapping[str, Mapping[str, Any]]) -> tuple[Voice, ...]:
    """Given hibari's facts about each voice."""
    people = {"female": "woman", "male": "man"}
    return tuple(
        Voice(name, (CODES[fact["british"]],), f"{fact['accent']} {people[fact['gender']]}, natural")
        for name, fact in facts.items()
    )


def near(fact: Mapping[str, Any]) -> str:
    """The voice of espeak-ng beside a voice."""
    return f"{CODES[fact['british']]}+{NEAR[fact['gender']]}"


def aliases(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Voice names of other engines: women and men in turn, as far as there are any."""
    women = [name for name, fact in facts.items() if fact["gender"] == "female"]
    men = [name for name, fact in facts.items() if fact["gender"] == "male"]
    turns = {"f": cycle(women or men), "m": cycle(men or women)}
    return {name: next(turns["m" if like[0] == "m" else "f"]) for name, like in LIKE.items() if name not in facts}
