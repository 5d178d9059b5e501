"""What the markup of a text asks for at one place in it."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PAUSE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence between the text before it and the text after it."""

    ms: int  # at most MAX_PAUSE_MS


@dataclass(frozen=True, slots=True)
class Prosody:
    """From here to the next one: factors on the request's own speed, loudness (of samples) and pitch."""

    speed: float = 1.0
    volume: float = 1.0
    pitch: float = 1.0


@dataclass(frozen=True, slots=True)
class Style:
    """From here to the next one: how to speak; None: as the request's own instructions say."""

    instructions: str | None


@dataclass(frozen=True, slots=True)
class Language:
    """From here to the next one: the language, as the client named it; None: the request's own."""

    code: str | None


@dataclass(frozen=True, slots=True)
class Say:
    """Text that is said in another way than it is written.

    `text` is a part of the request's text, in no `Append` of text. Of `ipa` and `alias`, the first that the engine can
    speak is spoken; without both, `text`.
    """

    text: str
    alias: str | None = None
    ipa: str | None = None


# What the markup of a text asks for at one place in it. An engine ignores what it cannot perform.
Directive = Pause | Prosody | Style | Language | Say
