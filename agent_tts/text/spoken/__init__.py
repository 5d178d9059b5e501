"""How numbers and signs are said, one file for each language.

A language without a file says its plain numbers if num2words has it. To add a language, write a module with a `table()`
like `de.py` and add it to `TABLES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from agent_tts.text.spoken import de, en
from agent_tts.text.spoken.table import Table, has_numbers

TABLES: dict[str, Callable[[], Table]] = {"de": de.table, "en": en.table}


@lru_cache(maxsize=64)
def table_of(language: str) -> Table | None:
    """The table of a language code; None if num2words lacks the language."""
    code = language.lower().partition("-")[0]
    if code in TABLES:
        return TABLES[code]()
    return Table(code) if has_numbers(code) else None
