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
        # The last one of each kind.
        self._in_force: dict[type, Directive] = {type(one): one for one in (Prosody(), Style(None), Language(None))}

    def take(self, directive: Directive) -> Directive | None:
        """What the engine has to do; None if it changes nothing, so that nothing of it may be heard."""
        match directive:
            case Pause():
                return directive if directive.ms and "pause" in self._abilities else None
            case Say():
                return directive if "ipa" in self._abilities else in_letters(directive)
            case Prosody():
                names = Prosody.__match_args__
                directive = Prosody(*(getattr(directive, name) if name in self._abilities else 1.0 for name in names))
            case Style() if "style" not in self._abilities:
                return None
            case Language():
                directive = self._known(directive)
        before, self._in_force[type(directive)] = self._in_force[type(directive)], directive
        return None if before == directive else directive

    def _known(self, language: Language) -> Language:
        """With a code of the engine; the request's own language if it does not speak this one."""
        if "language" not in self._abilities or language.code is None:
            return Language(None)
        name = language.code.lower().replace("_", "-")
        code = self._languages.get(name) or self._languages.get(name.partition("-")[0])
        return Language(None if code == self._own else code)
