"""From a hub id to a folder: a model is downloaded once, with resume; later starts need no network.

Only the front downloads, before the engine starts; the engine gets folders. This module does not import torch.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from agent_tts.config.settings import Audioseal, Checkpoint, Settings
from agent_tts.errors import SettingsError, to_install
from agent_tts.model.entries import index_of, read_index

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import ModelInfo

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIGURATION = ("config.json", "generation_config.json", "speech_tokenizer/config.json")
_VOCABULARY = ("vocab.json", "merges.txt")  # or tokenizer.json
_WEIGHTS = ("model.safetensors", "speech_tokenizer/model.safetensors")
_ANSWER_S = 10.0  # for the hub to list the files of a model
_AGAIN = "run this again to resume it"


def with_local_models(settings: Settings) -> Settings:
    """The settings with a folder for each model of qwen3, downloaded if needed. Blocks. Raises SettingsError."""
    found = look_for_models(settings)
    absent = [place for _, place in found if isinstance(place, Absent)]
    if len(absent) > 1:
        logger.info("downloading {} models, {} in all", len(absent), readable(sum(model.size for model in absent)))
    local: list[Checkpoint | Audioseal] = []
    for model, place in found:
        folder = place if isinstance(place, Path) else _download(place)
        local.append(model.model_copy(update={"source": str(folder), "revision": None}))
    if not local:
        return settings
    checkpoints = tuple(model for model in local if isinstance(model, Checkpoint))
    changes: dict[str, object] = {"qwen3": settings.qwen3.model_copy(update={"models": checkpoints})}
    if len(local) > len(checkpoints):
        changes["audioseal"] = local[-1]
    return settings.model_copy(update=changes)


def look_for_models(settings: Settings) -> list[tuple[Checkpoint | Audioseal, Path | Absent]]:
    """The models that the node's engine loads, and where each is. Nothing is downloaded.

    Blocks, for as long as the hub takes. Raises SettingsError: one cannot be had, or the disk is too small for all.
    """
    if settings.engine not in ("auto", "qwen3", "vox"):
        return []
    wanted: list[tuple[Checkpoint | Audioseal, Contents]] = [(model, QWEN3) for model in settings.qwen3.models]
    if settings.watermark != "none":
        wanted.append((settings.audioseal, AUDIOSEAL))
    found = [(model, look(model.source, model.revision, contents)) for model, contents in wanted]
    _check_space([place for _, place in found if isinstance(place, Absent)])
    return found


def watermark_folder(settings: Settings) -> Path | None:
    """The folder of the watermark's weights, downloaded if needed; None without one. Blocks. Raises SettingsError."""
    weights = settings.audioseal
    return None if settings.watermark == "none" else local_folder(weights.source, weights.revision, AUDIOSEAL)


@dataclass(frozen=True, slots=True)
class Contents:
    name: str
    # What is downloaded. Other files, such as weights in formats that can carry code, are not.
    wanted: re.Pattern[str]
    # The files, shards excepted, that it lacks; the argument tells whether it has a file.
    missing: Callable[[Callable[[str], bool]], list[str]]


def _missing(has: Callable[[str], bool]) -> list[str]:
    needed = [*_CONFIGURATION, *(() if has("tokenizer.json") else _VOCABULARY)]
    needed += [weights for weights in _WEIGHTS if not has(index_of(weights))]
    return [name for name in needed if not has(name)]


QWEN3 = Contents(
    "Qwen3-TTS checkpoint",
    re.compile(r"(speech_tokenizer/)?[\w.-]+\.(json|safetensors)|merges\.txt", re.ASCII),
    _missing,
)
_STREAMING = ("generator_streaming.pth", "detector_streaming.pth")  # of which only the tensors are read
AUDIOSEAL = Contents(
    "copy of AudioSeal's streaming models",
    re.compile("|".join(map(re.escape, _STREAMING))),
    lambda has: [name for name in _STREAMING if not has(name)],
)


@dataclass(frozen=True, slots=True)
class Absent:
    """A model of the hub that is not on this disk, or not all of it."""

    repo: str
    revision: str | None
    commit: str
    sizes: Mapping[str, int]  # bytes of each file that is missing
    contents: Contents

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


def local_folder(source: str, revision: str | None = None, contents: Contents = QWEN3) -> Path:
    """The folder of a model: `source` itself, or the cached copy of a hub id, downloaded if needed.

    A commit that is in the cache is used without a request to the hub. Raises SettingsError: nothing usable is there.

    Args:
        revision: commit, tag or branch of a hub id; None is the present head of its main branch.
    """
    place = look(source, revision, contents)
    return place if isinstance(place, Path) else _download(place)


def look(source: str, revision: str | None, contents: Contents) -> Path | Absent:
    """The folder of a model, or what has to be downloaded for it, of which nothing is yet. See `local_folder`."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise SettingsError(f"{source} is a folder and has no revision {revision}; only a hub id has revisions")
        if missing := _missing_from(folder, contents):
            raise SettingsError(f"{source} is not a complete {contents.name}: it lacks {', '.join(missing)}")
        return folder.resolve()
    if not _ID.fullmatch(source):
        raise SettingsError(f"{source!r} is neither a folder here nor a hub id, which is OWNER/NAME")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise SettingsError(f"a hub id needs {error.name}: {to_install('qwen')}, or give a folder") from error
    return _found(source, revision, contents)


def _found(repo: str, revision: str | None, contents: Contents) -> Path | Absent:
    if revision and _COMMIT.fullmatch(revision) and (folder := _cached(repo, revision, contents)):
        return folder
    info = _info(repo, revision)
    if info is None:
        if folder := _cached(repo, revision, contents):
            logger.warning("{}: the hub does not answer; using commit {} from the cache", repo, folder.name)
            return folder
        raise SettingsError(
            f"{repo} is not on this disk and the hub cannot be reached: "
            "connect this machine, or download the model elsewhere and give its folder instead of the id"
        )
    if revision is None:
        logger.warning("{}: no revision is pinned; this one is {}@{}", repo, repo, info.sha)
    return _cached(repo, info.sha, contents) or _absent(repo, revision, info, contents)


def _cached(repo: str, revision: str | None, contents: Contents) -> Path | None:
    """The hub's copy on this disk, if it is complete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return None if _missing_from(folder, contents) else folder


def _info(repo: str, revision: str | None) -> ModelInfo | None:
    """The hub's answer about a model; None when it does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=_ANSWER_S)
    except HfHubHTTPError as error:
        if refusal := _refusal(error, repo, revision):
            raise refusal from error
        return None
    except _network_errors():  # no route, no answer in time, or HF_HUB_OFFLINE
        return None


def _absent(repo: str, revision: str | None, info: ModelInfo, contents: Contents) -> Absent:
    """What of a model is missing. Raises SettingsError: the hub's repository is none of such a model."""
    from huggingface_hub import try_to_load_from_cache

    sizes = {
        file.rfilename: file.size or 0 for file in info.siblings or () if contents.wanted.fullmatch(file.rfilename)
    }
    if missing := contents.missing(sizes.__contains__):
        raise SettingsError(f"{repo} is not a {contents.name}: it lacks {', '.join(missing)}")
    wanted = [name for name in sizes if not isinstance(try_to_load_from_cache(repo, name, revision=info.sha), str)]
    return Absent(repo, revision, info.sha or "", {name: sizes[name] for name in wanted}, contents)


def _download(model: Absent) -> Path:
    """Download the missing files, one after another in this thread, so that Ctrl-C ends it at once."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    _check_space([model])
    repo, revision = model.repo, model.revision
    logger.info("{}: downloading {} files, {}", repo, len(model.sizes), readable(model.size))
    try:
        for name, size in model.sizes.items():
            if not sys.stderr.isatty():  # on a terminal the library draws a progress bar
                logger.info("{}: {}, {}", repo, name, readable(size))
            hf_hub_download(repo, name, revision=revision)
    except _network_errors() as error:
        if isinstance(error, HfHubHTTPError) and (refusal := _refusal(error, repo, revision)):
            raise refusal from error
        reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        raise SettingsError(f"the download of {repo} failed ({reason}): {_AGAIN}") from error
    folder = _cached(repo, model.commit, model.contents)
    if folder is None:  # the branch has moved meanwhile
        raise SettingsError(f"the download of {repo} is incomplete: {_AGAIN}")
    return folder


def _network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises where it gets no answer: hf_xet RuntimeError, its HTTP library, which is requests,
    httpx or httpx2 by its version, an OSError or an error of its own.
    """
    libraries = filter(None, map(sys.modules.get, ("httpx", "httpx2")))
    return OSError, RuntimeError, *(library.HTTPError for library in libraries)


def _refusal(error: HfHubHTTPError, repo: str, revision: str | None) -> SettingsError | None:
    """The error for a refusal by the hub; None for no answer or a fault of the hub (5xx)."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return SettingsError(f"{repo} is gated: accept its conditions on its page, and set HF_TOKEN to your token")
    if isinstance(error, RevisionNotFoundError):
        return SettingsError(f"{repo} has no revision {revision}")
    if isinstance(error, RepositoryNotFoundError):
        return SettingsError(
            f"{repo} is neither a folder here nor a public model of the hub; for a private one, set HF_TOKEN"
        )
    status = None if error.response is None else error.response.status_code
    if status is None or status >= 500:
        return None
    return SettingsError(f"the hub refuses {repo} with HTTP {status}; is the token in HF_TOKEN right?")


def _check_space(absent: Sequence[Absent]) -> None:
    """Raises SettingsError: the hub's cache has no room for all of these, or is not writable."""
    if not absent:
        return
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    cache, size = Path(HF_HUB_CACHE), sum(model.size for model in absent)
    for repo in {model.repo for model in absent}:
        begun = (cache / repo_folder_name(repo_id=repo, repo_type="model") / "blobs").glob("*.incomplete")
        size -= sum(file.stat().st_size for file in begun)
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"{there} is not writable, where models are kept: set HF_HOME to another folder")
    free = shutil.disk_usage(there).free
    if size > free:
        what = ", ".join(model.repo for model in absent)
        raise SettingsError(
            f"{what} needs {readable(size)} more, and {readable(free)} are free in the hub's cache: "
            "make room, or set HF_HOME to a larger disk"
        )


def readable(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _missing_from(folder: Path, contents: Contents) -> list[str]:
    """The files that a model's folder lacks."""
    missing = contents.missing(lambda name: (folder / name).is_file())
    for weights in _WEIGHTS:
        if not (folder / weights).is_file() and (folder / index_of(weights)).is_file():
            shards = sorted(set(read_index(folder, weights).values()))
            missing += [shard for shard in shards if not (folder / shard).is_file()]
    return missing
