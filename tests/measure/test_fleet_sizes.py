"""The table of sizes in the docs is what the tool prints, and its figures are those that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measure import fleet_sizes
from tests.measure.fleet_sizes import Plan, rows

DOCS = Path(__file__).parents[2] / "web" / "docs"


def test_the_docs_have_the_table_that_the_tool_prints(capsys: pytest.CaptureFixture[str]) -> None:
    fleet_sizes.main("1000,10000,100000", 0.75, 8, 2)
    assert capsys.readouterr().out in (DOCS / "fleet_sizes.md").read_text()


@pytest.mark.parametrize(
    "figure",
    [
        f"| {fleet_sizes.CALLERS_A_GPU // 1_000} 000 (2 546) |",
        f"| the same, 1 000 callers with a word every 40 ms | {fleet_sizes.FRONT_US} us |",
        f"| {fleet_sizes.RTC_CALLERS}: packets 1.4 ms late at p50, 2.9 at p99, 9.6 at most; "
        f"{fleet_sizes.RTC_CORES} cores.",
    ],
)
def test_its_figures_are_measured_ones(figure: str) -> None:
    assert figure in (DOCS / "performance.md").read_text()


def test_what_haproxy_takes_is_what_the_door_took() -> None:
    words = (DOCS / "cluster_door.md").read_text().split()
    assert f"{fleet_sizes.HAPROXY_US} us of HAProxy's CPU for a frame" in " ".join(words)


def test_twice_the_callers_need_no_more_than_twice_the_machines() -> None:
    for callers in (1, 5_999, 6_000, 6_001, 50_000):
        one, two = Plan(callers, 0.75, 8, 0), Plan(2 * callers, 0.75, 8, 0)
        assert one.machines <= two.machines <= 2 * one.machines
        assert one.machines * 8 * 750 >= callers
    assert len({row.count("|") for row in rows([one, two])}) == 1
