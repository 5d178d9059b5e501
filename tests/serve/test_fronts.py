from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent_tts.config.settings import Agent, Limits, Qwen3, Settings
from agent_tts.serve.fronts import AGENT, RELAY, automatic, connections, front_count, requests_per_s, roles, rtc_peers
from agent_tts.system.cores import cores

WEB_SOCKETS_ONLY = Limits(rtc_peers=0)
GPUS = Qwen3(models=("folder",), device="cuda:0,cuda:1")


@pytest.mark.parametrize(
    ("settings", "cores", "expected"),
    [
        (Settings(), 1, 1),
        (Settings(), 2, 1),
        (Settings(), 3.9, 1),
        (Settings(limits=WEB_SOCKETS_ONLY), 4, 2),
        (Settings(), 4, 2),  # bounded by the cores
        (Settings(), 16, 4),  # 512 connections and 48 peers
        (Settings(limits=WEB_SOCKETS_ONLY), 16, 3),
        (Settings(limits=Limits(connections=5_000, rtc_peers=0)), 16, 5),  # the engine speaks for no more
        (Settings(limits=Limits(connections=5_000, rtc_peers=0), qwen3=GPUS), 16, 10),
        (Settings(limits=Limits(connections=2_000, rtc_peers=1_000)), 16, 11),
        (Settings(engines=8), 8, 1),
    ],
)
def test_auto_follows_cores_engines_and_limits(settings: Settings, cores: float, expected: int) -> None:
    assert automatic(settings, cores) == expected


def test_a_number_is_taken_as_it_is_but_other_systems_have_one_front(monkeypatch: pytest.MonkeyPatch) -> None:
    for platform, settings, count in (("linux", {"fronts": 7}, 7), ("darwin", {"fronts": 7}, 1), ("darwin", {}, 1)):
        monkeypatch.setattr(sys, "platform", platform)
        assert front_count(Settings.model_validate(settings)) == count


@pytest.mark.parametrize("wrong", [0, 65, -1, "many", True, 1.5, None])
def test_other_values_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="must be auto or 1 to 64"):
        Settings(fronts=wrong)


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups")
@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a.slice/b.service", {"a.slice/b.service/cpu.max": "200000 100000"}, 2),  # systemd's CPUQuota
        ("0::/a.slice/b", {"a.slice/b/cpu.max": "max 100000", "a.slice/cpu.max": "300000 100000"}, 3),
        ("4:memory:/c\n1:cpu,cpuacct:/d", {"cpu/d/cpu.cfs_quota_us": "-1", "cpu/d/cpu.cfs_period_us": "100000"}, 8),
        ("1:cpu:/of/the/host", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
    ],
)
def test_the_quotas_of_all_its_cgroups_count_as_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, groups: str, files: dict[str, str], expected: float
) -> None:
    (own := tmp_path / "own").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("agent_tts.system.cores._OWN", own)
    monkeypatch.setattr("agent_tts.system.cores._ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert cores() == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(fronts=4), (512, 512, 192)),  # 64 slots, and 128 that wait
        (Settings(fronts=1, slots=300), (900, 900, 48)),
        (Settings(fronts=1, slots=300, engines=2), (1_800, 1_800, 48)),
        (Settings(fronts=1, engines=8), (1_536, 1_536, 48)),  # each has 64 slots, or as many as its memory allows
        (Settings(fronts=1, slots=300, engine="qwen3", qwen3={"device": "cuda:0,cuda:1"}), (1_800, 1_800, 48)),
        (Settings(fronts=4, limits=Limits(connections=7, rtc_peers=0)), (7, 512, 0)),
        (Settings(fronts=4, limits=Limits(requests_per_s=0.5)), (512, 0.5, 192)),
    ],
)
def test_limits_follow_the_engines_and_the_fronts(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, expected: tuple[int, float, int]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert (connections(settings), requests_per_s(settings), rtc_peers(settings)) == expected


def test_calls_may_have_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    settings = Settings(fronts=2, agent=Agent(processes=1))
    assert roles(settings, AGENT) == [(True, RELAY), (True, RELAY), (False, AGENT)]
    assert roles(settings.model_copy(update={"agent": Agent()}), AGENT) == [(True, AGENT)] * 2
    assert roles(settings, None) == [(True, None)] * 2
    monkeypatch.setattr(sys, "platform", "darwin")
    assert roles(settings, AGENT) == [(True, AGENT)]
