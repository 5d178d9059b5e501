"""LiveKit's TTS class on a node."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, Self
from weakref import WeakSet

from livekit.agents import APIConnectOptions, tts
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS

from agent_tts.client.connection import DEFAULT_URL
from agent_tts.errors import SettingsError, SpeechError
from agent_tts.integrations.livekit.pool import Pool
from agent_tts.integrations.livekit.streams import ChunkedStream, SynthesizeStream
from agent_tts.protocol.v1 import SessionConfig

Rate = Literal[8_000, 16_000, 24_000, 48_000]


class TTS(tts.TTS[Literal["metrics_collected"]]):
    """A node's speech for LiveKit's agents.

    Replies share connections to the node; `prewarm` makes the first. An interruption closes its reply's stream, which
    stops that context only. With `tts.FallbackAdapter`, `max_retry_per_tts=0` uses another service as soon as the
    node is at capacity.
    """

    def __init__(
        self, url: str = DEFAULT_URL, *, api_key: str | None = None, sample_rate: Rate = 24_000, **session: Any
    ) -> None:
        """Connects to nothing yet.

        Args:
            url: `http(s)://`, `ws(s)://`, or `host:port`.
            api_key: sent as `Authorization: Bearer`.
            sample_rate: Hz.
            session: how to speak: `model`, `voice`, `language`, `instructions`, `speed`, `pitch`, `seed`, `lead_ms`,
                `timestamps`, `sampling={...}` and the other fields of protocol.md; the default is the node's choice.

        Raises:
            SettingsError: a field is unknown or not allowed, or the url is invalid.
        """
        session = _checked({"output": {"sample_rate": sample_rate}}, session)
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=session.get("timestamps") != "none"),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._pool = Pool(url, api_key)
        # Session of new replies. Replaced, never changed: running replies keep theirs.
        self._session = session
        # Running replies; closed by `aclose`.
        self._streams: WeakSet[tts.SynthesizeStream | tts.ChunkedStream] = WeakSet()

    @property
    def model(self) -> str:
        """The requested model, or the node's; "unknown" before the first connection."""
        info = self._pool.info
        return self._session.get("model") or (info and (info.model or info.engine)) or "unknown"

    @property
    def provider(self) -> str:
        return "agent-tts"

    def update_options(self, **session: Any) -> None:
        """Change the session of later replies; None restores the node's choice.

        Raises:
            SettingsError: an option is unknown or not allowed; nothing has changed.
        """
        self._session = _checked(self._session, session)

    def synthesize(self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> ChunkedStream:
        stream = ChunkedStream(self, text, conn_options, self._pool, self._session)
        self._streams.add(stream)
        return stream

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        stream = SynthesizeStream(self, conn_options, self._pool, self._session)
        self._streams.add(stream)
        return stream

    def prewarm(self) -> None:
        """Connect in the background, so that the first reply does not wait for it."""
        self._pool.prewarm()

    async def __aenter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Stop every reply and close the connections, within some seconds. Idempotent."""
        await asyncio.gather(*(stream.aclose() for stream in list(self._streams)))
        await self._pool.close()


def _checked(session: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`session` updated by `changes`; None removes a field.

    Raises:
        SettingsError: a field is unknown or not allowed.
    """
    if "output" in changes:
        raise SettingsError("LiveKit takes pcm_s16le: pass sample_rate to TTS(...) instead of output")
    new = {name: value for name, value in {**session, **changes}.items() if value is not None}
    for name, other in (("voice", "speaker_embedding"), ("speaker_embedding", "voice")):
        if changes.get(name) is not None and other not in changes:
            new.pop(other, None)
    try:
        SessionConfig().merged(new, max_lead_ms=60_000)
    except SpeechError as error:
        raise SettingsError(error.message) from None
    return new
