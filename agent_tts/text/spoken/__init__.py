"""How what is written in figures and signs is said, one file for each language.

A language that has no file says its plain numbers, as far as num2words has them. To add one, write a module with a
`table(code)` after the model of `de.py`, and name it in `TABLES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from agent_tts.text.numbers import has_numbers
from agent_tts.text.spoken import de, en
from agent_tts.text.spoken.table import Table

TABLES: dict[str, Callable[[], Table]] = {"de": de.table, "en": en.table}


@lru_cache(maxsize=64)
def table_of(language: str) -> Table | None:
    """The table of a language, by its code; None where not even its numbers are known."""
    code = language.lower().partition("-")[0]
    if code in TABLES:
        return TABLES[code]()
    return Table(code) if has_numbers(code) else None
