"""What of a text was heard at any moment, in ten languages and the scripts without spaces: against what was spoken."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.engine.espeak import worker, workers
from agent_tts.messages import Audio, Word, Words
from agent_tts.options import SpeechOptions
from agent_tts.protocol.heard import heard_text
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Listener, WordsMode
from agent_tts.text.words import words
from tests.measure.words import TEXTS
from tests.support import in_this_loop, settings_of, until

CHAR_MS = 60.0
UNSPACED_LANGUAGES = ("zh", "ja", "th", "my")
LANGUAGES = ("en", "ko", "de", "fr", "ru", "pt", "es", "it", *UNSPACED_LANGUAGES)

every_language = pytest.mark.parametrize("language", LANGUAGES)
every_way = pytest.mark.parametrize("live", [False, True], ids=["whole", "live"])

# Where a text was heard up to, by the node and by its client: (ms, words, words).
Heard = list[tuple[float, int, int]]


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[SpeechService]:
    service = SpeechService([in_this_loop(settings_of(**settings))])
    await service.start()
    await until(lambda: service.ready)
    yield service
    await service.close()


async def heard_of(
    service: SpeechService, text: str, language: str, moments: Sequence[float] = (), *, live: bool, mode: WordsMode
) -> Heard:
    """What was heard at some moments: those, and near the end, the half and the third of all audio at each piece."""
    known = service.info is not None and language in service.info.languages
    options = SpeechOptions(language=language if known else "auto", lead_ms=None, leading_silence_ms=None)
    speech = service.open(options, listener=Listener(words=mode))
    told: dict[int, Word] = {}
    found: Heard = []

    async def write() -> None:
        for start in range(0, len(text), 2):
            speech.write(text[start : start + 2])
            await asyncio.sleep(0.3 * live)
        speech.end()

    writer = asyncio.create_task(write())
    audio_ms, left = 0.0, list(moments)
    while (event := await speech.next()) is not None:
        if isinstance(event, Words):
            told |= {word.char_start: word for word in event.words}
        elif isinstance(event, Audio):
            audio_ms += len(event.payload) / 48
            known_ms = [moment for moment in left if moment < audio_ms]
            left = left[len(known_ms) :]
            for ms in known_ms if moments else (audio_ms - 1, audio_ms - 41, audio_ms / 2, audio_ms / 3):
                assert speech._timeline is not None
                node = speech._timeline.split(ms)[0]
                client = heard_text(text, list(told.values()), ms)[0] if mode == "told" else node
                found.append((ms, len(list(words(node))), len(list(words(client)))))
    await writer
    return found


def room(language: str) -> int:
    """Words that the heard text may be off: one; of scripts without spaces two characters."""
    return 2 if language in UNSPACED_LANGUAGES else 1


@every_language
@every_way
@pytest.mark.parametrize("mode", ["told", "kept"])
async def test_heard_text_is_that_of_the_tone(language: str, live: bool, mode: WordsMode) -> None:
    """Each character but the space sounds for 60 ms. Mutation: the tone does not tell where its units are."""
    text = TEXTS[language][0]
    spoken = [word for _, word in words(text)]
    ends = list(accumulate(len(word) * CHAR_MS for word in spoken))
    async with running(tone={"char_ms": CHAR_MS}) as service:
        found = await heard_of(service, text, language, live=live, mode=mode)
    assert len(found) > 100
    for ms, *heard in found:
        true = sum(end - len(word) * CHAR_MS / 2 <= ms for word, end in zip(spoken, ends, strict=True))
        assert max(abs(count - true) for count in heard) <= room(language), (ms, heard, true)


def spoken(clause: str, reported: list[tuple[int, ...]], sound: int) -> Iterator[tuple[float, float]]:
    """Where speech has come at the quarters between the reports of a clause: ms, and characters.

    Each report of words with the same beginning is taken for as many of their words as any other; a single one for as
    many of their characters in each ms.
    """
    starts = sorted({char for char, *_ in reported if not unicodedata.category(clause[char]).startswith("M")})
    for char, behind in pairwise([*starts, len(clause)]):
        times = [sample for start, _, sample in reported if char <= start < behind]
        end = min([sample for start, _, sample in reported if start >= behind], default=sound)
        inside = [(char + at, word) for at, word in words(clause[char:behind])]
        for quarter in range(4 * len(times)):
            part, rest = divmod(quarter, 4)
            begin, finish = [*times, end][part : part + 2]
            if finish - begin < 4 * 22:
                continue
            done = quarter / (4 * len(times))
            if len(times) == 1:
                place = char + done * len(clause[char:behind].rstrip())
            else:
                place = [*(at for at, _ in inside), behind][int(done * len(inside))]
            yield (begin + (finish - begin) * rest / 4) / 22.05 + 1, place


@pytest.mark.node
@every_language
async def test_heard_text_is_that_of_espeaks_events(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and live. Mutation: what it reports as one word is one word."""
    monkeypatch.setattr("agent_tts.engine.espeak.engine.WAIT_S", 30.0)
    text, clauses = TEXTS[language][0], list[tuple[str, list[tuple[int, ...]], NDArray[Any]]]()
    clause_words = workers.clause_words

    def seen(clause: str, marks: Any, samples: NDArray[Any], code: str) -> list[workers.ClauseWord]:
        marks = list(marks)
        clauses.append((clause.rstrip(","), marks, samples))
        return clause_words(clause, marks, samples, code)

    monkeypatch.setattr(workers, "clause_words", seen)
    async with running(engine="espeak") as service:
        clauses.clear()
        await heard_of(service, text, language, live=False, mode="told")
        moments, place, samples = dict[float, float](), 0, 0
        for clause, marks, sound in clauses:
            place = text.index(clause, place)
            for ms, char in spoken(
                clause, [mark[1:] for mark in marks if mark[0] == worker.WORD], int(np.flatnonzero(sound)[-1])
            ):
                moments[samples / 22.05 + ms] = place + char
            samples += len(sound)
        for live in (False, True):
            found = await heard_of(service, text, language, sorted(moments), live=live, mode="told")
            assert len(found) == len(moments)
            for ms, *heard in found:
                true = sum(start < moments[ms] for start, _ in words(text))
                assert max(abs(count - true) for count in heard) <= room(language), (live, ms, heard, true, moments[ms])


@pytest.mark.parametrize(
    "text", ["今天天气很好我们一起去公园散步然后回家吃饭", "ขอบคุณที่โทรมากรุณารอสักครู่", "မင်္ဂလာပါကျွန်တော်တို့ရဲ့ဆိုင်"]
)
async def test_an_interruption_while_a_text_without_spaces_comes(text: str) -> None:
    """A character every 100 ms, no end. Mutations: a word, and a unit, end at white space alone."""
    async with running(tone={"char_ms": CHAR_MS}) as service:
        speech = service.open(SpeechOptions(), listener=Listener(words="told"))
        for char in text:
            speech.write(char)
            await asyncio.sleep(0.1)
        told = [word.word for event in iter(speech.poll, None) if isinstance(event, Words) for word in event.words]
        cut = speech.cut(2_500)
        await speech.cancel()
    assert [*dict.fromkeys(told)] == [*dict.fromkeys([word for _, word in words(text)][:-1])]
    assert abs(len(cut.heard_text) - cut.played_ms / CHAR_MS) <= 3
    assert cut.heard_text + cut.unheard_text == text
    assert cut.played_ms > 400


@pytest.mark.parametrize("language", UNSPACED_LANGUAGES)
async def test_the_first_word_begins_where_the_sound_begins(language: str) -> None:
    async with running() as service:
        speech = service.open(SpeechOptions(), listener=Listener(words="told"))
        speech.write(TEXTS[language][0])
        speech.end()
        events = [event async for event in speech.events()]
    final = [word for event in events if isinstance(event, Words) and event.kind == "aligned" for word in event.words]
    assert [word.word for word in final] == [word for _, word in words(TEXTS[language][0])]
    assert final[0].start_ms == 0
    assert all(word.end_ms > word.start_ms for word in final)
    assert final[-1].end_ms == speech.audio_ms
