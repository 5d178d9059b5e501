"""What all routes of a node share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_tts.serve.guard import Guard
from agent_tts.serve.metrics import Metrics
from agent_tts.settings import Settings
from agent_tts.speech.service import SpeechService
from agent_tts.voices.enroll import Enrolment

if TYPE_CHECKING:
    from agent_tts.serve.rtc import RtcPeer
    from agent_tts.serve.session import Session


@dataclass(slots=True)
class Node:
    """One running node."""

    settings: Settings
    service: SpeechService
    guard: Guard
    metrics: Metrics
    # Open protocol sessions, whatever carries them; each adds and removes itself.
    sessions: set[Session] = field(default_factory=set)
    # Open WebRTC peers by session id; owned by serve/rtc.py.
    peers: dict[str, RtcPeer] = field(default_factory=dict)
    # Makes voices for the library; None before the first. Owned by serve/voices_http.py.
    enrolment: Enrolment | None = None
    # Bodies with a new voice that are being received.
    uploads: int = 0
