"""`agent-tts`: its commands and their options. What a command does is imported when it runs, so that help is quick."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from agent_tts import __version__
from agent_tts.cli.bench import bench
from agent_tts.cli.options import (
    ApiKeys,
    Config,
    Device,
    Dtype,
    Engine,
    Host,
    Key,
    LogFormat,
    LogLevel,
    Models,
    Port,
    PrintConfig,
    Set,
    Slots,
    TlsCert,
    TlsKey,
    Url,
    engine_flags,
    server_flags,
    with_speech_options,
)
from agent_tts.cli.reporting import reported
from agent_tts.cli.voices import voices
from agent_tts.events import SpeechOptions

app = typer.Typer(
    name="agent-tts",
    help="The speech node for voice agents: LLM text in word by word, speech out frame by frame.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench, name="bench")
app.add_typer(voices, name="voices")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    if version:
        print(f"agent-tts {__version__}")
        raise typer.Exit


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    engine: Engine = None,
    model: Models = None,
    device: Device = None,
    dtype: Dtype = None,
    slots: Slots = None,
    api_key: ApiKeys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config: Config = None,
    set_: Set = None,
    print_config: PrintConfig = False,
) -> None:
    """Run a node: WebSocket, WebRTC, HTTP and a page on one port.

    Settings come from flags, then AGENT_TTS_* variables, then the file, then defaults.
    """
    from agent_tts.cli.serve import serve as run

    flags = server_flags(host, port, slots, api_key, tls_cert, tls_key, log_level, log_format)
    with reported():
        code = run(config, flags | engine_flags(engine, model, device, dtype), set_ or [], print_config)
    raise typer.Exit(code)


@app.command()
def agent(
    host: Host = None,
    port: Port = None,
    engine: Engine = None,
    model: Models = None,
    device: Device = None,
    dtype: Dtype = None,
    slots: Slots = None,
    api_key: ApiKeys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    llm: Annotated[str | None, typer.Option("--llm", metavar="URL", help="Of OpenAI's chat completions.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="Default: the first that the server has.")] = None,
    whisper: Annotated[str | None, typer.Option(help="A model's name, or a folder with one.")] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config: Config = None,
    set_: Set = None,
    print_config: PrintConfig = False,
) -> None:
    """Run a node that one can talk to: speech recognition, a language model and speech on one port.

    Everything of `agent-tts serve` is there too. Needs agent-tts\\[agent].
    """
    from agent_tts.cli.agent import agent as run

    flags = server_flags(host, port, slots, api_key, tls_cert, tls_key, log_level, log_format)
    flags |= {"agent.llm.base_url": llm, "agent.llm.model": llm_model, "agent.stt.model": whisper}
    with reported():
        code = run(config, flags | engine_flags(engine, model, device, dtype), set_ or [], print_config)
    raise typer.Exit(code)


@app.command()
@with_speech_options
def say(
    text: Annotated[str, typer.Argument(help="What to say; - speaks stdin as it arrives.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="wav, mp3, flac, opus, ogg, aac, pcm; - is raw pcm_s16le."),
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Play it, besides -o too; the default without -o.")] = False,
    options: SpeechOptions = SpeechOptions(),  # noqa: B008
    url: Url = None,
    key: Key = None,
    engine: Engine = None,
    model: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Of qwen3: a folder or hub id. With --url: a model's name.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="Of an engine of its own: end each piece after so many times 80 ms.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Speak a text: on a running node (--url), or on an engine of its own."""
    from agent_tts.cli.say import say as speak

    options = dataclasses.replace(options, lead_ms=None, model=model if url else None)
    flags = engine_flags(engine, [model] if model and not url else None, device, dtype)
    with reported():
        speak(
            text,
            options,
            output=output,
            play=play,
            url=url,
            key=key,
            flags=flags | {"limits.max_frames": max_frames},
            quiet=quiet,
        )


@app.command()
def wyoming(
    uri: Annotated[str, typer.Option(help="Where Home Assistant finds it.")] = "tcp://127.0.0.1:10200",
    node: Annotated[
        str, typer.Option("--node", envvar="AGENT_TTS_URL", help="A running node: http(s)://, ws(s):// or host:port.")
    ] = "http://127.0.0.1:8100",
    key: Key = None,
) -> None:
    """Serve Home Assistant, which speaks Wyoming, from a running node."""
    from agent_tts.cli.wyoming import serve as serve_wyoming

    with reported():
        serve_wyoming(uri, node, key)


@app.command()
def doctor(
    host: Host = None,
    port: Port = None,
    engine: Engine = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    config: Config = None,
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What this machine has for a node, what is missing, and what to do. Exit code 1: the node cannot run here.

    Give it the settings that the node is to have, keys too. It asks STUN and TURN servers that they name.
    """
    from agent_tts.cli.doctor import doctor as examine

    flags = {"host": host, "port": port, "engine": engine, "tls.cert": tls_cert, "tls.key": tls_key}
    with reported():
        code = examine(config, flags, set_ or [], json_)
    raise typer.Exit(code)


@app.command()
def health(
    ready: Annotated[
        bool, typer.Option("--ready", help="Whether speech may be sent here, which a drain ends.")
    ] = False,
) -> None:
    """Ask the node on this machine how it is. Exit code 1: not well, or not there.

    It is looked for where the AGENT_TTS_* variables say; made for the health checks of containers.
    """
    from agent_tts.cli.health import health as ask

    with reported():
        code = ask(ready)
    raise typer.Exit(code)
