"""Options of the `agent-tts bench` commands. Each group that several share is declared once, as a dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_tts.cli.options import Key, Set, Url, assigned
from agent_tts.errors import SettingsError

if TYPE_CHECKING:
    from agent_tts.bench import report

Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
Voice = Annotated[str | None, typer.Option(help="A voice of the node.")]
WordsEveryMs = Annotated[float, typer.Option(min=0, max=60_000, help="Pace of the text; 0 sends it whole.")]
Frames = Annotated[
    int | None, typer.Option(min=1, max=3_000, help="Of a node that is started: most 80 ms frames of a request.")
]
LoadSeconds = Annotated[float, typer.Option(min=1, max=86_400, help="Seconds measured, for each load.")]
RunSeconds = Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")]
Warmup = Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, not measured.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model and the settings of a node that the command starts. Raises SettingsError."""

    synthetic: Annotated[
        str | None, typer.Option(help="Start a node with random Qwen3-TTS weights: 0.6B or 1.7B; no download.")
    ] = None
    type_: Annotated[
        str | None,
        typer.Option("--type", help="With --synthetic: custom_voice, voice_design, or base (voices xvector and icl)."),
    ] = None
    model: Annotated[Path | None, typer.Option("--model", help="Instead of --synthetic: a checkpoint folder.")] = None
    set_: Set = None

    def __post_init__(self) -> None:
        if self.synthetic is not None and self.model is not None:
            raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
        if self.type_ is not None and self.synthetic is None:
            raise SettingsError("--type is of random weights: add --synthetic 1.7B")

    @property
    def has_model(self) -> bool:
        return self.synthetic is not None or self.model is not None

    @property
    def engine_name(self) -> str:
        return "qwen3"

    @property
    def settings(self) -> dict[str, Any]:
        """The engine and --set, as `own_node` takes them. Raises SettingsError: an assignment without "="."""
        found = {"engine": self.engine_name} | assigned(self.set_)
        return {name.replace(".", "__"): value for name, value in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodeOptions(ModelOptions):
    """A node that the command starts on a free port."""

    engine: Annotated[str, typer.Option("--engine", help="Of the node that is started: tone, espeak or qwen3.")] = (
        "espeak"
    )

    @property
    def engine_name(self) -> str:
        return "qwen3" if self.has_model else self.engine


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(OwnNodeOptions):
    """A running node, or one that the command starts."""

    url: Url = None
    key: Key = None

    def __post_init__(self) -> None:
        OwnNodeOptions.__post_init__(self)
        if self.url is not None and self.has_model:
            raise SettingsError(
                "--synthetic and --model are for a node of our own: leave them out with --url, AGENT_TTS_URL"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """How the node is asked to speak."""

    voice: Voice = None
    instructions: Annotated[
        str | None, typer.Option(help="How to speak, or who speaks; voice_design has a default.")
    ] = None

    @property
    def session(self) -> dict[str, Any]:
        """Fields of `session.update`."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedVoiceOptions(VoiceOptions):
    """The same for WebSocket clients."""

    lead_ms: Annotated[int, typer.Option(min=120, help="How far audio may run ahead of its playback.")] = 1_000
    timestamps: Annotated[str, typer.Option(help="Whether clients are told of words: word or none.")] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files for the figures, besides the table. Raises SettingsError."""

    json: Json = None
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw them: png, svg or pdf (needs matplotlib).")] = None

    def __post_init__(self) -> None:
        if self.json is None and self.plot is None:
            return
        from agent_tts.bench import report

        if self.json is not None:
            report.check_output("--json", self.json)
        if self.plot is not None:
            report.Plot(self.plot)

    def write(
        self,
        kind: str,
        about: Mapping[str, Any],
        runs: list[dict[str, Any]],
        draw: Callable[[report.Plot], None] = lambda plot: None,
    ) -> None:
        """Write the files that were asked for."""
        from agent_tts.bench import report

        if self.json is not None:
            report.write_json(self.json, report.document(kind, about, runs))
        if self.plot is not None:
            picture = report.Plot(self.plot)
            draw(picture)
            picture.save()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """The processes of a measurement, and the cores that they run on."""

    clients: Annotated[
        int | None, typer.Option(min=1, max=256, help="Client processes; default: as many as the load needs.")
    ] = None
    client_cores: Annotated[
        str | None, typer.Option(help="Cores for client processes, one for each in turn: 8-15.")
    ] = None
    front_cores: Annotated[
        str | None, typer.Option(help="Cores for the fronts of a node that is started, likewise: 0-3.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """The texts of requests."""

    words_every_ms: WordsEveryMs = 10
    words: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Of each text; default: sentences of voice agents.")
    ] = None
    frames: Frames = None

    @property
    def texts(self) -> tuple[str, ...]:
        from agent_tts.bench.scenario import TEXTS, texts_of

        return TEXTS if self.words is None else texts_of(self.words)


def cores(option: str, text: str | None) -> list[int]:
    """Numbers and ranges, separated by commas: 0-3,8; none of None. Raises SettingsError."""
    found: list[int] = []
    for part in text.split(",") if text is not None else ():
        first, _, last = (end.strip() for end in part.partition("-"))
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise SettingsError(f"{option} {text}: must be numbers of cores and ranges of them, like 0-3,8")
        found += range(int(first), int(last or first) + 1)
    return found


def numbers(option: str, text: str) -> list[float]:
    """Positive numbers, separated by commas. Raises SettingsError."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise SettingsError(f"{option} {text}: must be positive numbers with commas between them, like 0.5,1,10")
    return values


def counts(option: str, text: str) -> list[int]:
    """Whole numbers from 1, separated by commas. Raises SettingsError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise SettingsError(f"{option} {text}: must be whole numbers from 1 with commas between them, like 1,10,20")
    return [int(part) for part in parts]
