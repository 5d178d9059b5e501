"""Figures of other engines measured beside ours, and messages for those that are not installed."""

from __future__ import annotations

import numpy as np
import pytest

from agent_tts.bench.peer_process import timed
from agent_tts.bench.scenario import CallSample
from agent_tts.cli import bench_peers
from agent_tts.cli.bench import NodeOptions, PeersOptions
from agent_tts.cli.bench_peers import PEERS, PeerTask, figures_of, measure_node
from agent_tts.errors import SettingsError, SpeechError
from tests.support import present, running_node

TASK = PeerTask("", "cpu", "float32", "one two three", 10, None, None, requests=2, warmups=1)


def test_figures_are_per_spoken_frame() -> None:
    spoken = [
        CallSample(sent_at=0.0, first_audio_at=0.05, audible_at=0.09, ended_at=1.0, audio_s=4.0),
        CallSample(sent_at=0.0, first_audio_at=0.03, audible_at=None, ended_at=0.5, audio_s=4.0),
        CallSample(sent_at=0.0, first_audio_at=0.04, audible_at=0.07, ended_at=0.5, audio_s=0.8),
    ]
    assert figures_of(spoken) == {
        "requests": 3,
        "frames": 50,
        "first_audio_ms": 40.0,
        "audible_ms": 70.0,
        "frame_ms": 20.0,
        "audio_s_per_s": 4.4,
    }


def test_the_audible_time_of_a_peer_is_that_of_a_player() -> None:
    silence, sound = np.zeros(1_920, np.float32), np.full(1_920, 0.1, np.float32)
    sound[:480] = 0.001
    found = timed(lambda: iter([silence, sound]))
    assert found.audible_ms == pytest.approx(present(found.ttfa_ms) + 100, abs=50)
    assert found.audio_s == pytest.approx(0.16)
    assert timed(lambda: iter([silence])).audible_ms is None


@pytest.mark.node
async def test_our_node_is_measured_over_its_websocket() -> None:
    async with running_node() as node:
        spoken = await measure_node(node.url, None, TASK)
    assert [one.audio_s for one in spoken] == pytest.approx([0.06 * len("onetwothree")] * 2)
    assert all(0 < present(one.ttfa_ms) <= 1_000 * present(one.stay_s) for one in spoken)
    assert all(one.audible_ms is not None for one in spoken)


@pytest.mark.node
async def test_a_node_that_refuses_is_an_error() -> None:
    async with running_node(slots=1, queue=0, limits={"text_context_chars": 5}) as node:
        with pytest.raises(SpeechError, match="a request to the node failed: text_too_long"):
            await measure_node(node.url, None, TASK)


def test_a_missing_package_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_peers, "find_spec", lambda name: None)
    found = [peer.missing for peer in PEERS.values()]
    assert found == [
        "not installed: pip install qwen-tts==0.1.1",
        "not installed: pip install faster-qwen3-tts==0.2.5",
    ]


@pytest.mark.parametrize(
    ("device", "dtype", "said"),
    [("tpu", "auto", "--device tpu: must be one of auto, cpu"), ("cpu", "float16", "--dtype float16: must be one of")],
)
def test_an_unsupported_device_or_dtype_is_a_message(device: str, dtype: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        bench_peers.peers(PeersOptions(node=NodeOptions(synthetic="tiny"), device=device, dtype=dtype))
