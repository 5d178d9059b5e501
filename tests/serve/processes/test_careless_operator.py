"""What an operator does without care costs nobody anything: files that break, signals at odd times, closed streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tts.bench.node import children_of
from agent_tts.config.loading import data_folder
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.serve.fronts import Role
from agent_tts.serve.processes import supervisor
from agent_tts.serve.processes.supervisor import Supervisor
from tests.attack.strangers import site
from tests.certificates import make_certificate
from tests.cli.process import AGENT_TTS, environment, killed_after
from tests.node_process import RunningProcess, front_of, running_process
from tests.support import present, until, wait_for
from tests.wire import wire

pytestmark = [pytest.mark.node, pytest.mark.real_time]

# Of a node with one front, `test_sighup.py` holds that signals and the end do what they must.
FRONTS = pytest.mark.parametrize("fronts", [pytest.param(1, marks=pytest.mark.slow), 2], indirect=True)

Process = subprocess.Popen[bytes]
SOON_S = 20.0  # on a busy machine
TEXT = "Somebody speaks while the operator makes a mistake."


def write(file: Path, **settings: object) -> None:
    file.write_text(json.dumps(settings))  # which YAML reads, too


async def seconds_of(node: RunningProcess, trusting: Any, text: str) -> list[float]:
    """How long a text is, said by many connections in a row: by all fronts."""

    def said() -> float:
        body = {"input": text, "response_format": "pcm"}
        with httpx.Client(verify=trusting, timeout=SOON_S) as http:
            return len(http.post(f"{node.url}/v1/audio/speech", json=body).raise_for_status().content) / 48_000

    return [await asyncio.to_thread(said) for _ in range(8)]


async def test_a_front_that_is_restarted_has_the_files_that_were_accepted_last(tmp_path: Path) -> None:
    """The lexicon has a typo, and the key is removed: nobody is cut, and all are served as before."""
    made = make_certificate(tmp_path)
    trusting = made.client()
    file, words = tmp_path / "node.yaml", tmp_path / "words.yaml"
    words.write_text(f"word: {' '.join(['word'] * 20)}")
    write(file, lexicon_file=str(words), tls=made.settings)
    with running_process(tmp_path, "--config", str(file), "--fronts", "2") as node:
        whole = (await seconds_of(node, trusting, "word"))[0]
        assert whole > 1
        words.write_text("word: {no_such_field: 1}")
        made.key.unlink()
        async with wire(node.ws_url, ssl=trusting) as peer:
            mine = node.front_of(peer.socket.local_address)
            victim = next(name for name in node.pids() if name.startswith("front") and name != mine)
            await peer.say("t", TEXT)
            await peer.until_audio("t")
            node.kill(victim)
            await until(lambda: "takes requests" in node.log, SOON_S)
            assert (await peer.until("context.done", "t"))["reason"] == "end"
        assert set(await seconds_of(node, trusting, "word")) == {whole}
        assert "cannot be read" in await node.reload()
        assert set(await seconds_of(node, trusting, "word")) == {whole}


async def test_a_front_that_cannot_be_set_up_any_more_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as while its address is gone: one death more than a front may die would end the node."""
    monkeypatch.setattr(supervisor, "RESPAWN_S", 0.0)
    node = Supervisor(Settings(engine="tone"), {}, [Role(True, None)], 1, lambda: None)
    starts = []

    async def refused(number: int) -> bool:
        starts.append(number)
        node._draining = len(starts) == 20
        raise SettingsError("cannot listen")

    monkeypatch.setattr(node, "_run_front", refused)
    await node._keep(0)
    assert len(starts) == 20
    assert not node._end.done()


# Runs first in each process of a node: its folders do not answer while there is a file `hang` beside them.
HANGING = """
import os, time

def hanging(call):
    def called(path=".", *rest, **named):
        while str(path).startswith({folder!r}) and access({folder!r} + "/../hang", os.F_OK):
            time.sleep(0.1)
        return call(path, *rest, **named)
    return called

access = os.access
os.listdir, os.stat, os.mkdir = map(hanging, (os.listdir, os.stat, os.mkdir))
"""


@pytest.mark.slow
@FRONTS
@pytest.mark.usefixtures("fronts")
async def test_folders_that_do_not_answer_any_more_delay_neither_others_nor_the_end(tmp_path: Path) -> None:
    """Fails where Python or asyncio waits for threads at the end."""
    (folder := tmp_path / "folders").mkdir()
    flags = ["--set", f"voices.folder={folder}/voices", "--set", f"dictionaries.folder={folder}/dictionaries"]
    with site(HANGING.format(folder=str(folder))) as path:
        flags += ["--set", "timeouts.drain_s=1"]
        with running_process(tmp_path, *flags, env=environment(PYTHONPATH=path)) as node:
            async with httpx.AsyncClient(base_url=node.url, timeout=SOON_S) as http, wire(node.ws_url) as peer:
                (tmp_path / "hang").touch()
                asking = [
                    asyncio.create_task(http.request(method, where, json=body))
                    for method, where, body in (
                        ("DELETE", "/v1/audio/voices/mine", None),
                        ("GET", "/v1/audio/voices/mine/lexicon", None),
                        ("GET", "/pronunciation-dicts/", None),
                        ("POST", "/pronunciation-dicts/", {"name": "mine", "items": []}),
                    )
                    for _ in range(8)
                ]
                await asyncio.sleep(1)
                assert (await http.get("/metrics", timeout=3)).is_success
                assert "read again" in await asyncio.wait_for(node.reload(), 5)
                await peer.say("t", TEXT)
                assert (await peer.until("context.done", "t"))["reason"] == "end"
                node.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(node.process.wait, SOON_S) == 0
                await asyncio.gather(*asking, return_exceptions=True)
    assert "is lost" not in node.log


@pytest.mark.slow
@FRONTS
@pytest.mark.usefixtures("fronts")
async def test_signals_to_all_processes_and_pipes_in_place_of_files_hold_up_nothing(tmp_path: Path) -> None:
    """Signals such as of `systemctl kill --signal=HUP`, or of what has other servers open their logs again."""
    file, pipe, words = tmp_path / "node.yaml", tmp_path / "pipe", tmp_path / "words.yaml"
    os.mkfifo(pipe)
    words.write_text("nginx: engine x")
    write(file)
    with running_process(tmp_path, "--config", str(file)) as node:
        before = node.pids()
        async with wire(node.ws_url) as peer:
            await peer.say("t", TEXT)
            await peer.until_audio("t")
            for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
                for pid in before.values():
                    os.kill(pid, signum)
            await until(lambda: "the settings are read again" in node.log, SOON_S)
            assert (await peer.until("context.done", "t"))["reason"] == "end"
        assert node.pids() == before
        write(file, lexicon_file=str(pipe))
        assert "no regular file" in await node.reload()
        write(file, lexicon_file=str(words))
        assert (await node.reload()).endswith("changed: lexicon_file")
        file.unlink()
        os.mkfifo(file)  # a reading that hangs is left behind
        node.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.5)
        node.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(node.process.wait, SOON_S) == 0


@pytest.mark.slow
@FRONTS
@pytest.mark.usefixtures("fronts")
async def test_hangups_before_a_node_is_ready_and_while_it_ends_do_not_kill_it(tmp_path: Path) -> None:
    """That its certificate has expired is told at the start, and when the settings are read again."""
    expired = make_certificate(tmp_path / "old", days=-1)
    log = await hang_up_all_the_time(tmp_path, *AGENT_TTS, "serve", tls=expired.settings)
    told, expiry = log.split("SIGHUP: ", 1)[0], "has expired"
    assert told.count(expiry) == 1
    assert log.count(expiry) > 1


@pytest.mark.slow
async def test_a_script_of_the_package_is_started_as_a_command_is(tmp_path: Path) -> None:
    """Fails where a script runs a node by itself: closing the terminal ended its calls."""
    await hang_up_all_the_time(tmp_path, sys.executable, str(data_folder("pipelines") / "phone.py"))


async def hang_up_all_the_time(tmp_path: Path, *command: str, **settings: object) -> str:
    """Start a node and end it, with a SIGHUP every few milliseconds; returns its log."""
    file = tmp_path / "node.yaml"
    write(file, agent={"stt": {"kind": "scripted"}}, **settings)
    log = tmp_path / "node.log"
    with starting(log, "--port", "0", "--config", str(file), command=command) as process:
        await until(lambda: is_past_python(process.pid), SOON_S)
        while "agent-tts: http" not in log.read_text():
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.05)
        if "phone" not in command[-1]:  # which reads no settings again
            await until(lambda: "SIGHUP: the settings are read again" in log.read_text(), SOON_S)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.01)
        assert process.returncode == 0, log.read_text()
    return log.read_text()


@pytest.mark.slow
def test_a_signal_while_the_application_is_made_ends_the_node(tmp_path: Path) -> None:
    """For a second nothing is awaited. The loop looked for its handler later, when it had none, and the node stayed."""
    script = tmp_path / "node.py"
    script.write_text(
        """import os, signal
from agent_tts.config.loading import load_settings
from agent_tts.serve.processes import run

made = run.warm_up
run.warm_up = lambda app: (os.kill(os.getpid(), signal.SIGTERM), made(app))
raise SystemExit(run.run(load_settings(overrides={"engine": "tone", "port": 0})))
"""
    )
    with killed_after(subprocess.Popen([sys.executable, script], env=environment())) as node:
        assert node.wait(SOON_S) == 128 + signal.SIGTERM


@contextmanager
def starting(log: Path, *flags: str, command: tuple[str, ...] = (*AGENT_TTS, "serve")) -> Iterator[Process]:
    """A node from the first moment of its process on."""
    with log.open("wb") as out:
        command = (*command, "--set", "engine=tone", *flags)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment())
        with killed_after(process):
            yield process


def is_past_python(pid: int) -> bool:
    """Whether it holds SIGHUP back: before, it is Python's start."""
    blocked = Path(f"/proc/{pid}/status").read_text().partition("SigBlk:\t")[2].split()[0]
    return bool(int(blocked, 16) & 1 << (signal.SIGHUP - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "fronts"),
    [
        ("0<&- 1>&- 2>&-", 2),
        ("1>/dev/full 2>/dev/full", 2),
        ("0<&- 1>&- 2>&-", 1),
        ("2> >(exec 0<&-)", 1),
        ("1>&- 2>&-", 2),
        ("1>/dev/full 2>/dev/full", 1),
    ],
)
def test_a_node_without_streams_serves_and_ends_as_others_do(streams: str, fronts: int) -> None:
    """When it says that it is ready all fronts listen: clients that wait for it land on all of them."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = f"exec {' '.join(AGENT_TTS)} serve --engine tone --fronts {fronts} --port {port} {streams}"
    process = subprocess.Popen(["bash", "-c", command], env=environment(), stdin=subprocess.DEVNULL)
    with killed_after(process):
        deadline = time.monotonic() + 60
        while not answers(f"http://127.0.0.1:{port}/ready"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with ExitStack() as closing:
            clients = [closing.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(16)]
            wait_for(lambda: all(taken_by(process.pid, port, each) for each in clients))
            assert len({taken_by(process.pid, port, each) for each in clients}) == fronts
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


def taken_by(pid: int, port: int, client: socket.socket) -> str | None:
    """The front of a node that has accepted a connection; None if none has."""
    with suppress(AssertionError):
        return front_of(pid, port, client.getsockname())
    return None


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


INIT = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: as PID 1, it gets the orphans below it
from agent_tts.system.entrance import be_init
be_init()
for _ in range(3):
    subprocess.run(["sh", "-c", "sleep 0.01 &"], check=True)
print("ready", flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "signum", "code"),
    [
        ("time.sleep(60)", signal.SIGTERM, 143),
        ("import signal; signal.signal(signal.SIGHUP, lambda *_: sys.exit(7)); time.sleep(60)", signal.SIGHUP, 7),
        ("sys.exit(3)", None, 3),
    ],
)
def test_an_init_reaps_orphans_and_ends_as_its_node_does(then: str, signum: int | None, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", INIT.format(then=then)], stdout=subprocess.PIPE) as process:
        assert present(process.stdout).readline() == b"ready\n"
        if signum is not None:
            wait_for(lambda: len(children_of(process.pid)) == 1)  # the node alone: no zombie is left
            process.send_signal(signum)
        assert process.wait(SOON_S) == code


@pytest.mark.slow
async def test_a_thousand_named_keys_are_scraped_and_changed_beside_a_caller(tmp_path: Path) -> None:
    """Their metrics and settings have more than a megabyte."""
    file = tmp_path / "node.yaml"
    keys: dict[str, dict[str, Any]] = {
        f"{'k' * 28}-{number:03}": {"key": f"{number:04}{'x' * 800}"} for number in range(999)
    }
    keys["operator"] = {"key": "operator", "operator": True}
    words = {f"word{number}": "y" * 250 for number in range(1_500)}
    write(file, auth={"keys": keys}, lexicon=words)
    header = {"Authorization": "Bearer operator"}
    with running_process(tmp_path, "--config", str(file), "--fronts", "2") as node:
        before = node.pids()
        async with wire(node.ws_url, additional_headers={"X-API-Key": "operator"}) as peer:
            await peer.say("t", TEXT * 4, lead_ms=200)
            await peer.until_audio("t")
            page = await asyncio.to_thread(httpx.get, f"{node.url}/metrics", headers=header, timeout=SOON_S)
            assert page.status_code == 200
            assert len(page.content) > 800_000  # as JSON, more than a frame of a channel has
            write(file, auth={"keys": keys}, lexicon=words | {"word": "z"})
            assert (await node.reload()).endswith("changed: lexicon")
            assert (await peer.until("context.done", "t"))["reason"] == "end"
        await until(lambda: "does not use" not in node.log)
        assert node.pids() == before
