"""Random texts for espeak-ng in all languages and voices: which of them end its process, or run for ever in it?

    python -m tests.fuzz.espeak --texts 200000             as the engine gives them to espeak-ng
    python -m tests.fuzz.espeak --texts 20000 --raw        without the filter of `agent_tts/engine/espeak/scripts.py`
    python -m tests.fuzz.espeak --library SO --preload "..."   with another build of the library

A build that stops at the first wrong access, from a checkout of espeak-ng (1.52.0 is in espeakng-loader 0.2.4):

    cmake -B build -DBUILD_SHARED_LIBS=ON -DCMAKE_C_FLAGS="-g -O1 -fsanitize=address,undefined" \\
        -DCMAKE_CXX_FLAGS="-fsanitize=address,undefined" && cmake --build build --target espeak-ng

Then `--library build/src/libespeak-ng/libespeak-ng.so`, and as `--preload` the paths that gcc prints for
`-print-file-name=libasan.so`, `libubsan.so` and `libstdc++.so.6`. Its reports are in build/fuzz/espeak.*.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rich.progress import Progress

from agent_tts.directives import Prosody
from agent_tts.engine.espeak import engine, scripts, workers
from agent_tts.engine.espeak.voices import VARIANTS, EspeakLanguage, languages
from agent_tts.engine.espeak.workers import Deadly, Delivery, EspeakError, EspeakWorkers, Job
from agent_tts.options import EngineOptions
from agent_tts.text.feed import Reading, TextFeed, Unit

# Each ends espeak-ng 1.52.0 or makes it write beyond a buffer.
KILLERS = (
    *("Ⓜϼո", "ࡔ࡙ࡄࡈࡌࡖࡄࡏ ⓰🅱🆆", "🅱🆆ϼո", "⓰ⓂⓂⓂ", "８２５０ ⅻⅻ ⅹⅴⅸ", "𝋬𝋡𝋲𝋮𝋣 ப⢬𐫉𜽁𗕧⻪"),
    *("ت ⣟", "🤵 🕴", "Ꞡgẵ", "'-ra", "s'" * 220, "း႐ၵဢဏ၉ဠ" * 11),
)
KILLER_LANGUAGES = ("te", "am", "bn", "gu", "kn", "ml", "mr", "my", "ne", "pa")

LENGTHS = (1, 1, 2, 3, 5, 8, 15, 40, 90)
ANSWER_S = 60.0
SECONDS = (0.5,) * 9 + (10,)  # of audio, most: a text is read whole before its audio starts


@cache
def alphabets() -> tuple[list[str], list[str], list[str]]:
    """The characters of each script, as a text; all characters; and all symbols."""
    found: dict[str, list[str]] = {}
    for code in (*range(0x20, 0x3400), *range(0x4E00, 0x4F00), *range(0xA000, 0xAD00), *range(0xE000, 0x1FC00)):
        if unicodedata.category(char := chr(code)) not in ("Cc", "Cs"):
            found.setdefault(unicodedata.name(char, "").partition(" ")[0], []).append(char)
    every = [char for chars in found.values() for char in chars]
    symbols = [char for char in every if unicodedata.category(char) in ("So", "Sm", "Sk", "Sc", "No", "Nl", "Lm")]
    return ["".join(chars) for chars in found.values() if len(chars) > 5], every, symbols


def word(chance: random.Random, language: str) -> str:
    """Something between two spaces."""
    of_scripts, every, symbols = alphabets()
    own = [name for name in scripts.LANGUAGES if scripts._is_own(name, language)] or ["LATIN"]
    length = chance.choice(LENGTHS)
    match chance.randrange(8):
        case 0:
            return "".join(chance.choices(every, k=min(length, 8)))
        case 1:
            return "".join(chance.choices(chance.choice(of_scripts), k=length))
        case 2 | 3:
            script = chance.choice(own)
            chars = next((chars for chars in of_scripts if scripts._script(chars[-1]) == script), "a")
            return "".join(chance.choices(chars, k=length))
        case 4:
            around = chance.choice(of_scripts)
            return chance.choice(around) + chance.choice(symbols) * chance.choice((1, 1, 2, 30)) + chance.choice(around)
        case 5:
            return "".join(chance.choices("0123456789.,:-/%$€", k=min(length, 30)))
        case 6:
            return "".join(chance.choices("abcdefghijklmnopqrstuvwxyzABCXYZéßøñ'.-", k=length))
        case _:
            return chance.choice(KILLERS)


def text_of(chance: random.Random, language: str) -> str:
    """A text of one to eight words."""
    return " ".join(word(chance, language) for _ in range(chance.choice((1, 1, 2, 4, 8))))


def jobs(text: str, how: Delivery, most: int | None, *, raw: bool) -> Iterator[Job]:
    """The clauses of a text, with or without the filter, of so many samples at most."""
    by_code = {each.code: each for each in languages()}
    feed = TextFeed(Reading(clean=False))
    for unit in (*feed.append(text), *feed.flush()):
        assert isinstance(unit, Unit)
        for part in [unit] if raw else scripts.parts(unit, how.language.code):
            language = how.language if raw else by_code[scripts.reader(part.text, how.language.code)]
            part_how = Delivery(language, how.variant, how.rate, how.pitch, how.pitch_range, how.stretch)
            yield Job(part.text, part_how, pause=True, most=most)


def delivery(chance: random.Random, language: EspeakLanguage) -> Delivery:
    """Any voice that a client can ask for."""
    options = EngineOptions(speed=chance.choice((0.25, 0.5, 1, 4, 4, 4)), pitch=chance.choice((0.5, 0.8, 1, 1.5, 2)))
    return engine.delivery(language, chance.choice((None, *VARIANTS)), options, Prosody())


def fuzz(espeak: EspeakWorkers, count: int, seed: int, *, raw: bool = False) -> Iterator[Job | None]:
    """Speak `count` random texts; yields None for each, and each job that ended a worker."""
    chance = random.Random(seed)
    for i in range(count):
        language = languages()[i % len(languages())]
        most = round(chance.choice(SECONDS) * espeak.sample_rate)
        for job in jobs(text_of(chance, language.code), delivery(chance, language), most, raw=raw):
            try:
                assert espeak.speak(job, time.monotonic() + ANSWER_S) is not None
            except Deadly:
                yield job
            except EspeakError:
                pass
        yield None


def main() -> None:
    """Fuzz, and print each text that ended a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=int(time.monotonic()))
    parser.add_argument("--raw", action="store_true", help="without the filter")
    parser.add_argument("--library", help="a build of libespeak-ng.so")
    parser.add_argument("--preload", default="", help="libraries that the build needs first")
    args = parser.parse_args()
    if args.library:
        workers.library_path = lambda: str(Path(args.library).resolve())
        Path("build/fuzz").mkdir(parents=True, exist_ok=True)
        reports = Path("build/fuzz/espeak").resolve()
        workers.ENVIRONMENT |= {
            "LD_PRELOAD": args.preload,
            "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={reports}",
            "UBSAN_OPTIONS": f"halt_on_error=0:log_path={reports}",
        }
    texts = deaths = 0
    espeak = EspeakWorkers()
    try:
        with contextlib.suppress(KeyboardInterrupt), Progress() as progress:
            task = progress.add_task(f"seed {args.seed}", total=args.texts)
            for job in fuzz(espeak, args.texts, args.seed, raw=args.raw):
                if job is None:
                    texts += 1
                    progress.advance(task)
                    continue
                deaths += 1
                how = job.how
                about = (how.language.code, how.variant, how.rate, how.pitch, how.pitch_range, ascii(job.text))
                progress.console.print(*about, markup=False, soft_wrap=True)
    finally:
        espeak.close()
    print(f"{texts} texts, {deaths} ended espeak-ng, {espeak.take_faults().worker_deaths} workers ended")
    sys.exit(1 if deaths else 0)


if __name__ == "__main__":
    main()
