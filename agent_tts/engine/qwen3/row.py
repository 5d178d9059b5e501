"""One request of Qwen3Engine: its text in segments, and a state machine of what its row does with the present one.

    Waiting -> Prefill -> Decoding -> Waiting (next segment) ... -> Ending

`Row.run` says in each step whether the row takes part in it. A segment ends when the model says the end of speech, or
short of it: at a limit (the cache is full), or where its speech has left the text. The request goes on with the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_tts.directives import MAX_PAUSE_MS, Pause
from agent_tts.engine.base import NotFinite
from agent_tts.engine.gain import Levels
from agent_tts.engine.qwen3.delivery import RowOutlet
from agent_tts.engine.qwen3.runaway import (
    LEAST_FRAMES_PER_TOKEN,
    MOST_HELD,
    SHORT,
    FramePaces,
    FrameVerdict,
    RunawayDetector,
    nominal_frames,
    spelled_frames,
)
from agent_tts.engine.qwen3.segment_feed import POSITIONS_PER_TOKEN, SEGMENT_TOKENS, Segment, SegmentFeed
from agent_tts.engine.qwen3.served import LoadedVoice, ServedModel, StepResult
from agent_tts.engine.qwen3.voices import ModelVoice
from agent_tts.engine.slots import Opened
from agent_tts.engine_info import FRAME_BYTES, FRAME_MS, SAMPLE_RATE
from agent_tts.errors import InvalidRequest, Unsupported, UnsupportedLanguage
from agent_tts.messages import Audio, CutReason, Finished, Flushed, OutOfText, StepEvent
from agent_tts.model.config import SamplingParams
from agent_tts.model.prompt import Prompt, Reference, text_needed
from agent_tts.options import AnyVoice, DesignedVoice, EngineOptions
from agent_tts.sound.silence import skipped
from agent_tts.text.chars import is_cjk
from agent_tts.text.directives import Directives
from agent_tts.text.tokens import TokenFeed
from agent_tts.voices import LANGUAGES

LANGUAGE_NAMES = {code: name for name, code in LANGUAGES.items()}

# A row reads more text when it has fewer tokens ahead: reading takes as long as many frames.
TOKENS_AHEAD = 8

# Frames of pauses that are made before they are played: the longest pause. The next prompt is computed meanwhile.
RESTS_AHEAD = MAX_PAUSE_MS // FRAME_MS

FADE_SAMPLES = 120  # 5 ms, where speech is cut
QUIET_PEAK = 328  # of int16: -40 dB; between words

CUTS: dict[FrameVerdict, CutReason] = {
    FrameVerdict.LOOP: "loop",
    FrameVerdict.SILENCE: "silence",
    FrameVerdict.OVERRUN: "overrun",
}

# A text that a reference wants more of: how long no more has come when it is spoken up to any word; and how much of the
# speech before it is left to play when a part of it is begun, which is as long as it can be then.
PAUSE_S = 0.2
SPLIT_S = 0.5

# Speech that is enough to go on with a voice that was drawn: 3 s.
CARRIED_FRAMES = 38


class Waiting:
    """The present segment has no prompt: its text, the voice or a turn for the prefill is missing."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The prompt of the present segment is being computed, in one or several steps."""

    prompt: Prompt
    tokens: int  # of the segment's text, in the prompt


@dataclass(slots=True)
class Decoding:
    """The prompt of the present segment is in the cache: each step that the row takes part in gives a frame."""

    used: int  # positions of the cache
    given: int  # tokens on the text side of the row's steps
    tokens: int  # of the segment's text, that the model knows
    complete: bool  # those are all tokens of the segment
    read: int = 0  # of the given tokens
    nominal: float = 0.0  # frames that the segment takes at a usual pace; 0 until it is complete


@dataclass(frozen=True, slots=True)
class Ending:
    """Nothing more is computed; the outlet hands out the rest of its audio."""


class Row:
    """A request. Every segment of its text has a prompt of its own; a step of a row reads one token of the text.

    Raises:
        InvalidRequest: the sampling parameters are out of range.
        UnsupportedLanguage: the model does not speak it.
    """

    def __init__(
        self, opened: Opened, slot: int, wanted: ModelVoice, runaway: RunawayDetector, paces: FramePaces, levels: Levels
    ) -> None:
        self.state: Waiting | Prefill | Decoding | Ending = Waiting()
        code = _code(opened.options)
        directives = Directives(wanted.model.abilities, wanted.model.languages, code)
        # Whether only the speech before tells the voice of a piece: it is drawn, from a description or from nothing.
        drawn = isinstance(wanted.voice, DesignedVoice | AnyVoice)
        limit = min(SEGMENT_TOKENS, wanted.model.max_model_len // POSITIONS_PER_TOKEN) // (2 if drawn else 1)
        tokens = TokenFeed(wanted.model.tokenizer)
        self.feed = SegmentFeed(opened, slot, tokens, code or "en", directives, limit, wanted.model.piece_tokens)
        # Its audio from the first pause, seam, held frame or other manner on. None while the model's frames are handed
        # out as such.
        self.outlet: RowOutlet | None = None
        self._shape()
        self.wanted = wanted
        self.model = wanted.model
        # Whether nobody waits for it to keep a pace: text and prompts of the others are read and computed first.
        self.unpaced = opened.options.unpaced
        # The voice on its model. None until the model is loaded.
        self.speaker: LoadedVoice | None = None
        # What is being loaded for it: its model or its voice. None when nothing is.
        self.loading: Future[LoadedVoice | None] | None = None
        self._language = _language(opened.options, wanted.model)
        self._sampling = _sampling(opened.options, wanted.model)
        self._mode = opened.options.text_mode
        self.runs = False
        # Whether it needs more text before it can run again; for the outlet, which tells when its audio is out.
        self._starved = False
        # Frames in flight: of the present segment, or behind the end of the one before.
        self._in_flight = 0
        # Whether a frame has been handed out, and one of the present piece: a segment, or what is left of a cut one.
        self.heard = self.in_speech = False
        self._leading_silence_ms = opened.options.leading_silence_ms
        self.leveler = levels.leveler(opened.options, SAMPLE_RATE)
        # Codes of the present segment so far, of a voice that is drawn; None: enough is known, or none can be.
        self.said: list[NDArray[np.int16]] | None = [] if drawn and wanted.model.tells_codes else None
        # What the segment before has said, with its text, until the next one begins.
        self._carried: tuple[str, list[NDArray[np.int16]]] | None = None
        # The text of the speaker's reference, which such segments are.
        self._reference = ""
        # Judges the frames of all rows; and how fast each voice speaks.
        self._runaway = runaway
        self._paces = paces
        self._code = code or "en"
        # When a listener who plays without pause will have played all segments that have been spoken.
        self._plays_until = 0.0
        # Frames of the present segment that may have left its text, in order.
        self._held: list[bytes] = []
        # Why segments ended short of their end of speech, or with it, but too early; each once.
        self._cuts: dict[CutReason, None] = {}
        # Whether text of a segment was certainly not spoken.
        self._short = False

    @property
    def _language_code(self) -> str:
        """Of the present segment."""
        return self.feed.segments[0].manner.language or self._code

    @property
    def _voice(self) -> int:
        """What the pace of the present segment depends on. A hash: a request's vector and instructions are not kept."""
        return hash((self.wanted, self._language_code))

    @property
    def needs_prompt(self) -> bool:
        """Whether the present segment has no prompt in the cache yet."""
        return isinstance(self.state, Waiting | Prefill)

    @property
    def reads_on(self) -> bool:
        """Whether its present segment has no prompt yet, and text of it waits to be read."""
        return self.needs_prompt and not self.feed.dry and not self.feed.segments[0].complete

    @property
    def _frames(self) -> int:
        """Frames of the present segment before the last, which has ended it."""
        return max(0, int(self._runaway.frames[self.feed.slot]) - 1)

    # ---------------------------------------------------------------- schedule: before a step

    def run(self) -> bool:
        """Take part in this step with what the row has; False when text has to be read first. Cheap: most rows run."""
        state = self.state
        self._starved = False
        self.runs = (
            isinstance(state, Decoding)
            and not (self.outlet and self.outlet.ready)
            and (state.complete or self._has_tokens(state))
            and self._has_room(state)
        )
        return self.runs

    def _has_tokens(self, state: Decoding) -> bool:
        """Whether the model has text of the present segment left to read, enough of it where more is to be read."""
        segment = self.feed.segments[0]
        more = segment.complete or segment.tokens or not self.feed.dry
        return segment.speakable and state.given - state.read > (TOKENS_AHEAD if more else 0)

    def read(self, now: float) -> list[StepEvent]:
        """Read a chunk of the text, and pass segments without anything to speak, unless enough pauses wait."""
        new: list[StepEvent] = []
        if isinstance(self.state, Ending):
            return new
        while True:
            self.feed.read(now)
            self._shape()
            is_mute = bool(self.feed.segments) and self.feed.segments[0].is_mute
            if not is_mute or (self.outlet and self.outlet.ready > RESTS_AHEAD):
                return new
            new += self._end_segment()

    def prefill(self, now: float) -> None:
        """Lay out the prompt of the present segment if enough is known, and ask for it until it is in the cache.

        The first prompt may be computed before its text is there.

        Raises:
            Unsupported: the prompt leaves no room for speech.
        """
        assert self.speaker is not None
        if isinstance(self.state, Waiting):
            self.state = self._layout(self.speaker, now) or self.state
        state = self.state
        if not isinstance(state, Prefill):
            return
        prompt, tokens = state.prompt, state.tokens
        if not self.model.runner.prefill(self.feed.slot, prompt, self._sampling, self.speaker, last=self.unpaced):
            return
        del self.feed.segments[0].tokens[:tokens]
        self.state = Decoding(len(prompt.prefix), len(prompt.text), tokens, prompt.complete)
        self.in_speech = False
        self._runaway.begin(self.feed.slot)
        self._plays_until = max(self._plays_until, now)
        if prompt.complete:
            self._expect(self.state)

    def _layout(self, speaker: LoadedVoice, now: float) -> Prefill | None:
        """The prompt of the present segment, if enough of it is known."""
        if not self.feed.segments or self.feed.segments[0].is_mute:
            return None
        if self._carried is not None:
            speaker = self.speaker = self._carry(speaker, *self._carried)
        segment, needed = self.feed.segments[0], text_needed(speaker.voice)
        paused = now - self.feed.read_at >= PAUSE_S
        if not self._can_prefill(segment) and self._plays_until - now < SPLIT_S and self._may_split(paused=paused):
            self.feed.split(paused=paused)
            segment = self.feed.segments[0]
        # Before its text, only the first prompt is computed, and only where it is the same whatever the text is.
        if not self._can_prefill(segment) and (needed or self.heard or self._mode != "live"):
            return None
        if self._mode == "auto" and self.reads_on:
            return None
        whole = segment.complete and self._mode != "live"
        if whole:
            needed = len(segment.tokens)
        start = segment.tokens[:needed] if segment.speakable else []
        manner = segment.manner
        prompt = self.model.prompt(
            speaker.voice,
            start,
            " ".join(filter(None, (self.wanted.instructions, manner.style))),
            complete=segment.complete and len(segment.tokens) <= needed,
            streaming=not whole,
            language=LANGUAGE_NAMES.get(manner.language, manner.language) if manner.language else self._language,
        )
        if len(prompt.prefix) + max(1, len(prompt.text)) > self.model.max_model_len:
            raise Unsupported("the voice's reference and the instructions leave no room for speech: shorten them")
        return Prefill(prompt, len(start))

    def _carry(self, speaker: LoadedVoice, text: str, said: Sequence[NDArray[np.int16]]) -> LoadedVoice:
        """A voice that was drawn, which goes on as the segment before spoke: that is added to its reference."""
        self._carried = None
        frames = speaker.voice.reference.frames if speaker.voice.reference else ()
        frames += tuple(tuple(codes.tolist()) for codes in said)
        if len(frames) >= CARRIED_FRAMES:
            self.said = None
        if len(frames) > self.model.max_model_len // 2:  # no room for speech behind it
            return speaker
        self._reference += f" {text}" if self._reference and not is_cjk(text[0]) else text
        reference = Reference(tuple(self.model.tokenizer.encode(self._reference)), frames)
        codec = self.model.runner.codec_of(self.feed.slot)
        return replace(speaker, voice=replace(speaker.voice, reference=reference), codec=codec)

    def _may_split(self, *, paused: bool) -> bool:
        """Whether the text waits for what a reference wants beside it, and a part of it can be spoken alone."""
        wants = self._mode != "whole" and self.speaker and text_needed(self.speaker.voice)
        return bool(wants) and self.feed.can_split(paused=paused)

    def _can_prefill(self, segment: Segment) -> bool:
        """Whether enough of a segment is known for its prompt, as far as can be said before the voice is ready."""
        if segment.complete or self._mode == "whole":
            return segment.complete
        needed = text_needed(self.speaker.voice) if self.speaker else 0
        return segment.speakable and len(segment.tokens) >= needed

    def settle(self) -> list[StepEvent]:
        """Give the model the text of a decoding row; run it, or say why it cannot run."""
        if isinstance(self.state, Ending) or (self.outlet and self.outlet.ready):
            return []
        if not self.feed.segments:
            return self._end()
        segment = self.feed.segments[0]
        if isinstance(state := self.state, Decoding) and segment.speakable:
            if not state.complete and (segment.tokens or segment.complete):
                self._give(state, segment)
            # Tokens may be left of a reference's transcript, too, which wait for the text that follows them.
            if state.complete or state.read < state.given:
                self.runs = self._has_room(state)
                return self._cut("positions") if not (self.runs or self._in_flight) else []
        if isinstance(self.state, Waiting) and self._may_split(paused=True):
            return []  # behind a pause, or the speech before
        if self.feed.dry and not segment.complete and not (self.needs_prompt and self._can_prefill(segment)):
            self._starved = True
            return [] if self.outlet else [OutOfText(self.feed.id)]
        return []

    def _has_room(self, state: Decoding) -> bool:
        """Whether the cache has a position for one more frame; reserves it."""
        return state.used < self.model.max_model_len and self.model.runner.reserve(self.feed.slot, state.used + 1)

    def _give(self, state: Decoding, segment: Segment) -> None:
        # Tokens beyond the cache would never be read: the speech is cut where the cache is full.
        tokens = segment.tokens[: max(0, self.model.max_model_len - state.given - 1)]
        self.model.runner.add_text(self.feed.slot, tokens, complete=segment.complete)
        state.given += len(tokens) + segment.complete
        state.tokens += len(tokens)
        state.complete = segment.complete
        segment.tokens.clear()
        if state.complete:
            self._expect(state)

    def _expect(self, state: Decoding) -> None:
        """All text of the present segment is known: say how long it takes."""
        text = self.feed.segments[0].text
        state.nominal = nominal_frames(text, self._language_code)
        least = LEAST_FRAMES_PER_TOKEN * state.tokens
        usual = self._paces.of(self._voice) * state.nominal + spelled_frames(text)
        self._runaway.expect(self.feed.slot, max(least, usual))

    # ---------------------------------------------------------------- launch and collect

    def launch(self) -> Segment:
        """Count a step of the row in; it speaks the segment that is returned."""
        assert isinstance(self.state, Decoding)
        self.state.used += 1
        self.state.read += 1
        self._in_flight += 1
        return self.feed.segments[0]

    def landed(self, segment: Segment) -> bool:
        """Count a step out that the row launched with `segment`; whether the row is still decoding it.

        If not, the end of the segment was in flight when that step was launched, and the step has no frame.
        """
        self._in_flight -= 1
        return isinstance(self.state, Decoding) and self.feed.segments[0] is segment

    def collect(self, result: StepResult, index: int, verdict: FrameVerdict) -> list[StepEvent]:
        """What entry `index` of a step's result means for the row, which is still decoding."""
        if not result.finite[index]:
            self.model.runner.wipe(self.feed.slot)
            raise NotFinite("the model computed a frame that is not finite")
        if result.ended[index]:
            return self._end_of_speech()
        if verdict in CUTS:
            return self._cut(CUTS[verdict])
        if self.said is not None:
            self.said.append(result.codes[index].copy())
        pcm = result.pcm[index]
        # The first frame of a speaker is usually digital silence, which would be 80 ms of latency.
        if not self.in_speech:
            left_out = skipped(pcm, SAMPLE_RATE, self._leading_silence_ms)
            self._plays(-left_out / len(pcm))
            pcm = pcm[left_out:]
            if not len(pcm):
                return []
        self.heard = self.in_speech = True
        frame = (np.rint(self.leveler.apply(pcm)) if self.leveler else pcm).astype("<i2").tobytes()
        if verdict is FrameVerdict.HELD:
            self._hold(frame)
            return []
        if self.outlet is None:
            return [Audio(self.feed.id, frame)]
        self._write([*self._held, frame])
        return []

    def _end_of_speech(self) -> list[StepEvent]:
        """The model has said it. What was held back belongs to the speech after all."""
        assert isinstance(self.state, Decoding)
        if not self.state.complete:  # within its text, as our modules never do
            return self._cut("early")
        frames, nominal = self._frames, self.state.nominal
        if frames < SHORT * self._paces.of(self._voice) * nominal:
            self._cuts["early"] = None
        else:
            self._paces.learn(self._voice, frames, nominal)
        if self.said is not None:
            self._carried, self.said = (self.feed.segments[0].text, self.said), []
        self._plays(frames)
        self._write(self._held)
        return self._end_segment() + ([] if self.feed.segments else self._end())

    def _cut(self, why: CutReason) -> list[StepEvent]:
        """End the present segment here; what follows it is spoken. Text of it that the model does not have follows."""
        assert isinstance(self.state, Decoding)
        frames = self._frames - len(self._held)
        expected = self._paces.of(self._voice) * self.state.nominal
        self._short = self._short or why == "positions" or not self.state.complete or frames < expected / 2
        self._cuts[why] = None
        if self.said is not None:
            self.said = []
        last = _until_quiet(self._held) if why == "overrun" else _faded(self._held)
        self._plays(frames + len(last))
        self._write(last)
        if not self.state.complete:
            self.state = Waiting()
            self.feed.renew()
            return []
        return self._end_segment() + ([] if self.feed.segments else self._end())

    def _plays(self, frames: float) -> None:
        """So many frames of the present segment are heard, or fewer than were counted."""
        self._plays_until += frames * FRAME_MS / 1_000 / self.feed.segments[0].manner.speed

    def _hold(self, frame: bytes) -> None:
        """Keep a frame back. From now on the row has an outlet, which hands out a frame a step if they are good."""
        self._shape(always=True)
        self._held.append(frame)
        if len(self._held) > MOST_HELD:
            self._speak([self._held.pop(0)])

    def _write(self, frames: Sequence[bytes]) -> None:
        """Give frames to the outlet, if there are any; none are held back any more."""
        self._speak(frames)
        self._held.clear()

    def _speak(self, frames: Sequence[bytes]) -> None:
        """Give frames to the outlet, if there are any."""
        if frames:
            assert self.outlet is not None
            segment = self.feed.segments[0]
            self.outlet.speak(frames, segment.manner, seam=segment.seam)

    def _shape(self, *, always: bool = False) -> None:
        """Make the outlet where the model's frames are not handed out as such: from the present segment on."""
        if self.outlet is None and (always or (self.feed.segments and self.feed.segments[0].is_shaped)):
            self.outlet = RowOutlet(self.feed.id)

    def hand_out(self) -> list[StepEvent]:
        """Once a step, of a row with an outlet: what of its audio comes next, or why there is none."""
        assert self.outlet is not None
        new = self.outlet.hand_out()
        if self.outlet.finished and isinstance(self.state, Ending):
            new.append(self._done())
        elif self._starved and not new and not self._in_flight:
            new.append(OutOfText(self.feed.id))
        return new

    def _end_segment(self) -> list[StepEvent]:
        """The present segment has been spoken, or has nothing to speak."""
        self._shape()
        segment = self.feed.segments.popleft()
        self.state = Waiting()
        if self.outlet is None:
            self._shape()
            return [Flushed(self.feed.id, flush_id) for flush_id in segment.flushes]
        self.outlet.end_piece(seam=segment.seam)
        self.outlet.rest(Pause(segment.rest_ms))
        for flush_id in segment.flushes:
            self.outlet.flush(flush_id)
        return []

    def _end(self) -> list[StepEvent]:
        if self.outlet is None:
            return [self._done()]
        self.outlet.end_piece(seam=False)
        self.outlet.end()
        self.state = Ending()
        return []

    def _done(self) -> Finished[int]:
        return Finished(self.feed.id, "length" if self._short else "end", tuple(self._cuts))


def _faded(frames: Sequence[bytes]) -> list[bytes]:
    """The beginning of the first frame, fading out: what follows the speech before a cut, instead of a click."""
    if not frames:
        return []
    start = np.frombuffer(frames[0], "<i2")[:FADE_SAMPLES] * np.linspace(1, 0, FADE_SAMPLES)
    return [start.astype("<i2").tobytes().ljust(FRAME_BYTES, b"\0")]


def _until_quiet(frames: Sequence[bytes]) -> list[bytes]:
    """The frames up to the first quiet one, where a word ends; if all are loud, none but a fade."""
    peaks = [int(np.abs(np.frombuffer(frame, "<i2").astype(np.int32)).max()) for frame in frames]
    end = next((place for place, peak in enumerate(peaks) if peak < QUIET_PEAK), 0)
    return [*frames[:end], *_faded(frames[end:])]


def _code(options: EngineOptions) -> str | None:
    """The code of the language that is spoken; None where the model finds out."""
    code = LANGUAGES.get(options.language, options.language)
    return None if code == "auto" else code


def _language(options: EngineOptions, model: ServedModel) -> str:
    """The model's name for the language of a request. Models of one node may differ in their dialects."""
    known = model.config.talker.codec_language_id
    name = LANGUAGE_NAMES.get(options.language, options.language)
    if name != "auto" and name not in known:
        raise UnsupportedLanguage(f"the model {model.name} does not speak this language; it speaks {', '.join(known)}")
    return name


def _sampling(options: EngineOptions, model: ServedModel) -> SamplingParams:
    """How a request draws its codes: as the model's defaults say, but for what the request says.

    Its temperature 0 is greedy for the predictor, too.
    """
    seed = secrets.randbits(63) if options.seed is None else options.seed
    asked: dict[str, Any] = {name: value for name, value in asdict(options.sampling).items() if value is not None}
    if asked.get("temperature") == 0:
        asked["predictor_temperature"] = 0
    try:
        return replace(SamplingParams.of(model.config.generation, seed), **asked)
    except ValueError as error:
        raise InvalidRequest(f"sampling: {error}", "sampling") from None
