"""What Deepgram's two WebSocket protocols and its HTTP API share: the query, voices, errors. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping

from pydantic import Field

from agent_tts.errors import UnsupportedFormat
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message, QueueingAdapter
from agent_tts.protocol.context import AudioChunk
from agent_tts.protocol.options import Lenient
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.utterance_queue import UtteranceQueue
from agent_tts.speech.routing import ANY_NAME

# What Pipecat's and LiveKit's classes send when their user names no voice.
STOCK_MODELS = frozenset({"aura-2-helena-en", "aura-2-andromeda-en", "flux-heather-en", "flux-alexis-en"})

# Encodings of raw audio by Deepgram's names: this node's name, and the default rate in Hz.
ENCODINGS = {"linear16": ("pcm_s16le", 24_000), "mulaw": ("mulaw", 8_000), "alaw": ("alaw", 8_000)}

# Close codes after errors; others are POLICY_VIOLATION.
CLOSE_CODES = {"at_capacity": 1013, "draining": 1012, "engine_lost": 1011, "internal": 1011, "slow_consumer": 1011}
POLICY_VIOLATION = 1008


class DeepgramQuery(Lenient, strict=False):
    """The query of a connection or request."""

    model: str | None = Field(None, max_length=256)  # the voice
    encoding: str | None = None
    sample_rate: int | None = None
    speed: float | None = Field(None, allow_inf_nan=False)

    def session(self, aliases: Mapping[str, str]) -> Message:
        """Voice and speed as fields of a session; a voice of None is the engine's default.

        Args:
            aliases: of the node's settings: an alias for one of `STOCK_MODELS` is used.
        """
        is_stock = self.model in STOCK_MODELS and self.model not in aliases and ANY_NAME not in aliases
        speed = {} if self.speed is None else {"speed": self.speed}
        return {"voice": None if is_stock else self.model or None, **speed}

    def raw_format(self) -> tuple[str, int]:
        """Encoding, by this node's name, and sample rate (Hz) of raw audio.

        Raises:
            UnsupportedFormat: says which encodings there are.
        """
        if (found := ENCODINGS.get(self.encoding or "linear16")) is None:
            raise UnsupportedFormat(f"encoding of raw audio is one of {', '.join(ENCODINGS)}")
        encoding, usual_rate = found
        return encoding, usual_rate if self.sample_rate is None else self.sample_rate


class SpeakMessage(Lenient):
    """A `Speak` message."""

    text: str


def described(code: str, message: str) -> str:
    """The text of an error; for an unknown voice also what the node's operator can do."""
    if code == "unknown_voice":
        return f"{message}; voice_aliases, a setting of the node, gives voices other names"
    return message


def model_uuid(model: str) -> str:
    """A model's id, derived from its name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, model))


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

    def _answers(self, item: Message) -> list[Message]:
        """What the client is told of a message of the session."""
        raise NotImplementedError

    def _described_model(self) -> dict[str, str]:
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
