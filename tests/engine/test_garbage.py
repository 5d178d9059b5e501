"""What requests leave behind is in no cycles: the collector of an engine hardly ever works, see `GC_THRESHOLDS`."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import create_loop
from agent_tts.engine.loop import EngineLoop
from agent_tts.messages import Append, Audio, Cancel, Credit, End, Finished, Open
from agent_tts.options import EngineOptions
from agent_tts.text.clean import Cleaner
from tests.support import uncollected

STEP_S = 0.08
TEXT = "Am 3.5.2024 um 10:30 kamen 25 Leute:\n* `code`, [1], **fett**, $x^2$ und https://example.com/x. Ende"


def speak(loop: EngineLoop, request_id: int, *, cancel: bool, text: str = TEXT) -> None:
    loop.submit(Open(request_id, EngineOptions(lead_ms=None, language="de", normalize=True), owner=0))
    loop.submit(Append(request_id, text))
    if not cancel:
        loop.submit(End(request_id))
    for _ in range(10_000):
        for event in loop.step():
            if isinstance(event, Audio):
                loop.submit(Credit(request_id, 1))
                if cancel:
                    loop.submit(Cancel(request_id))
            if isinstance(event, Finished):
                return
    raise AssertionError("it does not end")


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    """One whose process collects no garbage from its first request on."""
    now = iter(range(1_000_000))
    with closing(create_loop(Settings(engine="tone", slots=1), clock=lambda: STEP_S * next(now))) as loop:
        with uncollected():
            yield loop


@pytest.mark.parametrize("cancel", [False, True])
def test_a_request_leaves_nothing_to_the_collector(loop: EngineLoop, *, cancel: bool) -> None:
    speak(loop, 1, cancel=cancel)
    gc.collect()
    for request_id in (2, 3, 4):
        speak(loop, request_id, cancel=cancel)
    assert gc.collect() == 0


@pytest.mark.parametrize(
    "opened", ["`code", "```\ncode", "$x^2", "\\(x^2", "<b class=", "[a link](https://", "![", "https://exam", "&am"]
)
def test_a_request_that_is_cancelled_within_code_or_a_tag_leaves_no_cleaner(
    loop: EngineLoop, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector does not count a generator that waits, so that weak references are asked."""
    cleaners: list[weakref.ref[Cleaner]] = []
    made = Cleaner.__init__

    def make(cleaner: Cleaner, *args: Any) -> None:
        made(cleaner, *args)
        cleaners.append(weakref.ref(cleaner))

    monkeypatch.setattr(Cleaner, "__init__", make)
    speak(loop, 1, cancel=True, text=f"Hallo, {opened}")
    speak(loop, 2, cancel=True)
    assert cleaners
    assert not [cleaner for cleaner in cleaners[:-1] if cleaner()]
