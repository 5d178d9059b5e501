"""Sentences of agents, from `sentences.txt` and a seed: orders, clinics, banks, travel, support.

A line of the file has a kind of number and a sentence; `{}` is where the number stands.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

EACH = 10  # sentences of a line

_POINT = {"en", "zh", "ja", "ko"}  # before decimals; a comma elsewhere
_MONEY = {"en": "${}", "de": "{} €", "fr": "{} €", "es": "{} €", "it": "{} €", "pt": "R$ {}", "ru": "{} ₽"}
_MONEY |= {"zh": "¥{}", "ja": "¥{}", "ko": "₩{}"}
_DATES = {"en": "{1}/{2}/{0}", "de": "{2:02}.{1:02}.{0}", "ru": "{2:02}.{1:02}.{0}", "zh": "{0}年{1}月{2}日"}
_DATES |= {"ja": "{0}年{1}月{2}日", "ko": "{0}년 {1}월 {2}일"}
_PHONES = {
    "en": "555-{:03}-{:04}",
    "de": "030 {:03}{:04}",
    "fr": "01 42 {0:02.0f} 18 {1:02.0f}",
    "es": "912 {:03} {:03.0f}",
    "it": "02 {:03}{:04}",
    "pt": "(11) 98{:03}-{:04}",
    "ru": "+7 495 {:03}-12-34",
    "zh": "138{:04}{:04}",
    "ja": "090-1{:03}-{:04}",
    "ko": "010-2{:03}-{:04}",
}


def number(kind: str, language: str, random: Random) -> str:
    """A number of this kind as the language writes it."""
    small, thousands = random.randint(2, 99), random.randint(1_000, 99_999)
    point = "." if language in _POINT else ","
    match kind:
        case "count":
            return str(small)
        case "big":
            separator = "," if language in _POINT else " " if language in ("fr", "ru") else "."
            return f"{thousands:,}".replace(",", separator)
        case "money":
            whole = language in ("ja", "ko")
            amount = f"{thousands:,}" if whole else f"{random.randint(3, 400)}{point}{random.randint(11, 99)}"
            return _MONEY[language].format(amount)
        case "time":
            hour, minute = random.randint(1, 23), random.randint(10, 59)
            return f"{hour}h{minute}" if language == "fr" else f"{hour}:{minute}"
        case "date":
            form = _DATES.get(language, "{2:02}/{1:02}/{0}")
            return form.format(random.randint(2_001, 2_029), random.randint(1, 12), random.randint(13, 28))
        case "year":
            return str(random.randint(1_901, 2_029))
        case "phone":
            first, last = random.randint(100, 999), random.randint(1_000, 9_999)
            if language in ("fr", "es"):
                last = last % 90 + 10 if language == "fr" else last % 900 + 100
                first = first % 90 + 10 if language == "fr" else first
            return _PHONES[language].format(first if language != "zh" else last, last)
        case "card":
            return " ".join(f"{random.randint(1_000, 9_999)}" for _ in range(4))
        case "code":
            return str(random.randint(100_000, 999_999))
        case "order":
            return str(random.randint(10_000_000, 99_999_999))
        case "percent":
            return f"{small}%" if language not in ("de", "fr", "ru") else f"{small} %"
        case "decimal":
            return f"{random.randint(1, 40)}{point}{random.randint(1, 9)}"
        case "ordinal":
            ending = {1: "st", 2: "nd", 3: "rd"}.get(small % 10 if small // 10 != 1 else 0, "th")
            return f"{small}{ending}" if language == "en" else str(small % 28 + 2)
        case "range":
            first = random.randint(2, 9)
            return f"{first}-{first + random.randint(1, 5)}"
        case "fraction":
            return random.choice(("1/2", "3/4", "1/3", "2/3", "3/8", "1/5", "5/6"))
        case _:
            raise ValueError(kind)


def sentences() -> dict[str, list[tuple[str, str]]]:
    """For each language, kinds and sentences."""
    found: dict[str, list[tuple[str, str]]] = {}
    language = ""
    for line in Path(__file__).with_name("sentences.txt").read_text().splitlines():
        kind, _, sentence = line.partition("  ")
        if line.startswith("["):
            language = line.strip("[]")
        elif sentence:
            random = Random(f"{language} {line}")
            found.setdefault(language, []).extend(
                (kind, sentence.replace("{}", number(kind, language, random))) for _ in range(EACH)
            )
    return found
