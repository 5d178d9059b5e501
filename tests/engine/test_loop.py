"""The duration of steps, and the stages before the first audio, as the loop tells them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple

import pytest

from agent_tts import messages
from agent_tts.engine.base import Engine
from agent_tts.engine.loop import EngineLoop
from agent_tts.engine.requests import Policy
from agent_tts.engine.scheduler import Scheduler
from agent_tts.engine_info import FRAME_BYTES, EngineInfo
from agent_tts.messages import Audio, EngineEvent, EnginePong, Finished, Open, StepCommand, StepEvent
from agent_tts.options import EngineOptions
from tests.support import present, typed

HOST_S = 0.001  # of a step, before its launch


class Device(Engine):
    """Speaks one request. With `overlaps` a step is in flight when it is returned from, as on a GPU."""

    info = EngineInfo("device", "device", 1, (), "", {}, {})

    def __init__(self, took_s: Sequence[float], *, overlaps: bool) -> None:
        self.now = 0.0
        self.tidied = False
        self._took_s = iter(took_s)
        self._overlaps = overlaps
        self._id = 0
        # When the step in flight is done; None where there is none.
        self._done_at: float | None = None

    def step(self, commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
        self._id = next((one.id for one in commands if isinstance(one, Open)), self._id)
        self.now += HOST_S
        before, self._done_at = self._done_at, None
        if run:
            took_s = next(self._took_s, None)
            if took_s is None:
                return [Finished(self._id, "end")]
            self._done_at = max(before or 0.0, self.now) + took_s
        if not self._overlaps:
            before, self._done_at = self._done_at, None
        if before is None:
            return []
        self.now = max(self.now, before)
        return [Audio(self._id, bytes(FRAME_BYTES))]

    def next_step_in_s(self) -> float | None:
        return None if self._done_at is None else max(0.0, self._done_at - HOST_S - self.now)

    def tidy(self) -> None:
        self.tidied = True

    def close(self) -> None:
        pass


def drive(loop: EngineLoop, device: Device, until: float) -> list[EngineEvent]:
    happened = []
    while device.now < until:
        wait_s = loop.wait_s()
        if wait_s != 0:
            device.now = min(until, device.now + (until if wait_s is None else wait_s))
            if device.now == until:
                break
        happened += loop.step()
    return happened


def longest_ms(loop: EngineLoop) -> float:
    loop.submit(messages.EnginePing(1))
    return next(event.step_ms for event in loop.step() if isinstance(event, EnginePong))


def test_the_engine_tidies_up_at_each_heartbeat() -> None:
    """Also while it has no request: a deleted voice is to be forgotten then, too."""
    device = Device([], overlaps=False)
    loop = EngineLoop(device, Scheduler(Policy(slots=1, queue=1)), lambda: device.now)
    loop.step()
    assert not device.tidied
    longest_ms(loop)
    assert device.tidied


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_longest_step_is_told_once_and_no_wait_is_part_of_it(*, overlaps: bool) -> None:
    """A wait for text, or for the listener, is no step; nor is the step before, where steps overlap."""
    took_s = [0.005] * 20 + [0.030] + [0.005] * 20
    device = Device(took_s, overlaps=overlaps)
    loop = EngineLoop(device, Scheduler(Policy(slots=1, queue=1)), lambda: device.now)
    assert longest_ms(loop) == 0
    loop.submit(messages.Open(1, EngineOptions(lead_ms=1_000), 0))
    loop.submit(messages.Append(1, "Hello. " * 20))
    happened = drive(loop, device, 0.9)
    assert 30 <= longest_ms(loop) <= 30 + 1_000 * HOST_S + 1e-6
    assert longest_ms(loop) <= 5 + 2_000 * HOST_S  # told once
    happened += drive(loop, device, 10.0)
    assert 5 <= longest_ms(loop) <= 5 + 1_000 * HOST_S + 1e-6
    drive(loop, device, 100.0)
    assert longest_ms(loop) <= 1_000 * HOST_S + 1e-6
    heard = b"".join(event.payload for event in happened if isinstance(event, messages.Audio))
    assert len(heard) == len(took_s) * FRAME_BYTES


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_stages_of_a_request_are_told_once_before_its_first_audio(*, overlaps: bool) -> None:
    device = Device([0.005] * 3, overlaps=overlaps)
    loop = EngineLoop(device, Scheduler(Policy(slots=1, queue=1)), lambda: device.now, tells_stages=True)
    loop.submit(messages.Open(1, EngineOptions(lead_ms=1_000), 0))
    drive(loop, device, 0.5)
    loop.submit(messages.Append(1, "Hello."))
    loop.submit(messages.Append(1, " Bye."))
    happened = [event for event in drive(loop, device, 1.0) if not isinstance(event, messages.Started)]
    assert [type(event) for event in happened[:3]] == [messages.Stages, *[messages.Audio] * 2]
    assert not any(isinstance(event, messages.Stages) for event in happened[1:])
    stages = typed(messages.Stages, happened[0])
    _, *times = astuple(stages)
    assert times == sorted(times)
    assert (stages.id, stages.taken, stages.scheduled) == (1, 0.5, 0.5)
    assert 0.005 <= stages.handed_out - stages.scheduled < 0.01


def test_a_request_that_ends_before_its_audio_has_no_stages_and_leaves_none() -> None:
    device = Device([], overlaps=False)
    loop = EngineLoop(device, Scheduler(Policy(slots=1, queue=1)), lambda: device.now, tells_stages=True)
    loop.submit(messages.Open(1, EngineOptions(lead_ms=1_000), 0))
    loop.submit(messages.Cancel(1))
    assert [type(event) for event in drive(loop, device, 1.0)] == [messages.Finished]
    assert not present(loop._stages)._waiting
