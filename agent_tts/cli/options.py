"""What commands share: options, groups of them, the settings that they stand for, and how a command ends."""

from __future__ import annotations

import dataclasses
import errno
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from agent_tts.errors import SettingsError, SpeechError
from agent_tts.options import Sampling, SpeechOptions, declared
from agent_tts.system.in_child import without_collections
from agent_tts.text.entries import Lexicon

# Exit codes: a wrong option or setting; as a shell has them for SIGINT, SIGTERM and SIGPIPE.
USAGE = 2
INTERRUPTED, TERMINATED, BROKEN_PIPE = 130, 143, 141

# Options of speech that are not options of a command; --model has another meaning there.
NOT_ASKED = {"lead_ms", "model", "speaker_embedding", "lexicon"}

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="AGENT_TTS_URL", help="A running node: http(s)://, ws(s):// or host:port."),
]


def _carried(key: str | None) -> str | None:
    """Refuse a key that no header carries."""
    if key is not None and not all("!" <= character <= "~" for character in key):
        raise typer.BadParameter("a key has visible ASCII characters and no spaces")
    return key


Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="AGENT_TTS_KEY",
        show_envvar=True,
        callback=_carried,
        help="Its API key; the variable is safer.",
    ),
]
Config = Annotated[str | None, typer.Option(help="A YAML file, or one of the package by name: agent, cpu or gpu.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting: limits.rtc_peers=8.")]
Engine = Annotated[
    str | None, typer.Option(help="auto, qwen3, hibari, espeak, tone; experimental: vox.", show_default="auto")
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="SOURCE", help="qwen3: a folder or hub id; once for each kind of voice."),
]
Device = Annotated[
    str | None, typer.Option(help="qwen3: auto, cpu, cuda, cuda:N or mps; several with commas.", show_default="auto")
]
Dtype = Annotated[str | None, typer.Option(help="qwen3: auto, float32 or bfloat16.", show_default="auto")]
LexiconFile = Annotated[
    Path | None,
    typer.Option("--lexicon", metavar="FILE", help="How words are said: W3C PLS, or a mapping in YAML or JSON."),
]
Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on; any but this machine's own needs an API key.", show_default="127.0.0.1"),
]
Port = Annotated[int | None, typer.Option(min=0, max=65_535, help="0 picks a free one.", show_default="8100")]
TlsCert = Annotated[str | None, typer.Option(metavar="FILE", help="Serve HTTPS and WSS with this certificate (PEM).")]
TlsKey = Annotated[str | None, typer.Option(metavar="FILE", help="Its key; default: in the file of --tls-cert.")]

# The setting that each option, by the name of its parameter, stands for.
SETTINGS = {
    **{name: name for name in ("host", "port", "slots", "fronts", "log_level", "log_format", "engine")},
    "api_key": "auth.api_keys",
    "tls_cert": "tls.cert",
    "tls_key": "tls.key",
    "model": "qwen3.models",
    "device": "qwen3.device",
    "dtype": "qwen3.dtype",
    "max_frames": "limits.max_frames",
    "llm": "agent.llm.base_url",
    "llm_model": "agent.llm.model",
    "whisper": "agent.stt.model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """The node that `agent-tts serve` and `agent-tts agent` run."""

    host: Host = None
    port: Port = None
    engine: Engine = None
    model: Models = None
    device: Device = None
    dtype: Dtype = None
    slots: Annotated[
        int | None, typer.Option(min=1, help="Contexts that may speak at the same time; default: the engine's.")
    ] = None
    fronts: Annotated[
        str | None, typer.Option(help="Processes that serve clients: auto, or a number.", show_default="auto")
    ] = None
    api_key: Annotated[list[str] | None, typer.Option("--api-key", help="Accept this key; may be repeated.")] = None
    tls_cert: TlsCert = None
    tls_key: TlsKey = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFlags:
    """Its log, and where the rest of its settings comes from."""

    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None
    log_format: Annotated[str | None, typer.Option(help="text or json.", show_default="text")] = None
    config: Config = None
    set_: Set = None
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings and exit.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlags:
    """The voices that `agent-tts voices` lists."""

    language: Annotated[str | None, typer.Option(help="Only voices that speak this language: de, en, zh.")] = None
    all: Annotated[bool, typer.Option("--all", help="Also the voices of constructed languages, such as Klingon.")] = (
        False
    )
    json: Annotated[bool, typer.Option("--json", help="Print JSON, like /v1/audio/voices, with all voices.")] = False
    url: Url = None
    key: Key = None
    engine: Engine = None
    model: Models = None
    device: Device = None
    dtype: Dtype = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFlags:
    """What a voice is made of, and where it is added."""

    audio: Annotated[Path | None, typer.Option(help="Clone the speaker of this file: 3 to 30 s, one speaker.")] = None
    text: Annotated[str | None, typer.Option(help="The exact words of the file; makes the voice closer.")] = None
    consent: Annotated[str | None, typer.Option(help="How the speaker agreed; stored with the voice.")] = None
    consent_by: Annotated[str | None, typer.Option(help="Who gave the consent; stored with the voice.")] = None
    prompt: Annotated[str | None, typer.Option(help="Instead, design a voice: a calm old man.")] = None
    description: Annotated[str, typer.Option(help="For the list of voices.")] = ""
    url: Url = None
    key: Key = None
    model: Models = None


def _speech_flags() -> Iterator[tuple[str, Any, Any]]:
    for name, (hint, option, default) in (declared(SpeechOptions) | declared(Sampling)).items():
        if name not in NOT_ASKED:
            least = option.gt if option.ge is None else option.ge
            yield name, Annotated[hint, typer.Option(min=least, max=option.le, help=option.help)], default


# One option for each declared one of speech.
SpeechFlags = dataclasses.make_dataclass("SpeechFlags", _speech_flags(), frozen=True, slots=True)


def speech_options(flags: Any, model: str | None, lexicon: Lexicon | None = None) -> SpeechOptions:
    """The options of unpaced speech that `SpeechFlags` stand for."""
    given = dataclasses.asdict(flags)
    sampling = Sampling(**{name: given.pop(name) for name in declared(Sampling)})
    return SpeechOptions(**given, sampling=sampling, lead_ms=None, model=model, lexicon=lexicon)


def command_of(
    app: typer.Typer, name: str | None = None, *, run: str | None = None, help: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command to an app, see `command`.

    Args:
        run: `module:function`, imported and called in place of the function, which then only declares. It gets the
            options that it has parameters for, `settings` those of `settings_of`, and may return an exit code.
    """

    def make(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, help=help)(command(function, run))
        return function

    return make


def command(function: Callable[..., None], place: str | None = None) -> Callable[..., None]:
    """Make a command of a function whose parameters may be groups of options: each field of a group is an option.

    A group is a dataclass, whose fields may be groups; the default of such a parameter holds the defaults of its
    options. Errors become messages and exit codes. `place` is `run` of `command_of`.
    """
    hints = get_type_hints(function, include_extras=True)
    taken = list(inspect.signature(function).parameters.values())
    parameters = [one for each in taken for one in _flat(each.name, hints[each.name], each.default)]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        with reported():
            given = {each.name: _grouped(each.name, each.default, values) for each in taken}
            called: Callable[..., int | None] = function
            if place is not None:
                module, _, name = place.partition(":")
                with without_collections():
                    called = getattr(import_module(module), name)
                if "context" in given:
                    given["settings"] = settings_of(given["context"])
                given = {name: given[name] for name in inspect.signature(called).parameters if name in given}
            if code := called(**given):
                raise typer.Exit(code)

    run.__signature__ = inspect.Signature(parameters)  # pyrefly: ignore[missing-attribute]
    return run


def _flat(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The options of a parameter or field."""
    if not dataclasses.is_dataclass(default):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        return
    for field, hinted in get_type_hints(type(default), include_extras=True).items():
        yield from _flat(field, hinted, getattr(default, field))


def _grouped(name: str, default: Any, values: dict[str, Any]) -> Any:
    """The value of a parameter or field, from those of its options."""
    if not dataclasses.is_dataclass(default):
        return values[name]
    fields = [field.name for field in dataclasses.fields(default)]
    made: Any = type(default)
    return made(**{field: _grouped(field, getattr(default, field), values) for field in fields})


def settings_of(context: typer.Context) -> dict[str, Any]:
    """The settings that the options of a command set, by dotted keys; --set wins. Raises SettingsError."""
    given = {name: value for name, value in context.params.items() if value not in (None, (), [])}
    return {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS} | assigned(given.get("set_"))


def assigned(assignments: Iterable[str] | None) -> dict[str, str]:
    """Settings of --set KEY=VALUE. Raises SettingsError: one without "="."""
    found = {}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: must be KEY=VALUE, like limits.rtc_peers=8")
        found[key.strip()] = value
    return found


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors that a user can act on into a message and an exit code."""
    try:
        yield
    except SettingsError as error:
        raise complain(str(error), USAGE) from None
    except BrokenPipeError:  # the reader of stdout has left
        raise typer.Exit(BROKEN_PIPE) from None
    except SpeechError as error:
        again = "" if error.retry_after_ms is None else f" (try again in {error.retry_after_ms} ms)"
        raise complain(f"{error.message}{again}", 1) from None
    except TimeoutError:
        raise complain("the node did not answer in time", 1) from None
    except OSError as error:
        if error.filename is None:  # of a stream, see `output_told`, or the network
            raise
        raise complain(f"{error.filename}: {error.strerror}", 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def output_told() -> Iterator[None]:
    """Turn a full disk, and a reader of stdout who has left before the last of it, into an exit code, as `reported`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what the interpreter writes at its end
        if error.errno != errno.EPIPE:
            complain(os.strerror(error.errno), 1)  # pyrefly: ignore[bad-argument-type]
        sys.exit(BROKEN_PIPE if error.errno == errno.EPIPE else 1)


def complain(message: str, code: int) -> typer.Exit:
    """Print an error; returns the exit to raise."""
    for line in message.splitlines():
        print(f"agent-tts: {line}", file=sys.stderr)
    return typer.Exit(code)
