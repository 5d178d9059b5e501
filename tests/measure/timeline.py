"""What the notes of a page's ear say of a call: how soon an interrupted answer is silent, and the next heard. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

Note = tuple[str, float]  # what, and when: ms of the page's clock
Span = tuple[float, float]

PAUSE_MS = 400.0  # a longer silence is no pause of speech


@dataclass(frozen=True, slots=True)
class Interruption:
    """The user's voice into an answer. Moments are ms of the page's clock."""

    voice: float  # the first of it at the microphone
    told: float  # the page is told that it was noticed
    silent: float  # the last of the answer arrives
    unheard: float  # the last of it is heard: the page mutes what still arrives


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the agent. Moments are ms of the page's clock."""

    asked: float  # the last of the user's words at the microphone
    first_word: float  # the language model sends it
    heard: float  # the first sound


def interruptions(notes: Sequence[Note]) -> list[Interruption]:
    """Of a call. One into a pause between two sentences is left out: there was nothing to fall silent."""
    user, agent = spans(notes, "user"), spans(notes, "agent")
    muted = [at for what, at in notes if what == "muted"]
    found = []
    for told in (at for what, at in notes if what == "told user-started-speaking"):
        voice, answer = _last(user, told), _last(agent, told)
        if voice is None or answer is None or answer[1] < told:
            continue
        hushed = next((at for at in muted if at >= told), answer[1])
        found.append(Interruption(voice[0], told, answer[1], min(answer[1], hushed)))
    return found


def answers(notes: Sequence[Note], first_words: Sequence[float]) -> list[Answer]:
    """Of a call, for each first word that a sound follows before the next one.

    Args:
        first_words: when the language model sent them, ms of the page's clock; in their order.
    """
    user, agent = spans(notes, "user"), spans(notes, "agent")
    found = []
    for first_word, following in zip(first_words, [*first_words[1:], float("inf")], strict=True):
        asked = _last(user, first_word)
        heard = next((begin for begin, _ in agent if first_word < begin < following), None)
        if asked is not None and heard is not None:
            found.append(Answer(asked[1], first_word, heard))
    return found


def spans(notes: Sequence[Note], who: str) -> list[Span]:
    """When somebody speaks, pauses included; in their order."""
    found: list[Span] = []
    since: float | None = None
    for what, at in sorted(notes, key=lambda note: note[1]):
        if what == f"{who} loud":
            since = at if since is None else since
        elif what == f"{who} quiet" and since is not None:
            if found and since - found[-1][1] < PAUSE_MS:
                found[-1] = (found[-1][0], at)
            else:
                found.append((since, at))
            since = None
    return found


def _last(of: Sequence[Span], before: float) -> Span | None:
    """The last span that begins before a moment."""
    place = bisect_right(of, (before, float("inf")))
    return of[place - 1] if place else None
