"""From the notes of a page's `ear.js`: time to silence after an interruption, time to each answer's sound. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

Note = tuple[str, float]  # event, time in ms of the page's clock
Span = tuple[float, float]

PAUSE_MS = 400.0  # a longer silence ends the speech


@dataclass(frozen=True, slots=True)
class Interruption:
    """The user's voice during an answer. Times are ms of the page's clock."""

    voice: float  # its start at the microphone
    told: float  # the page is notified of it
    silent: float  # the last sound of the answer arrives
    unheard: float  # the last sound is played: the page mutes what still arrives


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the agent. Times are ms of the page's clock."""

    asked: float  # end of the user's words at the microphone
    first_word: float  # the language model sends it
    heard: float  # the first sound


def interruptions(notes: Sequence[Note]) -> list[Interruption]:
    """Interruptions of a call, without those in a pause between two sentences: there is no sound to end."""
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
    """Answers of a call: one for each first word that is followed by sound before the next first word.

    Args:
        first_words: when the language model sent them, ms of the page's clock; in order.
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
    """Spans of speech in order, including pauses."""
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
    """The last span that begins before `before`."""
    place = bisect_right(of, (before, float("inf")))
    return of[place - 1] if place else None
