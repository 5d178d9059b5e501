"""One request in the scheduler, and the limits of all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from agent_tts.engine_info import FRAME_BYTES, FRAME_MS
from agent_tts.messages import Append, Audio, End, Flush, Open
from agent_tts.options import EngineOptions

FRAME_S = FRAME_MS / 1_000

# A paced request is growing when its listener has less than GROWING_BUFFER_S ahead, or less than GROWING_SHARE of what
# its lead allows.
GROWING_BUFFER_S, GROWING_SHARE = 0.240, 0.75


@dataclass(frozen=True, slots=True)
class Policy:
    slots: int  # requests speaking at once
    queue: int  # requests waiting for a slot
    batch_sizes: tuple[int, ...] = ()  # as `Engine.batch_sizes`
    queue_s: float = 1.8  # longest wait for a slot, then `at_capacity`
    text_idle_s: float = 15.0  # longest time without text in a dry slot, then `starved`
    window_frames: int = 50  # credit: frames made and not yet taken by the listener's side
    max_frames: int = 60_000  # frames of one request, whatever its text
    request_s: float = 600.0  # longest time in a slot beyond the length of the audio made


@dataclass(slots=True, eq=False)
class Request:
    """One request, waiting or speaking. Times are those of the `now` arguments, in seconds."""

    opened: Open[int, EngineOptions]
    opened_at: float
    credit: int  # frames that may be made before the listener's side takes some
    id: int = field(init=False)  # this and the next two are of `opened`
    options: EngineOptions = field(init=False)
    owner: int = field(init=False)
    has_slot: bool = False  # otherwise it waits or is parked
    parked: bool = False  # gave its slot back before its text began, and does not wait
    waits_since: float = 0.0  # when it was opened, or when the text of a parked one began
    started: bool = False  # `Started` was sent
    admitted_at: float = 0.0  # when it got its slot
    text: list[Append[int] | Flush[int] | End[int]] = field(default_factory=list)  # arrived while it had no slot
    begun: bool = False  # text has come, or a flush, or the end
    chars: int = 0  # characters so far
    rest_frames: int = 0  # of the pauses so far
    slowest: float = 1.0  # speed so far; 1 if none was slower
    most_frames: int = 0  # for this text: with more it is a runaway
    ended: bool = False  # no more text will come
    has_text: bool = False  # the engine may have something to speak
    idle_since: float = 0.0  # when the engine ran out of text; meaningless while `has_text`
    spoke_at: float = 0.0  # when its last frame was made, or it got its slot
    frames: int = 0  # made so far
    held: list[Audio[int]] = field(default_factory=list)  # of these, not told yet
    in_flight: int = 0  # steps that it runs in and whose events are still to come
    last_step: int = 0  # the number of the last of them
    got_frame: bool = False  # from the last step that has given its events
    buffered_until: float = 0.0  # when a listener who plays without pause will have played all frames
    spoken_up: bool = False  # it was flushed for others, and no text has come since
    busy_s: float = 0.0  # duration of the steps it ran in
    stalls: bool = False  # it has spoken, and the last step gave nothing: frames are held back, or a piece begins
    # Earliest time at which its lead allows the next frame; seconds from then until it is growing, and until its
    # listener has heard all frames. While it stalls it is growing at once, and urgent. Derived from the fields above;
    # stored because they are read for every request before every step.
    runnable_at: float = -math.inf
    growing_s: float = 0.0
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self.id, self.options, self.owner = self.opened.id, self.opened.options, self.opened.owner
        self.slowest = min(1.0, self.options.speed)
        self._derive()

    def stall(self, stalls: bool) -> None:
        """Take note whether it stalls since its last step."""
        if stalls != self.stalls:
            self.stalls = stalls
            self._derive()

    def _derive(self) -> None:
        if self.stalls:
            self.growing_s, self.ahead_s = 0.0, -math.inf
        elif self.options.lead_ms is not None:
            self.ahead_s = max(0.0, self.options.lead_ms / 1_000 - FRAME_S)
            self.growing_s = self.ahead_s - min(GROWING_BUFFER_S, GROWING_SHARE * self.ahead_s)
        else:
            self.growing_s = self.ahead_s = 0.0


def take_held(request: Request) -> list[Audio[int]]:
    """The frames of the request that are held as one piece, if there are any: they are told now."""
    held = request.held
    if len(held) > 1:
        pcm = b"".join([audio.payload for audio in held])
        # The listener's side counts frames by their length.
        request.credit += len(held) - -(-len(pcm) // FRAME_BYTES)
        held = [Audio(request.id, pcm)]
    request.held = []
    return held
