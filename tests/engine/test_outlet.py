"""Whole frames from audio of any length, with flush points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_tts.directives import Pause
from agent_tts.engine.slots import Outlet
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.messages import Audio, Flushed


def drained(outlet: Outlet) -> list[Audio | Flushed]:
    found: list[Audio | Flushed] = []
    while outputs := outlet.hand_out():
        assert sum(isinstance(one, Audio) for one in outputs) <= 1
        found += [one for one in outputs if isinstance(one, Audio | Flushed)]
    return found


@given(st.lists(st.binary(min_size=2, max_size=10).map(lambda pcm: 800 * pcm[: len(pcm) // 2 * 2]), max_size=6))
def test_frames_hold_the_audio(pieces: list[bytes]) -> None:
    outlet = Outlet(1)
    for pcm in pieces:
        outlet.write(pcm)
    assert outlet.samples == len(b"".join(pieces)) // 2
    outlet.end()
    frames = [one.payload for one in drained(outlet) if isinstance(one, Audio)]
    assert b"".join(frames) == b"".join(pieces)
    assert {len(pcm) for pcm in frames[:-1]} <= {FRAME_BYTES}
    assert outlet.finished


def test_a_partial_frame_waits_for_the_rest() -> None:
    outlet = Outlet(1)
    outlet.write(b"\1\0" * 1_000)
    assert outlet.hand_out() == []
    outlet.write(b"\2\0" * 1_000)
    assert outlet.ready == 1
    assert outlet.hand_out() == [Audio(1, b"\1\0" * 1_000 + b"\2\0" * 920)]
    assert outlet.frames == 1


def test_a_flush_pads_its_last_frame_and_is_answered_after_it() -> None:
    outlet = Outlet(1)
    outlet.write(b"\1\0" * 2_000)
    outlet.flush("a")
    outlet.flush(None)
    outlet.write(b"\2\0" * 1_920)
    kinds = [type(one).__name__ for one in drained(outlet)]
    assert kinds == ["Audio", "Audio", "Flushed", "Flushed", "Audio"]


def test_a_pause_is_exact() -> None:
    outlet = Outlet(1)
    outlet.write(b"\1\0" * 10)
    outlet.rest(Pause(333))
    outlet.write(b"\1\0" * 10)
    assert outlet.samples == 20 + 333 * 24
