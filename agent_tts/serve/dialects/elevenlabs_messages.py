"""Messages of ElevenLabs' clients and to them, over WebSocket and HTTP. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from agent_tts.errors import UnsupportedFormat
from agent_tts.messages import Word
from agent_tts.options import SpeechOptions
from agent_tts.protocol.options import Lenient, limits
from agent_tts.protocol.v1 import MAX_ID
from agent_tts.serve.dictionaries import Dictionaries, LoadedDictionaries, Wanted
from agent_tts.serve.node import Node
from agent_tts.speech.words.spacing import Spacing

# Sent by clients whose user named no voice: Pipecat's class sends the first, LiveKit's the second.
PLACEHOLDER_VOICES = {"None", "hpp4J3VqNfWAUOO0d1Us"}

# What the names of ElevenLabs' own models begin with; they mean any model.
FOREIGN_MODELS = "eleven"

# Of a dialogue: different voices, and lines of one message or request.
MAX_VOICES, MAX_INPUTS = 10, 100

DEFAULT_FORMAT = "mp3_44100_128"
FORMATS = (
    *("mp3_22050_32", "mp3_24000_48", "mp3_44100", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96", "mp3_44100_128"),
    *("mp3_44100_192", "pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000"),
    *("ulaw_8000", "alaw_8000", "opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128"),
    "opus_48000_192",
)

# They are accepted over HTTP only.
WAV_FORMATS = tuple(f"wav_{rate}" for rate in (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000))
FILE_FORMATS = FORMATS + WAV_FORMATS

# What a format's name begins with: the encoding by this node's name, and the content type.
KINDS = {
    "mp3": ("mp3", "audio/mpeg"),
    "pcm": ("pcm_s16le", "audio/pcm"),
    "wav": ("pcm_s16le", "audio/wav"),
    "ulaw": ("mulaw", "audio/basic"),
    "alaw": ("alaw", "audio/x-alaw-basic"),
    "opus": ("ogg_opus", "audio/ogg"),
}


@dataclass(frozen=True, slots=True)
class AudioFormat:
    encoding: str
    sample_rate: int  # Hz
    bit_rate: int | None  # bits per second
    is_wav: bool
    content_type: str


class VoiceSettings(Lenient):
    """How to speak."""

    speed: float | None = Field(None, **limits("speed"))


class DictionaryLocator(Lenient):
    """A pronunciation dictionary, by default its latest version."""

    pronunciation_dictionary_id: str = Field(max_length=MAX_ID)
    version_id: str | None = Field(None, max_length=MAX_ID)


Locators = Annotated[list[DictionaryLocator], Field(max_length=3, fail_fast=True)]
TextNormalization = Literal["auto", "on", "off"]


def wanted_of(locators: list[DictionaryLocator] | None) -> Wanted:
    return [(each.pronunciation_dictionary_id, each.version_id) for each in locators or ()]


def lexicon_of(
    locators: list[DictionaryLocator] | None, dictionaries: Dictionaries | LoadedDictionaries
) -> dict[str, Any]:
    """The field of a session for dictionaries, of which the first counts. Raises `UnknownDictionary`."""
    wanted = wanted_of(locators)
    return {"lexicon": dictionaries.lexicon(wanted)} if wanted else {}


class ElevenLabsQuery(Lenient, strict=False):
    """The query of a WebSocket: strings."""

    model_id: str | None = None
    language_code: str | None = None
    output_format: str = DEFAULT_FORMAT
    seed: int | None = Field(None, **limits("seed"))
    auto_mode: bool = False  # every text is a sentence or a phrase
    sync_alignment: bool = False
    apply_text_normalization: TextNormalization = "auto"

    def session(self, voice: str | None) -> dict[str, Any]:
        """The fields of `session.update`; raises `UnsupportedFormat`."""
        audio = format_of(self.output_format, FORMATS)
        output = {"encoding": audio.encoding, "sample_rate": audio.sample_rate, "bit_rate": audio.bit_rate}
        return speech_of(self, voice) | {"output": output}


class ElevenLabsMessage(Lenient):
    text: str | None = None
    context_id: str | None = Field(None, max_length=MAX_ID, validation_alias=AliasChoices("context_id", "contextId"))
    voice_settings: VoiceSettings | None = None
    pronunciation_dictionary_locators: Locators | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Those of a new context."""
        return self.voice_settings.model_dump(exclude_none=True) if self.voice_settings else {}


class DialogueInput(Lenient):
    """A line of a dialogue; a voice of None is the engine's default."""

    text: str
    voice_id: str | None
    new_turn: bool | None = None


class DialogueMessage(ElevenLabsMessage):
    voices: Annotated[list[str | None], Field(min_length=1, max_length=MAX_VOICES, fail_fast=True)] | None = None
    inputs: Annotated[list[DialogueInput], Field(max_length=MAX_INPUTS, fail_fast=True)] | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"voice": voice_of(self.voices[0])} if self.voices else {}


class SpokenRequest(Lenient):
    """What the bodies of all HTTP requests that speak have in common."""

    model_id: str | None = Field(None, max_length=256, description="ElevenLabs' own names mean any")
    language_code: str | None = Field(None, max_length=64, description="default: the voice's")
    voice_settings: VoiceSettings | None = None
    seed: int | None = Field(None, **limits("seed"))
    apply_text_normalization: TextNormalization = Field("auto", description="auto: the node's setting")
    pronunciation_dictionary_locators: Locators | None = Field(None, description="the first one counts")

    def options(self, voice: str | None, node: Node) -> SpeechOptions:
        """The options of speech, unpaced. Raises `UnknownDictionary`."""
        speed = {} if self.voice_settings is None else self.voice_settings.model_dump(exclude_none=True)
        lexicon = lexicon_of(self.pronunciation_dictionary_locators, node.dictionaries)
        return node.unpaced(speech_of(self, voice) | speed | lexicon)


class ElevenLabsRequest(SpokenRequest):
    """The body of an HTTP request for one text."""

    text: str = Field(min_length=1, pattern=r"\S", description="text to speak")


class DialogueRequest(SpokenRequest):
    """The body of an HTTP request for a dialogue, whose lines are spoken one after another."""

    inputs: Annotated[list[DialogueInput], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]

    @property
    def text(self) -> str:
        return "".join(line.text for line in self.inputs)


def voice_of(voice_id: str | None) -> str | None:
    """A voice of the node by the name that a client sends; None is the engine's default."""
    return None if voice_id in PLACEHOLDER_VOICES else voice_id


def speech_of(asked: ElevenLabsQuery | SpokenRequest, voice_id: str | None) -> dict[str, Any]:
    """Options of speech; a voice of None is the engine's default, and a model of None is any."""
    model = asked.model_id
    normalize = asked.apply_text_normalization
    return {
        **({} if normalize == "auto" else {"normalize": normalize == "on"}),
        "voice": voice_of(voice_id),
        "model": None if model is None or model.startswith(FOREIGN_MODELS) else model,
        "language": asked.language_code or "auto",
        "seed": asked.seed,
    }


def format_of(output_format: str, allowed: tuple[str, ...] = FILE_FORMATS) -> AudioFormat:
    """What `codec_rate` or `codec_rate_kbps` means; raises `UnsupportedFormat` unless it is allowed."""
    if output_format not in allowed:
        raise UnsupportedFormat(f"output_format is one of {', '.join(allowed)}")
    kind, rate, *kbps = output_format.split("_")
    encoding, content_type = KINDS[kind]
    return AudioFormat(encoding, int(rate), int(kbps[0]) * 1_000 if kbps else None, kind == "wav", content_type)


@dataclass(frozen=True, slots=True)
class TimedCharacter:
    """A character of the text, in milliseconds from the first sample."""

    char: str
    start_ms: int
    end_ms: int


class CharacterTimes:
    """Spreads words over their characters: a word, a space, a word, a space; no space where the text has none.

    Any white space between words is told as one space, also after the last word: clients take it for the word's end.
    """

    def __init__(self, text: str = "", begin_ms: int = 0) -> None:
        # Of the context.
        self.spacing = Spacing(text)
        # Where its audio begins, which words count from.
        self.begin_ms = begin_ms
        # End of the last character: later times are never before it.
        self.end_ms = begin_ms

    def of(self, words: list[Word]) -> list[TimedCharacter]:
        """The characters of the next words; those of one word get the same duration."""
        told: list[TimedCharacter] = []
        for word in words:
            start = max(self.begin_ms + word.start_ms, self.end_ms)
            end = max(self.begin_ms + word.end_ms, start)
            text = word.word
            edges = [start + (end - start) * index // len(text) for index in range(len(text) + 1)]
            told += map(TimedCharacter, text, edges, edges[1:])
            told += [TimedCharacter(char, end, end) for char in self.spacing.after(word)]
            self.end_ms = end
        return told
