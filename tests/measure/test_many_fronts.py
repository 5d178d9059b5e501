"""The device's script runs the bench, keeps what each step found, and stops a step at its limit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.measure.many_fronts import STEPS, Plan, Results

pytestmark = pytest.mark.real_time

TONE = Plan(("--engine", "tone"), 1, "1", 0.002, 1.0, ("--client-cores", "0"))


def test_two_gpus_have_twice_the_callers_and_share_the_slots() -> None:
    plan = dataclasses.replace(TONE, model=("--model", "x"), gpus=2, share=1.0, fronts="8")
    arguments = [str(part) for part in STEPS["callers"].arguments(plan)]
    assert {"slots=1100", "fronts=8", "qwen3.device=cuda:0,cuda:1", "1800,2000"} <= set(arguments)
    arguments = [str(part) for part in STEPS["busy"].arguments(plan)]
    assert {"slots=256", "512"} <= set(arguments)


def test_a_step_is_in_the_files_even_if_the_next_one_is_stopped(tmp_path: Path) -> None:
    results = Results(tmp_path)
    load = ("serve", "--rate", "5", "--warmup", "0", "--duration", "1", "--words", "2")
    quick = dataclasses.replace(STEPS["rates"], arguments=lambda plan: (*load, *plan.node(4)), plots=False)
    results.run("rates", quick, TONE)
    results.run("busy", dataclasses.replace(STEPS["busy"], limit_s=0.2), TONE)
    found = json.loads((tmp_path / "results.json").read_text())
    assert [run["load"] for run in found["steps"]["rates"]["runs"]] == ["5/s"]
    assert found["table"][0][:2] == ["rates", "5/s: p50/p95/p99/most"]
    step, what, why, *_ = found["table"][-1]
    assert (step, what, why.startswith("exit code ")) == ("busy", "NO FIGURES", True)
    assert "tone: time to first audio" in (tmp_path / "results.txt").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.txt"}
