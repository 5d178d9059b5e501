"""Every attack in its short form: a few seconds each, with room for other tests on the same cores."""

from __future__ import annotations

import pytest

from tests.attack.harness import Attack, load, run_group

pytestmark = [pytest.mark.node, pytest.mark.real_time, pytest.mark.timeout(300)]


def _name(group: list[Attack]) -> str:
    return group[0].run.__module__.rpartition(".")[2] + "-" + group[0].name.replace(" ", "_")


@pytest.mark.parametrize("group", load(), ids=_name)
async def test_the_polite_caller_loses_nothing(group: list[Attack]) -> None:
    verdicts = [verdict async for verdict in run_group(group, short=True)]
    broken = [f"{verdict.name}: {why}\n{verdict.log}" for verdict in verdicts for why in verdict.broken]
    assert not broken, "\n".join(broken)
