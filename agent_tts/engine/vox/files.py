"""Files of vox-tts: a checkpoint's weights as it maps them into memory, made once, with a digest beside each."""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from pathlib import Path
from threading import Event, Thread
from warnings import catch_warnings

from agent_tts.errors import SettingsError
from agent_tts.model.config import ModelConfig
from agent_tts.model.entries import CheckpointError

SMALLER = {"f32": "f16", "f16": "q8"}
# How the converter names each: the matrices that stay, and what linear layers become. Checkpoints are in bfloat16,
# which q8 keeps where it has no 8 bits. The codec is in float32 in all of them.
_WRITTEN = {"q8": ("bf16", "q8"), "f16": ("f16", ""), "f32": ("f32", "")}
LOOK_S = 0.2


def file_of(folder: Path, type_: str) -> Path:
    """Where the file of a checkpoint is."""
    return folder / f"vox-{type_}.tmod"


def checked(folder: Path, type_: str) -> Path:
    """The file of a checkpoint. Raises CheckpointError: there is none, or it is not what `convert` has written."""
    path = file_of(folder, type_)
    again = f"agent-tts convert {folder} --type {type_}"
    try:
        if _sum_of(path).read_text("utf-8").split()[:1] != [_digest(path)]:
            raise CheckpointError(f"{path.name} is damaged: {again}")
    except FileNotFoundError:
        raise CheckpointError(f"the engine vox needs {path.name}, made once: {again}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror}") from error
    return path


def convert(folder: Path, type_: str, tell: Callable[[int, int], object]) -> tuple[Path, str]:
    """Make the file of a checkpoint, whole or not at all; gives its place and SHA-256. `tell` gets bytes: done, all.

    It takes memory for some copies of the largest tensor: 5.8 GB for the released checkpoints.

    Raises:
        SettingsError: the checkpoint cannot be converted, or the file not be stored.
    """
    from vox.build import build

    if type_ not in _WRITTEN:
        raise SettingsError(f"--type {type_}: must be {', '.join(_WRITTEN)}")
    ModelConfig.read(folder)
    path = file_of(folder, type_)
    part, ended = path.with_name(f"{path.name}.{os.getpid()}.part"), Event()
    try:
        Thread(target=_tell, args=(part, tell, ended), daemon=True).start()
        with redirect_stderr(io.StringIO()), catch_warnings(action="ignore", category=ResourceWarning):
            build(str(folder), str(part), *_WRITTEN[type_])  # it does not close what it reads
        with part.open("rb") as file:
            os.fsync(file.fileno())
        digest = _digest(part)
        _sum_of(path).write_text(f"{digest}  {path.name}\n", "utf-8")
        part.replace(path)
    except OSError as error:
        raise SettingsError(f"{path} cannot be made: {error.filename or part.name}: {error.strerror}") from error
    except SystemExit as error:  # how the converter refuses
        raise SettingsError(f"{folder} cannot be converted: {error}") from None
    finally:
        ended.set()
        part.unlink(missing_ok=True)
    return path, digest


def _tell(part: Path, tell: Callable[[int, int], object], ended: Event) -> None:
    """Look now and then at how much of a file is there, whose header says how long it will be."""
    while not ended.wait(LOOK_S):
        with suppress(OSError, struct.error), part.open("rb") as file:
            tell(part.stat().st_size, sum(struct.unpack("<32x2Q", file.read(48))))


def _sum_of(path: Path) -> Path:
    """As `sha256sum -c` reads it."""
    return path.with_name(f"{path.name}.sha256")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
