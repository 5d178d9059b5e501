"""Numbers, money, dates, times and units in the languages of Europe, and what agrees with them."""

from __future__ import annotations

from itertools import product

from tests.text.test_runs import say
from tests.work import more_than_linear


def test_a_point_after_a_unit_ends_the_sentence_if_a_capital_follows() -> None:
    assert say("It is 5 in. long.", "en") == "It is five inches long."
    assert say("It is 5 in. Then", "en") == "It is five inches. Then"


def test_work_is_linear() -> None:
    languages = ["de", "es", "fr", "it", "pt", "ru", "zh", "ja", "ko"]
    runs = ["1 ", "1", "5 € ", "3. ", "1 000 ", "2024年", "1.1.", "-", "4111 ", "5-3=", "DE89 ", "("]

    def read(case: tuple[str, str], chars: int) -> None:
        language, run = case
        say((run * chars)[:chars], language)

    assert not more_than_linear(product(languages, runs), read, chars=100)
