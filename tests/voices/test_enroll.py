"""Enrolling: from a clip to a voice of the library, whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from agent_tts.bench.checkpoint import SIZES, write
from agent_tts.bench.node import children_of
from agent_tts.errors import (
    RETRY_MS,
    AtCapacity,
    Internal,
    InvalidRequest,
    SettingsError,
    SpeechError,
    Unsupported,
    VoiceExists,
    VoiceLimit,
)
from agent_tts.voices import enroll
from agent_tts.voices.enroll import Enrolment, decode
from agent_tts.voices.library import VoiceLibrary
from tests.fault.test_cancellation import CancelAt
from tests.support import present, until
from tests.voices.clips import good
from tests.voices.encoder import without_torch

NARROW = 48  # hidden size of a model beside the tiny ones, whose is 64


@dataclass(frozen=True)
class Checkpoints:
    tiny: Path
    narrow: Path


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Two models of the type `base`."""
    made = Checkpoints(tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("narrow"))
    tiny = SIZES["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "narrow", tiny | {"talker": tiny["talker"] | {"hidden_size": NARROW}})
        write(made.tiny, size="tiny", model_type="base")
        write(made.narrow, size="narrow", model_type="base", seed=1)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


@pytest.fixture
def library(folder: Path) -> VoiceLibrary:
    return VoiceLibrary(folder, limit=3)


@pytest.fixture
def enrolment(library: VoiceLibrary, checkpoints: Checkpoints) -> Enrolment:
    return Enrolment(library, [(checkpoints.tiny, 64), (checkpoints.narrow, NARROW)], max_s=5)


@pytest.fixture
def nowhere(library: VoiceLibrary, tmp_path: Path) -> Enrolment:
    """One whose checkpoint is not there: enrolling fails as soon as it is asked for."""
    return Enrolment(library, [(tmp_path / "missing", 64)], max_s=5)


def is_empty(folder: Path) -> bool:
    """Whether the library has nothing, not even something on its way."""
    return not folder.exists() or {path.name for path in folder.iterdir()} <= {".lock"}


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.timeout(1_200)
async def test_a_cancelled_enrolment_leaves_nothing(
    folder: Path, library: VoiceLibrary, nowhere: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled at its first await, its second, and so on until it completes, it leaves no file and no process.

    The encoder's process is one without torch, so that each attempt takes no more than a part of a second.
    """

    monkeypatch.setattr(enroll, "run_module", without_torch)
    waits = 1
    while await CancelAt(nowhere.enroll("bob", good("wav"), consent="I am Bob"), waits):
        assert is_empty(folder)
        assert library.voices() == ()
        waits += 1
    assert library.get("bob").name == "bob"
    assert waits > 4  # decoding and encoding have two awaits each


@pytest.mark.node
async def test_a_clip_becomes_a_voice(library: VoiceLibrary, enrolment: Enrolment, checkpoints: Checkpoints) -> None:
    """It has the data that the encoder makes of the same samples: a vector for every size, and the codes."""
    voice = await enrolment.enroll("bob", good("mp3"), consent="I am Bob", transcript=" Hello. ")
    assert (voice.name, voice.kind, voice.transcript) == ("bob", "cloned", "Hello.")
    assert present(voice.consent).statement == "I am Bob"
    assert voice.vector_sizes == (NARROW, 64)

    import torch

    from agent_tts.model.clone import VoiceEncoder, add_silence

    waveform = torch.from_numpy(await decode(good("mp3"), max_s=5))
    arrays = library.arrays("bob")
    for path, size in ((checkpoints.tiny, 64), (checkpoints.narrow, NARROW)):
        heard = VoiceEncoder.load(path).vector(waveform).numpy()
        assert np.abs(arrays[f"vector_{size}"] - heard).max() < 1e-4 * np.abs(heard).max()
    codes = VoiceEncoder.load(checkpoints.tiny).codes(add_silence(waveform)).numpy()
    assert voice.frames == len(codes)
    assert np.array_equal(arrays["codes"], codes)


# ---------------------------------------------------------------- failures


@pytest.mark.node
async def test_a_clip_that_is_refused_leaves_nothing(folder: Path, nowhere: Enrolment) -> None:
    with pytest.raises(InvalidRequest, match=r"^audio_sample: "):
        await nowhere.enroll("bob", b"no audio", consent="yes")
    assert is_empty(folder)


@pytest.mark.slow
@pytest.mark.node
async def test_a_checkpoint_that_cannot_be_used_says_why(folder: Path, library: VoiceLibrary, tmp_path: Path) -> None:
    """To whoever runs the node."""
    write(tmp_path / "named", model_type="custom_voice")
    with pytest.raises(SettingsError, match="only 'base' checkpoints clone voices"):
        await Enrolment(library, [(tmp_path / "named", 64)], 5).enroll("bob", good("wav"), consent="yes")
    assert is_empty(folder)


def child(module: str) -> int | None:
    """The process that runs a module for this one."""
    for pid in children_of(os.getpid()):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


@pytest.mark.node
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(("module", "error"), [("decode_child", InvalidRequest), ("model_child", Internal)])
async def test_a_process_that_is_killed_leaves_nothing(
    module: str, error: type[SpeechError], folder: Path, enrolment: Enrolment
) -> None:
    task = asyncio.create_task(enrolment.enroll("bob", good("wav"), consent="yes"))
    await until(lambda: child(module) is not None)
    pid = present(child(module))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(error):
        await task
    assert is_empty(folder)


PARENT = """
import asyncio, os, sys
from agent_tts.system.processes import run_module
module, *arguments = sys.argv[1:]
asyncio.run(run_module(module, str(os.getpid()), *arguments, data=bytes(1 << 26), output_bytes=1, timeout_s=60))
"""


@contextlib.contextmanager
def getting_orphans() -> Iterator[None]:
    """This process can wait for those whose parents have died in the block."""
    prctl, pr_set_child_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(pr_set_child_subreaper, 1)
    try:
        yield
    finally:
        prctl(pr_set_child_subreaper, 0)


@pytest.mark.node
@pytest.mark.real_time
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("pause_s", [0.0, 0.3], ids=["as it starts", "while it works"])
async def test_the_encoder_ends_with_its_parent(pause_s: float, tmp_path: Path) -> None:
    """By the kernel, or because it has none. Mutation: without `die_with` it works on, and ends with an error."""
    command = ("agent_tts.voices.model_child", "vector", str(tmp_path / "missing"))
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, *command)
    try:
        await until(lambda: bool(children_of(parent.pid)), 20)
        (pid,) = children_of(parent.pid)
        await until(lambda: command[0].encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
        await asyncio.sleep(pause_s)
    finally:
        with getting_orphans():
            parent.kill()
            await parent.wait()
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) in (-signal.SIGKILL, 0)


@pytest.mark.node
async def test_a_machine_that_cannot_start_a_process_is_told_as_full(
    folder: Path, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(folder / "missing"))
    with pytest.raises(AtCapacity, match="cannot start a process") as refused:
        await enrolment.enroll("bob", good("wav"), consent="yes")
    assert refused.value.retry_after_ms == RETRY_MS
    assert is_empty(folder)


@pytest.mark.node
async def test_an_encoder_that_hangs_is_killed(
    folder: Path, enrolment: Enrolment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enroll, "ENCODE_TIMEOUT_S", 0.05)
    with pytest.raises(Internal, match=r"more than 0\.05 s"):
        await enrolment.enroll("bob", good("wav"), consent="yes")
    assert is_empty(folder)


async def test_one_clip_at_a_time(folder: Path, nowhere: Enrolment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that leave or fail make room."""
    at_once = 0

    async def slow(*_: object, **__: object) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0.01)
        at_once -= 1
        raise Internal("scripted")

    monkeypatch.setattr("agent_tts.voices.enroll.decode", slow)
    tasks = [asyncio.create_task(nowhere.enroll(f"bob{index}", b"", consent="yes")) for index in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest, match=r"^name: "):
        await nowhere.enroll("../zoe", b"", consent="yes")
    tasks[3].cancel()
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(nowhere.enroll("zoe", b"", consent="yes")))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [Internal] * 3 + [asyncio.CancelledError] + [Internal] * 2


async def test_what_the_library_refuses_is_refused_before_any_work(library: VoiceLibrary, nowhere: Enrolment) -> None:
    """Nobody listens to ten minutes of audio for a name that is taken."""
    with pytest.raises(InvalidRequest, match=r"^name: "):
        await nowhere.enroll("../bob", b"", consent="yes")
    nowhere.design("a", "calm")
    with pytest.raises(VoiceExists):
        await nowhere.enroll("a", b"", consent="yes")
    nowhere.design("b", "calm")
    nowhere.design("c", "calm")
    with pytest.raises(VoiceLimit):
        await nowhere.enroll("d", b"", consent="yes")


@pytest.mark.node
async def test_a_name_that_is_taken_while_a_clip_waits_is_refused(enrolment: Enrolment) -> None:
    """Before anybody listens to it: this one would be refused for what it is."""
    first = asyncio.create_task(enrolment.enroll("bob", b"no audio", consent="yes"))
    second = asyncio.create_task(enrolment.enroll("zoe", b"no audio", consent="yes"))
    await asyncio.sleep(0)
    enrolment.design("zoe", "calm")
    with pytest.raises(InvalidRequest):
        await first
    with pytest.raises(VoiceExists):
        await second


async def test_a_node_without_a_base_model_says_what_is_missing(library: VoiceLibrary) -> None:
    bare = Enrolment(library, [], 5)
    with pytest.raises(Unsupported, match="add a Base model"):
        await bare.enroll("bob", b"", consent="yes")
    with pytest.raises(Unsupported, match="add a Base model"):
        bare.embed("bob", [0.0] * 64, consent="yes")
    assert bare.design("sage", "a calm old man").kind == "designed"


# ---------------------------------------------------------------- words and vectors


Add = Callable[[Enrolment, str], object]


@pytest.mark.parametrize(
    ("param", "add", "allowed"),
    [
        ("consent", lambda e, text: e.embed("bob", [0.5] * 64, consent=text), (1, 2_000)),
        ("description", lambda e, text: e.embed("bob", [0.5] * 64, consent="yes", description=text), (0, 500)),
        ("description", lambda e, text: e.design("bob", "calm", description=text), (0, 500)),
        ("prompt", lambda e, text: e.design("bob", text), (1, 2_000)),
    ],
)
def test_lengths_of_texts_are_limited(
    param: str, add: Add, allowed: tuple[int, int], library: VoiceLibrary, nowhere: Enrolment
) -> None:
    least, most = allowed
    for good_text in ("x" * max(least, 1), "x" * most):
        add(nowhere, good_text)
        library.delete("bob")
    for bad_text in ["x" * (most + 1), "\ud800", *(["", " \n"] if least else [])]:
        with pytest.raises(InvalidRequest, match=f"^{param}: ") as refused:
            add(nowhere, bad_text)
        assert refused.value.param == param


async def test_cloning_needs_consent_and_a_short_transcript(nowhere: Enrolment) -> None:
    with pytest.raises(InvalidRequest, match=r"^consent: "):
        await nowhere.enroll("bob", good("wav"), consent=" ")
    with pytest.raises(InvalidRequest, match=r"^ref_text: "):
        await nowhere.enroll("bob", good("wav"), consent="yes", transcript="x" * 1_001)


def test_a_vector_is_kept_as_it_is(library: VoiceLibrary, nowhere: Enrolment) -> None:
    voice = nowhere.embed("bob", [index / 64 for index in range(64)], consent="it is mine", description="me")
    assert (voice.kind, voice.vector_sizes, voice.frames, voice.transcript) == ("cloned", (64,), 0, None)
    assert np.array_equal(library.arrays("bob")["vector_64"], np.arange(64, dtype=np.float32) / 64)


@pytest.mark.parametrize("vector", [[], [0.5] * 63, [0.5] * 63 + [np.nan], [0.5] * 63 + [np.inf], [1e300] * 64])
def test_a_vector_that_no_model_takes_is_refused(vector: list[float], folder: Path, nowhere: Enrolment) -> None:
    with pytest.raises(InvalidRequest, match=r"^speaker_embedding: .*(64 values|finite)"):
        nowhere.embed("bob", vector, consent="yes")
    assert is_empty(folder)
