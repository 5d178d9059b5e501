"""Deepgram's Aura: text and flushes on one connection, a `Flushed` for each (`/v1/speak`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent_tts.errors import UnknownType
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.deepgram import DeepgramAdapter, SpeakMessage, described

TYPES = ("Speak", "Flush", "Clear", "Close")


class AuraAdapter(DeepgramAdapter):
    """See `QueueingAdapter`."""

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
                raise UnknownType(f"type is one of {', '.join(TYPES)}")

    def _answers(self, item: Message) -> list[Message]:
        told: list[Message] = []
        match item["type"]:
            case "session.updated":
                told.append(protocol.build("Metadata", **self._described_model(), additional_model_uuids=[]))
            case "context.done":
                self._queue.ended(item["context_id"], item["audio_ms"])
            case "pong" if (note := self._notes.popleft()) is not None:
                told.append(self._numbered(note))
            case "error" if self._closes(item["code"], item["code"]):
                message = described(item["code"], item["message"])
                told.append(protocol.build("Error", description=message, message=message, variant=item["code"]))
        while (utterance := self._queue.finish()) is not None:
            told += [self._numbered(protocol.build("Flushed")) for _ in range(utterance.flushes)]
        return told

    def _apart(self, text: str) -> str:
        """The text, after a space if it begins a sentence and the text before it ended one without white space."""
        utterance = self._queue.writing
        return f" {text}" if utterance is not None and utterance.tail in ".!?" and text[:1].isupper() else text

    def _numbered(self, answer: Message) -> Message:
        answer["sequence_id"] = self._answered
        self._answered += 1
        return answer
