from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agent_tts.config.settings import Settings
from agent_tts.engine.base import Faults
from agent_tts.engine.espeak import engine as engines
from agent_tts.engine.espeak import worker, workers
from agent_tts.engine.espeak.engine import EspeakEngine
from agent_tts.engine.espeak.voices import languages
from agent_tts.engine.espeak.worker import LENGTH, READY, REPLY, SPOKEN
from agent_tts.engine.espeak.workers import Clause, Deadly, Delivery, EspeakError, EspeakWorkers, Job
from agent_tts.messages import Audio, Finished, OutOfText
from agent_tts.options import EngineOptions
from tests.cli.process import is_running
from tests.engine.driver import Script, appended, opened, speak, speak_all, start_of
from tests.fuzz.espeak import KILLER_LANGUAGES, KILLERS
from tests.support import present

pytestmark = pytest.mark.node

BY_CODE = {language.code: language for language in reversed(languages())}
KILLER, KILLED = KILLERS[0], Delivery(BY_CODE["te"], None)
ENGLISH = Delivery(BY_CODE["en-us"], None)
MUCH = "internationalization " * 2_000  # more than `worker.CPU_S`


@pytest.fixture
def espeak() -> Iterator[EspeakWorkers]:
    with closing(EspeakWorkers()) as espeak:
        yield espeak


def say(espeak: EspeakWorkers, text: str, how: Delivery = ENGLISH) -> Clause:
    return present(espeak.speak(Job(text, how, pause=True), time.monotonic() + 30))


def pids(espeak: EspeakWorkers) -> list[int]:
    return [each._process.pid for each in espeak._workers]


def both_ready(espeak: EspeakWorkers) -> None:
    until = time.monotonic() + 30
    while not all(each.idle for each in espeak._workers):
        espeak.poll(until)


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not done():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_text_is_not_blamed_for_what_another_one_did(espeak: EspeakWorkers) -> None:
    """A worker whose memory is broken may crash at the next text."""
    both_ready(espeak)
    os.kill(pids(espeak)[0], signal.SIGSTOP)
    job = Job("hello", ENGLISH, pause=True)
    assert espeak.speak(job, time.monotonic() + 0.01) is None
    os.kill(pids(espeak)[0], signal.SIGSEGV)
    os.kill(pids(espeak)[0], signal.SIGCONT)
    assert espeak.speak(job, time.monotonic() + 30) is not None
    assert espeak.take_faults() == Faults(worker_deaths=1)


@pytest.mark.parametrize("code", KILLER_LANGUAGES)
def test_a_text_that_crashes_espeak_is_not_spoken_again_and_others_are(espeak: EspeakWorkers, code: str) -> None:
    how = Delivery(BY_CODE[code], None)
    before = say(espeak, "hello", how)
    for _ in range(3):
        with pytest.raises(Deadly):
            say(espeak, KILLER, how)
    assert np.array_equal(say(espeak, "hello", how).samples, before.samples)
    assert espeak.take_faults() == Faults(worker_deaths=2, texts_dropped=3)
    assert espeak.take_faults() == Faults()


def test_vietnamese_in_quotes_with_a_dash_is_spoken(espeak: EspeakWorkers) -> None:
    for code in "vi", "vi-vn-x-central", "vi-vn-x-south":
        assert len(say(espeak, "“-Xin chào", Delivery(BY_CODE[code], None)).words) == 2
    assert espeak.take_faults() == Faults()


def test_a_text_without_end_is_ended_by_its_processor_time(espeak: EspeakWorkers) -> None:
    both_ready(espeak)
    endless = Job(MUCH, ENGLISH, pause=False)
    assert espeak.speak(endless, time.monotonic() + 0.01) is None
    assert len(say(espeak, "hello").samples)  # by the other worker
    assert endless.outcome is None
    with pytest.raises(Deadly):
        espeak.speak(endless, time.monotonic() + 30)


def test_a_worker_that_is_killed_from_outside_costs_no_text_its_place(espeak: EspeakWorkers) -> None:
    before = say(espeak, "hello")
    for _ in range(4):
        both_ready(espeak)
        stopped = pids(espeak)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        job = Job("hello", ENGLISH, pause=True)
        assert espeak.speak(job, time.monotonic() + 0.01) is None
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
        clause = present(espeak.speak(job, time.monotonic() + 30))
        assert np.array_equal(clause.samples, before.samples)
    assert espeak.take_faults() == Faults(worker_deaths=8)


def test_a_text_whose_workers_are_killed_is_given_up(espeak: EspeakWorkers) -> None:
    """As the kernel does when memory runs out."""
    job = Job(MUCH, ENGLISH, pause=True)
    for _ in range(workers.MAX_KILLS):
        both_ready(espeak)
        assert espeak.speak(job, time.monotonic() + 0.01) is None
        (busy,) = [each for each in espeak._workers if each.job]
        os.kill(busy._process.pid, signal.SIGKILL)
        wait_until(lambda pid=busy._process.pid: not is_running(pid))
        espeak.poll(time.monotonic() + 1)
    with pytest.raises(Deadly):
        espeak.speak(job, time.monotonic())


def test_a_worker_that_stands_still_is_replaced_and_its_text_spoken(
    espeak: EspeakWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_ready(espeak)
    monkeypatch.setattr(workers, "ANSWER_S", 0.1)
    os.kill(pids(espeak)[0], signal.SIGSTOP)
    job = Job("hello", ENGLISH, pause=True)
    assert espeak.speak(job, time.monotonic() + 0.01) is None
    monkeypatch.setattr(workers, "ANSWER_S", 30)
    assert espeak.speak(job, time.monotonic() + 30) is not None
    assert espeak.take_faults() == Faults(worker_deaths=1)


def test_deadly_texts_are_remembered_up_to_a_number(espeak: EspeakWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_DEADLY", 2)
    texts = [KILLER, KILLER + " a", KILLER + " b"]
    for text in (*texts, texts[2], texts[0]):
        with pytest.raises(Deadly):
            say(espeak, text, KILLED)
    assert espeak.take_faults() == Faults(worker_deaths=8, texts_dropped=5)


@pytest.mark.alone
def test_a_killed_pair_of_workers_is_back_at_once(espeak: EspeakWorkers) -> None:
    """26 ms on an idle machine."""
    for pid in pids(espeak):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not is_running(pid))
    start = time.monotonic()
    assert len(say(espeak, "hello").samples)
    assert time.monotonic() - start < 2


def test_a_library_that_cannot_be_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "library_path", lambda: "/nowhere.so")
    with pytest.raises(EspeakError, match="does not start"):
        EspeakWorkers()


def test_workers_end_with_their_engine_process() -> None:
    program = """
import os, time
from agent_tts.engine.espeak.workers import EspeakWorkers
print(*[each._process.pid for each in EspeakWorkers()._workers], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        children = [int(pid) for pid in present(parent.stdout).readline().split()]
        assert len(children) == 2
        parent.kill()
    wait_until(lambda: not any(map(is_running, children)))


def test_a_worker_ignores_the_signals_that_stop_a_node_and_knows_no_secret(
    espeak: EspeakWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_ready(espeak)
    for pid in pids(espeak):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        assert Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0") == b""
    assert len(say(espeak, "hello").samples)
    assert espeak.take_faults() == Faults()


JUNK = {
    "too long": b"\xff" * 99,
    "no reply": LENGTH.pack(3) + b"abc",
    "cut off": LENGTH.pack(REPLY.size) + REPLY.pack(SPOKEN, 5, 5),
    "an odd number of bytes": LENGTH.pack(REPLY.size + 3) + REPLY.pack(SPOKEN, 0, 3) + b"abc",
    "two replies": 2 * (LENGTH.pack(REPLY.size) + REPLY.pack(SPOKEN, 0, 0)),
}


@pytest.mark.parametrize("junk", JUNK)
def test_a_worker_whose_memory_is_broken_harms_nobody(
    junk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    ready = LENGTH.pack(REPLY.size) + REPLY.pack(READY, 22_050, 0)
    script.write_text(
        f"import os\nos.write(1, {ready!r})\nos.read(0, 1000)\nos.write(1, {JUNK[junk]!r})\nos.read(0, 1)"
    )
    monkeypatch.setattr(worker, "__file__", str(script))
    with closing(EspeakWorkers()) as espeak:
        if junk == "two replies":
            say(espeak, "hello")
        else:
            with pytest.raises(Deadly):
                say(espeak, "hello")


# ---------------------------------------------------------------- in the engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[EspeakEngine]:
    """An engine without the filter, so that texts can kill."""
    monkeypatch.setattr(engines, "parts", lambda unit, language: [unit])
    monkeypatch.setattr(engines, "reader", lambda text, language: language)
    with opened(EspeakEngine(Settings(), 8)) as engine:
        yield engine


def test_a_deadly_clause_is_left_out_and_nobody_else_hears_of_it(engine: EspeakEngine) -> None:
    telugu = EngineOptions(language="te")
    text = "one two three four. five six seven."
    alone = speak(engine, text)
    deadly = Script([f"hello. {KILLER}. hello."], telugu)
    spoken = speak_all(engine, {0: deadly, 1: Script([text]), 2: deadly})
    assert spoken[1].frames == alone.frames
    assert spoken[1].words == alone.words
    assert spoken[0].kinds[-1] == "end"
    assert [word.char_start for word in spoken[0].words] == [0, 12]
    assert spoken[2].frames == spoken[0].frames
    faults = engine.take_faults()
    assert faults.texts_dropped == 2
    assert 2 <= faults.worker_deaths <= 4  # both slots' clauses may be with a worker at once


def test_a_request_with_many_deadly_clauses_fails_alone(engine: EspeakEngine) -> None:
    text = " ".join(f"{KILLER} {word}." for word in ("one", "two", "three", "four", "five"))
    spoken = speak(engine, text, options=EngineOptions(language="te"))
    assert spoken.outputs[-1] == Finished(0, "error", code="bad_message", message="espeak-ng cannot speak this text")
    assert engine.take_faults().worker_deaths == 2 * (engines.MAX_DEADLY + 1)
    assert speak(engine, "hello").kinds[-1] == "end"


def test_a_clause_without_end_delays_no_other_slot(engine: EspeakEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stands still has the clause of slot 0."""
    both_ready(engine._shared.workers)
    first, _ = pids(engine._shared.workers)
    os.kill(first, signal.SIGSTOP)
    engine.step([start_of(0, EngineOptions()), *appended(0, "hello", last=True)], {0})
    alone = speak(engine, "one two three", slot=1)
    assert alone.kinds[-1] == "end"
    assert engine.step([], {0}) == []
    os.kill(first, signal.SIGCONT)
    said = [output for _ in range(200) for output in engine.step([], {0})]
    assert any(isinstance(output, Audio) for output in said)
    assert not any(isinstance(output, OutOfText | Finished) for output in said[:1])


def test_a_job_of_a_released_slot_does_no_harm(engine: EspeakEngine) -> None:
    both_ready(engine._shared.workers)
    fresh = speak(engine, "next request").frames
    for pid in pids(engine._shared.workers):
        os.kill(pid, signal.SIGSTOP)
    engine.step([start_of(0, EngineOptions()), *appended(0, "hello", last=True)], {0})
    for pid in pids(engine._shared.workers):
        os.kill(pid, signal.SIGCONT)
    assert speak(engine, "next request").frames == fresh
