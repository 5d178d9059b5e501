"""`agent-tts bench` with its own node: in this process where that proves the same, which imports everything once."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch  # noqa: F401 - its import keeps a pipe open: the first test to import it would leak one

from agent_tts.bench.checkpoint import INSTRUCTIONS
from agent_tts.bench.figures import is_clean
from tests.cli.process import children_of, environment, invoke, is_running, run, start

pytestmark = pytest.mark.real_time  # client processes share this process's clock

QUICK = ("--warmup", "0", "--duration", "1")


def test_serve_measures_its_own_node_and_writes_the_results(tmp_path: Path) -> None:
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


def test_streams_reports_the_largest_number_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    loads = ("--streams", "2,4", "--seconds", "1", "--ramp", "0.2", "--words", "3", "--set", "fronts=1")
    result = invoke("bench", "streams", *loads, "--json", str(path))
    assert result.returncode == 0, result.stderr
    small, large = json.loads(path.read_text())["runs"]
    clean = max((number for number, run in ((2, small), (4, large)) if is_clean(run)), default=0)
    assert f"largest number without a gap: {clean}" in result.stdout.decode()
    assert (large["load"], large["errors"], large["silent"]) == ("4 callers", {}, 0)
    assert large["cpu_percent"].keys() == {"front", "engine", "clients"}


def test_trace_tells_the_stages_of_every_request(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = invoke("bench", "trace", "--engine", "tone", "--rate", "10", *QUICK, "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert "ipc back" in result.stdout.decode()
    (run,) = json.loads(path.read_text())["runs"]
    assert run["requests"] > 0
    assert run["untraced"] == 0
    assert all(stage["p50"] >= 0 for stage in run["stages"].values())


def test_rtc_reports_the_lateness_of_packets(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = invoke("bench", "rtc", "--peers", "1", "--seconds", "1", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert json.loads(path.read_text())["runs"][0]["packets"] > 0


def test_saturate_keeps_every_slot_busy(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    loads = ("--engine", "tone", "--saturate", "8", "--words", "5", "--warmup", "1", "--duration", "1")
    cores = ("--clients", "2", "--client-cores", "0", "--front-cores", "0")
    result = invoke("bench", "serve", *loads, *cores, "--json", str(path))
    assert result.returncode == 0, result.stderr
    found = json.loads(path.read_text())
    (figures,) = found["runs"]
    assert (figures["errors"], figures["peak_in_flight"], figures["clients"]) == ({}, 9, 2)
    assert figures["audio_s_per_s"] > 8  # more than real time in each slot
    assert found["node"]["settings"]["slots"] == 8
    assert found["node"]["session"]["lead_ms"] is None


def test_fronts_are_measured_on_a_node_with_so_many(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    options = ("--fronts", "2", "--set", "engines=1", "--slots", "4", "--frames", "10", *QUICK)
    result = invoke("bench", "fronts", *options, "--json", str(path), COLUMNS="160")
    assert result.returncode == 0, result.stderr
    (figures,) = json.loads(path.read_text())["runs"]
    assert (figures["fronts"], figures["errors"]) == (2, {})
    assert {"supervisor", "front 0", "front 1", "engine"} <= figures["cpu_percent_each"].keys()
    assert figures["frames_per_s"] > 0
    assert b"times the first" in result.stdout


def test_a_clone_speaks_with_the_voice_that_was_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    loads = ("--synthetic", "tiny", "--type", "base", "--voice", "icl", "--concurrency", "1", "--frames", "4", *QUICK)
    result = invoke("bench", "serve", *loads, "--json", str(path), OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    found = json.loads(path.read_text())
    assert (found["node"]["model_type"], found["node"]["session"]["voice"]) == ("base", "icl")
    (figures,) = found["runs"]
    assert (figures["errors"], figures["silent"]) == ({}, 0)
    assert figures["request_audio_s"]["p100"] == 0.32


def test_peers_are_measured_where_they_are_installed(tmp_path: Path) -> None:
    """The real qwen-tts, on the checkpoint of our node, which speaks as the instructions of its type say."""
    files = ("--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png"))
    model = ("--synthetic", "tiny", "--type", "voice_design", "--device", "cpu")
    options = (*model, "--frames", "4", "--requests", "2", "--warmups", "0")
    result = run("bench", "peers", *options, *files, env=environment(OMP_NUM_THREADS="1", COLUMNS="160"), timeout=110)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    ours, theirs = found["runs"]
    assert (found["node"]["model_type"], found["node"]["session"]["instructions"]) == ("voice_design", INSTRUCTIONS)
    assert (ours["engine"], ours["frames"], ours["requests"]) == ("agent-tts", 4, 2)
    assert (theirs["engine"], theirs["version"]) == ("qwen-tts", "0.1.1")
    assert 2 <= theirs["frames"] <= 4
    assert ours["first_audio_ms"] < 4 * ours["frame_ms"]
    assert theirs["first_audio_ms"] > 0.9 * theirs["frame_ms"] * theirs["frames"]  # it does not stream
    assert b"faster-qwen3-tts: " in result.stderr  # not installed, or without a GPU
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_also_ends_the_node(how: signal.Signals, code: int) -> None:
    process = start("bench", "streams", "--streams", "2", "--seconds", "60", stdin=subprocess.DEVNULL)
    nodes: list[int] = []  # and the process of the listeners
    engines: list[int] = []
    try:
        while not engines or len(nodes) < 2:
            assert process.poll() is None
            nodes = children_of(process.pid)
            engines = [child for node in nodes for child in children_of(node)]
        process.send_signal(how)
        _, errors = process.communicate(timeout=30)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == code
    assert b"Traceback" not in errors
    assert not any(map(is_running, nodes + engines))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("serve", "--rate", "1", "--concurrency", "1"), 2, b"choose one"),
        (("serve", "--rate", "1", "--saturate", "1"), 2, b"choose one"),
        (("serve", "--url", "127.0.0.1:9", "--frames", "1"), 2, b"--frames is for a node of our own"),
        (("serve", "--url", "127.0.0.1:9", "--synthetic", "tiny"), 2, b"leave them out with --url"),
        (("serve", "--synthetic", "tiny", "--model", "x"), 2, b"choose one"),
        (("serve", "--type", "base"), 2, b"--type is of random weights"),
        (("streams", "--synthetic", "tiny", "--type", "x"), 2, b"unknown type 'x'"),
        (("peers",), 2, b"--synthetic 1.7B or --model FOLDER"),
        (("peers", "--synthetic", "tiny", "--peers", "x"), 2, b"--peers x: must be of qwen-tts"),
        (("serve", "--rate", "many"), 2, b"--rate many: must be positive numbers"),
        (("serve", "--rate", "inf"), 2, b"--rate inf: must be positive numbers"),
        (("serve", "--concurrency", "0.4"), 2, b"--concurrency 0.4: must be whole numbers from 1"),
        (("streams", "--streams", "0"), 2, b"--streams 0: must be whole numbers from 1"),
        (("streams", "--streams", "1,nan"), 2, b"--streams 1,nan: must be whole numbers from 1"),
        (("rtc", "--peers", "inf"), 2, b"--peers inf: must be whole numbers from 1"),
        (("streams", "--seconds", "inf"), 2, b"less than or equal to 86400"),
        (("streams", "--plot", "out.gif"), 2, b"--plot out.gif: the name ends in one of .png, .svg, .pdf"),
        (("rtc", "--json", "missing/x"), 2, b"--json x: there is no such folder"),
        (("rtc", "--client-cores", "3-x"), 2, b"--client-cores 3-x: must be numbers of cores"),
        (("streams", "--url", "127.0.0.1:9", "--front-cores", "0"), 2, b"--front-cores is for a node of our own"),
        (("serve", "--model", "missing"), 2, b"config.json"),
        (("serve", "--url", "http://["), 2, b"host:port"),
        (("serve", "--url", "127.0.0.1:9"), 1, b"no node answers at 127.0.0.1:9"),
    ],
)
def test_an_invalid_measurement_is_a_message(arguments: tuple[str, ...], code: int, said: bytes) -> None:
    result = invoke("bench", *arguments)
    assert said in result.stderr
    assert result.returncode == code


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("serve", "--engine", "tone", "--voice", "nobody"), 1, b"no such voice"),
        (("serve", "--engine", "expeak"), 1, b"the node did not start"),
        (("streams", "--streams", "1", "--client-cores", "4095"), 2, b"this machine has no core 4095"),
    ],
)
def test_a_refusal_is_a_message(arguments: tuple[str, ...], code: int, said: bytes) -> None:
    result = invoke("bench", *arguments)
    assert said in result.stderr
    assert result.returncode == code


def test_load_reports_which_promises_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = invoke("bench", "load", "--engine", "tone", "--only", "sessions", "--minutes", "0.05", "--json", str(path))
    assert result.returncode in (0, 1), result.stderr  # this machine's speed is not tested
    assert b"visitors who were not told exactly once that it is over" in result.stdout
    (figures,) = json.loads(path.read_text())["runs"]
    kept = {promise["what"]: promise["kept"] for promise in figures["promises"]}
    assert (result.returncode == 0) == all(kept.values())
    assert kept["visits that failed"]
    assert kept["contexts left on the node"]
    assert figures["visits"] > 20


def test_soak_kills_the_engine_and_finds_no_leak(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    quick = ("--engine", "tone", "--contexts", "80", "--rate", "10", "--kill-every", "5")
    result = invoke("bench", "soak", *quick, "--json", str(path), COLUMNS="160")
    (figures,) = json.loads(path.read_text())["runs"]
    assert figures["kills"] >= 1
    broken = {promise["what"] for promise in figures["promises"] if not promise["kept"]}
    assert broken <= {"memory of the front, MiB more for 1000 contexts"}, result.stdout  # too few contexts to judge it
    assert result.returncode == bool(broken)


def test_load_lists_its_loads() -> None:
    result = invoke("bench", "load", "--only", "storms")
    assert result.returncode == 2
    assert b"sessions, mixed, storm" in result.stderr
