from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_tts.bench.checkpoint import INSTRUCTIONS, SIZES, write_configuration
from agent_tts.bench.scenario import REQUEST_S, TEXTS, burst, requests
from agent_tts.cli.bench_measurements import (
    SPARE_CONNECTIONS,
    BenchCheckpoint,
    at_once,
    at_random,
    limits,
    room,
    saturated,
)
from agent_tts.model.config import ModelType


@pytest.mark.parametrize(
    ("model_type", "wanted", "asked"),
    [
        ("custom_voice", {"voice": None, "lead_ms": None}, {"lead_ms": None}),
        ("custom_voice", {"voice": "ryan", "instructions": "Be nice."}, {"voice": "ryan", "instructions": "Be nice."}),
        ("base", {"voice": None, "lead_ms": 500}, {"voice": "xvector", "lead_ms": 500}),
        ("base", {"voice": "icl"}, {"voice": "icl"}),
        ("voice_design", {"instructions": None}, {"instructions": INSTRUCTIONS}),
        ("voice_design", {"instructions": "A child."}, {"instructions": "A child."}),
    ],
)
def test_each_type_of_model_gets_a_voice_that_it_speaks(
    model_type: ModelType, wanted: dict[str, Any], asked: dict[str, Any], tmp_path: Path
) -> None:
    config = write_configuration(tmp_path, SIZES["tiny"], model_type)
    assert BenchCheckpoint(tmp_path, config, {}).session(wanted) == asked


def test_a_saturated_node_has_more_requests_than_slots() -> None:
    """Slots never wait for clients, and no waiting request is refused."""
    (load,) = saturated(600, session={"lead_ms": 1_000}, words_every_ms=10, warmup_s=4)
    assert (load.concurrency, load.words_every_ms, load.session, load.ramp_s) == (675, 0, {"lead_ms": None}, 2)
    assert room([load], None, 600) == {"slots": 600, "timeouts__queue_s": REQUEST_S, **limits(675)}
    assert limits(675, 60) == {"limits__connections": 691, "limits__requests_per_s": 10_000, "limits__max_frames": 60}


def test_a_node_has_room_for_all_requests_of_a_load() -> None:
    loads = at_once([1, 64], warmup_s=10)
    assert [(load.name, load.ramp_s) for load in loads] == [("1 at once", 5), ("64 at once", 5)]
    assert room(loads, None) == {"slots": 64, **limits(512 - SPARE_CONNECTIONS)}
    loads = at_random([1, 100])
    assert [load.name for load in loads] == ["1/s", "100/s"]
    assert room(loads, None) == limits(1_000)
    strangers = burst(512, 3.0, TEXTS)
    assert room(at_random([1, 10], trace=strangers, beside=288), 60) == {"slots": 900, **limits(900, 60)}
    assert room([requests("", trace=strangers)], None) == {"slots": 512, **limits(512)}
    (phase,) = at_once([496], warmup_s=10, in_phase=True)
    assert (phase.name, phase.ramp_s, phase.in_phase) == ("496 in phase", 1, True)
