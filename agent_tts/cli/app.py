"""`agent-tts`: its commands and their options. A command imports its code when it runs, which keeps help quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agent_tts import __version__
from agent_tts.cli import options as shared
from agent_tts.cli.bench import bench
from agent_tts.cli.cluster import cluster
from agent_tts.cli.options import Config, Key, Set, Url, command, command_of

Name = Annotated[str, typer.Argument(help="Name of the voice: a-z, 0-9, _ and -.")]
NODE, CONFIG, LIST = shared.NodeFlags(), shared.ConfigFlags(), shared.ListFlags()
SPEECH, ADD = shared.SpeechFlags(), shared.AddFlags()

HEALTH_S = 4.0  # for a node to answer `agent-tts health`

app = typer.Typer(
    name="agent-tts",
    help="The speech node for voice agents: LLM text in word by word, speech out frame by frame.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
voices = typer.Typer(invoke_without_command=True)
app.add_typer(bench, name="bench")
app.add_typer(cluster, name="cluster")
app.add_typer(voices, name="voices")
lexicon = typer.Typer(no_args_is_help=True, help="How words are said.")
app.add_typer(lexicon, name="lexicon")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"agent-tts {__version__}")
        raise typer.Exit


@command_of(app, run="agent_tts.cli.serve:serve")
def serve(context: typer.Context, node: Any = NODE, configuration: Any = CONFIG) -> None:
    """Run a node: WebSocket, WebRTC, HTTP and a web page on one port.

    Flags override AGENT_TTS_* variables, which override the file, which overrides the defaults.

    \b
    agent-tts serve --port 8200 --set limits.connections=2000
    agent-tts serve --config gpu --host 0.0.0.0 --api-key KEY
    """


@command_of(app, run="agent_tts.cli.serve:agent")
def agent(
    context: typer.Context,
    node: Any = NODE,
    llm: Annotated[
        str | None, typer.Option("--llm", metavar="URL", help="A server with OpenAI's chat completions.")
    ] = None,
    llm_model: Annotated[str | None, typer.Option(help="Default: the first model of the server.")] = None,
    whisper: Annotated[str | None, typer.Option(help="Name, hub id or folder of a Whisper model.")] = None,
    configuration: Any = CONFIG,
) -> None:
    """Run a node for spoken conversations: speech recognition, a language model and speech on one port.

    It serves all that `agent-tts serve` does. Needs agent-tts\\[agent].
    """


@command_of(app, run="agent_tts.cli.say:say")
def say(
    context: typer.Context,
    text: Annotated[str, typer.Argument(help="The text; - speaks stdin as it arrives.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="wav, mp3, flac, opus, ogg, aac, pcm; - is raw pcm_s16le."),
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it, even with -o; the default without -o.")] = False,
    speech: Any = SPEECH,
    lexicon: shared.LexiconFile = None,
    url: Url = None,
    key: Key = None,
    engine: shared.Engine = None,
    model: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="qwen3: a folder or hub id. With --url: a name of a model.")
    ] = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="Without --url: end each part of the text after so many frames of 80 ms.")
    ] = None,
    set_: Set = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Speak a text, on a running node (--url) or an engine of this machine."""


@command_of(app, run="agent_tts.cli.voices:detect")
def detect(
    file: Annotated[Path, typer.Argument(help="An audio file.")],
    watermark: Annotated[
        str | None, typer.Option(metavar="KIND", help="audioseal: look for a watermark, too; default: the settings'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, like /v1/audio/detect.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Tell whether an audio file is speech of a node: by its comment and its watermark."""


@command_of(app)
def wyoming(
    uri: Annotated[str, typer.Option(help="Where to listen for Home Assistant.")] = "tcp://127.0.0.1:10200",
    url: Annotated[
        str,
        typer.Option(
            "--url", "--node", envvar="AGENT_TTS_URL", help="A running node: http(s)://, ws(s):// or host:port."
        ),
    ] = "http://127.0.0.1:8100",
    key: Key = None,
) -> None:
    """Serve Home Assistant (the Wyoming protocol) from a running node, which may start later."""
    import asyncio

    from agent_tts.client.connection import http_url
    from agent_tts.client.moving import Target
    from agent_tts.integrations.wyoming.server import serve

    asyncio.run(serve(uri, Target(http_url(url), key)))


@command_of(app, run="agent_tts.cli.doctor:doctor")
def doctor(
    context: typer.Context,
    node: Any = NODE,
    config: Config = None,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check whether a node can run on this machine, and say what to do. Exit code 1: it cannot.

    Give it the settings of the node, keys too. It contacts the STUN and TURN servers of these settings, the hub of
    models that are missing and, where something of `agent` is set, the language model.
    """


@command_of(app, "compile", run="agent_tts.cli.compile:compile_kernels")
def compile_(
    context: typer.Context,
    arch: Annotated[
        str | None,
        typer.Option(help="GPUs to compile for: sm_90,sm_89; default: this machine's.", show_default=False),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Released sizes: 1.7B,0.6B; default: the models of the settings, or both.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where kernels are kept; default: TRITON_CACHE_DIR, or triton's own.")
    ] = None,
    node: Any = NODE,
    configuration: Any = CONFIG,
) -> None:
    """Compile the kernels of Qwen3-TTS ahead, at the build of an image: no GPU and no weights are needed.

    A node with the same settings and versions finds them in this folder and compiles none: give this the flags of the
    node. Exit code 1: some kernels could not be compiled; a node compiles them at their first use, or fails there.
    """


@command_of(app, run="agent_tts.cli.convert:convert")
def convert(
    model: Annotated[str, typer.Argument(help="A folder, or a hub id: ID, ID@REVISION.")],
    type_: Annotated[str, typer.Option("--type", help="q8, f16 or f32.")] = "q8",
) -> None:
    """Make the file of a Qwen3-TTS model that the engine vox speaks with, once; it is put into the model's folder.

    The engine is experimental, for machines without an NVIDIA GPU. Needs agent-tts\\[vox].
    """


@command_of(app)
def health(
    ready: Annotated[bool, typer.Option("--ready", help="Whether it accepts speech; not while it drains.")] = False,
    url: Annotated[str | None, typer.Option(help="A running node: http(s)://, ws(s):// or host:port.")] = None,
) -> None:
    """Ask a node for its health: the one of --url, or of this machine. Exit code 1: not healthy, or no answer.

    Without --url the address comes from the settings' AGENT_TTS_* variables, for the health checks of containers.
    """
    import httpx

    from agent_tts.client.connection import http_url
    from agent_tts.config.loading import load_settings

    if url:
        node = httpx.URL(http_url(url) + "/")
    else:
        settings = load_settings()
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        node = httpx.URL(scheme="http" if settings.tls.cert is None else "https", host=host, port=settings.port)
    path = "ready" if ready else "health"
    try:
        # This machine's node has a certificate with the name that clients use.
        answer = httpx.get(node.join(path), timeout=HEALTH_S, verify=bool(url), trust_env=bool(url))
    except httpx.HTTPError as error:
        raise shared.complain(f"no node answers at {node.netloc.decode()}: {type(error).__name__}", 1) from None
    print(answer.text)
    raise typer.Exit(0 if answer.status_code == 200 else 1)


@voices.callback()
@command
def bare(context: typer.Context, flags: shared.ListFlags = LIST) -> None:
    """List voices; add, show and delete your own. Without a command: list."""
    if context.invoked_subcommand is None:
        from agent_tts.cli.voices import list_all

        list_all(flags, shared.settings_of(context))


@command_of(voices, "list", run="agent_tts.cli.voices:list_all")
def list_(context: typer.Context, flags: Any = LIST) -> None:
    """List the voices of a running node (--url) or of the engine of this machine."""


@command_of(voices, run="agent_tts.cli.voices:add")
def add(name: Name, flags: Any = ADD) -> None:
    """Add a voice of your own to a running node (--url) or to the library of this machine.

    A clone needs a Base model: --model, or qwen3.models in the settings.
    """


@command_of(voices, run="agent_tts.cli.voices:show")
def show(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, like /v1/audio/voices/NAME.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Show a voice of a running node (--url) or of the library of this machine; of a clone also who consented."""


@command_of(voices, run="agent_tts.cli.voices:delete")
def delete(name: Name, url: Url = None, key: Key = None) -> None:
    """Delete a voice of your own from a running node (--url) or from the library of this machine."""


@command_of(voices, run="agent_tts.cli.fetch:fetch")
def fetch(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all: emma, fenrir, fable, kore.")] = None,
) -> None:
    """Fetch more natural English voices for this machine (hibari; 8 MB each), once. Nodes have them after a restart."""


@command_of(voices, "lexicon", run="agent_tts.cli.voices:lexicon")
def voice_lexicon(
    name: Name,
    file: Annotated[Path | None, typer.Argument(help="W3C PLS, or a mapping in YAML or JSON.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove it.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Set how words are said in a voice of your own, from FILE; without one: print it, as JSON."""


@command_of(voices, "adapter", run="agent_tts.cli.voices:adapter")
def voice_adapter(
    name: Name,
    folder: Annotated[Path | None, typer.Argument(help="What PEFT saved: adapter_config.json and safetensors.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove it.")] = False,
) -> None:
    """Speak a clone of this machine's library by the LoRA adapter in FOLDER, on nodes with qwen3.adapters."""


@command_of(lexicon, "try", run="agent_tts.cli.lexicon:try_")
def try_(
    context: typer.Context,
    text: Annotated[str, typer.Argument(help="The text.")],
    lexicon: shared.LexiconFile = None,
    voice: Annotated[str | None, typer.Option(help="A voice of the library of this machine.")] = None,
    language: Annotated[str, typer.Option(help="Of the numbers: de, en, zh.")] = "en",
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Say numbers in words; default: as the settings.")
    ] = None,
    config: Config = None,
    set_: Set = None,
) -> None:
    """Print what would be said for a text, and the words that a lexicon has: --lexicon, the voice's, the settings'."""
