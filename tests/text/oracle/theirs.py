"""Says sentences by nemo-text-processing and wetext, which have an environment of their own: JSON in, JSON out.

Nothing of the project is imported here.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any

NEMO = ("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
WETEXT = ("en", "ja", "zh")


def _nemo(language: str, cache: str) -> Callable[[str], Iterable[str]]:
    """A sentence's readings. Russian has only all possible ones; Japanese and Chinese have files of the same names."""
    folder = f"{cache}/{language}"
    if language == "ru":
        from nemo_text_processing.text_normalization.normalize_with_audio import NormalizerWithAudio

        options = NormalizerWithAudio(input_case="cased", lang="ru", cache_dir=folder)
        return lambda sentence: sorted(options.normalize(sentence, n_tagged=20))
    from nemo_text_processing.text_normalization.normalize import Normalizer

    one = Normalizer(input_case="cased", lang=language, cache_dir=folder)
    return lambda sentence: [one.normalize(sentence)]


def _wetext(language: str, _: str) -> Callable[[str], Iterable[str]]:
    from wetext import Normalizer

    one = Normalizer(lang=language, operator="tn")
    return lambda sentence: [one.normalize(sentence)]


def main() -> None:
    logging.disable()
    cache = sys.argv[1]
    sentences: dict[str, list[str]] = json.load(sys.stdin)
    found: list[dict[str, Any]] = []
    for oracle, make, known in (("nemo", _nemo, NEMO), ("wetext", _wetext, WETEXT)):
        for language in sorted({*known} & {*sentences}):
            started = perf_counter()
            say = make(language, cache)
            # The grammars of wetext are read at the first sentence.
            with suppress(Exception):
                say(sentences[language][0])
            ready = perf_counter()
            said: list[list[str]] = []
            for sentence in sentences[language]:
                try:
                    said.append(list(say(sentence)))
                except Exception:  # noqa: BLE001  # whatever they raise: they cannot say it
                    said.append([])
            each = (perf_counter() - ready) / len(said)
            found.append(
                {"oracle": oracle, "language": language, "said": said, "start_s": ready - started, "each_s": each}
            )
            print(f"{oracle} {language}", file=sys.stderr, flush=True)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
