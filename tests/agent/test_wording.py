from __future__ import annotations

import pytest

from agent_tts.agent.wording import asks, is_backchannel, is_half

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


DOUBTFUL = {"Right now?", "Moment, please.", "Come on.", "Oui mais"}  # words that interrupt where they are sure


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


@pytest.mark.parametrize("language", INTERRUPTING)
def test_a_short_sound_of_doubtful_words_is_a_listeners_unless_they_stop(language: str) -> None:
    """Mutation: `is_backchannel` does not look for words that stop."""
    for given in (language, None):
        assert is_backchannel("It's fun.", 0.4, -0.9, asked=False, language=given)
        assert not is_backchannel("It's fun.", 0.4, -0.7, asked=False, language=given)
        assert not is_backchannel("It's fun.", 0.8, -0.9, asked=False, language=given)
        assert not is_backchannel("It's fun.", 0.4, -0.9, asked=True, language=given)
        stopping = [
            text for text in INTERRUPTING[language] if not is_backchannel(text, 0.4, -2, asked=False, language=given)
        ]
        assert {text for text in INTERRUPTING[language] if text not in stopping} <= DOUBTFUL


@pytest.mark.parametrize(
    ("language", "half", "whole"),
    [
        (
            "en",
            (
                "I would like to book a table for",
                "A table for.",
                "My number is...",
                "Well,",
                "My name is",
                "I think.",
                "Is that for you? No, for my",
                "We want to go to",
                "I'd like a",
                "So, um",
                "If it rains then",
                "What I mean is that",
                "It should be delivered on.",
                "We have two children in",
                "I would like.",
                "I don't really.",
                "I am calling about the order that.",
                "If it rains tomorrow.",
                "When I opened the box",
                "Can you send the parcel to?",
                "Could you please tell my doctor that?",
                "Would you give this to my?",
                "Do you think that",
                "I want the blue one or maybe.",
                "My number is 415.",
                "My phone number is four one five",
            ),
            (
                "What is it for?",
                "Turn it on.",
                "Four people.",
                "I don't want to.",
                "Yes, it is.",
                "That's what I think.",
                "I have to.",
                "Here they are.",
                "Maybe.",
                "Not so well.",
                "See you then.",
                "I like that.",
                "Come in.",
                "Hold on.",
                "If you like.",
                "When can you come?",
                "Do you know who it is for?",
                "Can you turn it on?",
                "Do you want to?",
                "I said that.",
                "Perhaps.",
                "My order number is 7429.",
                "My number is seven four two nine.",
                "Five.",
                "Berlin.",
            ),
        ),
        (
            "de",
            ("Ich möchte einen Tisch für", "Ich glaube"),
            ("Mach es an.", "Das glaube ich nicht.", "Kommst du mit?"),
        ),
        ("fr", ("Je voudrais une table pour",), ("Pour quatre personnes.",)),
        ("es", ("Quiero una mesa para", "Bueno"), ("Para cuatro.", "Está bueno.")),
        ("it", ("Vorrei un tavolo per",), ("Per quattro.",)),
        ("pt", ("Queria uma mesa para",), ("Para quatro pessoas.",)),
        ("nl", ("Ik wil graag een tafel voor",), ("Voor vier mensen.",)),
        ("ru", ("Я хочу столик на",), ("На четверых.",)),
        ("zh", ("我想要和",), ("谢谢。",)),
        ("ja", ("明日東京に",), ("ありがとうございます", "こんにちは。")),
        ("fi", ("I'd like a table for",), ("Kiitos.",)),
        (None, ("I would like...",), ("a",)),
    ],
)
def test_half_sentences_in_ten_languages(language: str | None, half: tuple[str, ...], whole: tuple[str, ...]) -> None:
    assert [text for text in half if is_half(text, language)] == list(half)
    assert not [text for text in whole if is_half(text, language)]


def test_the_last_sentence_that_ended_asks() -> None:
    assert asks("Hello. Shall I book it? It costs")
    assert asks("Shall I?")
    assert asks("好吗？")
    assert not asks("Shall I? Fine. It")
    assert not asks("It costs")
