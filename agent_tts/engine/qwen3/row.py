"""One request of Qwen3Engine: its text in segments, and where its row is in the present one."""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from agent_tts.engine.base import (
    DoneOutput,
    FlushedOutput,
    FrameOutput,
    NotFinite,
    StartRequest,
    StarvedOutput,
    StepOutput,
)
from agent_tts.engine.outlet import Outlet
from agent_tts.engine.qwen3.admission import LoadedVoice
from agent_tts.engine.qwen3.graphs import StepResult
from agent_tts.engine.qwen3.model import Qwen3Model
from agent_tts.engine.qwen3.runaway import SILENT_PEAK
from agent_tts.engine.qwen3.segment_feed import Segment, SegmentFeed
from agent_tts.engine.qwen3.stretch import TimeStretch
from agent_tts.engine.qwen3.voices import ModelVoice
from agent_tts.errors import InvalidRequest, Unsupported, UnsupportedLanguage
from agent_tts.events import FRAME_MS, SpeechOptions
from agent_tts.model.prompt import Prompt, build_prompt, text_needed
from agent_tts.model.sampling import SamplingParams
from agent_tts.text.breaks import MAX_BREAK_MS, Break
from agent_tts.voices import LANGUAGES

LANGUAGE_NAMES = {code: name for name, code in LANGUAGES.items()}

# Tokens that a row has before it, as long as it does not read on: to read text takes as long as many frames, and texts
# that come whole are read when they are needed.
TOKENS_AHEAD = 8

# Frames of pauses that are made before they are played: the longest pause. The next prompt is computed meanwhile.
RESTS_AHEAD = MAX_BREAK_MS // FRAME_MS


class RowPrompt(NamedTuple):
    """A prompt, and how many tokens of its segment's text are in it."""

    prompt: Prompt
    tokens: int


class Row:
    """Every segment of the text is a prompt of its own. In each step that the row takes part in it reads one token.

    Raises:
        InvalidRequest: the sampling cannot be done.
        UnsupportedLanguage: the model does not speak it.
    """

    def __init__(self, opened: StartRequest, wanted: ModelVoice) -> None:
        self.feed = SegmentFeed(opened, wanted.model.tokenizer.feed(), _code(opened.options))
        speed = opened.options.speed
        # Its audio, where that is not the model's frames as they are. None where it is.
        self.outlet = Outlet(opened.slot, opened.epoch) if opened.options.breaks or speed != 1 else None
        # Changes the speed of the model's frames. None at the model's own.
        self._stretch = TimeStretch(speed) if speed != 1 else None
        # Whether the outlet ends because of a limit, and whether there is nothing to run for until more text comes.
        self._cut = self._dry = False
        self.wanted = wanted
        # The voice on its model. None until the model is loaded.
        self.speaker: LoadedVoice | None = None
        # What is being loaded for it: its model or its voice. None when nothing is.
        self.loading: Future[LoadedVoice] | Future[None] | None = None
        self._language = _language(opened.options, wanted.model)
        self._sampling = _sampling(opened.options, wanted.model)
        # The prompt that is being computed, which may take several steps. None when none is.
        self._prompt: RowPrompt | None = None
        # Whether it can take part in this step.
        self.runs = False
        # Frames that are under way: of this segment, or of the end of the one before.
        self._under_way = 0
        # Whether a frame has been handed out.
        self.heard = False
        # Positions of the cache that are in use. 0 while the row does not decode its present segment.
        self._used = 0
        # Tokens on the text side of the row's steps, and how many of them it has read.
        self._given = 0
        self._read = 0
        # Tokens of the present segment's text, as far as the model knows it.
        self.tokens = 0
        # Whether these are all tokens of the segment.
        self._complete = False

    @property
    def model(self) -> Qwen3Model:
        """The model that speaks."""
        return self.wanted.model

    @property
    def decodes(self) -> bool:
        """Whether the prompt of the present segment is in the cache."""
        return self._used > 0

    @property
    def prefills(self) -> bool:
        """Whether a part of its prompt has to be computed yet."""
        return self._prompt is not None

    def goes_on(self) -> bool:
        """Whether it takes part in this step with what it has: most rows do in most steps."""
        self.runs = (
            not (self.outlet and self.outlet.ready)
            and (self._complete or (self._given - self._read > TOKENS_AHEAD and self.feed.segments[0].speakable))
            and 0 < self._used < self.model.max_model_len
            and self.model.reserve(self.feed.slot, self._used + 1)
        )
        return self.runs

    def hand_out(self) -> list[StepOutput]:
        """Once a step, of a row with an outlet: what of its audio comes next, or why there is none."""
        assert self.outlet is not None
        slot, epoch = self.feed.slot, self.feed.epoch
        outputs = self.outlet.hand_out()
        if self.outlet.finished:
            outputs.append(DoneOutput(slot, epoch, length=self._cut))
        elif self._dry and not outputs and not self._under_way:
            outputs.append(StarvedOutput(slot, epoch))
        return outputs

    def read(self) -> list[StepOutput]:
        """Read the text, and pass segments in which there is nothing to speak, unless enough pauses wait."""
        outputs: list[StepOutput] = []
        self._dry = False
        if self.outlet and self.outlet.ended:
            return outputs
        self.feed.read()
        while (
            self.feed.segments
            and self.feed.segments[0].is_mute
            and not (self.outlet and self.outlet.ready > RESTS_AHEAD)
        ):
            outputs += self._end_segment()
            self.feed.read()
        return outputs

    def prefill(self) -> bool:
        """Ask for the prompt, if enough is known for it; whether it is all there.

        The first prompt may come before its text.

        Raises:
            Unsupported: there can be no such prompt.
        """
        assert self.speaker is not None
        if self._prompt is None:
            self._prompt = self._next(self.speaker)
        if self._prompt is None or not self.model.prefill(
            self.feed.slot, self._prompt.prompt, self._sampling, self.speaker
        ):
            return False
        (prompt, tokens), self._prompt = self._prompt, None
        del self.feed.segments[0].tokens[:tokens]
        self._used, self._read, self._given = len(prompt.prefix), 0, len(prompt.text)
        self.tokens, self._complete = tokens, prompt.complete
        return True

    def _next(self, speaker: LoadedVoice) -> RowPrompt | None:
        """The prompt of the present segment, if enough of it is known."""
        if not self.feed.segments or self.feed.segments[0].is_mute:
            return None
        segment, needed = self.feed.segments[0], text_needed(speaker.voice)
        if not self._can_prefill(segment) and (needed or self.heard):
            return None
        start = segment.tokens[:needed] if segment.speakable else []
        config, tokenizer = self.model.config, self.model.tokenizer
        instruct: tuple[int, ...] = ()
        if self.wanted.instructions:
            ids = (config.im_start_token_id, config.im_end_token_id)
            instruct = tokenizer.instruction(self.wanted.instructions, *ids)
        prompt = build_prompt(
            config,
            speaker.voice,
            role=tokenizer.role(config.im_start_token_id),
            text=start,
            complete=segment.complete and len(segment.tokens) <= needed,
            language=self._language,
            instruct=instruct,
        )
        if len(prompt.prefix) + max(1, len(prompt.text)) > self.model.max_model_len:
            raise Unsupported("the voice's reference and the instructions leave no room for speech: shorten them")
        return RowPrompt(prompt, len(start))

    def settle(self) -> list[StepOutput]:
        """Hand the row its text; whether it can run, or why it cannot."""
        slot, epoch = self.feed.slot, self.feed.epoch
        if self.outlet and (self.outlet.ready or self.outlet.ended):
            return []
        if not self.feed.segments:
            return self._end()
        segment = self.feed.segments[0]
        if self.decodes and segment.speakable and not self._complete and (segment.tokens or segment.complete):
            self._give(segment.tokens, complete=segment.complete)
            segment.tokens.clear()
        # What is left of a reference's transcript is on the text side, too, and waits for the text that follows it.
        if self.decodes and segment.speakable and (self._complete or self._read < self._given):
            if self._used < self.model.max_model_len and self.model.reserve(slot, self._used + 1):
                self.runs = True
            elif not self._under_way:
                return self._end(cut=True)
        elif self.feed.dry and not segment.complete and (self.decodes or not self._can_prefill(segment)):
            self._dry = True
            return [] if self.outlet else [StarvedOutput(slot, epoch)]
        return []

    def _can_prefill(self, segment: Segment) -> bool:
        """Whether enough of a segment is known for its prompt, as far as can be said before the voice is ready."""
        needed = text_needed(self.speaker.voice) if self.speaker else 0
        return segment.complete or (segment.speakable and len(segment.tokens) >= needed)

    def _give(self, tokens: list[int], *, complete: bool) -> None:
        # What the cache has no room for can never be read: the segment is cut where the cache is full.
        tokens = tokens[: max(0, self.model.max_model_len - self._given - 1)]
        self.model.add_text(self.feed.slot, tokens, complete=complete)
        self._given += len(tokens) + complete
        self.tokens += len(tokens)
        self._complete = complete

    def begin(self) -> Segment:
        """The row takes part in a step, with the segment that is returned."""
        self._used += 1
        self._read += 1
        self._under_way += 1
        return self.feed.segments[0]

    def is_of(self, segment: Segment) -> bool:
        """A step is done that the row began with `segment`; whether it is still speaking it.

        If not, its end was under way when the step began, and there is no frame.
        """
        self._under_way -= 1
        return bool(self.feed.segments) and self.feed.segments[0] is segment

    def hear(self, spoken: StepResult, index: int, *, run_away: bool) -> list[StepOutput]:
        """What the row did in a step: entry `index` of `spoken`."""
        if self.outlet and self.outlet.ended:
            return []
        if not spoken.finite[index]:
            self.model.wipe(self.feed.slot)
            raise NotFinite("the model computed a frame that is not finite")
        if spoken.ended[index]:
            outputs = self._end_segment()
            return outputs if self.feed.segments else [*outputs, *self._end()]
        outputs = []
        pcm = spoken.pcm[index]
        # The first frame of a speaker is usually digital silence, which would be 80 ms of waiting.
        if self.heard or int(np.abs(pcm.astype(np.int32)).max()) >= SILENT_PEAK:
            self.heard = True
            outputs += self._frame(pcm.astype("<i2").tobytes())
        return [*outputs, *self._end(cut=True)] if run_away else outputs

    def _end_segment(self) -> list[StepOutput]:
        """The present segment has been spoken."""
        segment = self.feed.segments.popleft()
        if self._prompt is not None:
            self._prompt = None
            self.model.release(self.feed.slot)
        self._used = self._read = self._given = self.tokens = 0
        self._complete = False
        if self.outlet is None:
            return [FlushedOutput(self.feed.slot, self.feed.epoch)] * segment.flushes
        if self._stretch is not None:
            self.outlet.write(self._stretch.finish())
        self.outlet.rest(Break(segment.rest_ms))
        for _ in range(segment.flushes):
            self.outlet.flush()
        return []

    def _frame(self, pcm: bytes) -> list[StepOutput]:
        """What a frame of the model gives."""
        if self.outlet is None:
            return [FrameOutput(self.feed.slot, self.feed.epoch, pcm)]
        self.outlet.write(pcm if self._stretch is None else self._stretch.push(pcm))
        return []

    def _end(self, *, cut: bool = False) -> list[StepOutput]:
        """All segments have been spoken, or no more of them will be."""
        if self.outlet is None:
            return [DoneOutput(self.feed.slot, self.feed.epoch, length=cut)]
        if self._stretch is not None:
            self.outlet.write(self._stretch.finish())
        self.outlet.end()
        self._cut = cut
        return []


def _code(options: SpeechOptions) -> str:
    """The code of the language that is spoken; English where the model finds out."""
    code = LANGUAGES.get(options.language, options.language)
    return "en" if code == "auto" else code


def _language(options: SpeechOptions, model: Qwen3Model) -> str:
    """The model's name for the language of a request. Models of one node may differ in their dialects.

    Raises:
        UnsupportedLanguage: it has none.
    """
    known = model.config.talker.codec_language_id
    name = LANGUAGE_NAMES.get(options.language, options.language)
    if name != "auto" and name not in known:
        raise UnsupportedLanguage(f"the model {model.name} does not speak this language; it speaks {', '.join(known)}")
    return name


def _sampling(options: SpeechOptions, model: Qwen3Model) -> SamplingParams:
    """How a request draws its codes; temperature 0 is greedy for the predictor, too.

    Raises:
        InvalidRequest: a value is out of its range.
    """
    seed = secrets.randbits(63) if options.seed is None else options.seed
    asked = options.sampling
    try:
        sampling = replace(
            SamplingParams.of(model.config.generation, seed),
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            repetition_penalty=asked.repetition_penalty,
        )
    except ValueError as error:
        raise InvalidRequest(f"sampling: {error}", "sampling") from None
    return replace(sampling, predictor_temperature=0) if asked.temperature == 0 else sampling
