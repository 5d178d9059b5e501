"""What a node makes of its settings before it listens, and what conversations need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from loguru import logger

from agent_tts.config.files import contents_of
from agent_tts.config.settings import Settings
from agent_tts.doctor.finding import Finding, good, note, refused
from agent_tts.errors import SettingsError
from agent_tts.serve.fronts import AGENT

QUIET = ("agent_tts", "pipecat")  # packages whose log would tell the same as the findings


def wants_agent(settings: Settings) -> bool:
    """Whether these are settings of `agent-tts agent`: something of `agent` is set."""
    return "agent" in settings.model_fields_set


def node(settings: Settings) -> Iterator[Finding]:
    """Make the node's parts as a start does, without starting them; try those of the agent."""
    from agent_tts.serve.app import create_app, extension_of
    from agent_tts.serve.local_engine import service_of

    for package in QUIET:
        logger.disable(package)
    try:
        agent = extension_of(settings, AGENT if wants_agent(settings) else None)
        contents = contents_of(settings)
        create_app(settings, service_of(settings, contents=contents), agent, contents=contents)
        yield good("node", "its settings, files and libraries are accepted")
        if agent is not None:
            yield from asyncio.run(_parts(agent))
    except SettingsError as error:
        yield refused("agent" if wants_agent(settings) else "node", error)
    finally:
        for package in QUIET:
            logger.enable(package)


async def _parts(agent: Any) -> Iterator[Finding]:
    """Speech recognition and the language model; nothing is downloaded."""
    size = agent.stt.to_download
    if size is None:
        agent.stt.start()
        await agent.stt.wait()
        await agent.stt.close()
    statuses = {"recognition": agent.stt.status, "language model": await agent.llm.status()}
    return (
        note(what, f"not on this disk: {status.name}", f"the first start downloads {size}")
        if what == "recognition" and size is not None
        else good(what, f"{status.kind}: {status.name}")
        if status.message is None
        else note(what, status.name, status.message)
        for what, status in statuses.items()
    )
