"""Each block of code of README and web/docs runs as it is written, where it can run here."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import av
import pytest
import typer
from typer.main import get_command

from agent_tts.cli.app import app
from tests.cli.process import invoke
from tests.support import running_node
from tests.voices.clips import KINDS, encoded, tone

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "web" / "docs").rglob("*.md"))]
LIMIT_S = 60.0

# Commands that do not run here, by how they begin, and why.
NOT_HERE = {
    "make ": "the tests of the Makefile's targets are .ci/run and the README's",
    "pip install": "installs packages",
    "python3 -m http.server": "tests/browser/test_page.py serves the page",
    "python sft_12hz.py": "trains a model",
    "curl localhost:8100/v1/audio/speech -H 'Content-Type: application/json' -o signed.wav": "needs a certificate",
    'agent-tts say "Hello there." --url localhost:8100 --voice nina': "needs the trained model",
    "agent-tts voices fetch": "needs the network: tests/cli/test_fetch.py has a server",
    "curl localhost:8100/v1/audio/voices": "needs a Base model",
    "agent-tts compile": "takes minutes",
    "agent-tts doctor": "tries engines and models: tests/doctor",
    "agent-tts cluster": "runs until Ctrl+C, or asks a cluster: tests/cluster",
    "agent-tts detect": "needs released weights",
    "agent-tts bench agent": "takes minutes: tests/cli/test_bench_agent.py",
    "agent-tts bench quality": "takes minutes: tests/cli/test_bench_quality.py",
    "my-llm": "stands for the reader's program",
}

# Commands that end here with an error, for want of a model: all that comes before it is right.
ENDS_WITH = {
    "agent-tts voices add nina": "'./Qwen3-TTS-12Hz-1.7B-Base' is neither a folder here nor a hub id",
    "agent-tts voices adapter nina": "the library has no such voice",
    "agent-tts voices add bob": "cloning needs a Base model",
    "agent-tts voices show bob": "the library has no such voice",
    'agent-tts say "Hello there." --engine qwen3': "'./checkpoint' is neither a folder here nor a hub id",
    "agent-tts convert": "'./Qwen3-TTS-12Hz-0.6B-CustomVoice' is neither a folder here nor a hub id",
}


def blocks(*languages: str) -> list[tuple[str, str]]:
    """The page and the text of each block of one of these languages."""
    found = []
    for page in PAGES:
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.S | re.M):
            if language in languages:
                found.append((str(page.relative_to(ROOT)), text))
    return found


def commands() -> list[tuple[str, str]]:
    """The page and the text of each command of a terminal's block, without prompt and comment."""
    lines = [
        (page, line.removeprefix("$ ").partition("  #")[0].strip())
        for page, text in blocks("console", "bash")
        for line in re.sub(r"\\\n\s*", "", text).splitlines()
        if line.startswith("$ ")
    ]
    assert len(lines) > 20
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the commands run: with the files that they name."""
    folder = tmp_path
    (folder / "words.yaml").write_text('nginx: engine x\nGIF: {ipa: "dʒɪf", alias: jif}\n')
    for name in ("clip.wav", "bob.wav"):
        (folder / name).write_bytes(encoded(KINDS["wav"], tone()))
    (folder / "reply.mp3").write_bytes(encoded(KINDS["mp3"], tone()))
    return folder


@pytest.mark.node
@pytest.mark.real_time
async def test_commands_run_as_they_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that starts a node tells its settings instead."""
    monkeypatch.chdir(folder)
    async with running_node(engine="espeak") as node:
        host, wrong = node.url.removeprefix("http://"), {}
        for _, command in commands():
            if any(command.startswith(start) for start in NOT_HERE):
                continue
            ends_with = next((error for start, error in ENDS_WITH.items() if command.startswith(start)), None)
            if re.search(r"agent-tts (serve|agent)\b", command):
                command += " --print-config"
            command = re.sub(r"(localhost|127\.0\.0\.1):8100", host, command)
            code, told = await run(command, folder)
            if ends_with is not None:
                if not code or ends_with not in told:
                    wrong[command] = told
                continue
            if code or '"error"' in told:
                wrong[command] = told
                continue
            for file in re.findall(r"(?:-o |> )(\S+\.(?:wav|mp3))", command):
                with av.open(str(folder / file)) as sound:
                    assert sum(frame.samples for frame in sound.decode(audio=0)) > 6_000
    assert not wrong, "\n\n".join(f"$ {command}\n{told}" for command, told in wrong.items())


async def run(command: str, folder: Path) -> tuple[int | None, str]:
    """The exit code of a command in a shell, and what it said; one of ours runs in this process."""
    variables = {"AGENT_TTS_VOICES__FOLDER": str(folder / "voices")}
    words = shlex.split(command)
    while words and "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    if words[0] == "agent-tts":
        assert not set("|<>$&;") & set(command), "this needs a shell"
        done = await asyncio.to_thread(invoke, *words[1:], **variables)
        return done.returncode, (done.stdout + done.stderr).decode()
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(LIMIT_S):
        told, _ = await process.communicate()
    return process.returncode, told.decode(errors="replace")


INLINE = re.compile(r"`(?:[A-Z_]+=\S+ )*(agent-tts [^`]+)`")
ELLIPSIS = "..."  # in inline code that is no whole command


def test_each_command_is_one_of_the_command_line() -> None:
    """Also those that do not run here, and those within a line: names, options and choices."""
    inline = [(str(page.relative_to(ROOT)), text) for page in PAGES for text in INLINE.findall(page.read_text())]
    assert len(inline) > 20
    wrong = {}
    for page, command in [*commands(), *inline]:
        words = shlex.split(command)
        if "agent-tts" not in words or ELLIPSIS in command:
            continue
        until = min(words.index(sign) if sign in words else len(words) for sign in ">&")
        try:
            with contextlib.suppress(typer.Exit):  # after --help
                parse(words[words.index("agent-tts") + 1 : until])
        except USAGE as error:
            # In a line of text a command may stand for itself, without its arguments.
            if (page, command) not in inline or "Missing parameter" not in str(error):
                wrong[page, command] = str(error)
    assert not wrong, "\n".join(f"{page}: {command}: {error}" for (page, command), error in wrong.items())


ROOT_COMMAND: Any = get_command(app)
USAGE: Any = typer.BadParameter.__mro__[1]  # what Typer raises for words that it does not know


def parse(words: list[str]) -> None:
    """Parse the words of a command as `agent-tts` does, without running it. Raises `USAGE`."""
    command, context = ROOT_COMMAND, None
    while words and hasattr(command, "resolve_command"):  # a group of commands; alone it is what a text names
        context = command.make_context(command.name, words, parent=context)
        if not (words := [*context._protected_args, *context.args]):
            return
        _, command, words = command.resolve_command(context, words)
    if not hasattr(command, "resolve_command"):
        command.make_context(command.name, words, parent=context)


def test_what_make_and_pip_are_asked_for_is_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in PAGES:
        text = page.read_text()
        assert not re.findall(r"pip install '?agent-tts\[", text), page
        for asked in re.findall(r"pip install '\.\[([\w,-]+)\]'", text):
            assert {*asked.split(",")} <= {*extras}, (page, asked)
    for where, command in commands():
        if command.startswith("make "):
            assert command.split()[1] in targets, (where, command)


def test_each_command_that_is_left_out_is_there() -> None:
    for start in NOT_HERE | ENDS_WITH:
        assert any(command.startswith(start) for _, command in commands()), start


# The modules of the vendors' pages, whose block makes one client after another.
CLIENTS = {
    "web/docs/clients/cartesia.md": ("pipecat.services.cartesia.tts", "livekit.plugins.cartesia", "cartesia"),
    "web/docs/clients/deepgram.md": (
        *("pipecat.services.deepgram.tts", "pipecat.services.deepgram.flux.tts", "livekit.plugins.deepgram"),
        *("deepgram.client", "deepgram.environment"),
    ),
    "web/docs/clients/openai-realtime.md": (
        *("pipecat.services.openai.realtime.llm", "livekit.plugins.openai.realtime", "openai"),
    ),
    "web/docs/clients/vllm-omni.md": ("livekit.plugins.baseten",),
    "web/docs/clients/elevenlabs.md": (
        *("pipecat.services.elevenlabs.tts", "pipecat.services.elevenlabs.dialogue.tts"),
        *("livekit.plugins.elevenlabs", "elevenlabs.client"),
    ),
}


@pytest.mark.parametrize(("page", "text"), [(page, text) for page, text in blocks("python") if page in CLIENTS])
async def test_the_clients_of_a_page_take_these_arguments(page: str, text: str) -> None:
    scope: dict[str, object] = {"KEY": "k", "session": object()}
    for name in CLIENTS[page]:
        module = importlib.import_module(name)
        by_name = name.startswith(("livekit", "openai"))
        scope = vars(module) | scope | ({name.rpartition(".")[2]: module} if by_name else {})
    exec(text, scope)


# The test that runs each program of the other pages, in their order.
RUN_BY = {
    "README.md": (
        "tests/test_readme.py:test_the_python_example_writes_a_file_that_can_be_played",
        "tests/test_readme.py:test_the_bot_speaks_what_its_language_model_writes",
    ),
    "web/docs/clients/livekit.md": ("tests/deploy/test_docs.py:test_the_livekit_example_speaks",),
    "web/docs/clients/openai.md": ("tests/deploy/test_docs.py:test_the_openai_example_runs",),
    "web/docs/clients/pipecat.md": (
        "tests/deploy/test_docs.py:test_the_pipecat_example_speaks",
        "tests/serve/test_qwen3_node.py:test_the_page_of_pipecat_clones_a_voice_and_speaks_it",
    ),
    "web/docs/clients/python.md": ("tests/deploy/test_docs.py:test_the_python_program_tells_what_was_heard",),
    "web/docs/moving-from-openai.md": (
        "tests/serve/routes/test_voices.py:test_the_program_of_the_page_on_moving_from_openai_runs",
    ),
}


def test_each_program_is_run_by_a_test() -> None:
    """Fails for a program more than a page has tests, and for a test that is gone or says nothing of the page."""
    programs = Counter(page for page, _ in blocks("python") if page not in CLIENTS)
    assert programs == {page: len(tests) for page, tests in RUN_BY.items()}
    assert {page for page, _ in blocks("python")} >= CLIENTS.keys()
    for page, tests in RUN_BY.items():
        for test in tests:
            path, _, name = test.partition(":")
            source = (ROOT / path).read_text()
            (found,) = [each for each in ast.parse(source).body if getattr(each, "name", None) == name]
            code = ast.get_source_segment(source, found) or ""
            # By its path, or by what the module reads of it.
            known = {Path(page).name, *re.findall(rf"^(\w+)\b.* = .*{Path(page).name}", source, re.M)}
            assert any(word in code for word in known) or (page == "README.md" and "block(" in code), test
