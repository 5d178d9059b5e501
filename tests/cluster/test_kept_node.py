"""The node of a machine, whose keeper may be killed at any time."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from agent_tts.cluster.kept_node import KeptNode, end, living_nodes
from agent_tts.config.settings import Settings
from agent_tts.serve.processes.reload import with_secrets
from tests.cli.process import environment
from tests.support import until

pytestmark = [pytest.mark.node, pytest.mark.real_time]

SETTINGS = Settings(engine="tone", fronts=1, agent={"llm": {"instructions": "😀\x7f\u2028."}})
END_S = 60.0  # on a busy machine

KEEPER = """
import asyncio, os, signal, subprocess, sys
from pathlib import Path
from agent_tts.cluster.kept_node import KeptNode
from agent_tts.config.settings import Settings

run = subprocess.run
def run_and_die(*args, **given):
    run(*args, **given)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.run = run_and_die

async def before(path):
    pass

settings = Settings.model_validate_json(sys.stdin.read())
asyncio.run(KeptNode(Path(sys.argv[1]), settings, "127.0.0.1", "").start(before))
"""


async def before(_: Path) -> None:
    """Nobody asks for counts here."""


async def test_a_node_whose_keeper_was_killed_as_it_started_it_is_adopted(tmp_path: Path) -> None:
    """Fails where the keeper writes the record: then the place is free, and a second node starts beside the first."""
    keeper = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KEEPER, str(tmp_path)],
        input=json.dumps(with_secrets(SETTINGS)).encode(),
        env=environment(),
        capture_output=True,
        timeout=END_S,
        check=False,
    )
    assert keeper.returncode == -signal.SIGKILL, keeper.stderr
    (record,) = living_nodes(tmp_path).values()
    (written := tmp_path / "0.json").write_text(json.dumps(asdict(record) | {"of_a_newer_version": 1}))
    assert living_nodes(tmp_path) == {record.name: record}, written.read_text()
    node = KeptNode(tmp_path, SETTINGS, "127.0.0.1", "")
    try:
        assert await node.start(before)
        assert node.record == record
        await asyncio.wait_for(node.drain(), END_S)
        assert not living_nodes(tmp_path)
    finally:
        end(record, signal.SIGKILL)
        await node.release()
        await until(lambda: not record.lives, END_S)
