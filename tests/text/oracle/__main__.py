"""Compares what `normalize` says with what kept normalizers say, and shows each kind of difference with its verdict.

A difference that `verdicts.txt` does not know, and one where theirs is right, are errors.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from time import perf_counter

from tests.text.oracle.sentences import sentences
from tests.text.test_normalize import text as say

HERE = Path(__file__).parent

# What is said in two ways that are both right, by language: neither is a difference.
BOTH = {
    "en": [(r"\band\b", ""), (r"\boh\b", "zero"), (r"\bpm\b", "p m"), (r"\bam\b", "a m")],
    "de": [("eintausend|ein tausend", "tausend"), ("einhundert|ein hundert", "hundert")],
    "es": [("kilogramos", "kilos"), (r"(?<=euros) con\b", ""), ("y cuarto", "y quince")],
    "it": [("chilogrammi", "chili"), ("percento", "per cento"), ("tré", "tre"), (r"(?<=euro) e\b", "")],
    "ko": [("공", "영")],
    "ru": [("ё", "е")],
    "zh": [("幺", "一"), ("两", "二"), ("零(?=[一二三四五六七八九]分)", "")],
    "pt": [("quatorze", "catorze"), (r"\bhoras e\b", "e")],
}


def plain(text: str, language: str) -> str:
    """Words alone: without capitals, punctuation and hyphens, and without spaces where none are needed."""
    text = re.sub(r"[^\w\s%€$¥₩₽/:°+]|_", " ", text.lower())
    for pattern, into in BOTH.get(language, ()):
        text = re.sub(pattern, into, text)
    return "".join(text.split()) if language in ("de", "it", "ja", "ko", "zh") else " ".join(text.split())


def verdicts() -> dict[tuple[str, ...], tuple[str, str]]:
    """By oracle, language and kind of number: who is right, and why."""
    lines = [line.split(maxsplit=4) for line in (HERE / "verdicts.txt").read_text().splitlines() if line[:1] not in "#"]
    return {tuple(line[:3]): (line[3], line[4]) for line in lines if line}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("python", help="of the environment that has them")
    parser.add_argument("cache", help="folder for compiled grammars")
    parser.add_argument("--languages", default="en,de,fr,es,it,pt,ru,zh,ja,ko")
    parser.add_argument("--examples", type=int, default=2, help="of each kind of difference")
    given = parser.parse_args()
    asked = {language: found for language, found in sentences().items() if language in given.languages.split(",")}
    written = {language: [sentence for _, sentence in found] for language, found in asked.items()}
    ours, ours_s = {}, {}
    for language, found in written.items():
        say(found[0], language)
        started = perf_counter()
        ours[language] = [say(sentence, language) for sentence in found]
        ours_s[language] = (perf_counter() - started) / len(found)
    command = [given.python, str(HERE / "theirs.py"), given.cache]
    told = subprocess.run(command, input=json.dumps(written), capture_output=True, text=True, check=False)
    if told.returncode:
        print(told.stderr, file=sys.stderr)
        return 1
    known, failed, counts = verdicts(), False, Counter[str]()
    for found in json.loads(told.stdout):
        oracle, language = found["oracle"], found["language"]
        different = defaultdict(list)
        for (kind, sentence), mine, theirs in zip(asked[language], ours[language], found["said"], strict=True):
            if plain(mine, language) not in [plain(each, language) for each in theirs]:
                different[kind].append((sentence, mine, theirs[0] if theirs else "(cannot say it)"))
        total = len(written[language])
        print(f"\n{oracle} {language}: {total} sentences, {total - sum(map(len, different.values()))} alike; ", end="")
        print(
            f"start {found['start_s']:.2f} s, {found['each_s'] * 1e3:.2f} ms each; ours {ours_s[language] * 1e3:.2f} ms"
        )
        for kind, cases in different.items():
            verdict, reason = known.get((oracle, language, kind), ("unknown", "no verdict"))
            failed |= verdict not in ("ours", "both")
            counts[verdict] += len(cases)
            print(f"  {kind}: {len(cases)}, {verdict}: {reason}")
            for sentence, mine, theirs in cases[: given.examples]:
                print(f"    {sentence}\n      ours   {mine}\n      theirs {theirs}")
    print("\n" + ", ".join(f"{verdict} {count}" for verdict, count in counts.items()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
