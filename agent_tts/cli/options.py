"""Options that several commands share, and the settings that options stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from agent_tts.cli.reporting import overrides
from agent_tts.events import Sampling, SpeechOptions, declared

# Options of speech that are not options of a command; --model has another meaning there.
NOT_ASKED = {"lead_ms", "model", "speaker_embedding"}

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENT_TTS_URL", help="A running node: http(s)://, ws(s):// or host:port."),
]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="AGENT_TTS_KEY", show_envvar=True, help="Its API key; the variable is safer."),
]
Config = Annotated[str | None, typer.Option(help="A YAML file, or the name of one in the package: cpu.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting: limits.rtc_peers=8.")]
Engine = Annotated[str | None, typer.Option(help="auto, qwen3, espeak or tone.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="SOURCE", help="qwen3: a folder or hub id; once for each kind of voice."),
]
Device = Annotated[str | None, typer.Option(help="qwen3: auto, cpu, cuda or cuda:N; several with commas.")]
Dtype = Annotated[str | None, typer.Option(help="qwen3: auto, float32 or bfloat16.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on; any but 127.0.0.1 needs an API key.")]
Port = Annotated[int | None, typer.Option(min=0, max=65_535, help="0 picks a free one.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Contexts that may speak at the same time.")]
ApiKeys = Annotated[list[str] | None, typer.Option("--api-key", help="Accept this key; may be repeated.")]
TlsCert = Annotated[str | None, typer.Option(metavar="FILE", help="Serve HTTPS and WSS with this certificate (PEM).")]
TlsKey = Annotated[str | None, typer.Option(metavar="FILE", help="Its key; default: in the file of --tls-cert.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="text or json.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print all settings and exit.")]

# The setting that each option, by the name of its parameter, stands for.
SETTINGS = {
    "host": "host",
    "port": "port",
    "slots": "slots",
    "api_key": "auth.api_keys",
    "tls_cert": "tls.cert",
    "tls_key": "tls.key",
    "log_level": "log_level",
    "log_format": "log_format",
    "engine": "engine",
    "model": "qwen3.models",
    "device": "qwen3.device",
    "dtype": "qwen3.dtype",
    "max_frames": "limits.max_frames",
    "llm": "agent.llm.base_url",
    "llm_model": "agent.llm.model",
    "whisper": "agent.stt.model",
}


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


def settings_of(context: typer.Context) -> dict[str, Any]:
    """The settings that the options of a command set, by dotted keys; --set comes last and wins.

    Raises:
        SettingsError: a --set without "=".
    """
    given = {name: value for name, value in context.params.items() if value not in (None, (), [])}
    return overrides(
        {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS}, given.get("set_", ())
    )
