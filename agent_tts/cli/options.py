"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from agent_tts.events import Sampling, SpeechOptions, declared

# Options of speech that are no options of a command: the model has another meaning there.
NOT_ASKED = {"lead_ms", "model", "speaker_embedding"}

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENT_TTS_URL", help="A running node: http(s)://, ws(s):// or host:port."),
]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="AGENT_TTS_KEY", show_envvar=True, help="Its API key; safer in the variable."),
]
Config = Annotated[str | None, typer.Option(help="A YAML file, or one of the package by name: cpu.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting: limits.rtc_peers=8.")]
Engine = Annotated[str | None, typer.Option(help="auto, qwen3, espeak or tone.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="SOURCE", help="Of qwen3: a folder or hub id; once for each kind of voice."),
]
Device = Annotated[str | None, typer.Option(help="Of qwen3: auto, cpu, cuda or cuda:N; several with commas.")]
Dtype = Annotated[str | None, typer.Option(help="Of qwen3: auto, float32 or bfloat16.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on; beyond 127.0.0.1 needs a key.")]
Port = Annotated[int | None, typer.Option(min=0, max=65_535, help="0 picks a free one.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Contexts that may speak at once.")]
ApiKeys = Annotated[list[str] | None, typer.Option("--api-key", help="Accept this key; may be repeated.")]
TlsCert = Annotated[str | None, typer.Option(metavar="FILE", help="Serve HTTPS and WSS with this certificate (PEM).")]
TlsKey = Annotated[str | None, typer.Option(metavar="FILE", help="Its key; default: in the file of --tls-cert.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="text or json.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Show all settings, and leave.")]


def with_speech_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each declared one of speech; it gets them together, as its parameter `options`."""
    asked = {name: one for name, one in declared(SpeechOptions).items() if name not in NOT_ASKED}
    sampled = declared(Sampling)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name != "options":
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        for name, (hint, option, default) in (asked | sampled).items():
            least = option.gt if option.ge is None else option.ge
            given = Annotated[hint, typer.Option(min=least, max=option.le, help=option.help)]  # type: ignore[valid-type]
            parameters.append(inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=given))

    def run(**values: Any) -> None:
        sampling = Sampling(**{name: values.pop(name) for name in sampled})
        options = SpeechOptions(**{name: values.pop(name) for name in asked}, sampling=sampling)
        command(options=options, **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def server_flags(
    host: str | None,
    port: int | None,
    slots: int | None,
    api_keys: list[str] | None,
    tls_cert: str | None,
    tls_key: str | None,
    log_level: str | None,
    log_format: str | None,
) -> dict[str, Any]:
    """The settings that the options of a node are, by keys with dots; None where one was not given."""
    return {
        "host": host,
        "port": port,
        "slots": slots,
        "auth.api_keys": api_keys or None,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "log_level": log_level,
        "log_format": log_format,
    }


def engine_flags(
    engine: str | None, models: Sequence[str] | None, device: str | None, dtype: str | None
) -> dict[str, Any]:
    """The settings that these options are, by keys with dots; None where one was not given."""
    return {"engine": engine, "qwen3.models": models or None, "qwen3.device": device, "qwen3.dtype": dtype}
