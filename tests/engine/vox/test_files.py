"""Files of vox-tts: what is in them, and that one is there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from vox import build

from agent_tts.engine.vox import files
from agent_tts.engine.vox.files import convert, file_of
from agent_tts.errors import SettingsError
from tests.cli.process import invoke
from tests.model import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(tiny.checkpoint("base"), tmp_path / "model")


def quiet(done: int, total: int) -> None:
    pass


def matrices(path: Path) -> dict[str, NDArray[np.float32]]:
    """The linear layers of the talker in a file, as numbers."""
    content = path.read_bytes()
    at, length, data = struct.unpack_from("<QQQ", content, 16)
    blobs = json.loads(content[at : at + length])["blobs"]

    def read(name: str) -> NDArray[np.float32]:
        blob = blobs[name]
        dtype = {"F32": "<f4", "F16": "<f2", "I8": "i1"}[blob["dtype"]]
        values = np.frombuffer(content, dtype, int(np.prod(blob["shape"])), data + blob["offset"])
        return values.reshape(blob["shape"]).astype(np.float32)

    found = {}
    for name in blobs:
        if name.startswith("talker.model.layers.") and name.endswith("_proj.weight"):
            weight = read(name)
            if blobs[name]["dtype"] == "I8":
                weight = (weight.reshape(len(weight), -1, 32) * read(f"{name}.scale")[..., None]).reshape(weight.shape)
            found[name] = weight
    return found


@pytest.mark.parametrize(("type_", "most"), [("f32", 0.0), ("f16", 1e-6), ("q8", 0.006)])
def test_weights_are_as_near_to_the_checkpoints_as_the_type_says(folder: Path, type_: str, most: float) -> None:
    """bfloat16 fits into float16, but for numbers that are almost 0; 8 bits are 0.5 % away, RMS."""
    path, _ = convert(folder, type_, quiet)
    exact = build.STFile(folder / "model.safetensors")
    found = matrices(path)
    assert len(found) > 7
    for name, weight in found.items():
        true = exact.get(name)
        assert np.sqrt(((weight - true) ** 2).mean() / (true**2).mean()) <= most


def test_the_digest_is_that_of_the_file_and_progress_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(files, "LOOK_S", 0.001)
    path, digest = convert(folder, "q8", lambda done, total: told.append((done, total)))
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.with_name(f"{path.name}.sha256").read_text() == f"{digest}  {path.name}\n"
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert {*totals} == {path.stat().st_size}
    assert 0 < done[0] < done[-1] <= totals[0]


def test_a_full_disk_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, digest = convert(folder, "f16", quiet)
    before = sorted(folder.iterdir())

    def full(out: str, *_: object) -> None:
        Path(out).write_bytes(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device", out)

    monkeypatch.setattr(build, "write_tmod", full)
    with pytest.raises(SettingsError, match="No space left on device"):
        convert(folder, "f16", quiet)
    assert sorted(folder.iterdir()) == before
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("broken", ["config.json", "vocab.json", "speech_tokenizer/model.safetensors"])
def test_an_incomplete_checkpoint_is_refused_in_a_line(folder: Path, broken: str) -> None:
    (folder / broken).unlink()
    with pytest.raises(SettingsError, match=Path(broken).name) as refused:
        convert(folder, "q8", quiet)
    assert "\n" not in str(refused.value)
    assert not file_of(folder, "q8").exists()


@pytest.mark.node
def test_the_command_makes_it_and_names_the_types_that_there_are(folder: Path) -> None:
    made = invoke("convert", str(folder))
    assert made.returncode == 0, made.stderr
    said = made.stderr.decode()
    assert "experimental" in said
    assert hashlib.sha256(file_of(folder, "q8").read_bytes()).hexdigest() in said
    refused = invoke("convert", str(folder), "--type", "q4")
    assert refused.returncode == 2
    assert b"must be q8, f16, f32" in refused.stderr
