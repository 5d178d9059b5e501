"""The way from the service to a node in the same process: no socket and no JSON."""

from __future__ import annotations

from agent_tts.config.settings import Limits
from agent_tts.errors import RETRY_MS, Draining, EngineLost
from agent_tts.integrations.pipecat.node_client import Session
from agent_tts.protocol.context import AnyUtterance
from agent_tts.protocol.v1 import SessionConfig
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import LocalUtterance, Utterance
from agent_tts.speech.words.paces import Paces

TRANSPORT = "pipecat"  # in metrics


class InProcessNodeClient:
    """The speech of a node in this event loop, which its owner starts and closes.

    Args:
        metrics: of the same node, for what is spoken here.
    """

    def __init__(self, speech: SpeechService, metrics: Metrics, max_lead_ms: int = Limits().max_lead_ms) -> None:
        self._service = speech
        self._metrics = metrics
        self._max_lead_ms = max_lead_ms
        # How fast the voices of earlier utterances have spoken.
        self._paces = Paces()

    async def connect(self) -> bool:
        if self._service.draining:
            raise Draining
        if not self._service.alive:
            raise EngineLost("the engine is restarting: try again", retry_after_ms=RETRY_MS)
        return False

    async def check(self, session: Session) -> None:
        self._service.resolve(self._config(session).options())

    def begin(self, session: Session) -> AnyUtterance:
        config = self._config(session)
        request, options = self._service.open(config.options()), config.options()
        meter = self._metrics.context(TRANSPORT)
        utterance = Utterance(
            request, self._service.info, options, output=config.output, paces=self._paces, meter=meter
        )
        return LocalUtterance(utterance)

    async def close(self) -> bool:
        """There is no connection; each utterance is stopped by who began it."""
        return False

    def _config(self, session: Session) -> SessionConfig:
        return SessionConfig().merged(dict(session), self._max_lead_ms)
