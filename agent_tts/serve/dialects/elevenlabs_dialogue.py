"""ElevenLabs' text-to-dialogue by WebSocket: lines in several voices, one stream of audio, times of characters."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import BadMessage, Starved, UnknownContext
from agent_tts.messages import Word
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Failed
from agent_tts.serve.dialects.elevenlabs import MAX_IDLE_CONTEXTS, MultiStreamAdapter, SpokenContext
from agent_tts.serve.dialects.elevenlabs_messages import DialogueMessage, ElevenLabsMessage, Locators, TimedCharacter
from agent_tts.serve.routes.speech_response import AudioBody


@dataclass(slots=True, eq=False)
class _Dialogue:
    """A context of the client: contexts of `MultiStreamAdapter` of the same name, one after another."""

    locators: Locators | None
    voice: str | None = None  # of the last line
    is_closed: bool = False  # no more lines come
    body: AudioBody | None = None  # all of its audio; None before the first
    # Of the context that is spoken: audio before the next message, and the end of the characters so far, ms.
    sent_ms: int = 0
    told_ms: int = 0
    has_space: bool = False  # white space behind the last word waits for the next word


class DialogueAdapter(MultiStreamAdapter):
    """`text-to-dialogue`, `stream-input` and `multi-stream-input`. See `ProtocolAdapter`.

    A close speaks everything, and nothing but the end of the connection cancels. So the audio is not paced: the slot of
    a reply that was interrupted is free as soon as its text is spoken. A line in another voice, and a new turn, wait
    for what was before them. What is starved has been spoken, and the next line begins anew.
    """

    _message_type = DialogueMessage
    _speaks_all = True
    _times = "char_start_times_ms", "char_durations_ms"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._dialogues: dict[str | None, _Dialogue] = {}
        self._output: dict[str, Any] = {}  # the format
        # Names of those that have failed, whose lines may still come.
        self._failed: deque[str | None] = deque(maxlen=MAX_IDLE_CONTEXTS)

    def _configured(self, session: dict[str, Any]) -> dict[str, Any]:
        self._output, self._rate = session.pop("output"), SAMPLE_RATE
        return session | {"lead_ms": None}

    # ------------------------------------------------------------ from the client

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = self._parse(data)
        assert isinstance(message, DialogueMessage)
        if message.close_socket:
            for name in list(self._dialogues):
                yield from self._finish(name)
            yield from self._take(message)
            return
        name, inputs, dialogue = message.context_id, message.inputs or [], self._dialogues.get(message.context_id)
        if dialogue is None and message.voices:
            dialogue = self._dialogues[name] = _Dialogue(message.pronunciation_dictionary_locators)
            if len(self._dialogues) > MAX_IDLE_CONTEXTS:
                del self._dialogues[next(iter(self._dialogues))]
        if dialogue is None or dialogue.is_closed:
            if inputs and name not in self._failed:
                raise BadMessage("inputs: a context begins with its voices, and a close is its end")
            return
        for line in inputs:
            if line.voice_id != dialogue.voice or line.new_turn:
                if not line.text.strip():
                    continue
                dialogue.voice = line.voice_id
                yield from self._take(DialogueMessage(context_id=name, close_context=True))
            said = DialogueMessage(context_id=name, text=line.text, voices=[line.voice_id])
            yield from self._take(said.model_copy(update={"pronunciation_dictionary_locators": dialogue.locators}))
        if message.flush:
            yield from self._take(DialogueMessage(context_id=name, flush=True))
        if message.close_context:
            yield from self._finish(name)

    def _finish(self, name: str | None) -> Iterator[Command]:
        dialogue = self._dialogues.get(name)  # it may fail while a message is obeyed
        if dialogue is not None and not dialogue.is_closed:
            dialogue.is_closed = True
            yield from self._take(DialogueMessage(context_id=name, close_context=True))

    def _dispatch(self, message: ElevenLabsMessage) -> Iterator[Command]:
        name, dialogue = message.context_id, self._dialogues.get(message.context_id)
        if dialogue is not None:  # else it has failed
            if dialogue.is_closed and message.close_context and name not in self._named:
                self._begin(name)
            yield from super()._dispatch(message)

    # ------------------------------------------------------------ to the client

    def _tell(self, context: SpokenContext, at_ms: float, words: list[Word], payload: bytes = b"") -> Iterator[str]:
        """Times count from the message's audio, as LiveKit's class takes them.

        Pipecat's counts from the end of the characters before. So white space is told with the next word, or at the
        end, and lasts as long as the audio behind its word: then both count from the same place.
        """
        dialogue = self._dialogues.get(context.name)
        if dialogue is None:
            return
        dialogue.sent_ms = round(at_ms)
        if words:
            yield from self._space(context, dialogue)
        if payload:
            dialogue.body = dialogue.body or AudioBody(**self._output)
        yield from super()._tell(context, at_ms, words, dialogue.body.audio(payload) if dialogue.body else b"")
        if not payload:
            yield from self._space(context, dialogue)
            dialogue.told_ms = 0

    def _alignment(self, context: SpokenContext, words: list[Word]) -> dict[str, Any] | None:
        dialogue = self._dialogues[context.name]
        characters = context.characters.of(words) if self._is_synced else []
        if characters and characters[-1].char.isspace():
            characters.pop()
            dialogue.has_space = True
        if characters:
            dialogue.told_ms += characters[-1].end_ms - dialogue.sent_ms
        return self._aligned(characters, dialogue.sent_ms)

    def _space(self, context: SpokenContext, dialogue: _Dialogue) -> Iterator[str]:
        if dialogue.has_space:
            dialogue.has_space = False
            gap_ms = max(0, dialogue.sent_ms - dialogue.told_ms)
            dialogue.told_ms += gap_ms
            yield self._message(context, "", self._aligned([TimedCharacter(" ", 0, gap_ms)], 0))

    def _final(self, context: SpokenContext) -> Iterator[str]:
        dialogue = self._dialogues.get(context.name)
        if dialogue is not None and dialogue.is_closed and context.name not in self._waiting:
            del self._dialogues[context.name]
            if dialogue.body is not None and (rest := dialogue.body.end()):
                yield self._message(context, base64.b64encode(rest).decode())
        yield from super()._final(context)

    def _message(self, context: SpokenContext, audio: str | None, alignment: dict[str, Any] | None = None) -> str:
        if audio is not None:
            return self._dump(context, {"audio": audio or None, "alignment": alignment, "normalized_alignment": None})
        is_over = context.name not in self._dialogues
        return self._dump(context, {"is_final" if is_over else "is_final_audio_for_turn": True})

    def _error(self, context: SpokenContext | None, failed: Failed) -> Iterator[str]:
        if context is not None and isinstance(failed.error, Starved):
            context.state = "cancelled"
            return
        if context is not None and not isinstance(failed.error, UnknownContext):
            self._dialogues.pop(context.name, None)
            self._failed.append(context.name)
            self._named.pop(context.name, None)
        yield from super()._error(context, failed)

    def _dump(self, context: SpokenContext, fields: dict[str, Any]) -> str:
        return protocol.dump(fields | {"context_id": context.name})
