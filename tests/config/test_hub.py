"""Models of the hub are downloaded to a folder: once, complete, at one commit. Every failure is a message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tts.config.hub import local_folder, with_local_models
from agent_tts.config.loading import find_config, load_settings
from agent_tts.config.settings import Audioseal, Settings
from agent_tts.errors import SettingsError
from tests.hub_server import COMMIT, OTHER, REPO, Hub, serving

pytestmark = pytest.mark.node

NEEDED = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "vocab.json": b"{}",
    "merges.txt": b"",
    "model.safetensors": b"weights",
    "speech_tokenizer/config.json": b"{}",
    "speech_tokenizer/model.safetensors": b"codec",
}
UNNEEDED = {
    "README.md": b"#",
    "model.bin": b"\x80",
    "speech_tokenizer/model.pt": b"\x80",
    "modeling.py": b"import os",
    "onnx/config.json": b"{}",
}
FETCH = """
import sys
from agent_tts.errors import SettingsError
from agent_tts.config import hub
try:
    print(hub.local_folder(sys.argv[1], sys.argv[2] or None, getattr(hub, sys.argv[3])), end="")
except SettingsError as error:
    sys.exit(str(error))
"""
EACH = """
import sys
from agent_tts.errors import SettingsError
from agent_tts.config import hub
for source in sys.argv[1:]:
    try:
        hub.local_folder(source, None, hub.QWEN3)
    except SettingsError as error:
        print(error)
"""
CHUNK = 10 << 20  # bytes that the hub's client reads at a time; a smaller remainder is not kept


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(NEEDED | UNNEEDED)) as hub:
        yield hub


class Client:
    """Runs fetches in processes with their own cache: the hub's client reads its configuration at import."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def fetch(
        self, hub: Hub, source: str = REPO, revision: str = COMMIT, contents: str = "QWEN3", **extra: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run(hub, FETCH, source, revision, contents, **extra)

    def run(self, hub: Hub, program: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(self.home), "NO_PROXY": "127.0.0.1", **extra}
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "home")


def contents(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_formats_that_can_carry_code_are_not_downloaded_and_a_cached_commit_is_used_without_a_request(
    hub: Hub, client: Client
) -> None:
    done = client.fetch(hub)
    assert contents(done.stdout) == NEEDED, done.stderr
    assert "downloading 7 files" in done.stderr
    assert "model.safetensors, 0.0 MB" in done.stderr
    assert "pinned" not in done.stderr
    asked = len(hub.asked)
    assert client.fetch(hub).stdout == done.stdout
    assert len(hub.asked) == asked


def test_an_unpinned_model_is_logged_with_its_commit_and_found_offline(hub: Hub, client: Client) -> None:
    first = client.fetch(hub, revision="")
    assert f"no revision is pinned; this one is {REPO}@{COMMIT}" in first.stderr
    offline = client.fetch(hub, revision="", HF_HUB_OFFLINE="1")
    assert offline.stdout == first.stdout != ""
    hub.refusal = (503, "")
    down = client.fetch(hub, revision="")
    assert down.stdout == first.stdout
    assert f"the hub does not answer; using commit {COMMIT}" in down.stderr


def test_an_interrupted_download_is_resumed(hub: Hub, client: Client) -> None:
    hub.files["model.safetensors"] = os.urandom(CHUNK) + os.urandom(CHUNK // 2)
    hub.breaks_off["model.safetensors"] = CHUNK + 1_000
    broken = client.fetch(hub)
    assert f"the download of {REPO} failed" in broken.stderr
    assert "run this again" in broken.stderr
    assert broken.stdout == ""
    offline = client.fetch(hub, HF_HUB_OFFLINE="1")  # half a model does not count
    assert "the hub cannot be reached" in offline.stderr
    hub.sizes["model.safetensors"] = 10**18
    assert "needs 999999999.99 GB more" in client.fetch(hub).stderr  # what is already here is not counted
    hub.sizes.clear()
    hub.breaks_off.clear()
    hub.asked.clear()
    whole = client.fetch(hub)
    assert contents(whole.stdout)["model.safetensors"] == hub.files["model.safetensors"], whole.stderr
    assert hub.fetched() == {"model.safetensors": f"bytes={CHUNK}-", "speech_tokenizer/model.safetensors": None}


REFUSALS = {
    "nobody": ((404, "RepoNotFound"), "is neither a folder here nor a public model of the hub"),
    "private": ((401, "RepoNotFound"), "is neither a folder here nor a public model of the hub"),
    "gated": ((403, "GatedRepo"), "is gated: accept its conditions on its page"),
    "refused": ((403, ""), "with HTTP 403; is the token in HF_TOKEN right?"),
    "broken": ((500, ""), "is not on this disk and the hub cannot be reached"),
}


def test_a_refusal_of_the_hub_is_a_message(hub: Hub, client: Client) -> None:
    hub.refusals = {f"some/{name}": refusal for name, (refusal, _) in REFUSALS.items()}
    done = client.run(hub, EACH, *hub.refusals)
    for (name, (_, message)), line in zip(REFUSALS.items(), done.stdout.splitlines(), strict=True):
        assert f"some/{name}" in line
        assert message in line


def test_a_gated_model_is_listed_but_not_downloaded(hub: Hub, client: Client) -> None:
    hub.gated = True
    assert f"{REPO} is gated: accept its conditions on its page" in client.fetch(hub).stderr


def test_an_unknown_revision_is_reported(hub: Hub, client: Client) -> None:
    assert client.fetch(hub, revision=OTHER).stderr == f"{REPO} has no revision {OTHER}\n"


def test_a_missing_network_is_reported_with_advice(client: Client) -> None:
    done = client.fetch(Hub({}, url="http://127.0.0.1:9"))
    assert done.stderr.startswith(f"{REPO} is not on this disk and the hub cannot be reached: connect this machine, or")


ALL = """
import sys
from agent_tts.errors import SettingsError
from agent_tts.config import hub
from agent_tts.config.settings import Settings
settings = Settings.model_validate({"qwen3": {"models": sys.argv[1:]}})
try:
    for _, place in hub.look_for_models(settings):
        print(place.repo, place.size)
    for model in hub.with_local_models(settings).qwen3.models:
        print(model.source)
except SettingsError as error:
    sys.exit(str(error))
"""


def test_the_size_of_all_models_is_told_before_the_first_download(hub: Hub, client: Client) -> None:
    """A look downloads nothing. A disk without room for all is refused before any is there."""
    size, both = sum(map(len, NEEDED.values())), (REPO, f"{REPO}@{COMMIT}")
    hub.sizes["model.safetensors"] = 10**18
    done = client.run(hub, ALL, *both)
    assert f"{REPO}, {REPO} needs 2000000000.00 GB more, and " in done.stderr
    assert " GB are free in the hub's cache" in done.stderr
    assert not hub.fetched()
    hub.sizes.clear()
    done = client.run(hub, ALL, *both)
    assert done.stdout.splitlines()[:2] == [f"{REPO} {size}"] * 2, done.stderr
    whole, first, *_ = [line for line in done.stderr.splitlines() if "downloading" in line]
    assert "downloading 2 models, 0.0 MB in all" in whole
    assert f"{REPO}: downloading 7 files" in first


def test_a_cache_that_cannot_be_written_is_refused(hub: Hub, client: Client) -> None:
    denied = "import os; os.access = lambda *_: False\n"
    done = client.run(hub, denied + ALL, REPO)
    assert "is not writable, where models are kept: set HF_HOME to another folder" in done.stderr
    assert not hub.fetched()


def test_a_repository_without_a_checkpoint_is_not_downloaded(hub: Hub, client: Client) -> None:
    del hub.files["speech_tokenizer/model.safetensors"]
    done = client.fetch(hub)
    assert "is not a Qwen3-TTS checkpoint: it lacks speech_tokenizer/model.safetensors" in done.stderr
    assert not hub.fetched()


def test_shards_are_fetched_with_their_index(hub: Hub, client: Client) -> None:
    shards = {f"model-0000{number}-of-00002.safetensors": bytes([number]) for number in (1, 2)}
    index = json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}).encode()
    del hub.files["model.safetensors"]
    hub.files |= {**shards, "model.safetensors.index.json": index}
    assert contents(client.fetch(hub).stdout).keys() > shards.keys()


class TestFolder:
    def test_is_used_in_place(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "mine", NEEDED)
        assert local_folder(str(folder)) == folder
        assert local_folder(str(folder / "../mine")) == folder

    @pytest.mark.parametrize("name", NEEDED)
    def test_without_a_needed_file_is_refused(self, name: str, tmp_path: Path) -> None:
        folder = write(tmp_path, {other: content for other, content in NEEDED.items() if other != name})
        with pytest.raises(SettingsError, match=f"not a complete Qwen3-TTS checkpoint: it lacks {name}"):
            local_folder(str(folder))

    def test_may_have_one_tokenizer_file_in_place_of_its_parts(self, tmp_path: Path) -> None:
        parts = {"vocab.json", "merges.txt"}
        files = {name: content for name, content in NEEDED.items() if name not in parts}
        assert local_folder(str(write(tmp_path, files | {"tokenizer.json": b"{}"})))

    def test_without_a_shard_is_refused(self, tmp_path: Path) -> None:
        files = {name: content for name, content in NEEDED.items() if name not in ("model.safetensors", "merges.txt")}
        index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
        files |= {"one.safetensors": b"", "model.safetensors.index.json": json.dumps(index).encode()}
        with pytest.raises(SettingsError, match=r"checkpoint: it lacks merges.txt, two.safetensors"):
            local_folder(str(write(tmp_path, files)))
        assert local_folder(str(write(tmp_path, {"two.safetensors": b"", "merges.txt": b""})))

    def test_cannot_have_a_revision(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="is a folder and has no revision v2"):
            local_folder(str(write(tmp_path, NEEDED)), "v2")


@pytest.mark.parametrize("source", ["nowhere", "/nowhere/at/all", "../nowhere/at", "a/b/c", "Qwen/", "Qwen/a b"])
def test_a_source_that_is_neither_folder_nor_id_is_refused(source: str) -> None:
    with pytest.raises(SettingsError, match="neither a folder here nor a hub id, which is OWNER/NAME"):
        local_folder(source)


def test_settings_get_the_folders_of_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine", NEEDED)
    monkeypatch.chdir(tmp_path)
    settings = Settings.model_validate({"qwen3": {"models": [{"source": "mine", "load": "first_use"}]}, "slots": 3})
    local = with_local_models(settings)
    assert local.qwen3.models[0].source == str(tmp_path / "mine")
    assert local.qwen3.models[0].load == "first_use"
    assert local.slots == 3
    assert with_local_models(local) == local


def test_models_of_an_unused_engine_are_not_downloaded() -> None:
    settings = Settings.model_validate({"engine": "espeak", "qwen3": {"models": ["nowhere"]}})
    assert with_local_models(settings) is settings


def test_the_packaged_models_are_pinned_to_commits() -> None:
    settings = load_settings(find_config("gpu"), environ={})
    types = {model.source.rpartition("-")[2] for model in settings.qwen3.models}
    assert types == {"CustomVoice", "VoiceDesign", "Base"}
    assert all(model.revision and len(model.revision) == 40 for model in settings.qwen3.models)


# ---------------------------------------------------------------- the watermark's weights


def test_of_audioseal_only_the_streaming_models_are_downloaded(client: Client) -> None:
    wanted = {"generator_streaming.pth": b"generator", "detector_streaming.pth": b"detector"}
    with serving(Hub(wanted | {"generator_base.pth": b"unused", "README.md": b"#"})) as hub:
        result = client.fetch(hub, contents="AUDIOSEAL")
    assert result.returncode == 0, result.stderr
    assert contents(result.stdout) == wanted


def test_the_watermarks_weights_are_fetched_only_where_it_is_on(tmp_path: Path) -> None:
    absent = Audioseal(source=str(tmp_path))
    settings = Settings(engine="qwen3", audioseal=absent)
    assert with_local_models(settings).audioseal == absent
    with pytest.raises(SettingsError, match="not a complete copy of AudioSeal's streaming models: it lacks generator"):
        with_local_models(settings.model_copy(update={"watermark": "audioseal"}))
