"""Qwen3Engine: Qwen3-TTS for many requests at once; a slot is a row of its model's batch.

A step is `apply -> schedule -> launch -> collect`: take the inputs, choose the rows and prompts of this step, give them
to the device, and hand out what the step before (on a GPU) or this one has computed. Rows begin, pause and leave while
the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.engine.base import Engine, StepTimes
from agent_tts.engine.gain import Levels
from agent_tts.engine.qwen3.row import Row, Waiting
from agent_tts.engine.qwen3.runaway import FramePaces, FrameVerdict, RunawayDetector
from agent_tts.engine.qwen3.segment_feed import Segment
from agent_tts.engine.qwen3.served import LoadedVoice, ServedModel
from agent_tts.engine.qwen3.voices import ModelVoice, Qwen3Voices, speakers_of
from agent_tts.engine.slots import READ_S, Opened, SlotTable
from agent_tts.engine_info import EngineInfo, Model
from agent_tts.errors import SpeechError, Unsupported
from agent_tts.messages import Audio, Open, StepCommand, StepEvent
from agent_tts.voices.library import VoiceLibrary

# Prompts that are begun in one step: each takes the host about 0.1 ms, for which all rows wait.
PREFILLS_PER_STEP = 16

# While a step is in flight, it is checked at least this often: it may be done before it is expected to.
LOOK_S = 0.002

# Length of a step in which no row can run, because a model is being loaded or the cache has no room.
WAIT_S = 0.005

# To wake, read commands and schedule; the time from there to the launch is measured.
WAKE_S = 0.000_5
# An estimate that was too long shrinks by 10 %: the step ended before the host looked, so the true time is unknown. One
# that was too short grows by at most 25 %: something else may have delayed the step once.
SHRINK, GROW = 0.9, 1.25


class Qwen3Engine(Engine):
    """See `Engine`.

    Raises:
        SettingsError: there is no model, too little memory, or a checkpoint that cannot be used.
    """

    name = "qwen3"

    def __init__(self, settings: Settings, slots: int) -> None:
        self._models = self._open(settings, slots)
        slots = self._models[0].rows
        library = VoiceLibrary.of(settings.voices)
        library.voices()  # reading a large library for the first time takes longer than a step may
        self._voices = Qwen3Voices(self._models, library, settings.qwen3.cached_voices)
        listed = self._voices.listed
        self.info = EngineInfo(
            engine=self.name,
            model=self._models[0].name,
            slots=slots,
            voices=listed,
            default_voice=listed[0].name,
            languages=self._voices.languages,
            aliases=self._voices.aliases,
            watermark=None if settings.watermark == "none" else settings.watermark,
            models=tuple(
                Model(m.name, m.kind, str(m.folder), m.vector_size, speakers_of(m), m.instructed) for m in self._models
            ),
        )
        self._slots = SlotTable(slots, self._make, self._release)
        # The last frames of the row of every slot, whichever model it belongs to.
        self._runaway = RunawayDetector(slots)
        self._paces = FramePaces()
        self._levels = Levels()
        # Loads models on first use and prepares clones, one after the other, while the others speak.
        self._loader = ThreadPoolExecutor(1, "qwen3 loader", self._models[0].use)
        # Its jobs: at most one for each model and each clone, and only those that a row waits for.
        self._loading: dict[object, Future[LoadedVoice | None]] = {}
        # What the library holds, being read by the loader's thread; None when it is to be read again.
        self._stored: Future[frozenset[tuple[str, str]]] | None = None
        # Whether text of rows is left that this step had no time to read.
        self._is_behind = False
        # Prompts that may still be begun in this step, and how many of those by rows with a pace alone.
        self._prefills_left = self._prefills_kept = 0
        # With streams the next step is prepared while one is in flight.
        self._overlaps = self._models[0].queues
        # The frames in flight, one for each model that has any.
        self._in_flight: list[_Frames] = []
        # Whether the last step was of prompts alone and there are more: they need not wait for their rows' text.
        self._prompts_wait = False
        self._timer = StepTimer()
        self.batch_sizes = self._models[0].sizes

    def _open(self, settings: Settings, slots: int) -> Sequence[ServedModel]:
        """Its models, of which the first knows how many rows each has. Raises SettingsError."""
        from agent_tts.engine.qwen3.model import create_models

        return create_models(settings, slots)

    def step(self, commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
        """See `Engine.step`. One that waits for its model, its prefill or its text yields nothing in this step."""
        began = time.perf_counter()
        new = self._slots.apply(commands)
        self._forget_loading()
        rows = self._slots.requests(run)
        new += self._schedule(rows, commands)
        before = self._in_flight
        launched = self._launch(rows, began)
        new = self._collect(before) + new
        if not self._overlaps:
            step, self._in_flight = self._in_flight, []
            new += self._collect(step)
        for row in rows:
            if row.outlet is not None and self._slots.has(row):
                new += self._slots.guard(row, row.hand_out)
        if rows and not (new or launched or self._is_behind):  # pause the engine's loop
            if loading := [row.loading for row in rows if row.loading]:
                wait(loading, WAIT_S, FIRST_COMPLETED)
            else:
                time.sleep(WAIT_S)
        return new

    def _release(self, slot: int) -> None:
        for model in self._models:
            if model.loaded:
                model.runner.release(slot)

    def _schedule(self, rows: Sequence[Row], commands: Sequence[StepCommand]) -> list[StepEvent]:
        """Find out which rows take part in this step, and begin prompts, also of new rows ahead of their text.

        Their order is that of the scheduler, and of `_turn`. Rows whose text there is no time to read are left out.
        """
        new: list[StepEvent] = []
        self._prefills_left = PREFILLS_PER_STEP
        self._is_behind = False
        began = time.perf_counter()
        # Who waits for a first frame waits for all of a step: beside it, less of the background is read and begun.
        is_awaited = any(not (row.unpaced or row.in_speech) for row in rows)
        self._prefills_kept = 3 * PREFILLS_PER_STEP // 4 if is_awaited else 0
        for row in sorted([row for row in rows if not row.run()], key=_turn):
            if time.perf_counter() - began > (READ_S / 5 if is_awaited and row.unpaced else READ_S):
                self._is_behind = True
                break
            new += self._slots.guard(row, partial(self._prepare, row))
        opened = self._slots.requests([command.id for command in commands if isinstance(command, Open)])
        for row in sorted(opened, key=lambda row: row.unpaced):
            new += self._slots.guard(row, partial(self._prefill, row))
        return new

    def _launch(self, rows: Sequence[Row], began: float) -> bool:
        """Give each model's rows and prompts to its device; whether there are any. `began`: when the step did."""
        updates = [model.loaded and model.runner.update() for model in self._models]
        self._in_flight = []
        for model, has_prompts in zip(self._models, updates, strict=True):
            running = self._able(model, [row for row in rows if row.runs and row.model is model])
            if running or has_prompts:
                segments = [(row, row.launch()) for row in running]
                launching = time.perf_counter()
                if launched := model.runner.launch([row.feed.slot for row in running], timed=self.is_timed):
                    self._in_flight.append(_Frames(model, segments, launched, began, launching, time.perf_counter()))
        self._prompts_wait = not self._in_flight and any(
            model.loaded and model.runner.has_prompts for model in self._models
        )
        if self._in_flight and self._overlaps:
            kind = (*updates, *((frames.model.name, frames.launched.size) for frames in self._in_flight))
            now = time.perf_counter()
            self._timer.launched(kind, now, now - began)
        return bool(self._in_flight) or any(updates)

    def _able(self, model: ServedModel, rows: list[Row]) -> list[Row]:
        """Those of the rows of a model whose next frame can be launched."""
        return rows

    def _collect(self, step: Sequence[_Frames]) -> list[StepEvent]:
        """What the rows of a launched step have said; waits until it is done."""
        new: list[StepEvent] = []
        waited = self._overlaps and not all(frames.launched.ready() for frames in step)
        for frames in step:
            result = frames.launched.result()
            if self.is_timed:
                self.times = frames.times(time.perf_counter(), self.times)
            landed = [row.landed(segment) and self._slots.has(row) for row, segment in frames.rows]
            heard = [row for row, _ in compress(frames.rows, landed)]
            if len(heard) < len(landed):
                result = result.of(landed)
            verdicts = self._runaway.see([row.feed.slot for row in heard], result.codes, result.pcm)
            ordinary = result.finite & ~result.ended & (verdicts == FrameVerdict.GOOD)
            for at, (row, is_ordinary, verdict) in enumerate(
                zip(heard, ordinary.tolist(), verdicts.tolist(), strict=True)
            ):
                plain = row.outlet is None and row.said is None and row.leveler is None
                if is_ordinary and row.in_speech and plain:
                    new.append(Audio(row.feed.id, result.pcm[at].tobytes()))
                else:
                    new += self._slots.guard(row, partial(row.collect, result, at, FrameVerdict(verdict)))
        if step and self._overlaps:
            self._timer.done(time.perf_counter(), waited=waited)
        return new

    def next_step_in_s(self) -> float | None:
        if not self._in_flight:
            return 0.0 if self._prompts_wait else None
        if all(frames.launched.ready() for frames in self._in_flight):
            return 0.0
        return min(LOOK_S, self._timer.wait_s(time.perf_counter()))

    def tidy(self) -> None:
        """See `Engine.tidy`. A request that speaks with a voice when it is deleted is spoken to its end."""
        if self._stored is None:
            self._stored = self._loader.submit(self._voices.read_library)
        elif self._stored.done():
            stored, self._stored = self._stored, None
            self._voices.forget_others(stored.result())
            self._forget_loading()

    def close(self) -> None:
        self._slots.clear()
        self._collect(self._in_flight)
        self._in_flight = []
        self._loader.shutdown(wait=True, cancel_futures=True)
        for model in self._models:
            model.close()

    def _make(self, opened: Opened, slot: int) -> Row:
        if opened.options.pitch != 1:
            raise Unsupported("this engine has no pitch: leave it at 1, or ask for it in instructions")
        return Row(opened, slot, self._voices.choose(opened.options), self._runaway, self._paces, self._levels)

    def _prepare(self, row: Row) -> list[StepEvent]:
        row.runs = False
        new = row.read(time.monotonic())
        self._prefill(row)
        new += row.settle()
        self._is_behind |= row.reads_on
        return new

    def _prefill(self, row: Row) -> None:
        """Begin the prompt of a row's next segment, if there is one and this step has a place for it, or ask again."""
        begins = isinstance(row.state, Waiting)
        left = self._prefills_left - (self._prefills_kept if row.unpaced else 0)
        if not row.needs_prompt or (begins and left <= 0) or not self._is_ready(row):
            return
        row.prefill(time.monotonic())
        if begins and not isinstance(row.state, Waiting):
            self._prefills_left -= 1

    def _is_ready(self, row: Row) -> bool:
        """Whether the model and the voice of a row are loaded; if not, the loader's thread loads them.

        An error of the loader is the row's; the next request tries again.
        """
        loaded = row.model.loaded  # read once: the loader may set it at any time
        if row.speaker is None and loaded:
            row.speaker = self._voices.ready(row.wanted)
        if row.speaker is None and row.loading is None:
            key = row.wanted if loaded else row.model
            row.loading = self._loading.get(key)
            if row.loading is None or (row.loading.done() and row.loading.exception()):
                row.loading = self._loading[key] = self._loader.submit(self._load, row.wanted, loaded)
        if row.speaker is None and row.loading and row.loading.done():
            loading, row.loading = row.loading, None
            row.speaker = loading.result()
            if row.speaker:
                self._voices.keep(row.wanted, row.speaker)
        return row.speaker is not None

    def _load(self, wanted: ModelVoice, loaded: bool) -> LoadedVoice | None:
        """In the loader's thread: load the model of a voice, or, where it is `loaded`, the voice."""
        try:
            if loaded:
                return self._voices.load(wanted)
            wanted.model.load()
        except SpeechError:
            raise
        except Exception as error:
            logger.error("{}: {}: {}", wanted.model.name, type(error).__name__, error)
            raise Unsupported(f"the model {wanted.model.name} cannot be loaded: the node's log says why") from error
        return None

    def _forget_loading(self) -> None:
        """Drop jobs that are done or have not begun, and that no row waits for any more."""
        if self._loading:
            awaited = {row.loading for row in self._slots.requests()}
            for key, loading in list(self._loading.items()):
                if loading not in awaited and (loading.cancel() or loading.done()):
                    del self._loading[key]


def _turn(row: Row) -> tuple[bool, float]:
    """When a row is read. Who was read and has not spoken waits for a turn: a text may be long, and say nothing."""
    return (False, 0.0) if row.in_speech else (row.unpaced, row.feed.read_at)


@dataclass(frozen=True, slots=True)
class _Frames:
    """One frame of rows of one model, in flight."""

    model: ServedModel
    rows: list[tuple[Row, Segment]]  # in the order of the launch, each with its segment
    launched: Any  # a `LaunchedStep`, or a `StepResult` that is there
    # Both are in seconds of `perf_counter`.
    began: float
    launching: float
    launched_at: float

    def times(self, read_back: float, before: StepTimes | None) -> StepTimes:
        """Of a step that was read just now; `before` are those of the one before, behind which the device runs it. On
        a CPU the launch is the computation.
        """
        if not (self.model.queues and (device_s := self.launched.device_s())):
            return StepTimes(self.began, self.launching, self.launching, self.launched_at, read_back)
        starts = max(self.launched_at, before.computed) if before else self.launched_at
        return StepTimes(self.began, self.launching, self.launched_at, min(read_back, starts + device_s), read_back)


class StepTimer:
    """When to begin the next step while one is in flight: late enough to include new requests, early enough that the
    device never idles. Estimates how long steps of each kind take; times in seconds.
    """

    def __init__(self) -> None:
        self._took: dict[Hashable, float] = {}
        # This is the time from the begin of a step to its launch, on the host.
        self._preparation_s = 0.0
        # Kind and begin of each step under way, oldest first.
        self._under_way: list[tuple[Hashable, float]] = []
        # When the last of them will be done.
        self._done_at = 0.0

    def launched(self, kind: Hashable, now: float, preparation_s: float) -> None:
        self._preparation_s += (preparation_s - self._preparation_s) / 8
        self._under_way.append((kind, now))
        self._done_at = max(now, self._done_at) + self._took.get(kind, 0.0)

    def done(self, now: float, *, waited: bool) -> None:
        """The oldest step is done: just now if the host `waited` for it, otherwise earlier."""
        kind, began = self._under_way.pop(0)
        known = self._took.get(kind)
        if waited:
            self._took[kind] = now - began if known is None else min(now - began, known * GROW)
        elif known is not None:
            self._took[kind] = known * SHRINK
        if self._under_way:  # the next runs from now on
            kind, _ = self._under_way[0]
            self._under_way[0] = (kind, now)
            self._done_at = now + sum(self._took.get(kind, 0.0) for kind, _ in self._under_way)

    def wait_s(self, now: float) -> float:
        return max(0.0, self._done_at - self._preparation_s - WAKE_S - now)
