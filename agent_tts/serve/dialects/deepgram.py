"""Deepgram: what its WebSocket protocols and its HTTP API share, and Aura's protocol, `/v1/speak`. Pure."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import Field

from agent_tts.errors import BadMessage, UnknownType, UnsupportedFormat, cut_short
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message, QueueingAdapter
from agent_tts.protocol.context import AudioChunk
from agent_tts.protocol.options import Lenient
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.text import WaitingBudget
from agent_tts.speech.routing import ANY_NAME

# What Pipecat's and LiveKit's classes send when their user names no voice.
STOCK_MODELS = frozenset({"aura-2-helena-en", "aura-2-andromeda-en", "flux-heather-en", "flux-alexis-en"})

# Encodings of raw audio by Deepgram's names: this node's name, and the default rate in Hz.
ENCODINGS = {"linear16": ("pcm_s16le", 24_000), "mulaw": ("mulaw", 8_000), "alaw": ("alaw", 8_000)}

# Close codes after errors; others are POLICY_VIOLATION.
CLOSE_CODES = {"at_capacity": 1013, "draining": 1012, "engine_lost": 1011, "internal": 1011, "slow_consumer": 1011}
POLICY_VIOLATION = 1008

MAX_FLUSHES = 1_000  # of one utterance

AURA_TYPES = ("Speak", "Flush", "Clear", "Close")


class DeepgramQuery(Lenient, strict=False):
    """The query of a connection or request."""

    model: str | None = Field(None, max_length=256)  # the voice
    encoding: str | None = None
    sample_rate: int | None = None
    speed: float | None = Field(None, allow_inf_nan=False)

    def session(self, aliases: Mapping[str, str]) -> Message:
        """Voice and speed as fields of a session. Of `STOCK_MODELS` only names in the node's `aliases` are voices."""
        is_stock = self.model in STOCK_MODELS and self.model not in aliases and ANY_NAME not in aliases
        speed = {} if self.speed is None else {"speed": self.speed}
        return {"voice": None if is_stock else self.model or None, **speed}

    def raw_format(self) -> tuple[str, int]:
        """Encoding, by this node's name, and sample rate (Hz) of raw audio; raises `UnsupportedFormat`."""
        if (found := ENCODINGS.get(self.encoding or "linear16")) is None:
            raise UnsupportedFormat(f"encoding of raw audio is one of {', '.join(ENCODINGS)}")
        encoding, usual_rate = found
        return encoding, usual_rate if self.sample_rate is None else self.sample_rate


class SpeakMessage(Lenient):
    text: str


def described(code: str, message: str) -> str:
    """The text of an error; for an unknown voice also what the node's operator can do."""
    if code == "unknown_voice":
        return f"{message}; voice_aliases, a setting of the node, gives voices other names"
    return message


def cut_short_warning(audio_ms: int) -> Message:
    """Tells that a context ended with `length`, after `audio_ms` of speech."""
    error = cut_short(audio_ms)
    return protocol.build("Warning", description=error.message, code=error.code.upper())


def model_uuid(model: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, model))


@dataclass(slots=True, eq=False)
class QueuedUtterance:
    """A text up to its flush, spoken as one context, or as several if text comes too late for one."""

    context_id: str | None = None  # of the context that speaks it; None while it waits for its turn or for more text
    waiting: list[str] = field(default_factory=list)  # texts that no context has
    chars: int = 0  # text so far
    tail: str = ""  # its last character
    flushes: int = 0  # sent by the client; the first one completes the text
    audio_ms: int = 0  # of contexts that have ended


class UtteranceQueue:
    """The utterances of one connection, in their order. Only the first has a context."""

    def __init__(self) -> None:
        self._utterances: deque[QueuedUtterance] = deque()
        self._budget = WaitingBudget("too much text waits for earlier turns to be spoken: send it when some have been")
        # Number of the last context.
        self._context_no = 0

    @property
    def speaking(self) -> QueuedUtterance | None:
        return self._utterances[0] if self._utterances else None

    @property
    def writing(self) -> QueuedUtterance | None:
        """The utterance that further text belongs to; None if further text begins one."""
        return self._utterances[-1] if self._utterances and not self._utterances[-1].flushes else None

    def of(self, context_id: str | None) -> QueuedUtterance | None:
        """The utterance that a context speaks; None if it was dropped."""
        first = self.speaking
        return first if first is not None and context_id is not None and first.context_id == context_id else None

    def write(self, text: str) -> list[Message]:
        """Add text; raises `TextTooLong` when too much of it waits for earlier utterances."""
        if not text:
            return []
        self._budget.add(len(text))
        utterance = self.writing
        if utterance is None:
            utterance = QueuedUtterance()
            self._utterances.append(utterance)
        utterance.chars += len(text)
        utterance.tail = text[-1]
        utterance.waiting.append(text)
        return self.follow()

    def flush(self) -> list[Message]:
        """Complete the last utterance, if there is one; raises `BadMessage` when too many flushes wait for it."""
        if not self._utterances:
            return []
        utterance = self._utterances[-1]
        if utterance.flushes >= MAX_FLUSHES:
            raise BadMessage(f"{MAX_FLUSHES} flushes wait for the same audio")
        utterance.flushes += 1
        if utterance.flushes == 1 and utterance.context_id is not None:
            return [protocol.build("context.end", context_id=utterance.context_id)]
        return []

    def drop(self) -> list[QueuedUtterance]:
        """Forget all utterances; the caller cancels the first one's context."""
        dropped = list(self._utterances)
        self._utterances.clear()
        self._budget.clear()
        return dropped

    def ended(self, context_id: str, audio_ms: int) -> None:
        """A context has ended, for whatever reason."""
        if (utterance := self.of(context_id)) is not None:
            utterance.context_id = None
            utterance.audio_ms += audio_ms

    def finish(self) -> QueuedUtterance | None:
        """Forget and return the first utterance if all of it has been spoken; otherwise None."""
        first = self.speaking
        if first is None or not first.flushes or first.context_id is not None or first.waiting:
            return None
        self._utterances.popleft()
        return first

    def follow(self) -> list[Message]:
        """What to tell the session now: the texts of the first utterance."""
        first = self.speaking
        if first is None or not first.waiting:
            return []
        if first.context_id is None:
            self._context_no += 1
            first.context_id = str(self._context_no)
        ready = [protocol.build("text.append", context_id=first.context_id, text=text) for text in first.waiting]
        if first.flushes:
            ready.append(protocol.build("context.end", context_id=first.context_id))
        for text in first.waiting:
            self._budget.remove(len(text))
        first.waiting.clear()
        return ready


class DeepgramAdapter(QueueingAdapter):
    """What Aura and Flux share."""

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        super().__init__()
        self._query = query
        self._aliases = aliases
        self._queue = UtteranceQueue()

    def begin(self) -> Iterator[Message]:
        query = check_message(DeepgramQuery, self._query)
        encoding, sample_rate = query.raw_format()
        output = {"encoding": encoding, "sample_rate": sample_rate}
        # No message of these protocols has times of words.
        session = query.session(self._aliases) | {"timestamps": "none", "output": output}
        yield protocol.build("session.update", session=session)

    def follow(self) -> Iterable[Message]:
        return self._queue.follow()

    def encode(self, item: Message | AudioChunk) -> list[str | bytes]:
        if isinstance(item, AudioChunk):
            return [item.payload] if item.payload and self._queue.of(item.context_id) is not None else []
        return [protocol.dump(message) for message in self._answers(item)]

    def _answers(self, item: Message) -> Iterator[Message]:
        """What the client is told of a message of the session."""
        raise NotImplementedError

    def _described_model(self) -> Message:
        name = self._query.get("model") or "default"
        return {
            "request_id": str(uuid.uuid4()),
            "model_name": name,
            "model_version": "1",
            "model_uuid": model_uuid(name),
        }

    def _closes(self, code: str, reason: str) -> bool:
        """Whether an error ends the connection; `closing` is set then.

        After `starved` the utterance goes on with its next text; after `unknown_context` the context has ended while a
        message for it was on its way.
        """
        if code in ("starved", "unknown_context"):
            return False
        self.closing = CLOSE_CODES.get(code, POLICY_VIOLATION), reason
        return True


class AuraAdapter(DeepgramAdapter):
    """Text and flushes on one connection, a `Flushed` for each flush."""

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        super().__init__(query, aliases)
        # Answers to Flush and Clear so far.
        self._answered = 0

    def decode(self, data: str | bytes) -> Iterator[Message]:
        message = protocol.load(data)
        match message.get("type"):
            case "Speak":
                yield from self._queue.write(self._apart(check_message(SpeakMessage, message).text))
            case "Flush":
                # Without text before it, only earlier flushes are answered first.
                yield self._note(protocol.build("Flushed") if self._queue.speaking is None else None)
                yield from self._queue.flush()
            case "Clear":
                dropped = self._queue.drop()
                yield self._note(protocol.build("Cleared"))
                if dropped and dropped[0].context_id is not None:
                    yield protocol.build("context.cancel", context_id=dropped[0].context_id)
            case "Close":
                yield protocol.build("session.close")
            case "KeepAlive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(AURA_TYPES)}")

    def _answers(self, item: Message) -> Iterator[Message]:
        match item["type"]:
            case "session.updated":
                yield protocol.build("Metadata", **self._described_model(), additional_model_uuids=[])
            case "context.done":
                self._queue.ended(item["context_id"], item["audio_ms"])
                if item["reason"] == "length":
                    yield cut_short_warning(item["audio_ms"])
            case "pong" if (note := self._notes.popleft()) is not None:
                yield self._numbered(note)
            case "error" if self._closes(item["code"], item["code"]):
                message = described(item["code"], item["message"])
                yield protocol.build("Error", description=message, message=message, variant=item["code"])
        while (utterance := self._queue.finish()) is not None:
            for _ in range(utterance.flushes):
                yield self._numbered(protocol.build("Flushed"))

    def _apart(self, text: str) -> str:
        """The text, after a space if it begins a sentence and the text before it ended one without white space."""
        utterance = self._queue.writing
        return f" {text}" if utterance is not None and utterance.tail in ".!?" and text[:1].isupper() else text

    def _numbered(self, answer: Message) -> Message:
        answer["sequence_id"] = self._answered
        self._answered += 1
        return answer
