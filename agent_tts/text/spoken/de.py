"""German."""

from __future__ import annotations

import re

from agent_tts.text.spoken.table import Table, cardinal, rule


def table() -> Table:
    """See `Table`."""
    return Table(
        "de",
        point=",",
        groups=".",
        point_word="Komma",
        percent="Prozent",
        currencies={
            **dict.fromkeys(("€", "EUR"), ("Euro", "Euro", "Cent", "Cent")),
            **dict.fromkeys(("$", "USD"), ("Dollar", "Dollar", "Cent", "Cent")),
        },
        hundredths_join=" ",
        scales=("Millionen", "Milliarden"),
        units={
            "km/h": ("Kilometer pro Stunde",) * 2,
            "km": ("Kilometer",) * 2,
            "m": ("Meter",) * 2,
            "cm": ("Zentimeter",) * 2,
            "mm": ("Millimeter",) * 2,
            "kg": ("Kilogramm",) * 2,
            "g": ("Gramm",) * 2,
            "l": ("Liter",) * 2,
            "°C": ("Grad Celsius",) * 2,
            "kWh": ("Kilowattstunde", "Kilowattstunden"),
            "GB": ("Gigabyte",) * 2,
            "MB": ("Megabyte",) * 2,
            "Std.": ("Stunde", "Stunden"),
            "Min.": ("Minute", "Minuten"),
        },
        words={"z.B.": "zum Beispiel", "d.h.": "das heißt", "usw.": "und so weiter", "bzw.": "beziehungsweise"},
        rules=(rule(r"([01]?\d|2[0-4]):([0-5]\d)(?:\ Uhr)?", _clock),),
    )


def _clock(match: re.Match[str], _: str) -> str:
    minutes = int(match[2])
    hour = "ein" if int(match[1]) == 1 else cardinal(int(match[1]), "de")
    return f"{hour} Uhr {cardinal(minutes, 'de')}" if minutes else f"{hour} Uhr"
