"""An utterance that goes on at another node when its own is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agent_tts.client.connection import ConnectionLost, NodeConnection
from agent_tts.client.utterance import RemoteUtterance
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SpeechError
from agent_tts.messages import Audio, Cancelled, Finished, Flushed, Mark, Word, Words
from agent_tts.protocol.heard import heard_text
from agent_tts.protocol.utterance import AnyUtterance, UtteranceEvent

# Bytes of a sample, of encodings that can be cut anywhere and joined.
WIDTHS = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}

MAX_LOSSES = 3  # nodes that one utterance may lose: a text that ends nodes does not go through the fleet
# When the listener has so much audio left, a word is given to the reader before all of it has come.
MARGIN_S = 0.2


class ResumableUtterance(AnyUtterance):
    """An utterance with the interface of `RemoteUtterance`, in parts on several nodes. Made by `MovingConnection`.

    The reader gets a word's audio when all of it has come, unless the listener would have to wait: the beginning of a
    word whose node is lost is then dropped, and the word is said from its start by the next node.
    """

    def __init__(
        self, node: NodeConnection, renew: Callable[[NodeConnection], Awaitable[NodeConnection]], **session: Any
    ) -> None:
        """`renew` gives the connection after one that is lost, or raises `SpeechError`; it has the same session."""
        self._node = node
        self._renew = renew
        self._session = session
        # The utterance on `_node`, and where it begins: in the text, characters; in the audio, samples.
        self._part: RemoteUtterance = node.begin(**session)
        self.context_id = self._part.context_id
        self._first_char = self._first_sample = 0
        output = node.session.get("output") or {}
        output = output | (session.get("output") or {})
        self._rate: int = output.get("sample_rate", SAMPLE_RATE)
        # Bytes of a sample; 0 of Opus, of which a chunk is a packet with this many samples.
        encoding = output.get("encoding", "pcm_s16le")
        self._width = WIDTHS.get(encoding, 0)
        self._packet_samples = self._at(node.info.frame_ms)
        # Not without word times, and in encodings that cannot be joined.
        timed = (node.session | session).get("timestamps", "word") == "word"
        self._can_resume = timed and (encoding == "opus" or encoding in WIDTHS)
        self._losses = 0
        # The whole text, whether it ended, and unanswered flushes with their places in it.
        self._text: list[str] = []
        self._ended = self._stopped = False
        self._flushes: deque[tuple[int, str]] = deque()
        # Words with their final times, and the latest of all by place.
        self._aligned: list[Word] = []
        self._words: dict[int, Word] = {}
        # Places of marks that were told.
        self._marks: set[int] = set()
        # Events from the first audio on that waits for the end of its word; then those for the reader.
        self._held: deque[UtteranceEvent] = deque()
        self._events: deque[UtteranceEvent] = deque()
        # Samples that have come, and that the reader got; when the first would be heard without pauses of the writer,
        # by the loop's clock.
        self._received = self._given = 0
        self._heard_from: float | None = None

    @property
    def started(self) -> asyncio.Future[None]:
        return self._part.started

    @property
    def error(self) -> SpeechError | None:
        return self._part.error

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(self._words[start] for start in sorted(self._words))

    # ------------------------------------------------------------ the writer's side

    def write(self, text: str) -> None:
        if not (self._ended or self._stopped):
            self._text.append(text)
            self._part.write(text)

    def flush(self, flush_id: str = "") -> None:
        if not (self._ended or self._stopped):
            self._flushes.append((sum(map(len, self._text)), flush_id))
            self._part.flush(flush_id)

    def end(self) -> None:
        self._ended = True
        self._part.end()

    def ack(self, played_ms: float) -> None:
        if played_ms >= self._first_ms:
            self._part.ack(played_ms - self._first_ms)

    def stop(self, played_ms: float | None = None) -> None:
        self._stopped = True
        self._held.clear()
        self._events = deque(event for event in self._events if not isinstance(event, Audio))
        self._part.stop(None if played_ms is None else max(0.0, played_ms - self._first_ms))

    async def cancel(self, played_ms: float | None = None) -> Cancelled[str]:
        self.stop(played_ms)
        cut = await self._part.cancel()
        if not self._first_sample:
            return cut
        if played_ms is None:
            played_ms = cut.played_ms + self._first_ms
        made_ms = round(cut.generated_ms + self._first_ms)
        texts = heard_text("".join(self._text), self.words, played_ms)
        return Cancelled(self.context_id, round(played_ms), made_ms, *texts)

    # ------------------------------------------------------------ the reader's side

    async def next(self) -> UtteranceEvent | None:
        while not self._events:
            wait_s = self._patience_s()
            if wait_s is not None and wait_s <= 0:
                self._release(self._received)
                continue
            try:
                async with asyncio.timeout(wait_s):
                    event = await self._part.next()
            except TimeoutError:
                continue
            except ConnectionLost as error:
                await self._resume(error)
                continue
            if event is None:
                return None
            self._take(event)
        event = self._events.popleft()
        match event:
            case Audio(payload=payload, first_sample=first) if payload:
                # Later than before where the listener has played all and waits.
                heard_from = asyncio.get_running_loop().time() - first / self._rate
                self._heard_from = max(heard_from, self._heard_from or heard_from)
            case Mark(char_start=place):
                self._marks.add(place)
            case Flushed() if self._flushes:
                self._flushes.popleft()
            case Finished():
                self.done = event
        return event

    # ------------------------------------------------------------ inside

    @property
    def _first_ms(self) -> float:
        return self._first_sample * 1_000 / self._rate

    def _patience_s(self) -> float | None:
        """For how long what is held may wait; None if nothing is held."""
        if not self._held:
            return None
        if self._heard_from is None:
            return 0.0
        return self._heard_from + self._given / self._rate - MARGIN_S - asyncio.get_running_loop().time()

    def _take(self, event: UtteranceEvent) -> None:
        """Take an event of the part. Times and places are counted from the beginning of the whole."""
        first_ms = round(self._first_ms)
        match event:
            case Words(kind=kind, words=words):
                moved = tuple(word.moved(first_ms, self._first_char) for word in words)
                self._words |= {word.char_start: word for word in moved}
                if kind == "aligned":
                    self._aligned += moved
                self._events.append(Words(self.context_id, moved, kind))
                return
            case Audio():
                event = event._replace(first_sample=event.first_sample + self._first_sample)
                if self._can_resume:
                    self._received = self._end(event)
            case Mark():
                char_start = event.char_start + self._first_char
                event = replace(event, at_ms=event.at_ms + first_ms, char_start=char_start)
                if event.char_start in self._marks:
                    return
            case Flushed() | Finished():
                event = replace(event, audio_ms=event.audio_ms + first_ms)
        self._held.append(event)
        self._release(self._received if isinstance(event, Finished) or not self._can_resume else self._whole())

    def _whole(self) -> int:
        """The samples that have come, without those of a word of which more is to come."""
        for word in reversed(self._aligned):
            if self._at(word.end_ms) <= self._received:
                break
            if self._at(word.start_ms) < self._received:
                return self._at(word.start_ms)
        return self._received

    def _at(self, ms: int) -> int:
        return round(ms * self._rate / 1_000)

    def _release(self, until: int) -> None:
        """Give the reader what is held up to this sample, and what is not audio before and at it."""
        while self._held:
            event = self._held[0]
            if isinstance(event, Audio) and self._can_resume:
                if self._end(event) > until:
                    room = (until - event.first_sample) * self._width
                    if room > 0:
                        self._held[0] = event._replace(first_sample=until, payload=event.payload[room:])
                        self._give(event._replace(flags=0, payload=event.payload[:room]))
                    return
                self._give(event)
            else:
                self._events.append(event)
            self._held.popleft()

    def _give(self, chunk: Audio[str]) -> None:
        self._given = self._end(chunk)
        self._events.append(chunk)

    def _end(self, chunk: Audio[str]) -> int:
        """The sample behind it."""
        payload = chunk.payload
        samples = len(payload) // self._width if self._width else self._packet_samples if payload else 0
        return chunk.first_sample + samples

    def _give_frames(self, until: int) -> None:
        """Give the reader the frames of a held Opus packet up to this sample, to half a frame."""
        chunk = next((event for event in self._held if isinstance(event, Audio)), None)
        if self._width or chunk is None or not chunk.payload:
            return
        frames = frames_of(chunk.payload)
        samples = self._packet_samples // len(frames)
        for number, frame in enumerate(frames[: max(0, round((until - chunk.first_sample) / samples))]):
            first = chunk.first_sample + number * samples
            self._events.append(chunk._replace(first_sample=first, flags=0, payload=frame))
            self._given = first + samples

    async def _resume(self, lost: ConnectionLost) -> None:
        """Go on at another node behind the last word that has come whole. Raises `lost`, or why there is no node."""
        if self._stopped or not self._can_resume or self._losses == MAX_LOSSES:
            raise lost
        self._losses += 1
        self._give_frames(self._whole())
        said = max((word.char_end for word in self._aligned if self._at(word.end_ms) <= self._received), default=0)
        self._aligned = [word for word in self._aligned if word.char_end <= said]
        self._held.clear()
        self._received = self._first_sample = self._given
        self._first_char = said
        node = await self._renew(self._node)
        text = "".join(self._text)
        if self._stopped:
            raise lost
        if self._ended and not text[said:].strip() and not self._flushes:
            self._events.append(Finished(self.context_id, "end", audio_ms=round(self._first_ms)))
            return
        self._node, self._part = node, node.begin(**self._session)
        place = said
        for flush_at, flush_id in self._flushes:
            self._part.write(text[place:flush_at])
            self._part.flush(flush_id)
            place = max(place, flush_at)
        self._part.write(text[place:])
        if self._ended:
            self._part.end()


def frames_of(packet: bytes) -> list[bytes]:
    """The frames of an Opus packet of a node (RFC 6716, section 3.2), each a packet by itself, of equal length in time.

    The packet as it is, if it has one frame or is cut off.
    """
    if len(packet) < 2 or packet[0] & 3 != 3 or packet[1] & 0x40:  # of another form than libopus makes of 80 ms
        return [packet]
    head, has_sizes, count = bytes([packet[0] & ~3]), packet[1] & 0x80, packet[1] & 63
    rest, sizes = packet[2:], list[int]()
    while rest and len(sizes) < count - 1:
        size = len(packet[2:]) // count
        if has_sizes:
            size, rest = rest[0], rest[1:]
            if size >= 252:
                size, rest = size + 4 * (rest[0] if rest else 0), rest[1:]
        sizes.append(size)
    frames = list[bytes]()
    for size in sizes:
        frames.append(head + rest[:size])
        rest = rest[size:]
    return [*frames, head + rest] if rest and len(sizes) == count - 1 else [packet]
