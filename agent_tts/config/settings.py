"""Every number and choice of the node: one frozen object, with units, defaults and limits.

`configuration.load_settings` fills it from the command line, the environment and a YAML file.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

ENV_PREFIX = "AGENT_TTS_"  # AGENT_TTS_LIMITS__CONNECTIONS=64 is limits.connections


HUB_REVISION = re.compile(r"([^/@\s]+/[^/@\s]+)@([^/@\s]+)")
DEVICES = r"^(auto|(cpu|cuda(:\d+)?)(\s*,\s*(cpu|cuda(:\d+)?))*)$"


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Section):
    """What one client may take, and what all may take together."""

    text_message_chars: int = Field(4_000, ge=1, description="text in one message")
    text_context_chars: int = Field(20_000, ge=1, description="text in one context")
    message_bytes: int = Field(65_536, ge=1_024, description="one WebSocket message or HTTP body without a file")
    contexts_per_session: int = Field(16, ge=1, description="contexts open at once on one connection")
    session_idle_s: float = Field(300.0, gt=0, description="a connection without a message and without speech")
    sessions_per_key: int = Field(4, ge=1, description="connections and HTTP requests at once with one API key")
    connections: int = Field(512, ge=1, description="sessions at once, all clients together")
    rtc_peers: int = Field(48, ge=0, description="WebRTC peers at once; 0 turns WebRTC off")
    text_idle_s: float = Field(15.0, gt=0, description="an open context that is dry gets no text: `starved`")
    max_frames: int = Field(3_000, ge=1, description="80 ms frames in one context, whatever its text")
    context_s: float = Field(600.0, gt=0, description="longest life of a context in a slot, ended with `length`")
    window_frames: int = Field(50, ge=2, description="frames made that the listener's side has not taken yet")
    max_lead_ms: int = Field(60_000, ge=120, description="largest lead_ms that a client may ask for")


class Timeouts(Section):
    """Deadlines, in seconds."""

    queue_s: float = Field(2.0, gt=0, description="wait for a slot, then `at_capacity`")
    write_s: float = Field(2.0, gt=0, description="a write that makes no progress, then `slow_consumer`")
    handshake_s: float = Field(5.0, gt=0, description="first message or request of a new connection")
    ping_s: float = Field(5.0, gt=0, description="WebSocket ping interval and pong timeout")
    drain_s: float = Field(30.0, gt=0, description="running speech may finish after SIGTERM")
    engine_start_s: float = Field(300.0, gt=0, description="from spawning the engine process to its hello")
    engine_heartbeat_s: float = Field(5.0, gt=0, description="engine loop without an answer, then it is killed")
    tcp_user_s: float = Field(5.0, gt=0, description="TCP_USER_TIMEOUT of client connections")


class Auth(Section):
    """Who may speak. Without keys the node only binds to loopback."""

    api_keys: tuple[SecretStr, ...] = Field((), description="accepted keys; empty turns authentication off")
    allowed_origins: tuple[str, ...] = Field((), description="browser origins besides the node's own page")
    token_ttl_s: float = Field(60.0, gt=0, description="life of a one-time browser token")

    @field_validator("api_keys")
    @classmethod
    def _usable(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        """Refuse a key that would let anybody in, or nobody: an HTTP header carries visible ASCII alone."""
        for key in keys:
            text = key.get_secret_value()
            if not text or not all("!" <= character <= "~" for character in text):
                raise ValueError("a key is at least one visible ASCII character, without spaces")
        return keys


class Tls(Section):
    """HTTPS and WSS on the node's own port, where no reverse proxy stands before it."""

    cert: str | None = Field(None, description="a PEM file: the certificate, then those that vouch for it")
    key: str | None = Field(None, description="a PEM file without a passphrase; default: the key is in `tls.cert`")

    @model_validator(mode="after")
    def _key_needs_cert(self) -> Tls:
        if self.key is not None and self.cert is None:
            raise ValueError("tls.key needs tls.cert")
        return self


class IceServer(Section):
    """A STUN or TURN server for WebRTC."""

    urls: tuple[str, ...] = Field(min_length=1)
    username: str | None = None
    credential: SecretStr | None = None


class Telemetry(Section):
    """Spans for OpenTelemetry. Its own variables work too: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, ..."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="of a collector, by OTLP over HTTP: http://127.0.0.1:4318; needs agent-tts[otel]",
    )


class Espeak(Section):
    """The embedded engine."""

    voice: str = Field("en-us", description="default voice")
    first_words: int = Field(2, ge=1, description="words in a context's first unit: fewer start sooner")


class Tone(Section):
    """The engine of tests and load runs."""

    char_ms: float = Field(60.0, gt=0, description="milliseconds of sound for a character of text")
    scripted_faults: bool = Field(False, description="obey `fault:` instructions; never on a reachable node")


class Checkpoint(Section):
    """A Qwen3-TTS model; in short `SOURCE` or `SOURCE@REVISION`."""

    source: str = Field(min_length=1, description="a folder, or a hub id: Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
    revision: str | None = Field(None, min_length=1, description="commit, tag or branch of a hub id")
    load: Literal["start", "first_use"] = Field("start", description="when it takes its memory")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        named = HUB_REVISION.fullmatch(value)
        return {"source": named[1], "revision": named[2]} if named else {"source": value}


class Qwen3(Section):
    """The neural engine."""

    models: tuple[Checkpoint, ...] = Field((), description="one for each kind of voice that is to be spoken")
    device: str = Field(
        "auto", pattern=DEVICES, description="auto, cpu, cuda or cuda:N; several, with commas: one each"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto is bfloat16 on a GPU")
    codec_dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="auto is float16 by fused kernels on a GPU, otherwise float32"
    )
    max_model_len: int = Field(
        2_048, ge=64, le=32_768, description="positions of one utterance: its prompt, then one for each 80 ms frame"
    )
    memory: float = Field(
        0.85,
        gt=0,
        le=1,
        description="share of the memory that models and caches may take; of what is free, 0.85 at most",
    )
    cuda_graphs: bool = Field(True, description="on a GPU, a whole frame is one captured graph; false runs it in parts")
    reproducible: bool = Field(False, description="on a GPU too, a seed's sound does not depend on who else speaks")
    cached_voices: int = Field(64, ge=1, description="prompts of cloned voices kept ready")


class Voices(Section):
    """The library of cloned and designed voices."""

    folder: str | None = Field(
        None, description="where it is kept; default: agent-tts/voices in the user's data folder"
    )
    limit: int = Field(1_000, ge=0, description="voices in the library; 0 takes none")
    clip_bytes: int = Field(10 << 20, ge=1_024, description="an uploaded clip")
    clip_s: float = Field(60.0, ge=1, le=600, description="longest clip, in seconds")


class AgentStt(Section):
    """What hears the user."""

    kind: Literal["whisper", "scripted", "none"] = Field(
        "whisper",
        description="none: typed chat alone; scripted: takes all speech for `words`, to measure without weights",
    )
    words: str = Field("Tell me a story.", min_length=1, description="what scripted understands")
    model: str = Field("base.en", min_length=1, description="a Whisper model's name or hub id, or a folder with one")
    folder: str | None = Field(
        None, description="where fetched models are kept; default: agent-tts/whisper in the user's data folder"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where it runs")
    compute_type: str = Field("default", description="of CTranslate2: default, int8, float16, int8_float16")
    language: str | None = Field("en", description="what the user speaks; empty lets Whisper find out")


class AgentLlm(Section):
    """What answers the user: any server that speaks OpenAI's chat completions."""

    base_url: str = Field("http://127.0.0.1:11434/v1", min_length=1, description="of the server; default: Ollama's")
    model: str | None = Field(None, description="default: the first that the server has")
    api_key: SecretStr | None = Field(None, description="of the server")
    instructions: str = Field(
        "You are a helpful assistant in a spoken conversation. Answer in one to three short sentences of plain "
        "text, without lists, markdown or emoji.",
        description="the system prompt",
    )
    max_tokens: int = Field(400, ge=1, description="of one answer")
    look_s: float = Field(2.0, gt=0, description="for the server to say which models it has")


class Agent(Section):
    """Conversations, on a node that `agent-tts agent` runs."""

    calls: int = Field(8, ge=1, description="conversations at once; each costs a share of a core")
    pipeline: str | None = Field(
        None, description="a Python file with `build(call)`; default: pipelines/voice_agent.py"
    )
    voice: str | None = Field(None, description="of the answers; default: the engine's")
    language: str | None = Field(None, description="of the answers; default: the voice's")
    idle_s: float = Field(300.0, gt=0, description="a call in which nobody speaks is ended")
    vad_start_s: float = Field(0.2, gt=0, le=2, description="speech that counts as speaking")
    vad_stop_s: float = Field(0.2, gt=0, le=2, description="silence after which it is asked whether the turn is over")
    turn_silence_s: float = Field(
        2.0, gt=0, le=10, description="silence that ends a turn, however unfinished it sounds"
    )
    echo_guard_s: float = Field(0.5, ge=0, le=5, description="start of an answer in which nobody can interrupt it")
    resume_after_s: float = Field(1.0, gt=0, le=10, description="speech without a word: the answer goes on after this")
    stt: AgentStt = AgentStt()
    llm: AgentLlm = AgentLlm()


class Settings(Section):
    """All settings of a node."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8100, ge=0, le=65_535, description="port of everything; 0 picks a free one")
    engine: Literal["auto", "qwen3", "espeak", "tone"] = Field("auto", description="auto: qwen3 if it has a model")
    engines: int | None = Field(
        None, ge=1, le=64, description="engine processes; default: one for each device of qwen3, otherwise 1"
    )
    slots: int | None = Field(
        None, ge=1, le=65_535, description="streams speaking at once in each engine process; default: the engine's"
    )
    queue: int | None = Field(None, ge=0, description="streams waiting for a slot of each; default: 2 x slots")
    lead_ms: int = Field(1_000, ge=120, description="default of a session's lead_ms")
    normalize: bool = Field(False, description="default of normalize: say numbers, money and dates in words")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severity of a log line")
    log_format: Literal["text", "json"] = Field("text", description="of log lines; json: one object a line")
    web: bool = Field(True, description="serve the page at /")
    tls: Tls = Tls()
    auth: Auth = Auth()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    voice_aliases: dict[str, str] = Field(
        {}, description="other names of voices, such as another vendor's ids; * is any name that is not known"
    )
    ice_servers: tuple[IceServer, ...] = Field((), description="STUN and TURN servers told to WebRTC peers")
    telemetry: Telemetry = Telemetry()
    espeak: Espeak = Espeak()
    tone: Tone = Tone()
    qwen3: Qwen3 = Qwen3()
    voices: Voices = Voices()
    agent: Agent = Agent()

    @model_validator(mode="after")
    def _locked_unless_loopback(self) -> Settings:
        if not self.auth.api_keys and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines, which needs auth.api_keys "
                f"({ENV_PREFIX}AUTH__API_KEYS='[\"...\"]'); or listen on 127.0.0.1"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
