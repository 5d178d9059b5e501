"""`agent-tts bench` as a process with a node of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.process import children_of, environment, is_running, run, start

QUICK = ("--warmup", "0", "--duration", "1")


def test_serve_measures_a_node_of_its_own_and_writes_all_down(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png"))
    loads = ("--engine", "tone", "--rate", "10", *QUICK)
    result = run("bench", "serve", *loads, *files, env=environment(COLUMNS="160"))
    assert result.returncode == 0, result.stderr
    assert b"10/s" in result.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert [figures["load"] for figures in found["runs"]] == ["10/s"]
    assert all(figures["errors"] == {} for figures in found["runs"])
    assert found["node"]["engine"] == "tone"
    assert found["command"][:3] == ["agent-tts", "bench", "serve"]
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_streams_tell_the_largest_number_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = run("bench", "streams", "--streams", "2,4", "--seconds", "1", "--ramp", "0.2", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert b"largest number without a gap: 4" in result.stdout
    assert json.loads(path.read_text())["runs"][1]["cpu_percent"].keys() == {"front", "engine", "client"}


def test_rtc_tells_how_late_packets_come(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = run("bench", "rtc", "--peers", "1", "--seconds", "1", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert json.loads(path.read_text())["runs"][0]["packets"] > 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks into /proc")
def test_ctrl_c_takes_the_node_along() -> None:
    process = start("bench", "streams", "--streams", "2", "--seconds", "60", stdin=subprocess.DEVNULL)
    nodes: list[int] = []
    engines: list[int] = []
    try:
        while not engines:
            assert process.poll() is None
            nodes = children_of(process.pid)
            engines = [child for node in nodes for child in children_of(node)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert not any(map(is_running, nodes + engines))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("serve", "--rate", "1", "--concurrency", "1"), 2, b"choose one"),
        (("serve", "--rate", "many"), 2, b"--rate many: must be positive numbers"),
        (("serve", "--rate", "inf"), 2, b"--rate inf: must be positive numbers"),
        (("serve", "--concurrency", "0.4"), 2, b"--concurrency 0.4: must be whole numbers from 1"),
        (("streams", "--streams", "0"), 2, b"--streams 0: must be whole numbers from 1"),
        (("streams", "--streams", "1,nan"), 2, b"--streams 1,nan: must be whole numbers from 1"),
        (("rtc", "--peers", "inf"), 2, b"--peers inf: must be whole numbers from 1"),
        (("streams", "--seconds", "inf"), 2, b"less than or equal to 86400"),
        (("streams", "--plot", "out.gif"), 2, b"--plot out.gif: the name ends in one of .png, .svg, .pdf"),
        (("rtc", "--json", "/nonexistent/x"), 2, b"--json x: there is no such folder"),
        (("serve", "--url", "http://["), 2, b"host:port"),
        (("serve", "--url", "127.0.0.1:9"), 1, b"no node answers at 127.0.0.1:9"),
        (("serve", "--engine", "expeak"), 1, b"the node did not start"),
    ],
)
def test_what_cannot_be_measured_is_a_message(arguments: tuple[str, ...], code: int, said: bytes) -> None:
    result = run("bench", *arguments)
    assert said in result.stderr
    assert result.returncode == code
    assert b"Traceback" not in result.stderr


def test_checkpoint_writes_one_and_says_what_sizes_there_are(tmp_path: Path) -> None:
    done = run("bench", "checkpoint", "--out", str(tmp_path / "new"), "--type", "base")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/model.safetensors").stat().st_size > 100_000
    done = run("bench", "checkpoint", "--out", str(tmp_path / "other"), "--size", "huge")
    assert done.returncode == 2
    assert b"1.7B" in done.stderr
