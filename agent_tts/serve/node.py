"""The state that all routes of a node share."""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import token_hex
from typing import Protocol

from agent_tts.config.settings import Settings
from agent_tts.serve.dictionaries import Dictionaries
from agent_tts.serve.fair_queue import FairQueue
from agent_tts.serve.guard import Client, Guard
from agent_tts.serve.supervision import Supervision
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.serve.transports.packet_clock import PacketClock
from agent_tts.speech.audio.manifest import ManifestSigner
from agent_tts.speech.service import SpeechService
from agent_tts.voices.enroll import Enrolment


class OpenSession(Protocol):
    """A protocol session, as the node sees it."""

    def drain(self) -> None:
        """Refuse new contexts; ask to be closed when the open ones have finished."""


class OpenPeer(Protocol):
    """A WebRTC peer, as the node sees it."""

    client: Client

    async def close(self) -> None:
        """Close it and wait until all its tasks have ended. Idempotent."""

    async def wait_closed(self) -> None:
        """Wait until it has closed for a reason of its own."""


@dataclass(slots=True)
class Node:
    """One running node."""

    settings: Settings
    service: SpeechService
    guard: Guard
    metrics: Metrics
    # What it is a front of; None where it is the only one.
    supervision: Supervision | None = None
    # Signs files that a request wants signed; None without a certificate.
    signer: ManifestSigner | None = None
    # In which connections, responses and API keys share the event loop.
    fair_queue: FairQueue = field(default_factory=FairQueue)
    # Open protocol sessions of all transports, and open WebRTC peers by session id. Each adds and removes itself.
    sessions: set[OpenSession] = field(default_factory=set)
    peers: dict[str, OpenPeer] = field(default_factory=dict)
    # When the packets of all peers leave.
    packet_clock: PacketClock = field(default_factory=PacketClock)
    # Makes voices for the library; None before the first voice. Owned by `routes.voices`.
    enrolment: Enrolment | None = None
    dictionaries: Dictionaries = field(init=False)

    def __post_init__(self) -> None:
        """Raises `SettingsError` if its dictionaries have no folder."""
        self.dictionaries = Dictionaries.of(self.settings.dictionaries)

    def session_id(self) -> str:
        """A new id, which nobody can guess and which tells other fronts whose the session is."""
        return token_hex(8) if self.supervision is None else f"{self.supervision.number}-{token_hex(8)}"
