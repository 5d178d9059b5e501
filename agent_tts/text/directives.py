"""Which directives of a text have an effect: those that its engine performs, and that change something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.text.phones import to_letters

# What an engine can perform; `ipa`: it speaks words that are given in IPA.
Ability = Literal["pause", "speed", "volume", "pitch", "style", "language", "ipa"]
ABILITIES: tuple[Ability, ...] = get_args(Ability)


def in_letters(say: Say) -> Say:
    """The same for a voice that cannot speak its IPA. Where that is all there is, letters that sound like it."""
    only_ipa = say.alias is None and say.ipa is not None and say.text == say.ipa.strip()
    return Say(say.text, to_letters(say.text) if only_ipa else say.alias)


class Directives:
    """The directives that are in force at a place of a text.

    Args:
        abilities: of the engine with the text's voice.
        languages: every spelling of a language that it speaks, in lower case -> code.
        language: the code of the request's own language; None where the model finds out.
    """

    def __init__(
        self, abilities: tuple[Ability, ...], languages: Mapping[str, str] | None = None, language: str | None = None
    ) -> None:
        self._abilities = abilities
        self._languages = languages or {}
        self._own = language
        self.prosody = Prosody()
        self.style = Style(None)
        self.language = Language(None)

    def take(self, directive: Directive) -> Directive | None:
        """What the engine has to do; None if it changes nothing, so that nothing of it may be heard."""
        match directive:
            case Pause():
                return directive if directive.ms and "pause" in self._abilities else None
            case Say():
                return directive if "ipa" in self._abilities else in_letters(directive)
            case Prosody():
                before, self.prosody = self.prosody, self._able(directive)
                return None if before == self.prosody else self.prosody
            case Style():
                before_style, self.style = self.style, directive if "style" in self._abilities else self.style
                return None if before_style == self.style else self.style
            case Language():
                before_language, self.language = self.language, self._known(directive)
                return None if before_language == self.language else self.language

    def _able(self, prosody: Prosody) -> Prosody:
        speed, volume, pitch = (
            value if ability in self._abilities else 1.0
            for ability, value in (("speed", prosody.speed), ("volume", prosody.volume), ("pitch", prosody.pitch))
        )
        return Prosody(speed, volume, pitch)

    def _known(self, language: Language) -> Language:
        """With a code of the engine; the request's own language if it does not speak this one."""
        if "language" not in self._abilities or language.code is None:
            return Language(None)
        name = language.code.lower().replace("_", "-")
        code = self._languages.get(name) or self._languages.get(name.partition("-")[0])
        return Language(None if code == self._own else code)
