"""An utterance on a node, for its client: writing its text, reading its events, cancelling it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from agent_tts.errors import SlowConsumer, SpeechError
from agent_tts.messages import Audio, Cancelled, Finished, Word, Words
from agent_tts.protocol.heard import heard_text
from agent_tts.protocol.utterance import AnyUtterance, UtteranceEvent

CANCEL_S = 5.0  # for a cancelled context to be confirmed


class RemoteUtterance(AnyUtterance):
    """One utterance on a node. Made by `NodeConnection.open`.

    One reader iterates over the audio, or over `events()`. When more than the connection's `buffer_bytes` of audio
    wait for it, the connection stops receiving for 1 s at most; then this context is cancelled and fails with
    `SlowConsumer`. With the default `lead_ms` a node sends in real time, and the default buffer holds 87 s; with
    `lead_ms=None` a node sends as fast as it can.
    """

    def __init__(self, context_id: str, send: Callable[..., None], text_message_chars: int) -> None:
        self.context_id = context_id
        # Its number in the node's messages; 0 until the node has started it.
        self.context_no = 0
        # Sends a message of this type and with these fields; never blocks.
        self._send = send
        # The node's limit of characters in one message.
        self._text_message_chars = text_message_chars
        # Events for the reader, and the bytes of audio in them, bounded by the connection's `buffer_bytes`.
        self._events: deque[UtteranceEvent] = deque()
        self._buffered = 0
        self._has_reader = False
        # Wakes the reader; wakes the connection, which waits for the reader.
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        # Completed when the node has given the context a slot, or with the error that refused it.
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Set after the last event.
        self._closed = asyncio.Event()
        self._text: list[str] = []
        self._ended = False
        # Whether the context was cancelled: further audio is dropped.
        self._stopped = False
        self._words: dict[int, Word] = {}
        self._aligned = False
        self._heard_from: float | None = None
        self._cancelled: Cancelled[str] | None = None
        self.error: SpeechError | None = None

    # ------------------------------------------------------------ the writer's side

    @property
    def _takes_text(self) -> bool:
        return not (self._ended or self._stopped or self._closed.is_set())

    def write(self, text: str) -> None:
        if not text or not self._takes_text:
            return
        self._text.append(text)
        limit = self._text_message_chars
        for start in range(0, len(text), limit):
            self._send("text.append", context_id=self.context_id, text=text[start : start + limit])

    def flush(self, flush_id: str = "") -> None:
        """Speak all text so far as complete words; `Flushed` follows its audio."""
        if self._takes_text:
            self._send("context.flush", context_id=self.context_id, flush_id=flush_id)

    def end(self) -> None:
        if self._takes_text:
            self._ended = True
            self._send("context.end", context_id=self.context_id)

    def ack(self, played_ms: float) -> None:
        """Report what the listener has heard, which makes `heard_text` of a later cancel exact."""
        if not (self._stopped or self._closed.is_set()):
            self._send("playback.ack", context_id=self.context_id, played_ms=played_ms)

    def stop(self, played_ms: float | None = None) -> None:
        """Stop now, without waiting: buffered and further audio is dropped. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        if self._closed.is_set():
            self._cancelled = self._cut_here(played_ms)
        else:
            at = {} if played_ms is None else {"played_ms": played_ms}
            self._send("context.cancel", context_id=self.context_id, **at)
        self._events = deque(event for event in self._events if not isinstance(event, Audio))
        self._take_off(self._buffered)

    async def cancel(self, played_ms: float | None = None) -> Cancelled[str]:
        """Barge-in: stop at once; returns what was heard. The slot is free when it returns. Idempotent.

        Cancelling this coroutine is safe: the context stops anyway. Raises `TimeoutError` if the node does not confirm
        within 5 s.

        Args:
            played_ms: what the listener has heard; default: by the last `ack`, or by real time.
        """
        self.stop(played_ms)
        async with asyncio.timeout(CANCEL_S):
            await self._closed.wait()
        if self._cancelled is None:  # the context or the connection ended before the cancel arrived
            self._cancelled = self._cut_here(played_ms)
        return self._cancelled

    # ------------------------------------------------------------ the reader's side

    @property
    def words(self) -> tuple[Word, ...]:
        """The words so far, in the order of the text, with their latest times."""
        return tuple(self._words[start] for start in sorted(self._words))

    async def next(self) -> UtteranceEvent | None:
        if self._has_reader:
            raise RuntimeError("an utterance has one reader")
        self._has_reader = True
        try:
            while not self._events and not self._closed.is_set():
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._has_reader = False
        if self._events:
            event = self._events.popleft()
            if isinstance(event, Audio):
                self._take_off(len(event.payload))
            return event
        if self.error is not None:
            raise self.error
        return None

    # ------------------------------------------------------------ the connection's side

    def deliver(self, event: UtteranceEvent) -> None:
        """Take an event of this context. For the connection only."""
        if isinstance(event, Audio):
            if self._stopped:
                return
            if self._heard_from is None:
                self._heard_from = time.monotonic()
            self._buffered += len(event.payload)
        elif isinstance(event, Words):
            self._words |= {word.char_start: word for word in event.words}
            self._aligned = event.kind == "aligned"
        elif isinstance(event, Finished):
            self.done = event
        self._events.append(event)
        self._arrived.set()
        if isinstance(event, Finished):
            self.close(None)

    def cut(self, cancelled: Cancelled[str]) -> None:
        """Take the node's answer to a cancel."""
        self._cancelled = cancelled

    def fail(self, error: SpeechError) -> None:
        """Remember the first error; `close` or `Finished` follows."""
        if self.error is None:
            self.error = error
        if not self.started.done():
            self.started.set_exception(error)
            self.started.exception()  # marks it as retrieved: `open` may have been cancelled

    def close(self, error: SpeechError | None) -> None:
        """No more events. Idempotent."""
        if error is not None:
            self.fail(error)
        if not self.started.done():
            self.started.set_result(None)
        self._closed.set()
        self._arrived.set()

    def overflow(self) -> None:
        """The reader is too slow: drop its audio, and stop."""
        self.stop()
        self.close(SlowConsumer("the audio of this context was not read in time: raise buffer_bytes, or read it"))

    async def wait_closed(self) -> None:
        """Wait until no more events come. Cancelling it is safe."""
        await self._closed.wait()

    async def room(self, limit: int) -> None:
        """Wait until at most `limit` bytes of audio wait for the reader. Cancelling it is safe."""
        while self._buffered > limit:
            self._taken.clear()
            await self._taken.wait()

    # ------------------------------------------------------------ inside

    def _take_off(self, count: int) -> None:
        self._buffered -= count
        self._taken.set()

    def _cut_here(self, played_ms: float | None) -> Cancelled[str]:
        """What was heard of a context that has ended at the node but still plays at the listener."""
        audio_ms = self.done.audio_ms if self.done else 0
        if played_ms is None:
            played_ms = 0 if self._heard_from is None else (time.monotonic() - self._heard_from) * 1_000
        played_ms = min(played_ms, audio_ms)
        words = self.words
        # Estimates are made before the audio; now its true length is known.
        scale = 1.0 if self._aligned or not words or not audio_ms else audio_ms / max(1, words[-1].end_ms)
        texts = heard_text("".join(self._text), words, played_ms / scale)
        return Cancelled(self.context_id, round(played_ms), audio_ms, *texts)
