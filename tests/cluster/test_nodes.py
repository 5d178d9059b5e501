"""What is the address of a node."""

from __future__ import annotations

import pytest

from agent_tts.cluster.nodes import NodeAddress


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "a b"}, {"name": "a" * 64}, {"host": "localhost"}, {"port": 0}, {"port": 65_536}]
)
def test_what_cannot_be_reached_is_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"name": "one", "host": "::1", "port": 8000}
    NodeAddress(**right)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is not|does not"):
        NodeAddress(**right | wrong)  # type: ignore[arg-type]
