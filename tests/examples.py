"""Examples of property tests: their number, and texts in pieces."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

# Counts in tests are for a thorough run. Development runs a quarter of them, `make fuzz` 20 times as many.
FACTOR = float(os.environ.get("TEST_FACTOR", "0.25"))

# Where `split` cuts.
CUTS = st.lists(st.integers(0, 1_000), max_size=8)


def examples(count: int, **others: Any) -> settings:
    """Hypothesis settings: `count` examples times `FACTOR`."""
    return settings(max_examples=max(1, round(count * FACTOR)), **others)


def split(text: str, cuts: list[int]) -> list[str]:
    """The pieces of a text, none of them empty."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]
