"""The node that `agent-tts bench` measures: a running one, or one of our own, with a model that may be made up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from agent_tts.bench.connection import dial
from agent_tts.bench.environment import gpus
from agent_tts.bench.node import own_node
from agent_tts.cli.reporting import overrides
from agent_tts.client.connection import http_url, stream_url
from agent_tts.errors import SettingsError

if TYPE_CHECKING:
    from agent_tts.model.config import ModelConfig, ModelType

DEFAULT_TYPE = "custom_voice"


@dataclass(frozen=True, slots=True)
class Source:
    """Which node is to be measured."""

    url: str | None  # a running one; None is one of our own
    key: str | None
    engine: str  # of our own
    settings: Mapping[str, str] = field(default_factory=dict)  # of our own, by keys with dots
    synthetic: str | None = None  # of our own: a size of checkpoint with random weights, to speak with
    model_type: str = DEFAULT_TYPE  # of that checkpoint
    model: Path | None = None  # of our own: a checkpoint folder, to speak with


def own(
    url: str | None,
    engine: str,
    assignments: list[str] | None,
    synthetic: str | None,
    model: Path | None = None,
    model_type: str | None = None,
) -> dict[str, Any]:
    """What of a `Source` concerns a node of our own.

    Raises:
        SettingsError: an assignment without "=", or options that exclude each other.
    """
    if synthetic is not None and model is not None:
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    if url is not None and (synthetic is not None or model is not None):
        raise SettingsError(
            "--synthetic and --model are for a node of our own: leave them out with --url, AGENT_TTS_URL"
        )
    if model_type is not None and synthetic is None:
        raise SettingsError("--type is of random weights: add --synthetic 1.7B")
    return {
        "engine": engine if synthetic is None and model is None else "qwen3",
        "settings": overrides({}, assignments or []),
        "synthetic": synthetic,
        "model_type": model_type or DEFAULT_TYPE,
        "model": model,
    }


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a node of our own speaks with."""

    folder: Path
    config: ModelConfig
    settings: Mapping[str, str]  # of the node, keys with "__" for the dots

    def session(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What is asked for, and where nothing is: a voice that only this type of checkpoint speaks."""
        from agent_tts.bench.voices import INSTRUCTIONS, XVECTOR

        usual: dict[str, dict[str, Any]] = {"base": {"voice": XVECTOR}, "voice_design": {"instructions": INSTRUCTIONS}}
        given = {name: value for name, value in wanted.items() if value is not None or name == "lead_ms"}
        return usual.get(self.config.tts_model_type, {}) | given


@dataclass(frozen=True, slots=True)
class Target:
    """The node that is measured."""

    url: str  # of its WebSocket
    http_url: str
    key: str | None
    pids: dict[str, int]  # of its processes by name, where they are ours
    session: dict[str, Any]  # that it has accepted: voice, lead_ms and the like
    info: dict[str, Any]  # what it says of itself, and, once it has been measured, the GPUs that it ran on


@asynccontextmanager
async def target(source: Source, session: Mapping[str, Any], **settings: object) -> AsyncIterator[Target]:
    """The node at the source's url, or one of our own with these settings.

    Args:
        session: what is to be asked of it; the node is asked before anything is measured.

    Raises:
        SettingsError: the url names no node, or the checkpoint cannot be used.
        SpeechError: it cannot be reached, does not come up, or refuses the session.
    """
    if source.url is not None:
        address, asked = stream_url(source.url), dict(session)
        info = await _info(address, source.key, asked)
        yield Target(address, http_url(source.url), source.key, {}, asked, info)
        return
    settings = {"engine": source.engine} | settings
    settings |= {name.replace(".", "__"): value for name, value in source.settings.items()}
    with checkpoint(source) as model:
        async with own_node(**settings, **(model.settings if model else {})) as node:
            address, asked = stream_url(node.url), model.session(session) if model else dict(session)
            info = {**await _info(address, source.key, asked), "settings": settings, "session": asked}
            if model:
                info["model_type"] = model.config.tts_model_type
            yield Target(address, node.url, source.key, node.pids, asked, info)
            if present := await asyncio.to_thread(gpus):  # while its memory is still taken
                info["gpus"] = present


@contextmanager
def checkpoint(source: Source) -> Iterator[Checkpoint | None]:
    """What a node of our own speaks with, None if it needs nothing; what was made up is removed with the block.

    Raises:
        SettingsError: there is no such size or type, or the folder holds no checkpoint.
    """
    if source.synthetic is None and source.model is None:
        yield None
        return
    try:
        from agent_tts.bench.checkpoint import write
        from agent_tts.bench.voices import Clone, add_clones
        from agent_tts.model.config import ModelConfig
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'agent-tts[qwen]'") from error
    with ExitStack() as stack:
        made = Path(stack.enter_context(TemporaryDirectory(prefix="agent-tts-")))
        if source.model is not None:
            folder = source.model.absolute()
            config = ModelConfig.read(folder)
        else:
            assert source.synthetic is not None
            folder = made / f"synthetic-{source.synthetic}"
            print(f"writing a {source.synthetic} {source.model_type} checkpoint, random weights", file=sys.stderr)
            config = write(folder, size=source.synthetic, model_type=cast("ModelType", source.model_type))
        settings = {"qwen3__models": str(folder)}
        if config.tts_model_type == "base":
            add_clones(made / "voices", Clone.synthetic(config.talker.hidden_size, config.codec.codebook_size))
            settings["voices__folder"] = str(made / "voices")
        yield Checkpoint(folder, config, settings)


async def _info(url: str, key: str | None, session: Mapping[str, Any]) -> dict[str, Any]:
    connection, greeting = await dial(url, key)
    try:
        await connection.update(dict(session))
    finally:
        await connection.close()
    return {name: greeting[name] for name in ("engine", "model", "limits")}
