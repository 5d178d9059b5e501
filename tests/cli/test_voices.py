"""`agent-tts voices`."""

from __future__ import annotations

import asyncio
import json

from tests.cli.process import environment, run
from tests.support import running_node


def test_the_voices_of_this_machine_are_listed() -> None:
    result = run("voices", "--engine", "tone")
    assert result.returncode == 0, result.stderr
    assert b"tone-440 *" in result.stdout
    assert result.stderr == b""


def test_voices_are_filtered_by_language_and_given_as_json() -> None:
    found = json.loads(run("voices", "--engine", "espeak", "--language", "de", "--json").stdout)
    assert found["default"] == "en-us"
    assert [voice["name"] for voice in found["voices"]] == ["de"]


async def test_the_voices_of_a_node_are_the_same_and_need_its_key() -> None:
    async with running_node(auth={"api_keys": ["sesame"]}) as node:
        env = environment(AGENT_TTS_URL=node.url)
        refused, wrong, local, remote = await asyncio.gather(
            asyncio.to_thread(run, "voices", env=env),
            asyncio.to_thread(run, "voices", env=env | {"AGENT_TTS_KEY": "simsalabim"}),
            asyncio.to_thread(run, "voices", "--json", "--engine", "tone"),
            asyncio.to_thread(run, "voices", "--json", env=env | {"AGENT_TTS_KEY": "sesame"}),
        )
    assert refused.returncode == 1
    assert b"an API key is needed: set AGENT_TTS_KEY" in refused.stderr
    assert wrong.returncode == 1
    assert b"does not take this API key" in wrong.stderr
    assert json.loads(remote.stdout) == json.loads(local.stdout)


def test_a_language_that_no_voice_speaks_is_told() -> None:
    result = run("voices", "--engine", "tone", "--language", "xx")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"no voice speaks 'xx'" in result.stderr


def test_no_node_is_a_message() -> None:
    result = run("voices", "--url", "127.0.0.1:9")
    assert result.returncode == 1
    assert b"no node answers at 127.0.0.1:9" in result.stderr
