"""What a caller's words say about whose turn it is. Pure, and data of ten languages."""

from __future__ import annotations

import re
import unicodedata

LONGEST_S = 2.0  # of a back-channel: whoever speaks longer wants to be heard
MOST = 4  # phrases of a back-channel
ANSWER_WORDS = 3  # of an answer that is complete, whatever its melody
DECIDES = {"zh": 4, "ja": 6}  # characters instead, where words have no spaces

# What a listener says to go on listening, as recognisers write it. Words that stop or contradict are none of it.
_LISTENING = {
    "en": "yeah|yep|yes|yup|ok|okay|right|alright|all right|sure|i see|got it|of course|great|good|nice|cool|wow|oh|ah|"
    "aha|uh huh|mm hmm|mm|mmm|mmhmm|mhm|mhmm|hm|hmm|hum|humm|im hum|mm hm|ah ha|oh okay|makes sense|fine|true|exactly",
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
# With which no sentence ends, unless it is a question.
_OPEN = {
    "en": "a an the and or but for to of with at from by my your his our their its because if than i id im ill we so "
    "um uh er like about into would could should is are was were very some any",
    "de": "ein eine einen einem einer der die das den dem des und oder aber für mit von zu nach bei mein meine dein "
    "weil wenn dass ich wir ähm äh im am zum zur sehr",
    "fr": "un une le la les des de du et ou mais pour avec à au aux dans sur mon ma mes votre parce que si je euh très",
    "es": "un una el la los las de del y o pero para con a al en mi mis su porque si que yo eh muy por",
    "it": "un una uno il lo la i gli le di del della e o ma per con a al in mio mia perché se che io ehm molto da",
    "pt": "um uma o a os as de do da e ou mas para com em no na meu minha porque se que eu hum muito por",
    "nl": "een de het en of maar voor met van naar bij mijn jouw omdat als dat ik wij eh ehm heel om te",
    "ru": "и или но для с со в на к от из у по за мой моя мне я мы потому если что чтобы э очень",
    "zh": "和 或者 但是 因为 如果 给 在 把 跟 的话",
    "ja": "と が を に で は の から それで でも けど もし",
}
_PHRASES = {
    language: re.compile(rf"(?:(?:{phrases})(?: |$){'?' if language in DECIDES else ''}){{1,{MOST}}}")
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


def is_half(text: str, language: str | None = None) -> bool:
    """Whether a sentence must go on: it ends with an article, a conjunction or the like, or its recogniser says so."""
    said = text.strip()
    if said.endswith(("?", "？")):
        return False
    words = plain(said)
    for key in _of(language, _OPEN):
        last = [each for each in _OPEN[key].split() if words.endswith(each) if key in DECIDES]
        if last or words.rpartition(" ")[2] in _OPEN[key].split():
            return True
    return said.endswith(("...", "…", ",", "-", "，", "、"))


def is_answer(text: str, *, asked: bool, language: str | None = None) -> bool:
    """Whether a few words answer what was asked, so that nothing needs to be waited for."""
    words = plain(text)
    short = len(words) <= DECIDES[language] if language in DECIDES else len(words.split()) <= ANSWER_WORDS
    return asked and bool(words) and short and not is_half(text, language)


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
