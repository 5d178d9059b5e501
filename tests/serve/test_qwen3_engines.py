"""A node with two Qwen3-TTS engines: both speak voices that are added to the library.

A voice travels with its request: `test_qwen3_node.py` has one engine, `tests/fault/test_several_engines.py` several.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_tts.engine_info import FRAME_BYTES
from tests.model import tiny
from tests.serve.test_qwen3_node import same
from tests.support import RunningNode, running_node, until
from tests.wire import wire

pytestmark = [pytest.mark.node, pytest.mark.slow]

WORDS = "Hello world, how are you?"


async def said_by_both(node: RunningNode) -> list[bytes]:
    """The same text in the voice `vec` from each engine: the second context goes to the other engine."""
    async with wire(node.ws_url) as peer:
        for name in ("a", "b"):
            await peer.send("context.open", context_id=name, voice="vec", language="de", seed=7, lead_ms=None)
        for name in ("a", "b"):
            await peer.send("text.append", context_id=name, text=WORDS)
        await until(lambda: [engine.speaking for engine in node.node.service.engines] == [1, 1])
        for name in ("a", "b"):
            await peer.send("context.end", context_id=name)
        for name in ("a", "b"):
            assert (await peer.until("context.done", name))["reason"] == "end"
        return [peer.pcm(name) for name in ("a", "b")]


async def test_a_voice_that_is_added_or_replaced_is_spoken_by_every_engine(tmp_path: Path) -> None:
    models = [{"source": str(tiny.ending("base"))}]
    qwen3 = {"models": models, "device": "cpu, cpu", "dtype": "float32", "max_model_len": 256}
    values = {"engine": "qwen3", "slots": 2, "qwen3": qwen3, "voices": {"folder": str(tmp_path / "voices")}}
    close = {"Connection": "close"}
    async with running_node(**values) as node, node.http(headers=close, timeout=120) as http:
        await until(lambda: all(engine.ready for engine in node.node.service.engines), 60)
        size = node.node.service.routing.info.models[0].vector_size or 0
        heard = []
        for value in (0.5, -0.25):
            vector = [value - index / size for index in range(size)]
            body = {"type": "embedding", "name": "vec", "speaker_embedding": vector, "consent": "This is my voice."}
            (await http.post("/v1/audio/voices", json=body)).raise_for_status()
            async with asyncio.timeout(60):
                first, second = await said_by_both(node)
            assert len(first) >= 5 * FRAME_BYTES
            assert same(first, second)
            heard.append(first)
            (await http.delete("/v1/audio/voices/vec")).raise_for_status()
        assert not same(*heard)
