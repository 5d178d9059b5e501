"""Number of examples of property tests."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

# Counts in tests are for a thorough run. Development runs a quarter of them, `make fuzz` 20 times as many.
FACTOR = float(os.environ.get("TEST_FACTOR", "0.25"))


def examples(count: int, **others: Any) -> settings:
    """Hypothesis settings: `count` examples times `FACTOR`, and no deadline unless `others` sets one."""
    return settings(**{"max_examples": max(1, round(count * FACTOR)), "deadline": None, **others})
