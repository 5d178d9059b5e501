"""All settings of a node: one frozen object, with units, defaults and limits. `config.loading` fills it."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, SecretStr, field_validator, model_validator

from agent_tts.text.entries import Lexicon

ENV_PREFIX = "AGENT_TTS_"  # AGENT_TTS_LIMITS__CONNECTIONS=64 is limits.connections

HUB_REVISION = re.compile(r"([^/@\s]+/[^/@\s]+)@([^/@\s]+)")
DEVICES = r"^(auto|mps|(cpu|cuda(:\d+)?)(\s*,\s*(cpu|cuda(:\d+)?))*)$"

MAX_FRONTS = 64
MAX_KEYS = 1_000  # with names; every request is compared with all
KEY_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
UNNAMED = "unnamed"  # what metrics call keys without a name, and clients without a key
MAX_LEXICON = 512 * 1_024  # bytes of `lexicon`, as JSON


def is_of_environment(name: str) -> bool:
    """Whether an environment variable of this name, in any capitals, is a setting: it may be a key."""
    return name.upper().startswith(ENV_PREFIX)


class Section(BaseModel):
    # JSON, in which settings go to other processes, has no infinite numbers.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limits(Section):
    """Limits for one client, and for all clients together."""

    text_message_chars: int = Field(4_000, ge=1, description="characters of text in one message")
    text_context_chars: int = Field(20_000, ge=1, description="characters of text in one context")
    message_bytes: int = Field(65_536, ge=1_024, description="one message of a client, or HTTP body without a file")
    contexts_per_session: int = Field(16, ge=1, description="contexts open at the same time on one connection")
    session_idle_s: float = Field(300.0, gt=0, description="longest time of a connection without messages and speech")
    sessions_per_key: int | None = Field(
        None, ge=1, description="simultaneous connections and HTTP requests with one API key; null: limits.connections"
    )
    token_sessions_per_key: int | None = Field(
        None, ge=1, description="the same opened with tokens of one key; null: they count in sessions_per_key"
    )
    requests_per_s: float | None = Field(
        None,
        gt=0,
        description="HTTP requests and handshakes with one API key, of 5 s at once, then `rate_limited`; "
        "default: 3 x slots of all engines, 512 at least",
    )
    connections: int | None = Field(
        None, ge=1, description="simultaneous sessions of all clients; default: 3 x slots of all engines, 512 at least"
    )
    ready_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of all slots in use from which /ready answers 503, so that new callers go to other nodes;"
        " 1: never",
    )
    rtc_peers: int | None = Field(
        None, ge=0, description="simultaneous WebRTC peers; 0 turns WebRTC off; default: 48 for each front"
    )
    text_idle_s: float = Field(
        15.0, gt=0, description="longest wait of an open context for text, then `starved`; 1 s while others wait"
    )
    max_frames: int = Field(60_000, ge=1, description="80 ms frames in one context, for any text; 3 a character")
    context_s: float = Field(
        600.0, gt=0, description="longest time of a context in a slot beyond its audio; it ends with `length`"
    )
    window_frames: int = Field(50, ge=2, description="frames made but not yet taken by the listener's side")
    max_lead_ms: int = Field(60_000, ge=120, description="largest lead_ms that a client may request")


class Timeouts(Section):
    """Deadlines, in seconds."""

    queue_s: float = Field(
        1.8, gt=0, description="longest wait for a slot, then `at_capacity`; 1.8: the first audio comes within 2 s"
    )
    write_s: float = Field(
        2.0, gt=0, description="longest silence of a client that takes no audio and has none to play: `slow_consumer`"
    )
    handshake_s: float = Field(5.0, gt=0, description="longest wait for the first message or request of a connection")
    ping_s: float = Field(5.0, gt=0, description="WebSocket ping interval and pong timeout")
    drain_s: float = Field(30.0, gt=0, description="time for running speech to finish after SIGTERM")
    engine_start_s: float = Field(300.0, gt=0, description="longest start of an engine process")
    engine_heartbeat_s: float = Field(5.0, gt=0, description="longest time without an answer of an engine process")
    tcp_user_s: float = Field(
        5.0, gt=0, le=2_000_000, description="longest silence of a client's machine while data waits for it"
    )


class Key(Section):
    """An API key with a name, and what its holder may use."""

    key: SecretStr
    sessions: int | None = Field(None, ge=1)  # at once, those of its tokens included; None: as limits has it
    characters_per_minute: int | None = Field(None, ge=1)  # of text to speak; None: no limit
    operator: bool = False  # may see the node's figures on the page


class Auth(Section):
    """Who may use the node. Without keys it listens on loopback only."""

    api_keys: tuple[SecretStr, ...] = Field((), description="accepted API keys; without any, no key is asked for")
    keys: dict[str, Key] = Field(
        {},
        max_length=MAX_KEYS,
        description="more of them by name: shop: {key: K, sessions: 8, characters_per_minute: 60000, operator: false}",
    )
    allowed_origins: tuple[str, ...] = Field((), description="browser origins besides the node's own page")
    trusted_proxies: tuple[IPvAnyNetwork, ...] = Field(
        (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1")),
        description="addresses and networks of proxies whose X-Forwarded-Host and Forwarded name the public host",
    )
    token_ttl_s: float = Field(60.0, gt=0, description="lifetime of a one-time browser token")

    @field_validator("api_keys")
    @classmethod
    def _usable(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        """Refuse an empty key, and one that an HTTP header cannot carry."""
        for key in keys:
            text = key.get_secret_value()
            if not text or not all("!" <= character <= "~" for character in text):
                raise ValueError("a key has one or more visible ASCII characters and no spaces")
        return keys

    @field_validator("keys")
    @classmethod
    def _named(cls, keys: dict[str, Key]) -> dict[str, Key]:
        """Refuse names that are no labels, keys as `_usable` does, and one key with two names."""
        if not all(KEY_NAME.fullmatch(name) and name != UNNAMED for name in keys):
            raise ValueError(f"a name has 1 to 32 of a-z, A-Z, 0-9, _ and -, and is not {UNNAMED}")
        secrets = cls._usable(tuple(key.key for key in keys.values()))
        if len(set(secrets)) < len(secrets):
            raise ValueError("two names have the same key")
        return keys

    @model_validator(mode="after")
    def _listed_once(self) -> Auth:
        if twice := [name for name, key in self.keys.items() if key.key in self.api_keys]:
            raise ValueError(f"the key of auth.keys.{twice[0]} is in auth.api_keys, too: leave it out there")
        return self

    def accepted(self) -> Iterator[tuple[str, Key]]:
        """All keys with their names; those of `api_keys` share the name `UNNAMED`, and may do all."""
        yield from self.keys.items()
        yield from ((UNNAMED, Key(key=key, operator=True)) for key in self.api_keys)

    @property
    def locked(self) -> bool:
        """Whether a client needs a key."""
        return bool(self.api_keys or self.keys)


class FleetSettings(Section):
    """What several nodes behind one address share, and what one is called."""

    node: str | None = Field(
        None,
        pattern=r"^[a-z0-9-]{1,63}$",
        description="name of this node, which its session ids begin with: a load balancer finds the node of a call; "
        "dots and colons, as of an address, become dashes",
    )
    secret: SecretStr | None = Field(
        None,
        min_length=32,
        description="signs the tokens of all nodes, 32 characters or more; default: each node its own",
    )
    ledger: SecretStr | None = Field(
        None,
        description="where tokens are used up and keys are counted for all nodes: redis://HOST:6379/0 (needs "
        "agent-tts[redis]), or socket:///PATH of a process on this machine that counts; needs fleet.secret",
    )
    ledger_failure: Literal["open", "closed"] = Field(
        "open", description="while it is away, open: each node counts for itself; closed: what has a limit is refused"
    )

    @field_validator("node", mode="before")
    @classmethod
    def _with_dashes(cls, node: object) -> object:
        return re.sub("[.:]", "-", node) if isinstance(node, str) else node

    @field_validator("ledger")
    @classmethod
    def _known(cls, ledger: SecretStr | None) -> SecretStr | None:
        if ledger is not None and not re.match("(redis|rediss|unix|socket)://", ledger.get_secret_value()):
            raise ValueError("has to start with redis://, rediss://, unix:// or socket://")
        return ledger

    @model_validator(mode="after")
    def _shares_a_secret(self) -> FleetSettings:
        if self.ledger is not None and self.secret is None:
            raise ValueError("fleet.ledger needs fleet.secret, the same on all nodes")
        return self


class Tls(Section):
    """HTTPS and WSS on the node's own port, for a node without a reverse proxy."""

    cert: str | None = Field(None, description="a PEM file: the certificate, then its intermediate certificates")
    key: str | None = Field(None, description="a PEM file without a passphrase; default: `tls.cert` has the key, too")

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


class C2pa(Section):
    """Signed manifests in audio files."""

    certificate: str | None = Field(
        None, description="a PEM file: the signer's certificate, then its issuers'; needs agent-tts[c2pa]"
    )
    key: str | None = Field(None, description="a PEM file without a passphrase: its private key")

    @model_validator(mode="after")
    def _both_or_none(self) -> C2pa:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("c2pa.certificate and c2pa.key need each other")
        return self


class Telemetry(Section):
    """Spans for OpenTelemetry, which also reads OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and others."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="address of an OTLP/HTTP collector: http://127.0.0.1:4318; needs agent-tts[otel]",
    )
    stages: bool = Field(False, description="spans of contexts also tell the engine's stages before the first audio")


class Espeak(Section):
    """The embedded engine, espeak-ng."""

    voice: str = Field("en-us", description="default voice")
    first_words: int = Field(2, ge=1, description="words in the first unit of a context; fewer start sooner")


class Hibari(Section):
    """The natural English voice on the CPU; other languages are espeak's."""

    voice: str | None = Field(None, description="default voice; default: heart, where that of espeak is English")


class Tone(Section):
    """The engine of tests and load tests."""

    char_ms: float = Field(60.0, gt=0, description="milliseconds of sound for one character of text")
    scripted_faults: bool = Field(False, description="obey `fault:` instructions; not for a node that others can reach")


class Checkpoint(Section):
    """A Qwen3-TTS model; in short `SOURCE` or `SOURCE@REVISION`."""

    source: str = Field(min_length=1, description="a folder, or a hub id: Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
    revision: str | None = Field(None, min_length=1, description="commit, tag or branch of a hub id")
    load: Literal["start", "first_use"] = Field("start", description="when it is loaded into memory")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        named = HUB_REVISION.fullmatch(value)
        return {"source": named[1], "revision": named[2]} if named else {"source": value}


class Qwen3(Section):
    """The neural engine."""

    models: tuple[Checkpoint, ...] = Field((), description="checkpoints, one for each kind of voice")
    device: str = Field(
        "auto",
        pattern=DEVICES,
        description="auto, cpu, mps, cuda or cuda:N; several with commas: an engine each",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto is bfloat16 on a GPU")
    weights: Literal["bfloat16", "fp8"] = Field(
        "bfloat16",
        description="fp8: linear layers of talker and predictor in 8 bits, on a GPU from sm_89 on; refused where "
        "they change the model too much",
    )
    kv_cache: Literal["bfloat16", "fp8"] = Field("bfloat16", description="fp8: the talker's cache likewise in 8 bits")
    codec_dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="auto is float16 with fused kernels on a GPU, otherwise float32"
    )
    max_model_len: int = Field(
        2_048, ge=64, le=32_768, description="positions of one utterance: its prompt, then one for each 80 ms frame"
    )
    piece_s: float = Field(
        60.0,
        ge=1,
        le=60,
        description="speech, as estimated from the text, after which the end of a sentence ends a piece; "
        "each has a prompt of its own; in seconds",
    )
    memory: float = Field(
        0.9,
        gt=0,
        le=1,
        description="largest share of the device's memory for models, caches and graphs; at most 0.9 of what is free",
    )
    cuda_graphs: bool = Field(True, description="on a GPU, a frame is one captured graph; false runs it in parts")
    reproducible: bool = Field(False, description="on a GPU, the audio of a seed does not depend on other requests")
    cached_voices: int = Field(64, ge=1, description="prompts of cloned voices kept in memory")
    adapters: int = Field(0, ge=0, le=64, description="LoRA adapters of voices in memory at once")
    adapter_rank: int = Field(32, ge=1, le=256, description="largest rank of an adapter")


class Vox(Section):
    """Experimental: the models of qwen3 by vox-tts, where there is no NVIDIA GPU; needs agent-tts[vox]."""

    type: Literal["q8", "f16", "f32"] = Field("q8", description="which file of a model, made by `agent-tts convert`")
    device: str = Field("cpu", pattern=r"^(cpu|vulkan(:\d+)?)$", description="cpu, vulkan or vulkan:N")


class Audioseal(Section):
    """The watermark AudioSeal."""

    source: str = Field(
        "facebook/audioseal",
        min_length=1,
        description="a hub id, or a folder with generator_streaming.pth and detector_streaming.pth",
    )
    revision: str | None = Field(None, min_length=1, description="commit, tag or branch of a hub id")
    message: int = Field(0, ge=0, le=65_535, description="16 bits that all speech of the node carries")


class Voices(Section):
    """The library of cloned and designed voices."""

    folder: str | None = Field(
        None,
        description="its folder, or what nodes share: s3://BUCKET/voices; default: agent-tts/voices in the user's "
        "data folder",
    )
    limit: int = Field(1_000, ge=0, description="most voices in the library; 0 allows none")
    clip_bytes: int = Field(10 << 20, ge=1_024, description="bytes of an uploaded clip")
    clip_s: float = Field(60.0, ge=1, le=600, description="longest clip, in seconds")


class DictionarySettings(Section):
    """Pronunciation dictionaries that clients keep on the node by the routes of Cartesia and ElevenLabs."""

    folder: str | None = Field(None, description="their folder; default: agent-tts/dictionaries beside the voices")
    limit: int = Field(100, ge=0, description="most dictionaries; 0 allows none")


class AgentStt(Section):
    """Speech recognition."""

    kind: Literal["whisper", "scripted", "none"] = Field(
        "whisper",
        description="none: typed chat only; scripted: any speech is `words`, to measure without weights",
    )
    words: str = Field("Tell me a story.", min_length=1, description="the result of scripted")
    model: str = Field("base.en", min_length=1, description="name, hub id or folder of a Whisper model")
    folder: str | None = Field(
        None, description="folder of downloaded models; default: agent-tts/whisper in the user's data folder"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where it runs")
    compute_type: str = Field(
        "default", description="CTranslate2's: int8, float16, int8_float16; default: int8 on a CPU, else the model's"
    )
    threads: int | None = Field(
        None, ge=1, le=64, description="threads that recognise a segment; default: by cores and `agent.calls`"
    )
    retry_s: float = Field(
        5.0, ge=0, le=60, description="segments shorter than this are decoded once, however doubtful; in seconds"
    )
    language: str | None = Field("en", description="language of the user; empty: Whisper detects it")


class AgentLlm(Section):
    """The language model: any server with OpenAI's chat completions."""

    base_url: str = Field("http://127.0.0.1:11434/v1", min_length=1, description="default: Ollama's")
    model: str | None = Field(None, description="default: the first model of the server")
    api_key: SecretStr | None = Field(None, description="API key of the server")
    instructions: str = Field(
        "You are a helpful assistant in a spoken conversation. Answer in one to three short sentences of plain "
        "text, without lists, markdown or emoji.",
        description="the system prompt",
    )
    max_tokens: int = Field(400, ge=1, description="longest answer, in tokens")
    token_limit: Literal["auto", "max_tokens", "max_completion_tokens", "none"] = Field(
        "auto", description="field of `max_tokens` in a request; auto: one that the server does not refuse"
    )
    look_s: float = Field(2.0, gt=0, description="longest wait for the server's list of models, in seconds")
    first_token_s: float = Field(10.0, gt=0, description="longest wait for the first token, in seconds")
    token_s: float = Field(5.0, gt=0, description="longest wait between two tokens, in seconds")
    apologies: dict[str, str] = Field(
        {}, description="what is said when there is no answer, by language (de: ...); default: in ten languages"
    )
    filler_s: float | None = Field(
        None, gt=0, le=60, description="wait for the first word after which a filler is said; default: none is said"
    )
    fillers: dict[str, str] = Field({}, description='fillers by language; default: "one moment", in ten languages')


class Agent(Section):
    """Conversations of `agent-tts agent`."""

    calls: int = Field(8, ge=1, description="simultaneous conversations; each takes a share of a core")
    processes: int = Field(
        0, ge=0, le=64, description="processes for the conversations alone; 0: they run in the fronts"
    )
    pipeline: str | None = Field(
        None, description="a Python file with `build(call)`; default: pipelines/voice_agent.py"
    )
    voice: str | None = Field(None, description="voice of the answers; default: the engine's")
    language: str | None = Field(None, description="language of the answers; default: the voice's")
    idle_s: float = Field(300.0, gt=0, description="a call without speech ends after this")
    vad_start_s: float = Field(
        0.15, gt=0, le=2, description="shortest speech that starts a turn; half of it where the detector is sure"
    )
    vad_stop_s: float = Field(0.2, gt=0, le=2, description="silence after which the turn detector is asked")
    level_db: float = Field(-40.0, ge=-96, le=0, description="peaks below which nobody speaks, dB of full scale")
    turn_silence_s: float = Field(
        2.0, gt=0, le=10, description="silence that ends a turn that does not sound complete, or is half a sentence"
    )
    early_answers: int = Field(
        2, ge=0, le=8, description="requests a turn that prepare its answer while it may be over; 0: none"
    )
    echo_guard_s: float = Field(0.5, ge=0, le=5, description="start of an answer that cannot be interrupted")
    resume_after_s: float = Field(1.0, gt=0, le=10, description="speech without words, after which the answer resumes")
    stt: AgentStt = AgentStt()
    llm: AgentLlm = AgentLlm()


class Settings(Section):
    """All settings of a node."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8100, ge=0, le=65_535, description="port to listen on; 0 picks a free one")
    public_url: str | None = Field(
        None,
        pattern=r"^(https?|wss?)://",
        description="address that clients go to when a full or draining node asks them to move: that of a load "
        "balancer; default: the one they used",
    )
    engine: Literal["auto", "qwen3", "vox", "hibari", "espeak", "tone"] = Field(
        "auto", description="auto: qwen3 if it has a model, else hibari if it is installed, else espeak; never vox"
    )
    engines: int | None = Field(
        None, ge=1, le=64, description="engine processes; default: one for each device of qwen3, otherwise 1"
    )
    fronts: int | Literal["auto"] = Field(
        "auto", description="processes that serve clients, each with a core; auto: by cores, engines and limits"
    )
    slots: int | None = Field(
        None, ge=1, le=65_535, description="simultaneous requests of each engine process; default: the engine's"
    )
    queue: int | None = Field(
        None, ge=0, le=1_000_000, description="requests that wait for a slot of each; default: 2 x slots"
    )
    lead_ms: int = Field(1_000, ge=120, description="default lead_ms of a session")
    normalize: bool | None = Field(
        None, description="default of normalize: numbers, money and dates as words; null: with hibari and espeak alone"
    )
    lexicon: dict[str, Any] = Field(
        {}, description="how words are said in every voice: nginx: engine x; or GIF: {ipa: dʒɪf, alias: jif}"
    )
    lexicon_file: str | None = Field(
        None, description="more of them in a file: W3C PLS, or a mapping in YAML or JSON; `lexicon` goes before it"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest severity to log")
    log_format: Literal["text", "json"] = Field("text", description="format of log lines; json: one object per line")
    web: bool = Field(True, description="serve the page at /")
    watermark: Literal["none", "audioseal"] = Field(
        "none", description="an inaudible watermark in the speech of qwen3; needs agent-tts[watermark]"
    )
    tls: Tls = Tls()
    auth: Auth = Auth()
    fleet: FleetSettings = FleetSettings()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    voice_aliases: dict[str, str] = Field(
        {}, description="other names of voices, such as another vendor's ids; * stands for any unknown name"
    )
    ice_servers: tuple[IceServer, ...] = Field((), description="STUN and TURN servers for WebRTC peers")
    telemetry: Telemetry = Telemetry()
    espeak: Espeak = Espeak()
    hibari: Hibari = Hibari()
    tone: Tone = Tone()
    qwen3: Qwen3 = Qwen3()
    vox: Vox = Vox()
    audioseal: Audioseal = Audioseal()
    c2pa: C2pa = C2pa()
    voices: Voices = Voices()
    dictionaries: DictionarySettings = DictionarySettings()
    agent: Agent = Agent()

    @field_validator("host")
    @classmethod
    def _can_be_looked_up(cls, host: str) -> str:
        try:
            host.encode("idna")  # as the resolver does
        except UnicodeError:
            raise ValueError("is no address, and no name of one") from None
        return host

    @field_validator("lexicon")
    @classmethod
    def _can_be_said(cls, lexicon: dict[str, Any]) -> dict[str, Any]:
        Lexicon.of(lexicon)
        if len(json.dumps(lexicon)) > MAX_LEXICON:  # it is in messages to the fronts
            raise ValueError(f"has at most {MAX_LEXICON} bytes as JSON: put the words into a file, `lexicon_file`")
        return lexicon

    @field_validator("fronts", mode="before")
    @classmethod
    def _count_or_auto(cls, fronts: object) -> object:
        if fronts != "auto" and (type(fronts) is not int or not 1 <= fronts <= MAX_FRONTS):
            raise ValueError(f"must be auto or 1 to {MAX_FRONTS}")
        return fronts

    @model_validator(mode="after")
    def _needs_keys_unless_loopback(self) -> Settings:
        if not self.auth.locked and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines and needs auth.api_keys "
                f"({ENV_PREFIX}AUTH__API_KEYS=KEY1,KEY2); or listen on 127.0.0.1"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
