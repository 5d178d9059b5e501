"""`agent-tts bench` with its own node: in this process where that proves the same, which imports everything once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # its import keeps a pipe open: the first test to import it would leak one

from agent_tts.bench.checkpoint import INSTRUCTIONS
from agent_tts.bench.node import children_of
from agent_tts.bench.runner import is_clean
from tests.bench.test_report import fonts
from tests.cli.process import environment, invoke, is_running, killed_after, run, start
from tests.node_process import running_process

__all__ = ["fonts"]  # a fixture

pytestmark = pytest.mark.real_time  # client processes share this process's clock

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
QUICK = ("--warmup", "0", "--duration", "2")  # a client on a busy machine may begin a second late


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a node, where it need not be the benchmark's own."""
    with running_process(tmp_path_factory.mktemp("node"), "--slots", "64") as running:
        yield running.url


def measured(folder: Path, *arguments: str, **variables: str) -> tuple[Any, str]:
    """The results that a measurement writes, and what it prints."""
    path = folder / "out.json"
    result = invoke("bench", *arguments, "--json", str(path), **variables)
    assert result.returncode == 0, result.stderr
    return json.loads(path.read_text()), result.stdout.decode()


@pytest.mark.usefixtures("fonts")
@pytest.mark.slow
def test_serve_measures_its_own_node_with_every_slot_busy_and_writes_the_results(tmp_path: Path) -> None:
    plot = tmp_path / "out.png"
    loads = ("--engine", "tone", "--saturate", "8", "--words", "5", "--warmup", "1", "--duration", "1")
    cores = ("--clients", "2", "--client-cores", "0", "--front-cores", "0")
    found, printed = measured(tmp_path, "serve", *loads, *cores, "--plot", str(plot), COLUMNS="160")
    (figures,) = found["runs"]
    assert figures["load"] in printed
    assert (figures["errors"], figures["peak_in_flight"], figures["clients"]) == ({}, 9, 2)
    assert figures["cpu_percent"].keys() == {"front", "engine", "clients"}
    assert figures["requests"] > 9  # more than one in each slot
    assert (found["node"]["engine"], found["node"]["settings"]["slots"]) == ("tone", 8)
    assert found["node"]["session"]["lead_ms"] is None
    assert plot.stat().st_size > 10_000


@pytest.mark.slow
def test_serve_measures_a_burst_among_callers_and_streams_beside_them(node: str, tmp_path: Path) -> None:
    loads = ("--url", node, "--rate", "4", "--burst", "8", "--beside", "3", "--warmup", "1", "--duration", "2")
    found, printed = measured(tmp_path, "serve", *loads, COLUMNS="240")
    callers, beside = found["runs"]
    assert (callers["load"], beside["load"]) == ("4/s", "3 beside")
    assert "a word every 10 ms; 8 more within 1 s, a word every 40 ms" in printed
    assert (callers["errors"], beside["errors"]) == ({}, {})
    assert callers["requests"] > 8
    assert beside["peak_in_flight"] == 3
    assert f" {callers['sum_audio_s_per_s']} " in printed


@pytest.mark.slow
def test_serve_measures_callers_in_phase(node: str, tmp_path: Path) -> None:
    loads = ("--url", node, "--concurrency", "3", "--in-phase", "--words", "3", *QUICK)
    found, _ = measured(tmp_path, "serve", *loads)
    (figures,) = found["runs"]
    assert (figures["load"], figures["errors"], figures["silent"]) == ("3 in phase", {}, 0)
    assert figures["requests"] >= 6


@pytest.mark.usefixtures("fonts")
@pytest.mark.slow
def test_a_mix_of_a_file_is_played_and_told_by_kinds(node: str, tmp_path: Path) -> None:
    path, plot = tmp_path / "calls.jsonl", tmp_path / "out.png"
    calls = [
        {"after_s": 0.3, "text": "Three words more.", "transport": "http"},
        {"after_s": 0.0, "text": "Three words first.", "words_every_ms": 20, "session": {"voice": "tone-660"}},
    ]
    path.write_text("\n\n".join(map(json.dumps, calls)))
    found, printed = measured(tmp_path, "mix", str(path), "--url", node, "--plot", str(plot), COLUMNS="200")
    assert [run["load"] for run in found["runs"]] == [str(path), "http, no pace", "websocket"]
    counts = [(run["requests"], run["errors"], run["silent"]) for run in found["runs"]]
    assert counts == [(2, {}, 0), (1, {}, 0), (1, {}, 0)]
    assert printed.count("% of a core") == 1
    assert plot.stat().st_size > 10_000


@pytest.mark.slow
def test_a_day_of_calls_passes_in_seconds(tmp_path: Path) -> None:
    """More campaigns, turns and long texts than a small node's defaults have room for: it is started with room."""
    found, _ = measured(tmp_path, "mix", "day", "--engine", "tone", "--conversations", "10", "--seconds", "5")
    whole, *kinds = found["runs"]
    assert (whole["load"], whole["errors"], whole["silent"]) == ("day", {}, 0)
    assert sum(run["requests"] for run in kinds) == whole["requests"] > 14
    assert {"websocket", "websocket, no pace"} <= {run["load"] for run in kinds}


@pytest.mark.slow
def test_peers_play_a_mix_on_another_server_too(node: str, tmp_path: Path) -> None:
    """OpenAI's API has neither words nor a pace: its requests begin when the last word is there."""
    path = tmp_path / "calls.yaml"
    path.write_text("- {after_s: 0, text: one two three four, words_every_ms: 50}")
    options = ("--mix", str(path), "--engine", "tone", "--beside", f"{node}/v1", "--beside-voice", "tone-660")
    found, printed = measured(tmp_path, "peers", *options, COLUMNS="200")
    ours, theirs = found["runs"]
    assert (ours["load"], theirs["load"]) == (str(path), f"{path}, {node}/v1")
    assert (ours["errors"], theirs["errors"]) == ({}, {})
    assert ours["ttfa_ms"]["p50"] < 3 * 50 <= theirs["ttfa_ms"]["p50"]
    assert ours["request_audio_s"] == theirs["request_audio_s"]
    assert found["node"]["beside"] == {"engine": f"{node}/v1", "model": "tts-1", "voice": "tone-660"}
    assert f"{node}/v1, tts-1" in printed


@pytest.mark.slow
def test_streams_reports_the_largest_number_without_a_gap(node: str, tmp_path: Path) -> None:
    loads = ("--url", node, "--streams", "2,4", "--seconds", "1", "--ramp", "0.2", "--words", "3")
    found, printed = measured(tmp_path, "streams", *loads)
    small, large = found["runs"]
    clean = max((number for number, run in ((2, small), (4, large)) if is_clean(run)), default=0)
    assert f"largest number without a gap: {clean}" in printed
    assert (large["load"], large["errors"], large["silent"]) == ("4 callers", {}, 0)


@pytest.mark.slow
def test_trace_tells_the_stages_of_every_request(tmp_path: Path) -> None:
    found, printed = measured(tmp_path, "trace", "--engine", "tone", "--rate", "10", *QUICK)
    assert "ipc back" in printed
    (run,) = found["runs"]
    assert run["requests"] > 0
    assert run["untraced"] == 0
    assert all(stage["p50"] > -1 for stage in run["stages"].values())  # of two clocks that are set to one another


@pytest.mark.slow
def test_rtc_reports_the_lateness_of_packets(node: str, tmp_path: Path) -> None:
    found, _ = measured(tmp_path, "rtc", "--url", node, "--peers", "2", "--seconds", "1")
    (figures,) = found["runs"]
    assert (figures["peers"], figures["silent"], figures["lost"], figures["errors"]) == (2, 0, 0, {})
    assert 60 < figures["packets"] < 140  # the last ones may come after the end
    assert figures["lateness_ms"]["p50"] <= figures["lateness_ms"]["p99"]
    assert figures["cpu_percent"].keys() == {"clients"}


@pytest.mark.slow
def test_fronts_are_measured_on_a_node_with_so_many(tmp_path: Path) -> None:
    options = ("--fronts", "2", "--set", "engines=1", "--slots", "4", "--frames", "10", *QUICK)
    found, printed = measured(tmp_path, "fronts", *options, COLUMNS="160")
    (figures,) = found["runs"]
    assert (figures["fronts"], figures["errors"]) == (2, {})
    assert {"supervisor", "front 0", "front 1", "engine"} <= figures["cpu_percent_each"].keys()
    assert figures["frames_per_s"] > 0
    assert "times the first" in printed


@pytest.mark.slow
def test_a_clone_speaks_with_the_voice_that_was_made_for_it(tmp_path: Path) -> None:
    loads = ("--synthetic", "tiny", "--type", "base", "--voice", "icl", "--concurrency", "1", "--frames", "4", *QUICK)
    found, _ = measured(tmp_path, "serve", *loads, OMP_NUM_THREADS="1")
    assert (found["node"]["model_type"], found["node"]["session"]["voice"]) == ("base", "icl")
    (figures,) = found["runs"]
    assert (figures["errors"], figures["silent"]) == ({}, 0)
    assert figures["request_audio_s"]["p100"] == 0.32


@pytest.mark.slow
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
    assert b"faster-qwen3-tts: " in result.stderr  # not installed, or without a GPU
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
def test_a_signal_also_ends_the_node() -> None:
    nodes: list[int] = []  # and the process of the listeners
    engines: list[int] = []
    command = ("bench", "streams", "--streams", "2", "--seconds", "60")
    with killed_after(start(*command, stdin=subprocess.DEVNULL)) as process:
        while not engines or len(nodes) < 2:
            assert process.poll() is None
            time.sleep(0.02)
            nodes = children_of(process.pid)
            engines = [child for node in nodes for child in children_of(node)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in errors
    assert not any(map(is_running, nodes + engines))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("serve --rate 1 --concurrency 1", 2, b"choose one"),
        ("serve --rate 1 --saturate 1", 2, b"choose one"),
        ("serve --burst 1 --in-phase", 2, b"add --concurrency 496"),
        ("serve --url 127.0.0.1:9 --frames 1", 2, b"--frames is for a node of our own"),
        ("serve --url 127.0.0.1:9 --synthetic tiny", 2, b"leave them out with --url"),
        ("serve --synthetic tiny --model x", 2, b"choose one"),
        ("serve --type base", 2, b"--type is of random weights"),
        ("streams --synthetic tiny --type x", 2, b"unknown type 'x'"),
        ("mix missing.yaml", 2, b"missing.yaml: "),
        ("peers --mix day", 2, b"add --beside URL"),
        ("peers", 2, b"--synthetic 1.7B or --model FOLDER"),
        ("peers --synthetic tiny --peers x", 2, b"--peers x: must be of qwen-tts"),
        ("frame", 2, b"--synthetic 1.7B and --model FOLDER are two ways"),
        ("frame --synthetic 1.7B --model x", 2, b"--synthetic 1.7B and --model FOLDER are two ways"),
        ("frame --synthetic 7B", 2, b"unknown size '7B'; known are tiny"),
        ("frame --synthetic 1.7B --fp8 both,no", 2, b"must be of nothing,cache,weights,both, in this order"),
        ("frame --synthetic 1.7B --fp8 weights --no-fused", 2, b"--fp8 is for fused kernels alone"),
        ("frame --synthetic 1.7B --batches 0", 2, b"--batches 0: must be whole numbers from 1"),
        pytest.param("frame --synthetic tiny", 2, b"torch finds none here", marks=WITHOUT_GPU),
        ("serve --rate many", 2, b"--rate many: must be positive numbers"),
        ("serve --rate inf", 2, b"--rate inf: must be positive numbers"),
        ("serve --concurrency 0.4", 2, b"--concurrency 0.4: must be whole numbers from 1"),
        ("streams --streams 0", 2, b"--streams 0: must be whole numbers from 1"),
        ("streams --streams 1,nan", 2, b"--streams 1,nan: must be whole numbers from 1"),
        ("rtc --peers inf", 2, b"--peers inf: must be whole numbers from 1"),
        ("streams --seconds inf", 2, b"less than or equal to 86400"),
        ("streams --plot out.gif", 2, b"--plot out.gif: the name ends in one of .png, .svg, .pdf"),
        ("streams --plot missing/out.png", 2, b"--plot out.png: there is no such folder"),
        ("rtc --json missing/x", 2, b"--json x: there is no such folder"),
        ("load --only storms", 2, b"--only storms: must be of sessions, mixed, storm"),
        ("rtc --client-cores 3-x", 2, b"--client-cores 3-x: must be numbers of cores"),
        ("streams --url 127.0.0.1:9 --front-cores 0", 2, b"--front-cores is for a node of our own"),
        ("serve --model missing", 2, b"config.json"),
        ("serve --url http://[", 2, b"host:port"),
        ("serve --url 127.0.0.1:9", 1, b"no node answers at 127.0.0.1:9"),
    ],
)
def test_an_invalid_measurement_is_a_message(arguments: str, code: int, said: bytes) -> None:
    result = invoke("bench", *arguments.split())
    assert said in result.stderr
    assert result.returncode == code


@pytest.mark.slow
def test_a_refusal_is_a_message(node: str) -> None:
    result = invoke("bench", "serve", "--url", node, "--voice", "nobody")
    assert (result.returncode, b"no such voice" in result.stderr) == (1, True)


@pytest.mark.slow
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


@pytest.mark.slow
def test_soak_kills_the_engine_and_finds_no_leak(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    quick = ("--engine", "tone", "--contexts", "80", "--rate", "10", "--kill-every", "5")
    result = invoke("bench", "soak", *quick, "--json", str(path), COLUMNS="160")
    (figures,) = json.loads(path.read_text())["runs"]
    assert figures["kills"] >= 1
    broken = {promise["what"] for promise in figures["promises"] if not promise["kept"]}
    assert broken <= {"memory of the front, MiB more for 1000 contexts"}, result.stdout  # too few contexts to judge it
    assert result.returncode == bool(broken)
