from __future__ import annotations

import pytest

from agent_tts.agent.wording import asks, is_backchannel

LISTENING = {
    "en": (
        "Yeah.",
        "Okay, right.",
        " I'm hum.",
        "Mm-hmm.",
        "Momma.",
        " Mom.",
        "Humm...",
        "Uh-huh.",
        "All right.",
        "Oh, I see.",
        "YES YES",
    ),
    "de": ("Ja, genau.", "Ach so.", "Mhm, verstehe."),
    "fr": ("D'accord.", "Oui, bien sûr.", "Ah bon ?"),
    "es": ("Sí, claro.", "Ajá.", "Vale, vale."),
    "it": ("Sì, va bene.", "Ho capito.", "Già."),
    "pt": ("Sim, claro.", "Tá bom.", "Uhum."),
    "nl": ("Ja, precies.", "Oké.", "Snap ik."),
    "ru": ("Да, конечно.", "Угу.", "Понятно."),
    "zh": ("嗯,对。", "好的。", "明白了"),
    "ja": ("はい、そうですね。", "なるほど", "うん。"),
}
INTERRUPTING = {
    "en": (
        "Stop.",
        "Wait.",
        "No.",
        "No, no.",
        "Yeah, but wait.",
        "Okay, stop.",
        "Right now?",
        "What?",
        "Hold on.",
        "Moment, please.",
        "Come on.",
    ),
    "de": ("Nein.", "Stopp.", "Warte mal.", "Ja, aber nein."),
    "fr": ("Non.", "Attendez.", "Stop.", "Oui mais"),
    "es": ("No.", "Espera.", "Para.", "Sí, pero no"),
    "it": ("No.", "Aspetta.", "Basta."),
    "pt": ("Não.", "Espera.", "Pare."),
    "nl": ("Nee.", "Wacht.", "Stop."),
    "ru": ("Нет.", "Стоп.", "Подожди.", "Да нет"),
    "zh": ("不。", "停。", "等一下。", "不对"),
    "ja": ("いいえ。", "待って。", "違います", "止めて。"),
}


@pytest.mark.parametrize("language", LISTENING)
def test_a_listener_is_not_an_interruption_in_ten_languages(language: str) -> None:
    for given in (language, f"{language}-XX", None):
        heard = [text for text in LISTENING[language] if is_backchannel(text, 0.8, asked=False, language=given)]
        assert heard == list(LISTENING[language])
        assert not [text for text in INTERRUPTING[language] if is_backchannel(text, 0.8, asked=False, language=given)]


def test_length_number_and_a_question_make_an_answer_of_it() -> None:
    assert is_backchannel("yeah " * 4, 1.9, asked=False, language="en")
    assert not is_backchannel("yeah " * 5, 1.9, asked=False, language="en")
    assert not is_backchannel("Yeah.", 2.1, asked=False, language="en")
    assert not is_backchannel("Yeah.", 0.8, asked=True, language="en")
    assert not is_backchannel("...", 0.8, asked=False, language="en")
    assert is_backchannel("Okay.", 0.8, asked=False, language="fi")  # a language without data


def test_the_last_sentence_that_ended_asks() -> None:
    assert asks("Hello. Shall I book it? It costs")
    assert asks("Shall I?")
    assert asks("好吗？")
    assert not asks("Shall I? Fine. It")
    assert not asks("It costs")
