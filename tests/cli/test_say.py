"""`agent-tts say` with real processes, files and pipes."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import time
import wave
from functools import partial
from pathlib import Path

import pytest

from agent_tts.bench.node import children_of
from tests.cli.process import PATIENCE_S, environment, invoke, is_running, killed_after, run, start
from tests.support import dominant_hz, present, running_node

pytestmark = pytest.mark.real_time  # commands run in their own processes and event loops

TEXT = "One two three four."


def spoken(folder: Path, text: str, *arguments: str, url: str = "") -> bytes:
    """The audio that `say --quiet` makes of a text, with the node at `url` or else its own engine."""
    path = folder / "spoken.pcm"
    where = ("--url", url) if url else ("--engine", "tone")
    result = invoke("say", text, *where, "-o", str(path), "--quiet", *arguments)
    assert (result.returncode, result.stderr) == (0, b"")
    return path.read_bytes()


@pytest.mark.slow
def test_pauses_and_figures_are_options(tmp_path: Path) -> None:
    said = spoken(tmp_path, "five dollars")
    assert spoken(tmp_path, "$5", "--normalize") == said
    assert len(spoken(tmp_path, 'five <break time="1s"/> dollars', "--breaks")) == len(said) + 48_000


def test_stdin_is_spoken_while_it_is_open() -> None:
    with killed_after(start("say", "-", "--engine", "tone", "-o", "-")) as process:
        stdin = present(process.stdin)
        stdin.write(b"Here is some text. And ")
        stdin.flush()
        assert len(present(process.stdout).read(3_840)) == 3_840  # while stdin is open
        stdin.write(b"more of it.")
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert len(rest) > 3_840


@pytest.mark.slow
def test_a_file_as_stdin_longer_than_a_context_is_spoken_whole_to_stdout(tmp_path: Path) -> None:
    """A node accepts 20 000 characters and four minutes of speech per context. Figures go to stderr."""
    sentence = "These are words of a long text. "
    path = tmp_path / "text"
    path.write_text(sentence * 800)
    with path.open() as text:
        result = run("say", "-", "--engine", "tone", "-o", "-", stdin=text)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout) / 48_000 == pytest.approx(len(sentence.replace(" ", "")) * 0.06 * 800, rel=0.01)
    assert dominant_hz(result.stdout[:480_000]) == pytest.approx(440, abs=5)
    for figure in (b"s of speech", b"first audio after", b"real-time factor"):
        assert figure in result.stderr


def test_frames_are_limited_and_a_cut_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcm"
    result = invoke("say", TEXT, "--engine", "tone", "--max-frames", "3", "-o", str(path))
    assert path.stat().st_size == 3 * 3_840
    assert b"cut a piece" in result.stderr


async def test_a_running_node_gets_every_option_and_refuses_unsupported_ones(tmp_path: Path) -> None:
    options = ("--instructions", "kindly", "--temperature", "0", "--top-k", "9", "--top-p", "1")
    async with running_node() as node:
        say = partial(asyncio.to_thread, invoke, "say", TEXT, "-o", str(tmp_path / "a.pcm"), *options)
        spoken = await say("--model", "tts-1", AGENT_TTS_URL=node.url)
        unknown = await say("--model", "tts-2", AGENT_TTS_URL=node.url)
    assert spoken.returncode == 0, spoken.stderr
    assert unknown.returncode == 1
    assert b"did you mean 'tts-1'?" in unknown.stderr


async def test_a_running_node_gives_the_same_audio(tmp_path: Path) -> None:
    say = partial(spoken, tmp_path, TEXT, "--seed", "1", "--pitch", "1.5")
    async with running_node() as node:
        remote = await asyncio.to_thread(say, url=node.url)
    assert remote == await asyncio.to_thread(say)
    assert dominant_hz(remote) == pytest.approx(660, abs=5)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
def test_ctrl_c_stops_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    """Neither its engine nor its player."""
    env = environment(PATH=f"{fake_player(tmp_path)}:{os.environ['PATH']}")
    arguments = ("say", "-", "--engine", "tone", "--play", "-o", str(tmp_path / "a.wav"))
    with killed_after(start(*arguments, env=env)) as process:
        present(process.stdin).write(TEXT.encode())
        present(process.stdin).flush()
        while not any(file.stat().st_size > 5_000 for file in tmp_path.glob(".a.wav.*.part")):
            assert process.poll() is None
            time.sleep(0.02)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert len(children) == 2
    assert not any(map(is_running, children))
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getnframes() > 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
def test_a_closed_pipe_ends_it_without_a_message() -> None:
    with killed_after(start("say", "-", "--engine", "tone", "-o", "-")) as process:
        present(process.stdin).write(TEXT.encode() * 50)
        present(process.stdin).flush()
        present(process.stdout).read(100)
        children = children_of(process.pid)
        present(process.stdout).close()
        code = process.wait(PATIENCE_S)
        errors = present(process.stderr).read()
    assert code == 141
    assert b"Traceback" not in errors
    assert children
    assert not any(map(is_running, children))


def fake_player(tmp_path: Path) -> Path:
    """A folder with a fake player that writes its input to a file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    player = folder / "paplay"
    player.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'played')!r}, 'wb').write(sys.stdin.buffer.read())\n"
    )
    player.chmod(player.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.slow
def test_without_a_file_the_audio_is_played_to_its_end(tmp_path: Path) -> None:
    folder = fake_player(tmp_path)
    result = invoke("say", TEXT, "--engine", "tone", "--seed", "1", PATH=f"{folder}:{os.environ['PATH']}")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "played").read_bytes() == spoken(tmp_path, TEXT, "--seed", "1")


def test_a_player_that_exits_early_is_named(tmp_path: Path) -> None:
    folder = fake_player(tmp_path)
    (folder / "paplay").write_text(f"#!{sys.executable}\n")
    result = invoke("say", TEXT * 20, "--engine", "tone", PATH=f"{folder}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert b"paplay ended before the speech" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("", 2, b"no program that plays audio was found"),
        ("-o a.doc", 2, b"-o a.doc: the name ends in one of .wav, .mp3"),
        ("-o /nowhere/a.wav", 2, b"-o /nowhere/a.wav: No such file or directory"),
        ("-o - --engine tone --voice tone-44O", 1, b"did you mean 'tone-440'?"),
        ("-o - --url 127.0.0.1:9", 1, b"no node answers at 127.0.0.1:9"),
        ("-o - --engine tone --voice q", 1, b"no such voice: `agent-tts voices` and GET"),
        ("-o - --url ftp://x", 2, b"host:port"),
        ("-o - --url http://h:99999", 2, b"host:port"),
        ("-o - --url h:1 --device cpu --max-frames 9", 2, b"--device, --max-frames: a running node"),
        ("-o - --engine tone --dtype float16", 2, b"'float32' or 'bfloat16'"),
        ("-o - --engine qwen3 --model /nowhere", 2, b"is neither a folder here nor a hub id"),
    ],
)
def test_invalid_input_is_a_message_and_an_exit_code(arguments: str, code: int, said: bytes) -> None:
    result = invoke("say", TEXT, *arguments.split(), PATH="/nowhere")
    assert said in result.stderr
    assert result.returncode == code


@pytest.mark.parametrize("text", ["", " \n", "-"])
def test_an_empty_text_is_an_error(tmp_path: Path, text: str) -> None:
    """Also on standard input. An existing file is not overwritten."""
    # Only a process has a standard input.
    result = (run if text == "-" else invoke)("say", text, "--engine", "tone", "-o", str(tmp_path / "a.wav"))
    assert result.returncode == 2
    assert b"there is nothing to speak" in result.stderr
    assert text == "-" or not list(tmp_path.iterdir())


def test_raw_audio_is_not_written_to_a_terminal() -> None:
    leader, terminal = os.openpty()
    try:
        result = run("say", TEXT, "-o", "-", stdout=terminal)
    finally:
        os.close(leader)
        os.close(terminal)
    assert result.returncode == 2
    assert b"send it to a pipe or a file" in result.stderr
