from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent_tts.agent.server import AgentServer
from agent_tts.agent.stt import SpeechToText
from agent_tts.config.loading import data_folder
from tests.agent.hearing import GrammarSpeechToText
from tests.support import RunningNode, app_of, running_app, settings_of, taken


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """A running node with its agent."""

    url: str
    node: RunningNode
    server: AgentServer

    @property
    def calls(self) -> int:
        """Calls over all transports."""
        return taken(self.node, "calls")

    async def speech(self, text: str) -> bytes:
        """A text as another voice speaks it: pcm_s16le, 24 kHz."""
        body = {"model": "tts-1", "input": text, "voice": "en-gb", "response_format": "pcm"}
        async with httpx.AsyncClient(base_url=self.url, timeout=20) as client:
            reply = await client.post("/v1/audio/speech", json=body)
        assert reply.status_code == 200, reply.text
        return reply.content

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples in /metrics."""
        async with httpx.AsyncClient(base_url=self.url, timeout=20) as client:
            lines = (await client.get("/metrics")).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@asynccontextmanager
async def running_agent(
    llm: str | dict[str, Any] = "http://127.0.0.1:9/v1",
    *,
    hears: bool = False,
    whisper: SpeechToText | None = None,
    **agent: Any,
) -> AsyncIterator[RunningAgent]:
    """A node with the espeak engine and an agent, all in this event loop.

    Args:
        llm: the server's address, or settings of `agent.llm`.
        hears: recognise speech with the closed grammar of `tests.agent.hearing`, in place of Whisper.
        agent: settings of the `agent` section.
    """
    stt = agent.pop("stt", {"kind": "none"})
    llm = {"base_url": llm} if isinstance(llm, str) else llm
    settings = settings_of(engine="espeak", agent={"llm": llm, "stt": stt, **agent})
    server = AgentServer(settings.agent, stt=GrammarSpeechToText() if hears else whisper)
    async with running_app(app_of(settings, server)) as node:
        yield RunningAgent(node.url, node, server)


def with_a_clock(folder: Path, takes_s: float = 0.0) -> str:
    """A pipeline file like the one that ships, whose language model may call the function `clock`: "ten"."""
    file = folder / "mine.py"
    file.write_text(_WITH_A_CLOCK.format(base=data_folder("pipelines") / "voice_agent.py", takes_s=takes_s))
    return str(file)


_WITH_A_CLOCK = """
import asyncio
import importlib.util
spec = importlib.util.spec_from_file_location("base", "{base}")
base = importlib.util.module_from_spec(spec)
spec.loader.exec_module(base)

async def clock(params):
    await asyncio.sleep({takes_s})
    await params.result_callback("ten")

def build(call):
    call.llm.register_function("clock", clock)
    return base.build(call)
"""
