"""How many steps a newcomer waits for its first frame: the scheduler, the loop and the engine over simulated steps.

Text that comes while a step is in flight is read by the next step, which launches the row's first frame; the step after
that hands it out. So a row whose prompt is in the cache waits for `STEPS`, however many others speak, and in however
many pieces its words come. A model whose first frame is silence takes one more.
"""

from __future__ import annotations

import random

import pytest

from tests.engine.qwen3.simulated import Node
from tests.model import tiny

STEPS = 2


@pytest.mark.parametrize(
    ("pieces", "every_s"),
    [
        (["Your ", "order ", "left ", "our ", "warehouse ", "this ", "morning. "], 0.010),
        (list("Unbelievably large houses stand there."), 0.0),
    ],
    ids=["words", "characters at once"],
)
def test_a_newcomer_with_text_waits_for_two_steps_while_others_speak(
    monkeypatch: pytest.MonkeyPatch, pieces: list[str], every_s: float
) -> None:
    """100 a second. Read one piece a step, the characters of the first word would take as many steps."""
    node = Node(str(tiny.checkpoint("custom_voice")), 64, monkeypatch)
    draw = random.Random(0)
    node.ask(0, 0.0, ["The first computes the prompt of the voice. "], 0.0)
    when = 0.1
    for request_id in range(1, 61):
        when += draw.expovariate(100)
        node.ask(request_id, when, pieces, every_s)
    node.run(1.2)
    node.engine.close()
    waited = [listener.waited for listener in node.listeners.values() if listener.waited]
    assert len(waited) == 61
    steps = [count for count, _ in waited[1:]]
    assert max(steps) <= STEPS + 1  # one more where the text came within the host's part of a step
    assert sum(count <= STEPS for count in steps) > 0.9 * len(steps)


def test_the_later_frames_of_newcomers_do_not_delay_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 a second: they share steps with those of others, and a step has no more rows than a newcomer can wait for."""
    node = Node(str(tiny.checkpoint("custom_voice")), 256, monkeypatch)
    draw, when = random.Random(0), 0.1
    node.ask(0, 0.0, ["The first computes the prompt of the voice. "], 0.0)
    for request_id in range(1, 201):
        when += draw.expovariate(100)
        node.ask(request_id, when, ["Your ", "order ", "left ", "our ", "warehouse ", "this ", "morning. "], 0.010)
    node.run(2.5)
    node.engine.close()
    waited = sorted(seconds for _, seconds in (node.listeners[number].waited or (0, 9.9) for number in range(1, 201)))
    assert waited[100] < 0.0055
    assert waited[190] < 0.0090
    assert all(listener.player.least_margin_s > 0.020 for listener in node.listeners.values())
