"""What each API key uses, by its name, and when it has used up what it may."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent_tts.config.settings import UNNAMED
from agent_tts.errors import AtCapacity, RateLimited, SpeechError


class Budget(Protocol):
    """Who counts the characters of keys, for the whole node."""

    def name(self, owner: int) -> str:
        """The name of an owner's key."""

    def check(self, owner: int) -> None:
        """Raise `RateLimited` if the owner's key has no characters left."""

    def spend(self, owner: int, characters: int) -> None:
        """Count text that is spoken for an owner."""


class Usage:
    """Counters by the name of a key, in a registry. Names come from the settings alone, so there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.sessions = Gauge("agent_tts_key_sessions", "Sessions open now, by key.", ["key"], registry=registry)
        self.characters = counter("agent_tts_key_characters", "Characters of text to speak, by key.", ["key"])
        self.audio = counter("agent_tts_key_audio_seconds", "Audio handed to clients, by key.", ["key"])
        self.refused = counter(
            "agent_tts_key_refused", "Sessions and texts refused at a limit, by key.", ["key", "code"]
        )
        # None where no node counts: a speech service of its own.
        self.budget: Budget | None = None
        self.show(UNNAMED)

    def show(self, name: str) -> None:
        """Begin the counters of a key at 0."""
        for metric in (self.sessions, self.characters, self.audio):
            metric.labels(name)
        for code in (AtCapacity.code, RateLimited.code):
            self.refused.labels(name, code)

    def name(self, owner: int) -> str:
        """The name of the key of an owner; see `SpeechService.open`."""
        return UNNAMED if self.budget is None else self.budget.name(owner)

    def check(self, owner: int) -> None:
        """Refuse a new context of an owner whose key has no characters left: raises `RateLimited`.

        A context that has begun is spoken whole; what it takes beyond is waited for later.
        """
        if self.budget is not None:
            try:
                self.budget.check(owner)
            except SpeechError as error:
                self.refused.labels(self.name(owner), error.code).inc()
                raise

    def spend(self, owner: int, characters: int) -> None:
        """Count text that is spoken for an owner."""
        self.characters.labels(self.name(owner)).inc(characters)
        if self.budget is not None:
            self.budget.spend(owner, characters)
