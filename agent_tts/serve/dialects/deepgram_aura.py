"""Deepgram's Aura: text and flushes on one connection, a `Flushed` for each (`/v1/speak`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping

from agent_tts.errors import UnknownType
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message
from agent_tts.protocol.context import AudioChunk
from agent_tts.serve.dialects.deepgram import (
    CLOSE_CODES,
    POLICY_VIOLATION,
    Query,
    Speak,
    check,
    described,
    model_uuid,
    session_of,
)
from agent_tts.serve.dialects.turns import Turns

TYPES = ("Speak", "Flush", "Clear", "Close")

# What the session echoes to the adapter, so that answers that need no work keep their place among the others.
CLEARED, FLUSHED, PROCEED = "Cleared", "Flushed", "proceed"


class AuraAdapter:
    """See `adapter.QueueingAdapter`."""

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self.closing: tuple[int, str] | None = None
        self._query = query
        self._aliases = aliases
        self._turns = Turns()
        # Answers to Flush and Clear so far.
        self._answers = 0

    def begin(self) -> Iterator[Message]:
        """See `Adapter.begin`."""
        yield protocol.build("session.update", session=session_of(check(Query, self._query), self._aliases))

    def decode(self, data: str | bytes) -> Iterator[Message]:
        """See `Adapter.decode`."""
        message = protocol.load(data)
        match message.get("type"):
            case "Speak":
                yield from self._turns.write(self._apart(check(Speak, message).text))
            case "Flush":
                # Without text before it, there is nothing to wait for but earlier flushes.
                yield _echo(FLUSHED if self._turns.speaking is None else PROCEED)
                yield from self._turns.flush()
            case "Clear":
                dropped = self._turns.drop()
                yield _echo(CLEARED)
                if dropped and dropped[0].context_id is not None:
                    yield protocol.build("context.cancel", context_id=dropped[0].context_id)
            case "Close":
                yield protocol.build("session.close")
            case "KeepAlive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(TYPES)}")

    def follow(self) -> Iterable[Message]:
        """See `QueueingAdapter.follow`."""
        return self._turns.follow()

    def encode(self, item: Message | AudioChunk) -> list[str | bytes]:
        """See `Adapter.encode`."""
        if isinstance(item, AudioChunk):
            return [item.payload] if item.payload and self._turns.of(item.context_id) is not None else []
        told: list[Message] = []
        match item["type"]:
            case "session.updated":
                told.append(self._metadata())
            case "context.done":
                self._turns.ended(item["context_id"], item["audio_ms"])
            case "pong" if item["t"] != PROCEED:
                told.append(self._answer(item["t"]))
            case "error":
                told += self._failed(item)
        while (turn := self._turns.finish()) is not None:
            told += [self._answer(FLUSHED) for _ in range(turn.flushes)]
        return [protocol.dump(message) for message in told]

    def _apart(self, text: str) -> str:
        """A text, kept from running into a sentence that was sent without the space behind it."""
        turn = self._turns.writing
        return f" {text}" if turn is not None and turn.tail in ".!?" and text[:1].isupper() else text

    def _answer(self, type_: str) -> Message:
        answer = protocol.build(type_, sequence_id=self._answers)
        self._answers += 1
        return answer

    def _metadata(self) -> Message:
        model = self._query.get("model") or "default"
        return protocol.build(
            "Metadata",
            request_id=str(uuid.uuid4()),
            model_name=model,
            model_version="1",
            model_uuid=model_uuid(model),
            additional_model_uuids=[],
        )

    def _failed(self, item: Message) -> list[Message]:
        code = item["code"]
        # The turn goes on with its next text; a context may end while a message for it is on its way.
        if code in ("starved", "unknown_context"):
            return []
        self.closing = CLOSE_CODES.get(code, POLICY_VIOLATION), code
        message = described(code, item["message"])
        return [protocol.build("Error", description=message, message=message, variant=code)]


def _echo(text: str) -> Message:
    return protocol.build("ping", t=text)
