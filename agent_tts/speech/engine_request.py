"""The front's handle of one request in an engine."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import takewhile

from agent_tts.directives import Directive
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.errors import from_code
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    Credit,
    End,
    Finished,
    Flush,
    RequestEvent,
    Send,
    Started,
)
from agent_tts.text.entries import Lexicon

# Credit is granted in this many parts of the window: few messages, and the engine never runs out of credit.
GRANTS = 8


class EngineRequest:
    """Sends the text of one request to the engine and receives its events; made by `SpeechService.open`.

    The last event is exactly one `Finished`. One reader calls `poll` when woken, awaits `next`, or iterates over
    the audio.
    """

    def __init__(self, request_id: int, send: Send, window: int, engine: int = 0, owner: int = 0) -> None:
        # Id of this request in its engine, and the engine's index in the node. Both may change until it has a slot.
        self.id = request_id
        self.engine = engine
        # Whose it is.
        self.owner = owner
        # How its words are said, strongest first; set by the service.
        self.lexicons: Sequence[Lexicon] = ()
        # Whether it has or had a slot.
        self.started = False
        # Sends a command to the engine; never blocks.
        self._send = send
        # Frames taken since credit was last granted, and frames per grant.
        self._taken = 0
        self._grant = max(1, window // GRANTS)
        # Events not yet taken by the reader. The engine makes at most `window` frames beyond the credit.
        self._events: deque[RequestEvent] = deque()
        # The last event; None until it arrives.
        self.finished: Finished[int] | None = None
        self.ended = False
        # Whether `stop` was called. From then on only `Finished` is delivered.
        self.stopped = False
        # Samples at 24 kHz received from the engine, dropped ones included.
        self.samples = 0
        # Called when an event arrives; set by the reader. It must not raise or await.
        self.waker: Callable[[], None] | None = None
        # Set by each event; awaited by `next`.
        self._arrived = asyncio.Event()
        # Set by `Finished`; awaited by `cancel`.
        self._closed = asyncio.Event()

    @property
    def name(self) -> str:
        """Name in the log: engine index / request id."""
        return f"{self.engine}/{self.id}"

    # ------------------------------------------------------------ the writer's side

    def write(self, text: str) -> None:
        """Append text; empty text says that more will come. Never blocks; ignored after `end` and once finished."""
        if self.finished is None and not self.ended:
            self._send(Append(self.id, text), waits=self.samples > 0)

    def direct(self, directive: Directive) -> None:
        """A directive after all text so far. Ignored after `end` and once finished."""
        if self.finished is None and not self.ended:
            self._send(Append(self.id, directive))

    def flush(self, flush_id: str) -> None:
        """Speak all text so far as complete words; answered by `Flushed` after its audio."""
        if self.finished is None and not self.ended:
            self._send(Flush(self.id, flush_id))

    def end(self) -> None:
        """No more text. Idempotent."""
        if self.finished is None and not self.ended:
            self.ended = True
            self._send(End(self.id))

    def stop(self) -> None:
        """Drop all untaken events and ask the engine to stop, without waiting. Idempotent.

        Only `Finished` follows; its reason is "cancelled", also if it had arrived and was not yet taken.
        """
        if self.stopped or (self.finished is not None and not self._events):  # it is over for the reader
            return
        self.stopped = True
        self._events.clear()
        if self.finished is None:
            self._send(Cancel(self.id))
        else:  # tell it again, as cancelled
            self.deliver(self.finished)

    async def cancel(self) -> None:
        """Stop; the slot is free when this returns. Idempotent. Cancelling this is safe: the request still stops."""
        self.stop()
        await self._closed.wait()

    # ------------------------------------------------------------ the reader's side

    def poll(self) -> RequestEvent | None:
        """The next event; None if none is waiting or after `Finished`. Grants credit for audio."""
        if not self._events:
            return None
        event = self._events.popleft()
        if isinstance(event, Audio):
            self._taken += -(-len(event.payload) // FRAME_BYTES)
            if self._taken >= self._grant:
                self._send(Credit(self.id, self._taken), waits=True)
                self._taken = 0
        return event

    @property
    def has_events(self) -> bool:
        """Whether `poll` would return an event."""
        return bool(self._events)

    def ahead(self) -> Iterator[RequestEvent]:
        """Events that have arrived but are not taken, up to the next audio."""
        return takewhile(lambda event: not isinstance(event, Audio), self._events)

    async def next(self) -> RequestEvent | None:
        """The next event; None after `Finished`. Cancelling it loses nothing."""
        while (event := self.poll()) is None:
            if self.finished is not None:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Audio in pieces of pcm_s16le, 24 kHz, of one or more frames; raises the error of a failed request.

        A frame is 80 ms. Shorter ones are the first of a piece of text, without its leading silence, and the last.
        """
        while (event := await self.next()) is not None:
            if isinstance(event, Audio):
                yield event.payload
            elif isinstance(event, Finished) and event.code is not None:
                raise from_code(event.code, event.message, event.retry_after_ms)

    # ------------------------------------------------------------ the service's side

    def settle(self, request_id: int, engine: int, send: Send) -> None:
        """It is open at this engine under this id. Called only by the service."""
        self.id, self.engine, self._send = request_id, engine, send

    def deliver(self, event: RequestEvent) -> None:
        """Take an event from the engine. Called only by the service."""
        if isinstance(event, Audio):
            self.samples += len(event.payload) // 2
        elif isinstance(event, Started):
            self.started = True
        elif isinstance(event, Finished):
            if self.stopped:  # also if the engine failed meanwhile
                event = dataclasses.replace(event, reason="cancelled", code=None)
            self.finished = event
            self._closed.set()
        if self.stopped and event is not self.finished:
            return
        self._events.append(event)
        self._arrived.set()
        if self.waker is not None:
            self.waker()
