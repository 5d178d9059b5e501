from __future__ import annotations

import pytest

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.text.directives import ABILITIES, Directives
from agent_tts.text.feed import Reading, TextFeed, Unit

LANGUAGES = {"de": "de", "german": "de", "en": "en", "en-gb": "en-gb"}


def feed() -> TextFeed:
    return TextFeed(directives=Directives(ABILITIES, LANGUAGES, "en"))


def test_what_the_engine_cannot_perform_changes_nothing() -> None:
    directives = Directives(("speed",), LANGUAGES)
    for one in Pause(100), Style("Speak in an excited tone."), Language("de"), Prosody(volume=2, pitch=2):
        assert directives.take(one) is None
    assert directives.take(Say("a", ipa="b")) == Say("a")
    assert directives.take(Prosody(speed=2, volume=2)) == Prosody(speed=2)


@pytest.mark.parametrize(
    ("say", "letters"),
    [
        (Say("təˈmeɪtoʊ", ipa="təˈmeɪtoʊ"), "tuhmaytoh"),
        (Say("/ˈt͡ʃɜːtʃ/", ipa="/ˈt͡ʃɜːtʃ/ "), "church"),
        (Say("tomato", ipa="təˈmeɪtoʊ"), None),
        (Say("tomato", alias="red fruit", ipa="təˈmeɪtoʊ"), "red fruit"),
    ],
)
def test_a_word_that_is_ipa_alone_is_said_in_letters_that_sound_like_it(say: Say, letters: str | None) -> None:
    assert Directives(()).take(say) == Say(say.text, letters)


@pytest.mark.parametrize(
    "unchanged", [Pause(0), Prosody(), Style(None), Language(None), Language("en"), Language("EN"), Language("tlh")]
)
def test_what_holds_already_changes_nothing(unchanged: Directive) -> None:
    assert Directives(ABILITIES, LANGUAGES, "en").take(unchanged) is None


def test_a_change_holds_until_the_next_of_its_kind() -> None:
    directives = Directives(ABILITIES, LANGUAGES, "en")
    for one in Prosody(speed=2), Style("Speak in an excited tone."), Language("de"):
        assert directives.take(one) == one
        assert directives.take(one) is None
    assert directives.take(Prosody()) == Prosody()
    assert directives.take(Style(None)) == Style(None)
    assert directives.take(Language(None)) == Language(None)


@pytest.mark.parametrize(("name", "code"), [("German", "de"), ("de_AT", "de"), ("en-GB", "en-gb"), ("de-x-y", "de")])
def test_a_language_may_be_named_in_many_ways(name: str, code: str) -> None:
    assert Directives(ABILITIES, LANGUAGES, "fr").take(Language(name)) == Language(code)


def test_a_language_that_nobody_speaks_is_the_requests_own() -> None:
    """Not the one before: between `</lang>` and `<lang xml:lang="tlh">` there may be no text, and no directive."""
    directives = Directives(ABILITIES, LANGUAGES, "en")
    assert directives.take(Language("tlh")) is None
    directives.take(Language("de"))
    assert directives.take(Language("tlh")) == Language(None)
    assert directives.take(Language("de")) == Language("de")


def test_a_change_ends_the_unit_and_comes_after_it() -> None:
    texts = feed()
    done = [*texts.append("one "), *texts.direct(Prosody(speed=2)), *texts.append("two"), *texts.flush()]
    assert [one.text if isinstance(one, Unit) else one for one in done] == ["one ", Prosody(speed=2), "two"]


def test_what_has_no_effect_leaves_the_units_as_they_are() -> None:
    plain, marked = TextFeed(), TextFeed()
    text = "one two three, four five six seven"
    units = [*plain.append(text), *plain.flush()]
    found: list[Unit | Directive] = []
    for word in text.split(" "):
        found += marked.append(word if word == "one" else f" {word}")
        found += [*marked.direct(Style("Speak in an excited tone.")), *marked.direct(Prosody())]
    assert [*found, *marked.flush()] == units


def test_numbers_are_said_in_the_language_of_their_place() -> None:
    texts = TextFeed(Reading(normalize="en"), directives=Directives(ABILITIES, LANGUAGES, "en"))
    done = [*texts.append("12 "), *texts.direct(Language("german")), *texts.append("12 ")]
    done += [*texts.direct(Language(None)), *texts.append("12"), *texts.flush()]
    units = [one.text.strip() for one in done if isinstance(one, Unit)]
    assert units == ["twelve", "zwölf", "twelve"]


def test_a_word_in_ipa_is_one_character_with_its_place() -> None:
    texts = feed()
    say = Say("tomato", ipa="təˈmeɪtoʊ")
    done = [*texts.append("I like "), *texts.direct(say), *texts.append(", yes."), *texts.flush()]
    (first, *_) = (one for one in done if isinstance(one, Unit) and "\x02" in one.text)
    place = first.text.index("\x02")
    assert first.offsets[place] == 7
    assert first.offsets[place + 1] == 13
    assert texts.sounds == {7: say}
