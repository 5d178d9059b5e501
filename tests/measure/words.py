"""Measure the error of estimated word times against espeak's own. `python -m tests.measure.words --help`.

The estimator gets only the text as it arrives and the audio as it is made.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from agent_tts.bench import report
from agent_tts.bench.statistics import percentiles
from agent_tts.cli.bench import Json, Outputs, names
from agent_tts.cli.bench_measurements import run
from agent_tts.cli.node import own_settings
from agent_tts.cli.options import command
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SpeechError
from agent_tts.messages import Audio, Flushed, RequestEvent, Word, Words
from agent_tts.options import SpeechOptions
from agent_tts.serve.local_engine import engine
from agent_tts.speech.service import SpeechService
from agent_tts.speech.words.peaks import peaks
from agent_tts.speech.words.timeline import WordTimeline
from agent_tts.text.words import words as words_in

# Typical sentences of agents, in languages of several scripts.
TEXTS = {
    "en": (
        "Hi, this is Maya from Lakeside Dental. I am calling to confirm your appointment on Tuesday, the ninth of May, "
        "at half past two. Does that still work for you?",
        "That is a great question! The engine converts heat into motion, which turns the wheels. Older models were "
        "less efficient, and most of the energy was simply lost.",
        "Your balance is 1,284 dollars and 16 cents. The last payment was received on 3 March; the next one is due in "
        "14 days. Shall I send you the details by e-mail?",
        "Let me think. The fastest route goes over the old bridge, then along the river for about ten minutes. If the "
        "traffic is heavy, take the tunnel instead, although it costs a small fee.",
        "I understand how frustrating that must be. I have restarted the router from here, so please wait two "
        "minutes until the green light stops blinking, and then try again.",
    ),
    "de": (
        "Einen Moment bitte, ich sehe gleich nach. Ihr Paket liegt in der Filiale am Marktplatz, und Sie können es bis "
        "Samstag abholen. Bringen Sie bitte einen Ausweis mit!",
    ),
    "fr": (
        "Je comprends votre question. Le train part à huit heures du quai numéro trois, mais il a un léger retard. "
        "Vous pouvez attendre dans la salle, si vous voulez.",
    ),
    "es": (
        "Claro que sí, lo miro ahora mismo. El técnico pasará mañana por la tarde, entre las cuatro y las seis. ¿Le "
        "viene bien a esa hora?",
    ),
    "ru": (
        "Одну минуту, я сейчас проверю. Поезд отправляется с третьего пути через десять минут, поэтому вам лучше "
        "поторопиться. Хорошей дороги!",
    ),
    "pt": (
        "Claro, vou verificar agora mesmo. O seu pedido chega amanhã à tarde, entre as duas e as quatro, e o senhor "
        "pode acompanhar a entrega no aplicativo. Posso ajudar em mais alguma coisa?",
    ),
    "it": (
        "Un momento, controllo subito. Il treno parte alle otto dal binario tre, ma ha un leggero ritardo. Può "
        "aspettare in sala, se preferisce.",
    ),
    "ko": (
        "잠시만 기다려 주세요, 바로 확인해 드리겠습니다. 주문하신 상품은 내일 오후에 도착하며, 배송 조회도 "
        "가능합니다. 더 도와드릴까요?",
    ),
    "zh": (
        "您好，请稍等，我马上帮您查一下。您的包裹已经到了市中心的网点，星期六之前都可以去取。请记得带上身份证！",
        "我有三个建议：先重启路由器，等两分钟，再看看绿灯是不是不闪了。如果还不行，我可以帮您预约技术员上门。",
    ),
    "ja": (
        "少々お待ちください、すぐに確認いたします。ご注文の商品は明日の午後に届く予定で、アプリから追跡できます。ほかにご質問はありますか。",
    ),
    "th": ("สวัสดีค่ะ กรุณารอสักครู่ ดิฉันจะตรวจสอบให้ทันทีค่ะ สินค้าของคุณจะมาถึงพรุ่งนี้ช่วงบ่าย และคุณสามารถติดตามได้ในแอป",),
    "my": ("မင်္ဂလာပါ ခဏစောင့်ပေးပါ။ သင့်ပစ္စည်းကို မနက်ဖြန် နေ့လယ်ပိုင်း ရောက်ပါမယ်။ တခြား ဘာကူညီရမလဲ။",),
    "hi": ("जी हाँ, मैं अभी देखता हूँ। आपकी ट्रेन शाम को सात बजे चलेगी, और सुबह दिल्ली पहुँचेगी। क्या मैं टिकट बुक कर दूँ?",),
}

ENDS = ("? ", ". ", "! ", "। ", "。", "！", "။ ")  # of sentences
# Text arrives in pieces of a token's size; audio is made up to this far ahead of playback.
TOKEN_CHARS = 4
LEAD_MS = 1_000
CUT_SHARE = 0.15  # share of the 80 ms pieces, chosen at random, at which a listener might interrupt

WAIT_S = 30.0  # for the speech of one text

NAMES = {
    "first_ms": "told with the text ms",
    "settled_ms": "with the audio ms",
    "known_ms": "afterwards ms",
    "drift_ms": "last word ms",
    "heard_words": "heard words",
}


@dataclass(slots=True)
class Errors:
    """Errors in the texts of one language, in ms and in words."""

    first_ms: list[float] = field(default_factory=list)  # start of a word, as sent with the text
    settled_ms: list[float] = field(default_factory=list)  # as sent just before its audio
    known_ms: list[float] = field(default_factory=list)  # after all audio was seen
    drift_ms: list[float] = field(default_factory=list)  # of the last word of a text, as sent just before its audio
    heard_words: list[float] = field(default_factory=list)  # at a possible interruption

    def figures(self, language: str) -> dict[str, Any]:
        """Percentiles of the absolute errors."""
        offs = {name: [abs(off) for off in getattr(self, name)] for name in NAMES}
        found = {name: percentiles(off, 50, 95) for name, off in offs.items()}
        return {"language": language, "words": len(self.first_ms), **found}


async def measure(service: SpeechService, language: str, texts: Sequence[str], flush: bool) -> dict[str, Any]:
    """The figures of one language.

    Args:
        flush: after each sentence, so that its end in the audio is known.

    Raises:
        SpeechError: the engine has no word times, or does not have the language.
        TimeoutError: a text takes more than `WAIT_S`.
    """
    if service.info is None or not service.info.aligns_words:
        raise SpeechError("this engine has no word times: use espeak")
    errors = Errors()
    chance = random.Random(0)
    for text in texts:
        async with asyncio.timeout(WAIT_S):
            await _compare(service, language, text, flush, errors, chance)
    return errors.figures(language)


async def _compare(
    service: SpeechService, language: str, text: str, flush: bool, errors: Errors, chance: random.Random
) -> None:
    truth, guess = WordTimeline(aligned=True), WordTimeline(aligned=False, language=language)
    speech = service.open(SpeechOptions(language=language, lead_ms=None))
    first: list[Word] = []
    spoken: list[Word] = []
    deliver = speech.deliver

    def seen(event: RequestEvent) -> None:
        if isinstance(event, Words):
            spoken.extend(truth.align(event.words))
        deliver(event)

    speech.deliver = seen
    for piece in _pieces(text):
        speech.write(piece)
        truth.append(piece)
        first += guess.append(piece)
        if flush and piece.endswith(ENDS):
            speech.flush("")
            first += guess.flush()
    speech.end()
    truth.complete()
    first += guess.complete()

    settled: list[Word] = []
    heard: list[tuple[float, int]] = []
    audio_ms = 0.0
    while (event := await speech.next()) is not None:
        match event:
            case Audio(payload=pcm):
                before_ms, audio_ms = audio_ms, audio_ms + len(pcm) * 500 / SAMPLE_RATE
                guess.hear(len(pcm) // 2, peaks(pcm))
                settled += guess.settle(audio_ms)
                if chance.random() < CUT_SHARE:
                    played_ms = max(0.0, chance.uniform(before_ms, audio_ms) - LEAD_MS)
                    heard.append((played_ms, len(list(words_in(guess.split(played_ms)[0])))))
            case Flushed():
                guess.flushed(round(audio_ms))
    spoken += truth.finish(round(audio_ms))
    guess.finish(round(audio_ms))
    settled += guess.settle()
    for name, words in (("first_ms", first), ("settled_ms", settled), ("known_ms", guess.words())):
        pairs = zip(words, spoken, strict=True)
        getattr(errors, name).extend(told.start_ms - true.start_ms for told, true in pairs)
    errors.drift_ms.append(errors.settled_ms[-1])
    errors.heard_words += [count - len(list(words_in(truth.split(played_ms)[0]))) for played_ms, count in heard]


def _pieces(text: str) -> list[str]:
    """Pieces of a text as it arrives: each sentence ends with a piece."""
    pieces, start = [], 0
    for end in range(1, len(text) + 1):
        if end == len(text) or end - start == TOKEN_CHARS or text[start:end].endswith(ENDS):
            pieces.append(text[start:end])
            start = end
    return pieces


# ---------------------------------------------------------------- the command


@command
def main(
    languages: Annotated[str, typer.Option(help="Codes with commas between them.")] = ",".join(TEXTS),
    flush: Annotated[bool, typer.Option("--flush", help="After each sentence, so that its end is known.")] = False,
    json: Json = None,
) -> None:
    """Errors of estimated word times: as sent with the text, as sent before the audio, and after all audio was seen."""
    chosen = names("--languages", languages, TEXTS)
    outputs = Outputs(json=json)

    async def measured() -> list[dict[str, Any]]:
        async with engine(own_settings({"engine": "espeak"})) as (service, _):
            return [await measure(service, language, TEXTS[language], flush) for language in chosen]

    runs = run(measured())
    rows = [
        (each["language"], each["words"], *(each[name][p] for name in NAMES for p in ("p50", "p95"))) for each in runs
    ]
    columns = (column for name in NAMES.values() for column in (f"{name} p50", "p95"))
    report.table("errors of word times against espeak's own", ("language", "words", *columns), rows)
    outputs.write("words", {"engine": "espeak", "flush": flush}, runs)


if __name__ == "__main__":
    typer.run(main)
