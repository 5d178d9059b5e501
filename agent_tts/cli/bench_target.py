"""What `agent-tts bench` measures: a running node, or one that it starts, with a model that may be synthetic."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agent_tts.bench.connection import dial
from agent_tts.bench.node import own_node
from agent_tts.bench.report import gpus
from agent_tts.bench.runner import MeasuredNode
from agent_tts.cli.bench_options import ModelOptions, NodeOptions
from agent_tts.cli.reporting import TERMINATED
from agent_tts.client.connection import http_url, stream_url
from agent_tts.errors import SettingsError

if TYPE_CHECKING:
    from agent_tts.model.config import ModelConfig, ModelType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BenchCheckpoint:
    """The checkpoint of a node that was started here."""

    folder: Path
    config: ModelConfig
    settings: Mapping[str, str]  # of the node, keys with "__" for the dots

    def session(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The session that is asked for; without a voice in it, one that this type of checkpoint has."""
        from agent_tts.bench.voices import INSTRUCTIONS, XVECTOR

        usual: dict[str, dict[str, Any]] = {"base": {"voice": XVECTOR}, "voice_design": {"instructions": INSTRUCTIONS}}
        given = {name: value for name, value in wanted.items() if value is not None or name == "lead_ms"}
        return usual.get(self.config.tts_model_type, {}) | given


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The node that is measured."""

    node: MeasuredNode
    info: dict[str, Any]  # what it tells of itself; after the measurement also the GPUs that it ran on


@asynccontextmanager
async def target(options: ModelOptions, session: Mapping[str, Any], **settings: object) -> AsyncIterator[BenchTarget]:
    """The running node that the options name, or a new one with these settings.

    Args:
        session: fields of `session.update`; the node is asked for them before anything is measured.

    Raises:
        SettingsError: the url is malformed, or the checkpoint cannot be used.
        SpeechError: the node cannot be reached, does not come up, or refuses the session.
    """
    url, key = (options.url, options.key) if isinstance(options, NodeOptions) else (None, None)
    if url is not None:
        address, asked = stream_url(url), dict(session)
        info = await _info(address, key, asked)
        yield BenchTarget(MeasuredNode(address, http_url(url), key, session=asked), info)
        return
    settings |= options.settings
    with checkpoint(options) as model:
        async with own_node(**settings, **(model.settings if model else {})) as node:
            address, asked = stream_url(node.url), model.session(session) if model else dict(session)
            info = {**await _info(address, key, asked), "settings": settings, "session": asked}
            if model:
                info["model_type"] = model.config.tts_model_type
            yield BenchTarget(MeasuredNode(address, node.url, key, node.pids, asked), info)
            if present := await asyncio.to_thread(gpus):  # while its memory is still taken
                info["gpus"] = present


@contextmanager
def checkpoint(options: ModelOptions) -> Iterator[BenchCheckpoint | None]:
    """The checkpoint that the options ask for, None without one; a synthetic one is removed with the block.

    Raises:
        SettingsError: an unknown size or type, or the folder holds no checkpoint.
    """
    if not options.has_model:
        yield None
        return
    try:
        from agent_tts.bench.checkpoint import write
        from agent_tts.bench.voices import SyntheticClone, add_clones
        from agent_tts.model.config import ModelConfig
    except ImportError as error:
        raise missing_package(error) from error
    with ExitStack() as stack:
        made = Path(stack.enter_context(TemporaryDirectory(prefix="agent-tts-")))
        if options.model is not None:
            folder = options.model.absolute()
            config = ModelConfig.read(folder)
        else:
            size, model_type = options.synthetic or "", options.type_ or "custom_voice"
            folder = made / f"synthetic-{size}"
            print(f"writing a {size} {model_type} checkpoint with random weights", file=sys.stderr)
            config = write(folder, size=size, model_type=cast("ModelType", model_type))
        settings = {"qwen3__models": str(folder)}
        if config.tts_model_type == "base":
            add_clones(made / "voices", SyntheticClone.synthetic(config.talker.hidden_size, config.codec.codebook_size))
            settings["voices__folder"] = str(made / "voices")
        yield BenchCheckpoint(folder, config, settings)


def missing_package(error: ImportError) -> SettingsError:
    """The error for a package that comes with agent-tts[qwen]."""
    return SettingsError(f"{error.name} is not installed: pip install 'agent-tts[qwen]'")


async def _info(url: str, key: str | None, session: Mapping[str, Any]) -> dict[str, Any]:
    connection, greeting = await dial(url, key)
    try:
        await connection.update(dict(session))
    finally:
        await connection.close()
    return {name: greeting[name] for name in ("engine", "model", "limits")}


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that nodes use. SIGTERM cancels it as Ctrl-C does, so that no node is left."""
    from agent_tts.serve.run import event_loop_factory

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(until_terminated())
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


@contextmanager
def progress(name: str) -> Iterator[None]:
    """Show on a terminal's stderr that a run is under way, and how long it has taken."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        shown.add_task(name, total=None)
        yield
