"""One utterance as its listener's side holds it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import takewhile

from agent_tts.errors import from_code
from agent_tts.events import (
    AppendText,
    CancelRequest,
    EndText,
    EngineCommand,
    FlushText,
    GrantCredit,
    RequestAudio,
    RequestFinished,
    RequestFlushed,
    RequestStarted,
    RequestWords,
)

# Credit is granted in so many parts of the window: less often than each frame, and long before the engine runs out.
GRANTS = 8

RequestEvent = RequestStarted | RequestAudio | RequestWords | RequestFlushed | RequestFinished


class EngineRequest:
    """Text goes in as it is written, events come out as it is spoken.

    Made by `SpeechService.open`. Its last event is exactly one `RequestFinished`. There is one reader; it
    either calls `poll` when woken, or awaits `next`, or iterates over the audio.
    """

    def __init__(self, request_id: int, send: Callable[[EngineCommand], None], window: int, engine: int = 0) -> None:
        # Number of this utterance between front and engine, and of the engine among those of the node.
        self.request_id = request_id
        self.engine = engine
        # Sends a command to the engine; never blocks.
        self._send = send
        # Frames that the reader has taken since it granted credit last, and how many it takes to grant it.
        self._taken = 0
        self._grant = max(1, window // GRANTS)
        # Events not yet taken by the reader. Bounded: the engine makes at most `window` frames ahead of the credit.
        self._events: deque[RequestEvent] = deque()
        # The last event, once it has arrived.
        self.finished: RequestFinished | None = None
        # Whether `end` was called.
        self.ended = False
        # Whether `stop` was called: of what the engine still sends, only `RequestFinished` counts.
        self.stopped = False
        # Whether the reader has taken `RequestFinished`.
        self._over = False
        # Samples at 24 kHz that the engine has made, the dropped ones included.
        self.samples = 0
        # Called when an event has arrived; set by the reader. It must not raise and must not await.
        self.waker: Callable[[], None] | None = None
        # The `next` that is waiting, if any.
        self._waiting: asyncio.Future[None] | None = None
        # Set by `RequestFinished`; awaited by `cancel`.
        self._closed = asyncio.Event()

    @property
    def name(self) -> str:
        """Names it in the log: the engine's number and the utterance's."""
        return f"{self.engine}/{self.request_id}"

    # ------------------------------------------------------------ the writer's side

    def write(self, text: str) -> None:
        """Append text, verbatim and in any split. Never blocks; ignored once the utterance has finished."""
        if text and self.finished is None and not self.ended:
            self._send(AppendText(self.request_id, text))

    def flush(self, flush_id: str) -> None:
        """Speak all text so far as complete words; answered by `RequestFlushed` after its audio."""
        if self.finished is None and not self.ended:
            self._send(FlushText(self.request_id, flush_id))

    def end(self) -> None:
        """No more text. Idempotent."""
        if self.finished is None and not self.ended:
            self.ended = True
            self._send(EndText(self.request_id))

    def stop(self) -> None:
        """Drop all that was not yet taken and ask the engine to stop, without waiting. Idempotent.

        What follows is `RequestFinished` alone; when the reader had not taken it yet, it now says "cancelled".
        """
        if self.stopped or self._over:
            return
        self.stopped = True
        self._events.clear()
        if self.finished is None:
            self._send(CancelRequest(self.request_id))
        else:
            self.finished = dataclasses.replace(self.finished, reason="cancelled", code=None)
            self._events.append(self.finished)

    async def cancel(self) -> None:
        """Stop at once: no audio follows, and the slot is free when it returns. Idempotent.

        Cancelling this coroutine is safe: the utterance stops all the same.
        """
        self.stop()
        await self._closed.wait()

    # ------------------------------------------------------------ the reader's side

    def poll(self) -> RequestEvent | None:
        """The next event; None when there is none now, and after `RequestFinished`. Grants credit for audio."""
        if not self._events:
            return None
        event = self._events.popleft()
        if type(event) is RequestAudio:
            self._taken += 1
            if self._taken == self._grant:
                self._send(GrantCredit(self.request_id, self._taken))
                self._taken = 0
        elif type(event) is RequestFinished:
            self._over = True
        return event

    @property
    def has_events(self) -> bool:
        """Whether `poll` would give one now."""
        return bool(self._events)

    def ahead(self) -> Iterator[RequestEvent]:
        """What has already arrived after the last event that was taken, up to the next audio."""
        return takewhile(_is_not_audio, self._events)

    async def next(self) -> RequestEvent | None:
        """The next event; None after `RequestFinished`. Cancelling it loses nothing."""
        while (event := self.poll()) is None:
            if self.finished is not None:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Pieces of pcm_s16le at 24 kHz, 80 ms each but for the last.

        Raises:
            SpeechError: the utterance failed.
        """
        while (event := await self.next()) is not None:
            if isinstance(event, RequestAudio):
                yield event.pcm
            elif isinstance(event, RequestFinished) and event.code is not None:
                raise from_code(event.code, event.message, event.retry_after_ms)

    # ------------------------------------------------------------ the service's side

    def deliver(self, event: RequestEvent) -> None:
        """Take an event of this utterance from the engine. Called by the service alone."""
        if isinstance(event, RequestAudio):
            self.samples += len(event.pcm) // 2
        elif isinstance(event, RequestFinished):
            if self.stopped:  # whatever became of the engine meanwhile
                event = dataclasses.replace(event, reason="cancelled", code=None)
            self.finished = event
            self._closed.set()
        if self.stopped and event is not self.finished:
            return
        self._events.append(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        if self.waker is not None:
            self.waker()


def _is_not_audio(event: RequestEvent) -> bool:
    return type(event) is not RequestAudio
