from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import stat
from functools import partial
from pathlib import Path

import pytest

from agent_tts.bench.checkpoint import write
from tests.cli.process import answering, invoke, run
from tests.model.lora import write_adapter
from tests.support import running_node
from tests.voices.clips import KINDS, encoded, tone

pytestmark = pytest.mark.real_time  # commands run in their own processes and event loops


def test_the_voices_of_this_machine_are_listed() -> None:
    result = invoke("voices", "--engine", "tone")
    assert result.returncode == 0, result.stderr
    assert b"tone-440 *" in result.stdout
    assert result.stderr == b""


@pytest.mark.parametrize("url", [[], pytest.param(["--url", "http://127.0.0.1:9"], marks=pytest.mark.slow)])
def test_a_file_without_an_end_takes_no_more_than_a_clip_may_have(url: list[str]) -> None:
    memory = partial(resource.setrlimit, resource.RLIMIT_AS, (4 << 30, 4 << 30))
    done = run("detect", "/dev/zero", *url, preexec_fn=memory)
    assert (done.returncode, b"zero: has more than" in done.stderr) == (2, True), done.stderr


def test_voices_are_filtered_by_language_and_printed_as_json() -> None:
    found = json.loads(invoke("voices", "--engine", "espeak", "--language", "de", "--json").stdout)
    assert found["default"] == "en-us"
    assert [voice["name"] for voice in found["voices"]] == ["de"]


def test_the_default_comes_first_then_its_variants_then_the_languages_by_name() -> None:
    lines = invoke("voices", "--engine", "espeak").stdout.decode().splitlines()[1:]
    names = [line.split()[0] for line in lines]
    assert names[:3] == ["en-us", "en-us+f1", "en-us+f2"]
    assert "woman 2" in lines[2]
    assert names.index("af") < names.index("ca") < names.index("ca-va") < names.index("cy")
    assert "qya" not in names
    assert "10 voices of constructed languages, such as Klingon: --all" in lines[-1]
    everything = invoke("voices", "--engine", "espeak", "--all").stdout.decode()
    assert "Quenya" in everything


async def test_a_node_lists_the_same_voices_and_needs_its_key() -> None:
    async with running_node(auth={"api_keys": ["sesame"]}) as node:
        of_node = partial(asyncio.to_thread, invoke, AGENT_TTS_URL=node.url)
        refused = await of_node("voices")
        wrong = await of_node("voices", AGENT_TTS_KEY="simsalabim")
        remote = await of_node("voices", "--json", AGENT_TTS_KEY="sesame")
        local = await asyncio.to_thread(invoke, "voices", "--json", "--engine", "tone")
    assert refused.returncode == 1
    assert b"an API key is needed: set AGENT_TTS_KEY" in refused.stderr
    assert wrong.returncode == 1
    assert b"does not accept this API key" in wrong.stderr
    assert json.loads(remote.stdout) == json.loads(local.stdout)


def test_a_language_without_a_voice_is_reported() -> None:
    result = invoke("voices", "--engine", "tone", "--language", "xx")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"no voice speaks 'xx'" in result.stderr


# ---------------------------------------------------------------- the user's own voices


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Base checkpoint."""
    folder = tmp_path_factory.mktemp("base") / "checkpoint"
    write(folder, model_type="base")
    return folder


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A WAV file with a tone of two seconds."""
    path = tmp_path / "clip.wav"
    path.write_bytes(encoded(KINDS["wav"], tone()))
    return path


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Variables for a library of its own."""
    return {"AGENT_TTS_VOICES__FOLDER": str(tmp_path / "library")}


def card(tmp_path: Path, name: str) -> dict[str, object]:
    """The library's card of a voice."""
    found: dict[str, object] = json.loads((tmp_path / "library" / name / "voice.json").read_text())
    return found


@pytest.mark.slow
def test_a_clone_is_added_privately_and_deleted(tmp_path: Path, base: Path, clip: Path, home: dict[str, str]) -> None:
    """Consent is asked for on a terminal and recorded as given there."""
    arguments = ("voices", "add", "bob", "--audio", str(clip), "--text", "A tone.", "--model", str(base))
    made = answering(b"y\n", *arguments, **home)
    assert made.returncode == 0, made.stderr
    assert b"allow you to clone" in made.stderr
    assert b"bob is cloned, with 2." in made.stderr
    assert b"s of the clip (" in made.stderr
    kept = card(tmp_path, "bob")
    assert (kept["kind"], kept["transcript"]) == ("cloned", "A tone.")
    assert "on a terminal" in json.dumps(kept["consent"])
    shown = invoke("voices", "show", "bob", **home).stdout
    assert b"consent statement" in shown
    assert hashlib.sha256(clip.read_bytes()).hexdigest().encode() in shown
    as_json = json.loads(invoke("voices", "show", "bob", "--json", **home).stdout)
    assert as_json["consent"]["clip_sha256"] == hashlib.sha256(clip.read_bytes()).hexdigest()
    assert stat.S_IMODE((tmp_path / "library" / "bob").stat().st_mode) == 0o700
    tuned = invoke("voices", "adapter", "bob", str(write_adapter(tmp_path / "lora", base, seed=0)), **home)
    assert tuned.stderr == b"agent-tts: bob has an adapter\n"
    assert json.loads(invoke("voices", "show", "bob", "--json", **home).stdout) == as_json | {"adapter": True}
    deleted = invoke("voices", "delete", "bob", **home)
    assert deleted.returncode == 0, deleted.stderr
    assert {path.name for path in (tmp_path / "library").iterdir()} <= {".lock"}


def test_a_clone_needs_consent(tmp_path: Path, clip: Path, home: dict[str, str]) -> None:
    """The default answer is no."""
    refused = answering(b"\n", "voices", "add", "bob", "--audio", str(clip), **home)
    assert refused.returncode == 2
    assert b"no voice is cloned without the speaker's consent" in refused.stderr
    assert not (tmp_path / "library").exists()


def test_a_design_needs_no_model(tmp_path: Path, home: dict[str, str]) -> None:
    made = invoke("voices", "add", "old", "--prompt", "a calm old man", "--description", "calm", **home)
    assert made.returncode == 0, made.stderr
    assert card(tmp_path, "old")["prompt"] == "a calm old man"
    again = invoke("voices", "add", "old", "--prompt", "another", **home)
    assert (again.returncode, b"there is a voice" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("add", "bob"), 2, "either --audio FILE"),
        (("add", "bob", "--audio", "x", "--prompt", "y"), 2, "either --audio FILE"),
        (("add", "bob", "--audio", "nowhere.wav", "--consent", "yes"), 2, "--audio nowhere.wav: No such file"),
        (("add", "bob", "--audio", "CLIP"), 2, "--consent says how the speaker agreed"),
        (("add", "bob", "--audio", "CLIP", "--consent", "yes"), 2, "cloning needs a Base model: --model FOLDER"),
        (("add", "vivian", "--prompt", "y"), 1, "'vivian' is a voice of the engine"),
        (("add", "B/b", "--prompt", "y"), 1, "a-z, 0-9"),
        (("add", "bob", "--prompt", " "), 1, "prompt: "),
        (("add", "bob", "--prompt", "y", "--url", "127.0.0.1:9"), 1, "no node answers"),
        (("delete", "ryan"), 1, "'ryan' is a voice of the engine"),
        (("delete", "bob"), 1, "no such voice"),
        (("show", "bob"), 1, "no such voice"),
        (("show", "bob", "--url", "127.0.0.1:9"), 1, "no node answers"),
        (("delete", "bob", "--url", "127.0.0.1:9"), 1, "no node answers"),
    ],
)
def test_an_invalid_addition_or_deletion_is_a_message_and_an_exit_code(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path, clip: Path, home: dict[str, str]
) -> None:
    result = invoke("voices", *(str(clip) if argument == "CLIP" else argument for argument in arguments), **home)
    assert said in result.stderr.decode()
    assert result.returncode == code
    assert not (tmp_path / "library").exists()


async def test_a_node_refuses_voices_that_it_cannot_speak(clip: Path, home: dict[str, str]) -> None:
    async with running_node() as node:
        of_node = partial(asyncio.to_thread, invoke, AGENT_TTS_URL=node.url, **home)
        cloned = await of_node("voices", "add", "bob", "--audio", str(clip), "--consent", "yes")
        designed = await of_node("voices", "add", "bob", "--prompt", "a calm old man")
        deleted = await of_node("voices", "delete", "tone-440")
    for result, said in ((cloned, b"only to qwen3"), (designed, b"only to qwen3")):
        assert (result.returncode, said in result.stderr) == (1, True), result.stderr
    assert (deleted.returncode, b"only added voices can be deleted" in deleted.stderr) == (1, True)
