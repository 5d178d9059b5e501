"""Every attack in its short form, with room for other tests on the same cores; the others in `make slow`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attack.bodies import unknown_routes
from tests.attack.harness import Attack, load, run_group

pytestmark = [pytest.mark.node, pytest.mark.real_time, pytest.mark.timeout(300)]


# The first attack of each group that `make test` runs: of folders that answer slowly,
# `tests/serve/processes/test_careless_operator.py` has some that do not answer at all.
SHORT = {"eight long files to sign"}


def _case(group: list[Attack]) -> Any:
    first = group[0]
    name = first.run.__module__.rpartition(".")[2] + "-" + first.name.replace(" ", "_")
    return pytest.param(group, id=name, marks=[] if first.name in SHORT else [pytest.mark.slow])


def test_every_route_has_its_largest_body() -> None:
    """A new route, or a new socket, needs one in `tests.attack.bodies`; the attack sends all of them."""
    assert unknown_routes() == set()


def test_the_short_groups_are_there() -> None:
    assert {group[0].name for group in load()} >= SHORT


@pytest.mark.parametrize("group", [_case(group) for group in load()])
async def test_the_polite_caller_loses_nothing(group: list[Attack]) -> None:
    verdicts = [verdict async for verdict in run_group(group, short=True)]
    broken = [f"{verdict.name}: {why}\n{verdict.log}" for verdict in verdicts for why in verdict.broken]
    assert not broken, "\n".join(broken)
