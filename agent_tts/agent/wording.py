"""What a caller's words say about whose turn it is. Pure, and data of ten languages."""

from __future__ import annotations

import re
import unicodedata

LONGEST_S = 2.0  # of a back-channel: whoever speaks longer wants to be heard
MOST = 4  # phrases of a back-channel
WITHOUT_SPACES = ("zh", "ja")

# What a listener says to go on listening, as recognisers write it: "mm-hmm" becomes "Momma". Words that stop or
# contradict are none of it.
_LISTENING = {
    "en": "yeah|yep|yes|yup|ok|okay|right|alright|all right|sure|i see|got it|of course|great|good|nice|cool|wow|oh|ah|"
    "aha|uh huh|mm hmm|mm|mmm|mmhmm|mhm|mhmm|hm|hmm|hum|humm|im hum|mm hm|mom|momma|mama|ah ha|oh okay|makes sense|"
    "fine|true|exactly",
    "de": "ja|jaja|genau|okay|ok|gut|klar|stimmt|richtig|ach so|achso|aha|ah|oh|mhm|hm|hmm|mm|verstehe|alles klar",
    "fr": "oui|ouais|ok|okay|daccord|bien|bien sûr|ah|ah bon|oh|hm|hmm|mm|mhm|je vois|exactement|voilà|très bien",
    "es": "sí|si|vale|ok|okay|claro|bien|bueno|ajá|aja|ah|oh|mm|mhm|hmm|ya|entiendo|de acuerdo|exacto|muy bien",
    "it": "sì|si|ok|okay|va bene|bene|certo|giusto|esatto|capisco|ho capito|ah|oh|mm|mhm|hmm|già|daccordo",
    "pt": "sim|ok|okay|certo|claro|bem|bom|está bem|tá|tá bom|entendo|entendi|pois|pois é|ah|oh|mm|mhm|hmm|uhum|exato",
    "nl": "ja|jaja|oké|ok|okay|goed|precies|klopt|juist|natuurlijk|ah|aha|oh|hm|hmm|mm|mhm|snap ik|ik snap het|prima",
    "ru": "да|ага|угу|так|хорошо|понятно|ясно|ладно|конечно|точно|верно|ну да|ок|окей|мм|мхм|хм|ах|о",
    "zh": "嗯|嗯嗯|对|对对|好|好的|是|是的|哦|噢|啊|行|明白|明白了|知道了|没错|当然|ok",
    "ja": "はい|うん|うんうん|ええ|そう|そうですね|そうですか|なるほど|へえ|ああ|あー|おお|わかりました|了解|ok",
}
_PHRASES = {
    language: re.compile(rf"(?:(?:{phrases})(?: |$){'?' if language in WITHOUT_SPACES else ''}){{1,{MOST}}}")
    for language, phrases in _LISTENING.items()
}
_LAST_END = re.compile(r"[.?!。？！؟](?=[^.?!。？！؟]*$)")


def is_backchannel(text: str, speech_s: float, *, asked: bool, language: str | None = None) -> bool:
    """Whether words during an answer only say that its listener listens.

    Args:
        speech_s: their length in seconds.
        asked: whether the answer has asked something: then "yeah" is an answer.
        language: of the words; None: any.
    """
    said = plain(text)
    known = [_PHRASES[key] for key in _of(language, _PHRASES)]
    return not asked and speech_s <= LONGEST_S and any(phrases.fullmatch(said) for phrases in known)


def asks(said: str) -> bool:
    """Whether the last sentence that ends in this text is a question."""
    end = _LAST_END.search(said)
    return end is not None and end[0] in "?？؟"


def plain(text: str) -> str:
    """Its words alone, in lower case, with single spaces."""
    text = re.sub(r"['’ʼ]", "", unicodedata.normalize("NFC", text).casefold())
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())


def _of(language: str | None, known: dict[str, object] | dict[str, str] | dict[str, re.Pattern[str]]) -> list[str]:
    """The languages to look in. A language without data has none of its own: English is spoken everywhere."""
    if not language:
        return list(known)
    name = language.split("-")[0].lower()
    return [name if name in known else "en"]
