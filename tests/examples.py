"""How many examples a property test tries."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

# Tests state the numbers of a thorough run. Development tries a quarter of them, `make fuzz` 20 times as many.
FACTOR = float(os.environ.get("TEST_FACTOR", "0.25"))


def examples(count: int, **others: Any) -> settings:
    """Settings of Hypothesis: `count` examples times `FACTOR`, without a time limit for one unless `others` has it."""
    return settings(**{"max_examples": max(1, round(count * FACTOR)), "deadline": None, **others})
