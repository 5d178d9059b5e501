"""vLLM-Omni's WebSocket, `/v1/audio/speech/stream`: utterances one after another, in bytes or with times of words.

`split_granularity` is ignored: speech begins with the first words, and an utterance is one sentence to the client.
Baseten's deployments tell the times of words at the end of an utterance.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import BadMessage, SpeechError, Starved, UnknownContext, UnknownType, Unsupported, cut_short
from agent_tts.messages import Append, Audio, Cancel, End, Finished, Open, Word, Words
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Close, Command, Drop, Echo, Event, Failed, Later, ProtocolAdapter, Update
from agent_tts.protocol.options import Lenient, SpeakerEmbedding
from agent_tts.protocol.v1 import Message
from agent_tts.protocol.validation import check_message
from agent_tts.speech.audio.files import wav_header
from agent_tts.speech.words.due_words import DueWords
from agent_tts.voices import DESIGN

# The session's encoding and rate for each format.
FORMATS = {
    "pcm": ("pcm_s16le", SAMPLE_RATE),
    "wav": ("pcm_s16le", SAMPLE_RATE),
    "mp3": ("mp3", SAMPLE_RATE),
    "opus": ("ogg_opus", 48_000),
}


class VllmConfig(Lenient):
    """`session.config`. Unknown fields are ignored: many only concern vLLM's own stages."""

    model: str | None = None
    voice: str | None = Field(None, validation_alias=AliasChoices("voice", "speaker"))
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    language: str | None = None
    instructions: str | None = None
    response_format: Literal["wav", "pcm", "mp3", "opus"] = "wav"
    speed: float | None = None
    seed: int | None = None
    ref_audio: str | None = None
    speaker_embedding: SpeakerEmbedding | None = None
    stream_audio: bool = False
    word_timestamps: bool = False
    timestamp_type: Literal["word"] | None = None  # Baseten's: times in `audio.done`

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.stream_audio and self.response_format != "pcm":
            raise ValueError("stream_audio needs response_format pcm")
        if (self.word_timestamps or self.timestamp_type) and not self.stream_audio:
            raise ValueError("word_timestamps and timestamp_type need stream_audio")
        return self

    def session(self, lead_ms: int) -> Message:
        """The fields of `session.update`, all of them, so that earlier ones do not remain.

        `lead_ms` is of streamed audio. A file is made as fast as possible.
        """
        encoding, sample_rate = FORMATS[self.response_format]
        return {
            "model": self.model,
            "voice": DESIGN if self.task_type == "VoiceDesign" and self.voice is None else self.voice,
            "speaker_embedding": self.speaker_embedding,
            "language": self.language,
            "instructions": self.instructions,
            "speed": 1.0 if self.speed is None else self.speed,
            "seed": self.seed,
            "timestamps": "word" if self.word_timestamps or self.timestamp_type else "none",
            "output": {"encoding": encoding, "sample_rate": sample_rate, "framing": "binary"},
            "lead_ms": lead_ms if self.stream_audio else None,
        }


@dataclass(slots=True)
class _Utterance:
    """The text between two `input.done`."""

    index: int
    config: VllmConfig
    text: str = ""  # so far
    is_done: bool = False  # by the client
    is_over: bool = False  # spoken or failed
    is_starved: bool = False  # failed for lack of text, after all text so far was spoken
    bytes: int = 0  # of audio sent
    chunks: int = 0
    words: DueWords = field(default_factory=DueWords)
    # Words that have begun, their starts and their ends, as JSON: that of a long text takes milliseconds at once.
    aligned: tuple[list[str], list[str], list[str]] = field(default_factory=lambda: ([], [], []))

    @property
    def context_id(self) -> str:
        return f"utterance-{self.index}"

    def told(self, type_: str, **fields: Any) -> Message:
        return protocol.build(type_, utterance_index=self.index, **fields)

    def begun(self, audio_ms: float = math.inf) -> list[Word]:
        """The next words, which begin before `audio_ms`; none if no times were asked for."""
        words = self.words.due(audio_ms) if audio_ms < math.inf else self.words.rest()
        if self.config.timestamp_type is not None:
            for word in words:
                times = word.word, word.start_ms / 1_000, word.end_ms / 1_000
                for values, value in zip(self.aligned, times, strict=True):
                    values.append(json.dumps(value))
        return words

    def done(self, *, failed: bool) -> str:
        """`audio.done`, with the times of all words if they were asked for."""
        told = protocol.dump(self.told("audio.done", sentence_index=0, total_bytes=self.bytes, error=failed))
        if self.config.timestamp_type is None:
            return told
        self.begun()
        names = ("words", "word_start_times_seconds", "word_end_times_seconds")
        lists = ", ".join(f'"{name}": [{", ".join(values)}]' for name, values in zip(names, self.aligned, strict=True))
        return f'{told[:-1]}, "timestamp_info": {{"word_alignment": {{{lists}}}}}}}'


class VllmOmniAdapter(ProtocolAdapter):
    """See `ProtocolAdapter`. Messages that come while a complete utterance is spoken wait for its end."""

    def __init__(self, lead_ms: int) -> None:
        self._lead_ms = lead_ms  # of streamed audio
        # It is None before the first.
        self._config: VllmConfig | None = None
        # The one that is written or spoken, and its index; None before the next, which gets the index.
        self._utterance: _Utterance | None = None
        self._index = 0
        # A context that failed and may be open.
        self._failed: str | None = None

    # ------------------------------------------------------------ from the client

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = protocol.load(data)
        if message.get("type") == "input.cancel":
            yield from self._cancel()
        else:
            yield from self._take(message, len(data))

    def follow(self) -> list[Command]:
        failed, self._failed = self._failed, None
        return [] if failed is None else [Cancel(failed)]

    def _take(self, message: Message, chars: int) -> Iterator[Command]:
        if self._utterance is not None and self._utterance.is_done:
            yield Later(self._utterance.context_id, chars, self._take(message, chars))
        else:
            yield from self._dispatch(message)

    def _cancel(self) -> Iterator[Command]:
        utterance, index = self._utterance, self._index
        if utterance is not None:
            self._finish()
            yield Drop(utterance.context_id)
        # Before the cancel: if the context has ended meanwhile, the session refuses it and takes no further message.
        yield Echo(protocol.build("audio.cancelled", utterance_index=index, sentence_index=0, reason="client_cancel"))
        if utterance is not None and not utterance.is_over:
            yield Cancel(utterance.context_id)

    def _dispatch(self, message: Message) -> Iterator[Command]:
        match message.get("type"):
            case "session.config":
                yield from self._configure(message)
            case "session.close":
                yield Close()
            case "input.text" | "input.done" if self._config is None:
                self.closing = (1008, "session.config comes first")
                raise BadMessage("session.config comes first")
            case "input.text":
                yield from self._write(message.get("text"))
            case "input.done":
                yield self._end()
            case _:
                raise UnknownType("type is one of session.config, input.text, input.done, input.cancel, session.close")

    def _configure(self, message: Message) -> Iterator[Command]:
        if self._utterance is not None:
            raise BadMessage("session.config cannot change an utterance that has begun: send input.done first")
        config = check_message(VllmConfig, message)
        if config.ref_audio is not None:
            raise Unsupported("ref_audio: add the voice once, by POST /v1/audio/voices, and name it as voice")
        yield Update(config.session(self._lead_ms))
        self._config = config

    def _write(self, text: Any) -> Iterator[Command]:
        if not isinstance(text, str):
            raise BadMessage("input.text has a text, which is a string")
        if not text:
            return
        if self._utterance is None:
            assert self._config is not None
            self._utterance = _Utterance(self._index, self._config)
        if self._utterance.is_starved:  # it goes on
            self._utterance = _Utterance(self._utterance.index, self._utterance.config)
            yield Open(self._utterance.context_id, {})
        if not self._utterance.is_over:
            yield Append(self._utterance.context_id, text)
            self._utterance.text += text  # after the session has taken it, so that its limits hold here too

    def _end(self) -> Command:
        utterance = self._utterance
        if utterance is not None and not utterance.is_over:
            utterance.is_done = True
            return End(utterance.context_id)
        sentences = 0 if utterance is None else 1
        done = Echo(protocol.build("session.done", utterance_index=self._index, total_sentences=sentences))
        self._finish()
        return done

    def _finish(self) -> None:
        self._utterance = None
        self._index += 1

    # ------------------------------------------------------------ to the client

    def encode(self, event: Event) -> Iterator[str | bytes]:
        for answer in self._answers(event):
            yield answer if isinstance(answer, bytes | str) else protocol.dump(answer)

    def _answers(self, event: Event) -> Iterable[Message | str | bytes]:
        utterance = self._of(getattr(event, "id", None))
        match event:
            case Echo(item=answer):
                return [answer]
            case Failed() if not isinstance(event.error, UnknownContext):
                return self._error(event, utterance)
            case Audio() if utterance is not None:
                return _audio(utterance, event)
            case Words(words=words, kind=kind) if utterance is not None:
                utterance.words.learn(words, final=kind == "aligned")
            # An error was already told; the id may be in use again.
            case Finished(reason=reason, audio_ms=audio_ms) if utterance is not None and reason != "error":
                return self._cut(utterance, audio_ms) if reason == "length" else self._over(utterance)
        return ()

    def _of(self, context_id: str | None) -> _Utterance | None:
        """The utterance that a context speaks."""
        utterance = self._utterance
        return utterance if utterance is not None and utterance.context_id == context_id else None

    def _over(self, utterance: _Utterance, *, failed: bool = False) -> Iterator[Message | str]:
        if utterance.is_over:
            return
        utterance.is_over = True
        has_sound = utterance.chunks > 0
        if has_sound and utterance.config.word_timestamps:
            yield _sound(utterance, b"", utterance.begun())
        if has_sound or failed:
            if not has_sound:
                yield _start(utterance)
            yield utterance.done(failed=failed)
        if utterance.is_done:
            yield utterance.told("session.done", total_sentences=int(has_sound or failed))
            self._finish()

    def _cut(self, utterance: _Utterance, audio_ms: int) -> Iterator[Message | str]:
        yield _refusal(cut_short(audio_ms), utterance)
        yield from self._over(utterance, failed=True)

    def _error(self, failed: Failed, utterance: _Utterance | None) -> Iterator[Message | str]:
        yield _refusal(failed.error, utterance)
        if utterance is not None:
            if isinstance(failed.error, Starved):
                utterance.is_starved = not utterance.is_done
            elif not failed.ends:
                self._failed = utterance.context_id
            yield from self._over(utterance, failed=True)


def _refusal(error: SpeechError, utterance: _Utterance | None) -> Message:
    """An error, which also tells whether part of an utterance was sent."""
    partial = {"partial_audio": True, "action": "discard"} if utterance is not None and utterance.bytes else {}
    return protocol.build("error", message=error.message, code=error.code, **partial, **error.again)


def _audio(utterance: _Utterance, chunk: Audio[str]) -> Iterator[Message | bytes]:
    """The next audio, after `audio.start` if it is the first."""
    payload = chunk.payload
    if not payload:
        return
    if not utterance.chunks:
        yield _start(utterance)
        if utterance.config.response_format == "wav":
            payload = wav_header() + payload
    begun = utterance.begun((chunk.first_sample + len(chunk.payload) // 2) * 1_000 / SAMPLE_RATE)
    if utterance.config.word_timestamps:
        yield _sound(utterance, payload, begun)
        return
    utterance.chunks += 1
    utterance.bytes += len(payload)
    yield payload


def _start(utterance: _Utterance) -> Message:
    config = utterance.config
    fields: Message = {"sentence_index": 0, "sentence_text": utterance.text, "format": config.response_format}
    if config.response_format == "pcm":
        fields |= {"sample_rate": SAMPLE_RATE, "channels": 1}
    if config.word_timestamps:
        fields["word_timestamps"] = True
    return utterance.told("audio.start", **fields)


def _sound(utterance: _Utterance, pcm: bytes, words: list[Word]) -> Message:
    """A chunk of audio with the words that begin in it; the last chunk of an utterance has only words."""
    chunk_id, start = utterance.chunks, utterance.bytes
    utterance.chunks += 1
    utterance.bytes += len(pcm)
    times = [{"word": word.word, "start_ms": word.start_ms, "end_ms": word.end_ms} for word in words]
    return utterance.told(
        "audio.chunk",
        sentence_index=0,
        chunk_id=chunk_id,
        chunk_start_ms=_milliseconds(start),
        chunk_end_ms=_milliseconds(utterance.bytes),
        sample_rate=SAMPLE_RATE,
        channels=1,
        audio_b64=base64.b64encode(pcm).decode(),
        timestamps=times if times or not pcm else None,
    )


def _milliseconds(pcm_bytes: int) -> int:
    return round(pcm_bytes * 500 / SAMPLE_RATE)
