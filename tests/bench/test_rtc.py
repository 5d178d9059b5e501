"""`bench rtc`: what is computed of packets, and real peers on a real node."""

from __future__ import annotations

import os

import pytest

from agent_tts.bench.rtc import listen
from agent_tts.bench.rtc_peers import Arrivals
from agent_tts.errors import SpeechError
from tests.support import running_node


def arrivals(*packets: tuple[float, int, int]) -> Arrivals:
    found = Arrivals()
    found.packets.extend(packets)
    return found


def test_lateness_is_against_the_grid_of_the_promptest_packet() -> None:
    grid = [(1.000 + 0.020 * n, 960 * n, n) for n in range(4)]
    late = (1.095, 960 * 4, 4)
    assert arrivals(*grid, late).lateness_ms() == pytest.approx([0, 0, 0, 0, 15])


def test_counters_that_wrap_around_are_followed() -> None:
    found = arrivals((0.0, 2**32 - 960, 65_535), (0.02, 0, 0), (0.06, 1_920, 2))
    assert found.lateness_ms() == pytest.approx([0, 0, 0])
    assert found.lost() == 1


def test_nothing_is_neither_late_nor_lost() -> None:
    assert (Arrivals().lateness_ms(), Arrivals().lost()) == ([], 0)


async def test_peers_hear_a_node_and_leave_it() -> None:
    async with running_node() as node:
        figures = await listen(node.url, None, 2, 1.0, "tone-660", {"front": os.getpid()})
        assert not node.node.peers
    assert figures["peers"] == 2
    assert (figures["silent"], figures["lost"], figures["errors"]) == (0, 0, {})
    assert figures["packets"] == pytest.approx(100, abs=15)
    assert figures["lateness_ms"]["p50"] <= figures["lateness_ms"]["p99"]
    assert figures["cpu_percent"].keys() == {"front", "clients"}


async def test_a_node_without_webrtc_is_an_error() -> None:
    async with running_node(limits={"rtc_peers": 0}) as node:
        with pytest.raises(SpeechError, match="refuses a WebRTC peer"):
            await listen(node.url, None, 1, 1.0, None, {})
