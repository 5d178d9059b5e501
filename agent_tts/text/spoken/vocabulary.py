"""What each language calls units, money, fractions, signs and formulas: the columns of `words.tsv`.

Its rows have a kind, what is written (units, currencies and limits in all their spellings), and a cell for each
language, empty where it has no word. A noun is `one/many/few:gender`: forms that are like the one before are left out,
and so is "m". A currency may have its hundredth behind a plus. `_` is a space at the edge of a word, `{0}` and `{1}`
are parts of a formula, or what is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_HEAD, *_LINES = (line.split("\t") for line in Path(__file__).with_name("words.tsv").read_text("utf-8").splitlines())
_ROWS = [dict(zip(_HEAD, line, strict=False)) for line in _LINES]  # a line may end before its last cells


class Noun(NamedTuple):
    """What is counted."""

    one: str
    many: str
    gender: str = "m"  # "f" or "n" otherwise: some number words agree with it; "" for one that none does
    few: str = ""  # after 2, 3 and 4 in Slavic languages

    @classmethod
    def of(cls, cell: str) -> Noun:
        written, colon, gender = cell.partition(":")
        one, *others = written.split("/")
        return cls(one, others[0] if others else one, gender if colon else "m", *others[1:])


class Between(NamedTuple):
    """What stands between numbers, or before one, with its spaces."""

    minus: str
    plus: str
    point: str
    to: str  # between the ends of a range
    score: str  # between the goals of 3:2
    number: str = ""  # for No. 5
    cents: str = ""  # between an amount and its hundredths
    over: str = ""  # between the parts of a fraction, the denominator first
    of: str = ""  # between a rating and the best one
    times: str = ""  # a noun, for 3x


@cache
def column(language: str, kind: str) -> Mapping[str, str]:
    """The words of a kind in a language, a code, by what is written; none in an unknown language."""
    found: dict[str, str] = {}
    for row in _ROWS:
        if row["kind"] == kind and (cell := row.get(language)):
            spellings = row["written"].split() if kind in ("unit", "money", "limit", "per") else [row["written"]]
            found |= dict.fromkeys(spellings, cell.replace("_", " "))
    return MappingProxyType(found)
