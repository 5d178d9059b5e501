"""The rules of one conversation in OpenAI's Realtime API. Pure: it does no I/O and knows no clock.

Each method appends messages for the client to `Conversation.events`, and what is to be done to `Conversation.orders`.
"""

from __future__ import annotations

import base64
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_tts.agent.realtime.shapes import (
    AppendedAudio,
    CreateItem,
    Event,
    ItemId,
    ItemReference,
    NewItem,
    RealtimeError,
    RealtimeFormat,
    ResponseExtras,
    SemanticVad,
    ServerVad,
    SessionSettings,
    SharedSettings,
    Truncate,
    audio_of,
    checked,
    decode_audio,
    from_beta,
    item_from_beta,
    merged,
    to_beta,
)
from agent_tts.errors import SpeechError
from agent_tts.integrations.pipecat.words import SpokenWord
from agent_tts.protocol import v1 as protocol
from agent_tts.speech.audio.encoding import Transcoder
from agent_tts.voices import OPENAI_VOICES

MIN_COMMIT_MS = 100  # OpenAI's
MAX_ITEMS = 1_000  # of a conversation
MAX_CHARS = 400_000  # of its texts, and of those that a response names; the oldest items are forgotten
MAX_INPUT = 256  # items that a response names: each takes some microseconds of the event loop
MAX_MESSAGE = 65_536  # characters of a message without audio: what it asks for may be echoed
MAX_TURN_MS = 120_000  # a longer turn is cut here
MAX_PENDING, MAX_PENDING_MS = 16, 2 * MAX_TURN_MS  # turns whose words are being recognised, and their audio: 8 MB

Detection = ServerVad | SemanticVad


@dataclass(frozen=True, slots=True)
class Hear:
    """More audio of the user."""

    audio: bytes
    format: RealtimeFormat


@dataclass(frozen=True, slots=True)
class Recognise:
    """Recognise the words of a turn: of `audio`, or of all that was heard since the last turn."""

    item_id: str
    audio: Hear | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop what was heard since the last turn."""


@dataclass(frozen=True, slots=True)
class Detect:
    """How turns are detected from now on; None: the client commits them."""

    detection: Detection | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Have the language model answer, and speak the answer if `settings.speaks`."""

    settings: SharedSettings
    instructions: str  # the system prompt
    messages: list[dict[str, Any]]  # of chat completions


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the answer; nothing of it is wanted any more."""


@dataclass(frozen=True, slots=True)
class Hush:
    """Drop the sound that waits to be played. `Conversation.hushed` tells what was played."""


Order = Hear | Recognise | Forget | Detect | Answer | Stop | Hush


@dataclass(slots=True, eq=False)
class Item:
    """One entry of the conversation."""

    id: str
    type: str  # message, function_call, function_call_output
    role: str | None = None
    status: str = "completed"
    part: str = "input_text"  # type of a message's content
    text: str = ""  # or the transcript
    is_pending: bool = False  # the user's words are being recognised
    heard: Hear | None = None  # audio of the client whose recognition is not ordered yet
    heard_ms: float = 0.0  # of audio to recognise
    answers: bool = False  # the words, once they are recognised, begin a response
    words: list[tuple[float, str]] = field(default_factory=list)  # of spoken text: when each begins, ms
    audio_ms: float = 0.0  # sent to the client
    call_id: str = ""
    name: str = ""

    @property
    def is_audio(self) -> bool:
        return self.part.endswith("_audio")

    def content(self) -> dict[str, Any]:
        if not self.is_audio:
            return {"type": self.part, "text": self.text}
        return {"type": self.part, "transcript": None if self.is_pending else self.text}

    def wire(self, *, empty: bool = False) -> dict[str, Any]:
        """The item as clients get it; `empty`: without what is still to come."""
        found: dict[str, Any] = {"id": self.id, "object": "realtime.item", "type": self.type, "status": self.status}
        match self.type:
            case "message":
                return found | {"role": self.role, "content": [] if empty else [self.content()]}
            case "function_call":
                return found | {"call_id": self.call_id, "name": self.name, "arguments": "" if empty else self.text}
            case _:
                return found | {"call_id": self.call_id, "output": self.text}


@dataclass(slots=True, eq=False)
class Response:
    """An answer that is being made."""

    id: str
    settings: SharedSettings
    extras: ResponseExtras
    input: list[Item]  # what is asked
    is_of_conversation: bool  # whether `input` is the conversation at the response's beginning
    output: list[Item] = field(default_factory=list)
    message: Item | None = None  # the text or speech of it, once there is any
    encoder: Transcoder | None = None
    is_asked: bool = False  # the language model was asked
    incomplete: dict[str, Any] | None = None  # `status_details` if the language model ended it early
    began_ms: float = 0.0  # where its sound begins, on the clock of the user's audio
    latencies: dict[str, str] = field(default_factory=dict)  # what its metadata tell besides the client's


def read(data: str | bytes) -> Event | RealtimeError:
    """One message of the client, with its audio decoded, or what is wrong with it; long ones take milliseconds."""
    try:
        message = protocol.load(data)
    except SpeechError as error:
        return RealtimeError("invalid_json", error.message)
    if len(data) - decode_audio(message) > MAX_MESSAGE:
        wrong = RealtimeError("string_above_max_length", f"a message has at most {MAX_MESSAGE} characters")
        wrong.event_id = message.get("event_id")
        return wrong
    return message


class Conversation:
    """One session.

    Args:
        session: its settings at the start.
        check_voice: raises `SpeechError` for a voice that the node lacks.
        deaf: why no speech is recognised; None if it is.
        make_id: a new id that begins with its argument.
        beta: speak the names of the API's beta.
        plays: the sound of answers is not sent in messages but played to the client, as over WebRTC: the session tells
            what was played, and the conversation which sound begins and ends.
    """

    def __init__(
        self,
        session: SessionSettings,
        check_voice: Callable[[str], object],
        deaf: str | None,
        make_id: Callable[[str], str],
        *,
        beta: bool = False,
        plays: bool = False,
    ) -> None:
        self.session = session
        self._check_voice = check_voice
        self._deaf = deaf
        self._make_id = make_id
        self._beta = beta
        self._plays = plays
        # Messages for the client and things to do, oldest first; the caller takes them.
        self.events: deque[Event] = deque()
        self.orders: deque[Order] = deque()
        # The conversation, in its order.
        self._items: list[Item] = []
        # The answer that is being made; None between answers.
        self.response: Response | None = None
        # Answers that were stopped.
        self.stops = 0
        # Audio since the last turn, ms.
        self._heard_ms = 0.0
        # The item of the turn that is being spoken, by the turn detector.
        self._turn_id: str | None = None
        # Whether the user's last words are to be answered when the turn that is being spoken ends.
        self._is_asked = False
        # Turns that are being recognised, those of deleted items included, the oldest first: how long they are, ms.
        self._recognising: deque[float] = deque()
        # Answers whose sound is being played or waits for it, by the ids of their responses.
        self._playing: dict[str, Item] = {}
        # The user's audio so far, ms; and where in it the last answer or voice ended, None if nobody is waited for.
        self._at_ms = 0.0
        self._quiet_from_ms: float | None = None
        # Whether the client was told that nothing is heard.
        self._told_deaf = False
        self._id = make_id("sess")
        self._conversation_id = make_id("conv")
        self._numbers = itertools.count()

    def begin(self) -> None:
        """The first messages."""
        self._tell("session.created", session=self.session.described(self._id))
        if self._beta:
            self._tell(
                "conversation.created", conversation={"id": self._conversation_id, "object": "realtime.conversation"}
            )
        self._detect()

    # ------------------------------------------------------------ the client's side

    def receive(self, message: Event | RealtimeError) -> None:
        """Take one message of the client, as `read` has it. What is wrong with it is an event."""
        if isinstance(message, RealtimeError):
            self._send(message.event(message.event_id))
            return
        try:
            self._receive(message)
        except RealtimeError as error:
            self._send(error.event(message.get("event_id")))

    def _receive(self, message: Event) -> None:
        match message.get("type"):
            case "session.update" | "transcription_session.update" as kind:
                if kind != "session.update" and self.session.responds:
                    raise RealtimeError("invalid_value", "this is no transcription session", "type")
                self._update(message.get("session"))
            case "input_audio_buffer.append":
                audio = message.get("audio")
                audio = audio_of(audio if isinstance(audio, bytes) else checked(AppendedAudio, message).audio)
                self._hear(audio, self.session.audio.input.format)
            case "input_audio_buffer.commit":
                self._commit()
            case "input_audio_buffer.clear":
                self._heard_ms, self._turn_id = 0.0, None
                self.orders.append(Forget())
                self._tell("input_audio_buffer.cleared")
                self._answer_turn()
            case "conversation.item.create":
                self._create(message)
            case "conversation.item.retrieve":
                item = self._item(checked(ItemId, message).item_id, "item_retrieve_invalid_item_id")
                self._tell("conversation.item.retrieved", item=item.wire())
            case "conversation.item.delete":
                self._delete(checked(ItemId, message).item_id)
            case "conversation.item.truncate":
                self._truncate(checked(Truncate, message))
            case "response.create":
                self._ask(message.get("response") or {})
            case "response.cancel":
                if self.response is None or message.get("response_id") not in (None, self.response.id):
                    raise RealtimeError("response_cancel_not_active", "Cancellation failed: no active response found")
                self._cancel("client_cancelled")
            case "output_audio_buffer.clear":
                if not self._plays:
                    raise RealtimeError("invalid_value", "output_audio_buffer.clear is for WebRTC", "type")
                self._hush("client_cancelled")
            case kind:
                raise RealtimeError("invalid_value", f"type: {str(kind)[:64]!r} is not known", "type")

    def _update(self, given: object) -> None:
        if not isinstance(given, dict):
            raise RealtimeError("missing_required_parameter", "session: an object is needed", "session")
        session: SessionSettings = merged(self.session, from_beta(given), "session")
        if session.type != self.session.type:
            raise RealtimeError("invalid_value", "session.type: a session keeps its type", "session.type")
        self._check(session, "session")
        # The model is that of the connection, if it names one.
        self.session = session.model_copy(update={"model": self.session.model or session.model})
        self._detect()
        self._tell("session.updated", session=self.session.described(self._id))

    def _check(self, settings: SharedSettings, place: str) -> None:
        voice = settings.audio.output.voice
        if voice is None:
            return
        try:
            self._check_voice(voice)
        except SpeechError as error:
            if voice not in OPENAI_VOICES:
                param = f"{place}.audio.output.voice"
                raise RealtimeError(error.code, error.message, param, error.retry_after_ms) from None

    def _detect(self) -> None:
        detection = None if self._deaf else self.session.audio.input.turn_detection
        self.orders.append(Detect(detection))
        if detection is None:
            self._turn_id = None
            self._answer_turn()

    # ------------------------------------------------------------ the user's speech

    def heard(self, pcm: bytes) -> None:
        """More audio of the user that comes in no message: 24 kHz pcm_s16le."""
        try:
            self._hear(pcm, RealtimeFormat())
        except RealtimeError as error:
            self._send(error.event(None))

    def _hear(self, audio: bytes, form: RealtimeFormat) -> None:
        if self._deaf is not None:
            if not self._told_deaf:
                self._told_deaf = True
                raise RealtimeError("speech_recognition_unavailable", self._deaf)
            return
        self._heard_ms += form.ms(len(audio))
        self.orders.append(Hear(audio, form))

    def _commit(self) -> None:
        if self._deaf is not None:
            raise RealtimeError("speech_recognition_unavailable", self._deaf)
        if self._heard_ms < MIN_COMMIT_MS:
            raise RealtimeError(
                "input_audio_buffer_commit_empty",
                f"Error committing input audio buffer: buffer too small. Expected at least {MIN_COMMIT_MS}ms of audio, "
                f"but buffer only has {self._heard_ms:.2f}ms of audio.",
            )
        self._turn(answers=False)

    def _turn(self, *, answers: bool) -> None:
        """What was heard is a turn of the user."""
        item_id = self._turn_id or self._make_id("item")
        item = Item(item_id, "message", "user", part="input_audio", is_pending=True, answers=answers)
        item.heard_ms = min(self._heard_ms, MAX_TURN_MS)
        self._check_recogniser(item)
        self._turn_id, self._heard_ms = None, 0.0
        last_id = self._items[-1].id if self._items else None
        self._tell("input_audio_buffer.committed", item_id=item_id, previous_item_id=last_id)
        self._add(item)
        self._recognise(item)

    def _check_recogniser(self, *more: Item) -> None:
        """Raises `RealtimeError`: these turns more would be too many."""
        pending = [*self._recognising, *(item.heard_ms for item in more)]
        if more and (len(pending) > MAX_PENDING or sum(pending) > MAX_PENDING_MS):
            most = f"{MAX_PENDING} turns, of {MAX_PENDING_MS // 1_000} s together,"
            raise RealtimeError("rate_limit_exceeded", f"at most {most} are recognised at a time")

    def _recognise(self, item: Item) -> None:
        """Order the recognition of an item that has been accepted. `recognised` tells its end."""
        self._recognising.append(item.heard_ms)
        self.orders.append(Recognise(item.id, item.heard))
        item.heard = None

    def speech_started(self, at_ms: float) -> None:
        """The turn detector hears speech, which began at `at_ms` of the session's audio."""
        detection = self.session.audio.input.turn_detection
        if detection is None:  # turned off meanwhile
            return
        self._turn_id = self._make_id("item")
        self._tell("input_audio_buffer.speech_started", audio_start_ms=round(at_ms), item_id=self._turn_id)
        if detection.interrupt_response:
            self._hush("turn_detected")

    def speech_stopped(self, at_ms: float) -> None:
        """The turn that has started ends."""
        detection = self.session.audio.input.turn_detection
        if detection is None or self._turn_id is None:
            return
        self._tell("input_audio_buffer.speech_stopped", audio_end_ms=round(at_ms), item_id=self._turn_id)
        try:
            self._turn(answers=detection.create_response and self.session.responds)
        except RealtimeError as error:
            self._turn_id = None
            self.orders.append(Forget())
            self._send(error.event(None))
            self._answer_turn()

    def heard_until(self, at_ms: float) -> None:
        """So much of the user's audio has been watched: an answer may be due that the session wants after a silence."""
        self._at_ms = at_ms
        detection = self.session.audio.input.turn_detection
        idle_ms = detection.idle_timeout_ms if isinstance(detection, ServerVad) else None
        since_ms = self._quiet_from_ms
        if since_ms is None or idle_ms is None or self.response is not None:
            return
        if self._playing or self._turn_id is not None or self._recognising:
            self._quiet_from_ms = at_ms
        elif at_ms - since_ms >= idle_ms:
            self._quiet_from_ms = None
            self._turn_id = self._make_id("item")
            place = {"audio_start_ms": round(since_ms), "audio_end_ms": round(at_ms), "item_id": self._turn_id}
            self._tell("input_audio_buffer.timeout_triggered", **place)
            self._turn(answers=False)
            self._respond(self.session, ResponseExtras(), None)

    def recognised(self, item_id: str, text: str, why: str | None = None) -> None:
        """The words of a turn; `why` they could not be recognised, None if they could."""
        if self._recognising:
            self._recognising.popleft()
        inputs = self._items if self.response is None else [*self._items, *self.response.input]
        item = next((item for item in inputs if item.id == item_id), None)
        if item is not None:  # neither deleted nor forgotten
            self._understood(item, text, why)
        self._answer_turn()
        self._go_on()

    def _understood(self, item: Item, text: str, why: str | None) -> None:
        item.is_pending, item.text = False, text
        place = {"item_id": item.id, "content_index": 0}
        if why is not None:
            error = {"type": "server_error", "code": "transcription_failed", "message": why, "param": None}
            self._tell("conversation.item.input_audio_transcription.failed", **place, error=error)
        elif self.session.audio.input.transcription is not None or not self.session.responds:
            usage = {"type": "duration", "seconds": 0.0}
            self._tell("conversation.item.input_audio_transcription.completed", **place, transcript=text, usage=usage)
        if item.answers and text and self.response is None:
            self._is_asked = True

    def _answer_turn(self) -> None:
        """Begin the response that the user's words ask for, unless he speaks on."""
        if self._is_asked and self._turn_id is None and self.response is None:
            self._respond(self.session, ResponseExtras(), None)
            self._go_on()

    # ------------------------------------------------------------ items

    def _create(self, message: Event) -> None:
        given = message.get("item")
        if not isinstance(given, dict):
            raise RealtimeError("missing_required_parameter", "item: an object is needed", "item")
        wanted: CreateItem = checked(CreateItem, message | {"item": item_from_beta(given)})
        item = self._made(wanted.item, "item")
        if any(item.id == known.id for known in self._items):
            raise RealtimeError("item_create_duplicate_item_id", f"there is an item {item.id} already", "item.id")
        place = len(self._items)
        if wanted.previous_item_id == "root":
            place = 0
        elif wanted.previous_item_id is not None:
            before = self._item(wanted.previous_item_id, "item_create_invalid_previous_item_id", "previous_item_id")
            place = self._items.index(before) + 1
        self._check_recogniser(*[item] * (item.heard is not None))
        self._add(item, place)
        if item.heard is not None:
            self._recognise(item)

    def _made(self, given: NewItem, place: str) -> Item:
        """An item of the client."""
        item_id = given.id or self._make_id("item")
        match given.type:  # pyrefly: ignore[non-exhaustive-match]  # the rest makes a message
            case "function_call":
                call_id = given.call_id or self._make_id("call")
                return Item(item_id, given.type, text=given.arguments or "{}", call_id=call_id, name=given.name or "")
            case "function_call_output":
                if given.call_id is None:
                    raise RealtimeError("missing_required_parameter", f"{place}.call_id is needed", f"{place}.call_id")
                return Item(item_id, given.type, text=given.output or "", call_id=given.call_id)
        if given.role is None:
            raise RealtimeError("missing_required_parameter", f"{place}.role is needed", f"{place}.role")
        kinds = {part.type for part in given.content}
        audio = [part.audio for part in given.content if part.audio is not None and part.transcript is None]
        text = "\n".join(part.text or part.transcript or "" for part in given.content).strip("\n")
        item = Item(item_id, "message", given.role, text=text)
        item.part = "output_text" if given.role == "assistant" else "input_text"
        if kinds == {"input_audio"} and audio and not text:
            if self._deaf is not None:
                raise RealtimeError("speech_recognition_unavailable", self._deaf, f"{place}.content")
            heard = Hear(b"".join(map(audio_of, audio)), self.session.audio.input.format)
            item.part, item.is_pending, item.heard = "input_audio", True, heard
            item.heard_ms = heard.format.ms(len(heard.audio))
        return item

    def _add(self, item: Item, place: int | None = None) -> None:
        """Add an item that is complete."""
        self._insert(item, place)
        self._tell("conversation.item.done", previous_item_id=self._before(item), item=item.wire())

    def _insert(self, item: Item, place: int | None = None, *, empty: bool = False) -> None:
        self._items.insert(len(self._items) if place is None else place, item)
        self._tell("conversation.item.added", previous_item_id=self._before(item), item=item.wire(empty=empty))
        items, chars = len(self._items) - MAX_ITEMS, _chars(self._items) - MAX_CHARS  # too many
        for old in [each for each in self._items if each is not item]:
            if items <= 0 and chars <= 0:
                break
            self._items.remove(old)
            items, chars = items - 1, chars - len(old.text)

    def _before(self, item: Item) -> str | None:
        place = self._items.index(item)
        return self._items[place - 1].id if place else None

    def _item(self, item_id: str, code: str, param: str = "item_id") -> Item:
        for item in self._items:
            if item.id == item_id:
                return item
        raise RealtimeError(code, f"there is no item {item_id[:64]!r}", param)

    def _delete(self, item_id: str) -> None:
        item = self._item(item_id, "item_delete_invalid_item_id")
        self._items.remove(item)
        self._tell("conversation.item.deleted", item_id=item_id)
        self._go_on()

    def _truncate(self, wanted: Truncate) -> None:
        """Only the first `audio_end_ms` of an answer were heard: the rest of its words leave the conversation."""
        item = self._item(wanted.item_id, "item_truncate_invalid_item_id")
        if item.part != "output_audio" or wanted.content_index:
            raise RealtimeError("invalid_value", "only the audio of an answer can be truncated", "content_index")
        if wanted.audio_end_ms > item.audio_ms + 1:
            raise RealtimeError(
                "invalid_value",
                f"Audio content of {item.audio_ms:.0f}ms is already shorter than {wanted.audio_end_ms}ms",
                "audio_end_ms",
            )
        if self.response is not None and self.response.message is item:
            self._cancel("client_cancelled")
        self._keep_heard(item, wanted.audio_end_ms)

    def _keep_heard(self, item: Item, end_ms: int) -> None:
        item.words = [(at_ms, word) for at_ms, word in item.words if at_ms < end_ms]
        item.text = "".join(word for _, word in item.words)
        item.audio_ms = end_ms
        self._tell("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=end_ms)

    # ------------------------------------------------------------ sound that is played

    def _hush(self, reason: str) -> None:
        """Stop the answer of the conversation that is being made or played."""
        if self._playing:
            self.orders.append(Hush())  # before the models are stopped, which takes longer
        if self.response is not None and self.response.extras.conversation == "auto":
            self._cancel(reason)

    def hushed(self, played_ms: Mapping[str, int]) -> None:
        """Of these responses no more is played than so much: the rest of their words leave the conversation."""
        for response_id, item in self._playing.items():
            self._tell("output_audio_buffer.cleared", response_id=response_id)
            end_ms = played_ms.get(response_id, 0)
            if end_ms < item.audio_ms and item in self._items:
                self._keep_heard(item, end_ms)
        self._playing.clear()

    def played(self, response_id: str) -> None:
        """All of a response was played."""
        if self._playing.pop(response_id, None) is not None:
            self._tell("output_audio_buffer.stopped", response_id=response_id)

    # ------------------------------------------------------------ responses

    def _ask(self, given: object) -> None:
        if not isinstance(given, dict):
            raise RealtimeError("invalid_value", "response: should be an object", "response")
        if not self.session.responds:
            raise RealtimeError("invalid_value", "a transcription session has no responses", "type")
        if self.response is not None:
            raise RealtimeError(
                "conversation_already_has_active_response",
                f"Conversation already has an active response in progress: {self.response.id}. "
                "Wait until the response is finished before creating a new one.",
            )
        given = from_beta(given)
        if isinstance(given.get("input"), list):
            if len(given["input"]) > MAX_INPUT:
                message = f"a response names at most {MAX_INPUT} items"
                raise RealtimeError("array_above_max_length", message, "response.input")
            given["input"] = [item_from_beta(item) if isinstance(item, dict) else item for item in given["input"]]
        extras: ResponseExtras = checked(ResponseExtras, {k: v for k, v in given.items() if v is not None}, "response")
        settings: SharedSettings = merged(self.session, given, "response")
        self._check(settings, "response")
        items = None if extras.input is None else list(self._input(extras.input))
        if _chars(items or ()) > MAX_CHARS:
            message = f"the items of a response have at most {MAX_CHARS} characters together"
            raise RealtimeError("string_above_max_length", message, "response.input")
        heard = [item for item in items or () if item.heard is not None]
        self._check_recogniser(*heard)
        self._respond(settings, extras, items)
        for item in heard:
            self._recognise(item)
        self._go_on()

    def _input(self, given: Sequence[NewItem | ItemReference]) -> Iterator[Item]:
        known = {item.id: item for item in self._items}
        for item in given:
            if isinstance(item, ItemReference):
                yield known.get(item.id) or self._item(item.id, "invalid_value", "response.input")
            else:
                yield self._made(item, "response.input")

    def _respond(self, settings: SharedSettings, extras: ResponseExtras, items: list[Item] | None) -> None:
        self._is_asked = self._is_asked and extras.conversation == "none"
        asked = self._items if items is None else items
        self.response = Response(self._make_id("resp"), settings, extras, list(asked), items is None)
        self._tell("response.created", response=self._summary(self.response, "in_progress"))

    def _go_on(self) -> None:
        """Ask the language model, once all words before the response are recognised; later turns are not its."""
        response = self.response
        if response is None or response.is_asked:
            return
        items = response.input
        if response.is_of_conversation:  # what was deleted or forgotten since is not asked
            known = set(map(id, self._items))
            items = [item for item in items if id(item) in known]
        if any(item.is_pending for item in items):
            return
        response.is_asked = True
        prompt = messages(items)
        # System messages at the beginning belong to the instructions.
        first = next((at for at, each in enumerate(prompt) if each["role"] != "system"), len(prompt))
        instructions = [response.settings.instructions, *(each["content"] for each in prompt[:first])]
        self.orders.append(Answer(response.settings, "\n\n".join(filter(None, instructions)), prompt[first:]))

    def _cancel(self, reason: str) -> None:
        self._stop()
        self._finish("cancelled", {"type": "cancelled", "reason": reason})

    def _stop(self) -> None:
        self.stops += 1
        self.orders.append(Stop())

    def failed(self, message: str, retry_after_ms: int | None = None) -> None:
        """The answer cannot be made."""
        if self.response is not None:
            self._stop()
            self.refused("server_error", message, retry_after_ms)

    def refused(self, code: str, message: str, retry_after_ms: int | None) -> None:
        """The answer is not begun."""
        error: dict[str, Any] = {"type": "server_error", "code": code, "message": message}
        if retry_after_ms is not None:
            error["retry_after_ms"] = retry_after_ms
        self._finish("failed", {"type": "failed", "error": error})

    def cut(self, reason: str | None) -> None:
        """The language model ends the answer before its end, for a reason that has OpenAI's name, or for none."""
        if self.response is not None:
            self.response.incomplete = {"type": "incomplete"} | ({} if reason is None else {"reason": reason})

    def written(self, text: str) -> None:
        """More text of an answer that is not spoken."""
        if self.response is not None:
            message = self._message(self.response)
            message.text += text
            self._delta("response.output_text.delta", message, delta=text)

    def spoken(self, words: Sequence[SpokenWord], pcm: bytes) -> None:
        """More speech of an answer, 24 kHz pcm_s16le, and the words that begin in it."""
        response = self.response
        if response is None:
            return
        message = self._message(response)
        for word in words:
            text = word.text if word.joined or not message.text else f" {word.text}"
            message.words.append((word.at_s * 1_000, text))
            message.text += text
            self._delta("response.output_audio_transcript.delta", message, delta=text, start_time=word.at_s)
        if pcm:
            if not message.audio_ms:
                response.began_ms = self._at_ms
            message.audio_ms += len(pcm) / 48
            self._sound(response, message, pcm)

    def _sound(self, response: Response, message: Item, pcm: bytes) -> None:
        if self._plays:
            if response.id not in self._playing:
                self._playing[response.id] = message
                self._tell("output_audio_buffer.started", response_id=response.id)
            return
        if response.encoder is None:
            form = response.settings.audio.output.format
            response.encoder = Transcoder(form.encoding, form.hz)
        self._audio(message, b"".join(payload for payload, _ in response.encoder.encode(pcm)))

    def _audio(self, message: Item, audio: bytes) -> None:
        if audio:
            self._delta("response.output_audio.delta", message, delta=base64.b64encode(audio).decode())

    def open_message(self) -> None:
        """The text or speech of the answer has its place before what follows; it may come later."""
        if self.response is not None:
            self._message(self.response)

    def called(self, name: str, call_id: str, arguments: str) -> None:
        """The language model calls a function of the client."""
        response = self.response
        if response is None:
            return
        item = Item(self._make_id("item"), "function_call", status="in_progress", text=arguments)
        item.call_id, item.name = call_id or self._make_id("call"), name
        self._open(response, item)
        place = {"response_id": response.id, "item_id": item.id, "output_index": len(response.output) - 1}
        place["call_id"] = item.call_id
        self._tell("response.function_call_arguments.delta", **place, delta=arguments)
        self._tell("response.function_call_arguments.done", **place, name=name, arguments=arguments)
        self._close(response, item, "completed")

    def measured(self, marks: Mapping[str, int]) -> None:
        """How many milliseconds after the user's words these marks of the answer came."""
        if self.response is not None:
            self.response.latencies = {f"{name}_ms": str(ms) for name, ms in marks.items()}

    def answered(self) -> None:
        """The answer has ended by itself."""
        details = None if self.response is None else self.response.incomplete
        self._finish("completed" if details is None else "incomplete", details)

    def _message(self, response: Response) -> Item:
        """The item of the text or speech of a response, which begins with the first of it."""
        if response.message is None:
            item = Item(self._make_id("item"), "message", "assistant", status="in_progress")
            item.part = "output_audio" if response.settings.speaks else "output_text"
            response.message = item
            self._open(response, item)
            self._delta("response.content_part.added", item, part=_part(item, empty=True))
        return response.message

    def _open(self, response: Response, item: Item) -> None:
        response.output.append(item)
        place = {"response_id": response.id, "output_index": len(response.output) - 1}
        self._tell("response.output_item.added", **place, item=item.wire(empty=True))
        if response.extras.conversation == "auto":
            self._insert(item, empty=True)

    def _close(self, response: Response, item: Item, status: str) -> None:
        item.status = status
        place = {"response_id": response.id, "output_index": response.output.index(item)}
        self._tell("response.output_item.done", **place, item=item.wire())
        if item in self._items:
            self._tell("conversation.item.done", previous_item_id=self._before(item), item=item.wire())

    def _finish(self, status: str, details: dict[str, Any] | None) -> None:
        response, message = self.response, None if self.response is None else self.response.message
        if response is None:
            return
        if message is not None:
            if response.encoder is not None and status in ("completed", "incomplete"):
                self._audio(message, b"".join(payload for payload, _ in response.encoder.flush()))
            if message.is_audio:
                self._delta("response.output_audio.done", message)
                self._delta("response.output_audio_transcript.done", message, transcript=message.text)
            else:
                self._delta("response.output_text.done", message, text=message.text)
            self._delta("response.content_part.done", message, part=_part(message))
            self._close(response, message, "completed" if status == "completed" else "incomplete")
            self._quiet_from_ms = max(self._at_ms, response.began_ms + message.audio_ms)
        self.response = None
        self._tell("response.done", response=self._summary(response, status) | {"status_details": details})
        self._answer_turn()

    def _summary(self, response: Response, status: str) -> dict[str, Any]:
        output = response.settings.audio.output
        return {
            "id": response.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None,
            "output": [item.wire() for item in response.output],
            "conversation_id": self._conversation_id if response.extras.conversation == "auto" else None,
            "output_modalities": response.settings.output_modalities,
            "max_output_tokens": response.settings.max_output_tokens,
            "audio": {
                "output": {"format": {"type": output.format.type, "rate": output.format.hz}, "voice": output.voice}
            },
            "usage": None,
            "metadata": (response.latencies | (response.extras.metadata or {})) or None,
        }

    # ------------------------------------------------------------ messages

    def _delta(self, kind: str, item: Item, **fields: Any) -> None:
        """A message about the content of an item of the response."""
        response = self.response
        assert response is not None
        place = {"response_id": response.id, "item_id": item.id, "output_index": response.output.index(item)}
        self._tell(kind, **place, content_index=0, **fields)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._send({"type": kind} | fields)

    def _send(self, event: Event) -> None:
        for message in to_beta(event) if self._beta else (event,):
            self.events.append({"event_id": f"event_{next(self._numbers)}"} | message)


def _chars(items: Iterable[Item]) -> int:
    return sum(len(item.text) for item in items)


def _part(item: Item, *, empty: bool = False) -> dict[str, Any]:
    text = "" if empty else item.text
    return {"type": "audio", "transcript": text} if item.is_audio else {"type": "text", "text": text}


def messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The conversation in the form of chat completions, which want each result right behind its call.

    A call without a result, a result without a call and a message without text are left out. What the assistant says
    in a row is one message, with its calls: servers that check roles refuse two.
    """
    results = {item.call_id: item.text for item in items if item.type == "function_call_output"}
    found: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []  # to `calls`
    for item in [*items, None]:
        if item is not None and item.type == "function_call":
            if (result := results.pop(item.call_id, None)) is not None:  # another call of this id has none
                function = {"name": item.name, "arguments": item.text}
                calls.append({"id": item.call_id, "type": "function", "function": function})
                answers.append({"role": "tool", "tool_call_id": item.call_id, "content": [result]})
            continue
        if calls:
            _say(found, {"role": "assistant", "tool_calls": calls})
            found += answers
            calls, answers = [], []
        if item is not None and item.type == "message" and item.text:
            _say(found, {"role": item.role, "content": [item.text]})
    return [each | {"content": "\n".join(each["content"])} if "content" in each else each for each in found]


def _say(found: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message, whose content is a list of texts to be joined."""
    last = found[-1] if found else {}
    if last.get("role") == message["role"] == "assistant" and "tool_calls" not in last:
        last["content"] += message.pop("content", [])
        last |= message
    else:
        found.append(message)
