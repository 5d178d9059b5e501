"""What a caller's words say about whose turn it is. Pure, and data of ten languages."""

from __future__ import annotations

import re
import unicodedata

LONGEST_S = 2.0  # of a back-channel: whoever speaks longer wants to be heard
MOST = 4  # phrases of a back-channel
SHORT_S, UNSURE = (
    0.7,
    -0.8,
)  # of a sound that is hardly a word, and how sure Whisper is of its words; of words it has -0.5
WITHOUT_SPACES = ("zh", "ja")

# What a listener says to go on listening, as recognisers write it: "mm-hmm" becomes "Momma". Words that stop or
# contradict are none of it.
_LISTENING = {
    "en": "yeah|yep|yes|yup|ok|okay|right|alright|all right|sure|i see|got it|of course|great|good|nice|cool|wow|oh|ah|"
    "aha|uh huh|mm hmm|mm|mmm|mmhmm|mhm|mhmm|hm|hmm|hum|humm|im hum|mm hm|mom|momma|mama|mum|ah ha|oh okay|"
    "makes sense|fine|true|exactly|really|im okay",
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
# They interrupt, however short.
_STOPPING = {
    "en": "stop|wait|no|nope|hey|hello|sorry|what|why|who|help|pause|quiet|hold",
    "de": "stopp?|halt|warten?|nein|nee|he|hallo|entschuldigung|moment|was|warum|wer|hilfe|ruhe",
    "fr": "stop|arrête[zr]?|attend[sr]?|attendez|non|hé|allô|pardon|quoi|pourquoi|qui|aide|silence",
    "es": "para|alto|basta|espera|espere|no|oye|oiga|hola|perdón|qué|quién|ayuda|silencio",
    "it": "stop|ferma|fermo|basta|aspetta|aspetti|no|ehi|pronto|scusi|scusa|cosa|perché|chi|aiuto|silenzio",
    "pt": "para|pare|chega|espera|espere|não|ei|olá|desculpe|quê|quem|ajuda|silêncio",
    "nl": "stop|wacht|nee|hé|hallo|sorry|wat|waarom|wie|help|stil",
    "ru": "стоп|стой|стойте|хватит|подожди|подождите|нет|эй|алло|извините|что|почему|кто|помогите|тихо",
    "zh": "停|停下|等|等等|等一下|不|不是|喂|什么|为什么|谁|救命|安静",
    "ja": "止めて|やめて|ストップ|待って|ちょっと待って|いいえ|いや|違|ねえ|もしもし|すみません|何|なぜ|誰|助けて",
}
# With which no sentence ends that is not a question. `(?<!\w )` is the start of the text.
_OPEN = {
    "en": "an?|the|and|or|but|for|(?<!want )(?<!have )(?<!like )(?<!need )to|of|with|at|from|by|my|your|our|their|its|"
    "because|since|if|than|if .*then|(?<=is )that|i|id|im|ill|ive|we|um|uh|er|about|into|some|very|"
    "(?<!it )(?<!that )(?<!this )(?<!what )(?<!he )(?<!she )(?:is|was)|(?<!they )(?<!we )(?<!you )(?:are|were)|"
    r"really|the \w+ that|(?:tell|say|know|think|hope)(?: \w+){0,3} that|(?:or|and) (?:maybe|perhaps|then)|"
    r"number is(?: ?(?:\d|zero|oh|one|two|three|four|five|six|seven|eight|nine)){1,3}|"
    r"(?<!it )(?<!come )(?<!hold )on|(?<!come )in|(?<=would )like|"
    r"(?<!\w )(?:if|when|while)(?: \w+){3,5}|"
    r"(?<!\w )(?:so|well|i think|i guess|i mean|let me see|let me think)",
    "de": "eine?|einen|einem|einer|der|die|das|den|dem|des|und|oder|aber|für|mit|von|zu|nach|bei|meine?|deine?|weil|"
    r"wenn|dass|ich|wir|ähm?|im|am|zum|zur|sehr|ist|(?<!\w )(?:also|ich glaube|ich meine)",
    "fr": "une?|les?|la|des?|du|et|ou|mais|pour|avec|à|au|aux|dans|sur|mon|ma|mes|votre|parce que|si|je|euh|très|est|"
    r"(?<!\w )(?:alors|je crois|je pense)",
    "es": "una?|el|la|los|las|de|del|y|o|pero|para|con|a|al|en|mis?|su|porque|si|que|yo|eh|muy|por|es|"
    r"(?<!\w )(?:pues|creo|bueno)",
    "it": "una?|uno|il|lo|la|gli|le|di|del|della|e|o|ma|per|con|a|al|in|mio|mia|perché|se|che|io|ehm|molto|da|è|"
    r"(?<!\w )(?:allora|credo|penso)",
    "pt": "uma?|o|a|os|as|de|do|da|e|ou|mas|para|com|em|na|meu|minha|porque|se|que|eu|hum|muito|por|é|"
    r"(?<!\w )(?:então|acho|bem)",
    "nl": "een|de|het|en|of|maar|voor|met|van|naar|bij|mijn|jouw|omdat|als|dat|ik|wij|e?hm?|heel|om|te|is|"
    r"(?<!\w )(?:dus|ik denk|nou)",
    "ru": r"и|или|но|для|со?|в|на|ко?|от|из|у|по|за|мо[йя]|мне|я|мы|потому|если|что|чтобы|очень|(?<!\w )(?:ну|я думаю)",
    "zh": "和|或者|但是|因为|如果|给|在|把|跟|的话",
    "ja": "と|が|を|に|で|(?<!こんにち)(?<!こんばん)は|の|から|それで|でも|けど|もし",
}
_HALF = {
    language: re.compile(rf"(?:{'.*' if language in WITHOUT_SPACES else '(?:.* )?'})(?:{words})")
    for language, words in _OPEN.items()
}
_PHRASES = {
    language: re.compile(rf"(?:(?:{phrases})(?: |$){'?' if language in WITHOUT_SPACES else ''}){{1,{MOST}}}")
    for language, phrases in _LISTENING.items()
}
_STOPS = {
    language: re.compile(words if language in WITHOUT_SPACES else rf"\b(?:{words})\b")
    for language, words in _STOPPING.items()
}
_ASKING = re.compile(r"\b(?:what|where|whom?|whose|which|when|why|how)\b")
_LAST_END = re.compile(r"[.?!。？！؟](?=[^.?!。？！؟]*$)")


def is_backchannel(text: str, speech_s: float, sure: float = 0.0, *, asked: bool, language: str | None = None) -> bool:
    """Whether words during an answer only say that its listener listens.

    Args:
        speech_s: their length in seconds.
        sure: the mean logarithm of their probability; 0 if it is not known.
        asked: whether the answer has asked something: then "yeah" is an answer.
        language: of the words; None: any.
    """
    said = plain(text)
    languages = _of(language, _PHRASES)
    if asked or speech_s > LONGEST_S:
        return False
    if speech_s <= SHORT_S and sure < UNSURE and not any(_STOPS[key].search(said) for key in languages):
        return True
    return any(_PHRASES[key].fullmatch(said) for key in languages)


def is_half(text: str, language: str | None = None) -> bool:
    """Whether a sentence has to go on: its recogniser says so, or, in a known `language`, its last words do.

    Whisper writes a question mark after half of a question, too, and only English ends whole ones with such words.
    """
    said, words = text.strip(), plain(text)
    languages = _of(language, _HALF) if language else []
    if said.endswith(("?", "？")) and (languages != ["en"] or _ASKING.search(words)):
        return False
    if said.endswith(("...", "…", ",", "-", "，", "、")):
        return True
    return any(_HALF[key].fullmatch(words) for key in languages)


def asks(said: str) -> bool:
    """Whether the last sentence that ends in this text is a question."""
    end = _LAST_END.search(said)
    return end is not None and end[0] in "?？؟"


def plain(text: str) -> str:
    """Its words alone, in lower case, with single spaces."""
    text = re.sub(r"['’ʼ]", "", unicodedata.normalize("NFC", text).casefold())
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())


def _of(language: str | None, known: dict[str, re.Pattern[str]]) -> list[str]:
    """The languages to look in. A language without data has none of its own: English is spoken everywhere."""
    if not language:
        return list(known)
    name = language.split("-")[0].lower()
    return [name if name in known else "en"]
