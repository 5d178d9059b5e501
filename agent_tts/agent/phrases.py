"""What the agent says of itself, by BCP 47 code: the settings `agent.llm.apologies` and `fillers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

APOLOGIES = {
    "de": "Entschuldigung, ich kann gerade nicht antworten. Bitte versuchen Sie es gleich noch einmal.",
    "en": "Sorry, I cannot answer right now. Please try again in a moment.",
    "es": "Lo siento, ahora mismo no puedo responder. Inténtelo de nuevo dentro de un momento.",
    "fr": "Désolé, je ne peux pas répondre pour le moment. Veuillez réessayer dans un instant.",
    "it": "Mi dispiace, al momento non posso rispondere. Riprovi tra un attimo.",
    "ja": "申し訳ありません。ただいまお答えできません。少し後でもう一度お試しください。",
    "ko": "죄송합니다. 지금은 대답할 수 없습니다. 잠시 후에 다시 말씀해 주세요.",
    "pt": "Desculpe, não consigo responder agora. Tente novamente daqui a pouco.",
    "ru": "Извините, сейчас я не могу ответить. Пожалуйста, попробуйте ещё раз чуть позже.",
    "zh": "抱歉，我现在无法回答。请稍后再试。",
}

FILLERS = {
    "de": "Einen Moment.",
    "en": "One moment.",
    "es": "Un momento.",
    "fr": "Un instant.",
    "it": "Un momento.",
    "ja": "少々お待ちください。",
    "ko": "잠시만요.",
    "pt": "Um momento.",
    "ru": "Одну минуту.",
    "zh": "请稍等。",
}


def phrase(known: Mapping[str, str], own: Mapping[str, str], languages: Sequence[str]) -> str:
    """The one of `known` for a voice of these languages, the first one best; the operator's `own` go before it."""
    said = dict(known) | {code.lower(): text for code, text in own.items()}
    for language in (*languages[:1], "en"):
        code = "zh" if language.startswith("cmn") else language.lower()
        for found in (code, code.partition("-")[0]):
            if found in said:
                return said[found]
    return ""
