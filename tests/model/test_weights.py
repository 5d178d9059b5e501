"""A file fills a module exactly, or is refused before memory is taken."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.entries import CheckpointError
from agent_tts.model.weights import CODEC, MODEL, Loadable, build, hollow, plan
from tests.model import oracle, tiny


class Toy(Loadable):
    """Two layers and a buffer; in the file the first layer is called `input`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2, bias=False)
        self.mask: Tensor
        self.register_buffer("mask", torch.arange(4) > 1, persistent=False)

    def checkpoint_name(self, name: str) -> str:
        return name.replace("first", "input")


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(1)
    shapes = {"input.weight": (4, 3), "input.bias": (4,), "second.weight": (2, 4)}
    return {name: torch.randn(shape, generator=noise) for name, shape in shapes.items()}


def saved(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, folder / MODEL)
    return folder


INDEX = "model.safetensors.index.json"
SHARDS = {"input.weight": "a.safetensors", "input.bias": "b.safetensors", "second.weight": "a.safetensors"}


def sharded(folder: Path, tensors: dict[str, Tensor], shards: dict[str, str]) -> Path:
    """Write shards and their index; return the folder."""
    folder.mkdir(exist_ok=True)
    for shard in set(shards.values()):
        save_file({name: tensors[name] for name in tensors if shards[name] == shard}, folder / shard, {"format": "pt"})
    write_index(folder, shards)
    return folder


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_built_module_takes_no_memory_but_has_its_buffers() -> None:
    toy = build(Toy)
    assert all(parameter.is_meta for parameter in toy.parameters())
    assert toy.mask.tolist() == [False, False, True, True]
    assert not toy.training
    assert not torch.empty(1).is_meta


def test_parameters_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from a file, and torch imports its compiler to draw those of an embedding on the meta device."""
    for name in ("_no_grad_normal_", "_no_grad_uniform_"):
        monkeypatch.setattr(nn.init, name, mock.Mock(side_effect=AssertionError("a parameter was drawn")))
    with pytest.raises(AssertionError):
        nn.Embedding(3, 4)
    assert build(nn.Embedding, 3, 4).weight.is_meta
    assert build(Toy).first.weight.is_meta


@pytest.mark.parametrize("is_sharded", [False, True])
def test_every_parameter_comes_from_the_file(tensors: dict[str, Tensor], tmp_path: Path, is_sharded: bool) -> None:
    toy, folder = build(Toy), sharded(tmp_path, tensors, SHARDS) if is_sharded else saved(tmp_path, tensors)
    ready = plan(toy, folder, MODEL, torch.float32)
    assert ready.nbytes == (12 + 4 + 8) * 4
    ready.load("cpu")
    for name, parameter in toy.named_parameters():
        assert torch.equal(parameter, tensors[name.replace("first", "input")])
        assert not parameter.requires_grad
    assert toy.first(torch.ones(1, 3)).shape == (1, 4)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_memory_is_known_before_it_is_taken(
    dtype: torch.dtype, size: int, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    toy = build(Toy)
    ready = plan(toy, saved(tmp_path, tensors), MODEL, dtype)
    assert ready.nbytes == (12 + 4 + 8) * size
    assert all(parameter.is_meta for parameter in toy.parameters())
    ready.load("cpu")
    assert {parameter.dtype for parameter in toy.parameters()} == {dtype}
    assert sum(parameter.nbytes for parameter in toy.parameters()) == ready.nbytes


def test_loaded_parameters_do_not_change_with_the_file(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    toy, folder = build(Toy), saved(tmp_path, tensors)
    plan(toy, folder, MODEL, torch.float32).load("cpu")
    with (folder / MODEL).open("r+b") as file:
        file.seek(-32, 2)  # the last tensor, second.weight
        file.write(bytes(32))
    assert torch.equal(toy.second.weight, tensors["second.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"second.weight": None}, "model.safetensors: second.weight missing"),
        ({"second.bias": torch.zeros(2)}, "model.safetensors: second.bias not known here"),
        ({"second.weight": torch.zeros(4, 2)}, r"second.weight (4, 2) instead of (2, 4) of another shape"),
        ({"input.bias": None, "first.bias": torch.zeros(4)}, "input.bias missing; first.bias not known here"),
        ({f"odd.{index}": torch.zeros(1) for index in range(8)}, "odd.4 and 3 more not known here"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: dict[str, Tensor | None], message: str, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    changed: dict[str, Any] = {**tensors, **change}
    folder = saved(tmp_path, {name: tensor for name, tensor in changed.items() if tensor is not None})
    with pytest.raises(CheckpointError) as caught:
        plan(build(Toy), folder, MODEL, torch.float32)
    assert message in str(caught.value)


def test_other_tensors_are_ignored_only_by_prefix(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = saved(tmp_path, {**tensors, "encoder.weight": torch.zeros(1), "odd": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="safetensors: odd not known here"):
        plan(build(Toy), folder, MODEL, torch.float32, unused=("encoder.",))
    assert plan(build(Toy), folder, MODEL, torch.float32, unused=("encoder.", "odd"))


@pytest.mark.parametrize(
    ("value", "dtype"), [(math.nan, torch.float32), (-math.inf, torch.bfloat16), (1e5, torch.float16)]
)
def test_weights_that_are_not_finite_are_named(
    value: float, dtype: torch.dtype, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    """Otherwise they are noise, or silence."""
    tensors["second.weight"][1, 2] = value
    with pytest.raises(CheckpointError, match=rf"^model.safetensors: not finite in {str(dtype)[6:]}: second.weight$"):
        plan(build(Toy), saved(tmp_path, tensors), MODEL, dtype).load("cpu")


def test_a_file_is_named_by_its_place_in_the_checkpoint(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^speech_tokenizer/model.safetensors: missing"):
        plan(build(Toy), tmp_path, CODEC, torch.float32)
    sharded(tmp_path / "speech_tokenizer", tensors, SHARDS)
    write_index(tmp_path / "speech_tokenizer", {**SHARDS, "input.bias": "c.safetensors"})
    with pytest.raises(CheckpointError, match=r"^speech_tokenizer/c.safetensors: missing"):
        plan(build(Toy), tmp_path, CODEC, torch.float32)


def test_tensors_that_do_not_fit_in_shards_are_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = sharded(tmp_path, {**tensors, "odd": torch.zeros(1)}, {**SHARDS, "odd": "b.safetensors"})
    with pytest.raises(CheckpointError, match="safetensors: odd not known here"):
        plan(build(Toy), folder, MODEL, torch.float32)
    assert plan(build(Toy), folder, MODEL, torch.float32, unused=("odd",))


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({**SHARDS, "input.bias": "a.safetensors"}, "index.json: not there: input.bias in a.safetensors"),
        ({**SHARDS, "second.bias": "b.safetensors"}, "index.json: not there: second.bias in b.safetensors"),
        ({"input.bias": "b.safetensors", "second.weight": "a.safetensors"}, "is in a.safetensors; the index does not"),
        ({**SHARDS, "input.bias": "c.safetensors"}, "c.safetensors: missing from the checkpoint"),
        (
            {**SHARDS, "input.bias": "../b.safetensors"},
            "input.bias is in '../b.safetensors', not in a .safetensors file",
        ),
        ({**SHARDS, "input.bias": "/b.safetensors"}, "input.bias is in '/b.safetensors', not in a .safetensors file"),
        ({**SHARDS, "input.bias": "..\\b.safetensors"}, "not in a .safetensors file"),
        ({**SHARDS, "input.bias": "b.bin"}, "input.bias is in 'b.bin', not in a .safetensors file"),
        ({**SHARDS, "input.bias": 2}, "input.bias is in 2, not in a .safetensors file"),
        ({}, "index.json: weight_map names no tensors"),
        ([], "index.json: weight_map: has to be an object"),
    ],
)
def test_an_index_that_contradicts_its_shards_is_refused(
    weight_map: object, message: str, tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    folder = sharded(tmp_path / "folder", tensors, SHARDS)
    shutil.copy(folder / "b.safetensors", tmp_path)  # targets of a wrong index
    write_index(folder, weight_map)
    with pytest.raises(CheckpointError) as caught:
        plan(build(Toy), folder, MODEL, torch.float32)
    assert message in str(caught.value)


def test_a_tensor_in_two_shards_is_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    folder = sharded(tmp_path, tensors, SHARDS)
    save_file({name: tensors[name] for name in ("input.bias", "second.weight")}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"second.weight is in b.safetensors; the index says a.safetensors"):
        plan(build(Toy), folder, MODEL, torch.float32)


def test_the_reference_reads_shards_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # its progress bar over the shards would leave a thread behind
    folder = tmp_path / "sharded"
    shutil.copytree(tiny.checkpoint("custom_voice"), folder)
    for path in (folder / "model.safetensors", folder / "speech_tokenizer/model.safetensors"):
        tensors = load_file(path)
        path.unlink()
        sharded(path.parent, tensors, {name: f"model-{len(name) % 3}.safetensors" for name in tensors})
    assert_weights_are_the_references(folder)


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model.safetensors: missing from the checkpoint; only safetensors"):
        plan(build(Toy), tmp_path, MODEL, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04" + bytes(30))
    with pytest.raises(CheckpointError, match=r"model.safetensors: not a safetensors file"):
        plan(build(Toy), tmp_path, MODEL, torch.float32)


@pytest.mark.parametrize(
    ("model_type", "size"),
    [("custom_voice", "tiny"), ("custom_voice", "tiny-0.6B"), ("voice_design", "tiny"), ("base", "tiny")],
)
def test_a_checkpoint_gives_us_and_the_reference_the_same_weights(model_type: ModelType, size: str) -> None:
    assert_weights_are_the_references(tiny.checkpoint(model_type, size))


def assert_weights_are_the_references(folder: Path) -> None:
    reference = oracle.load(folder).model
    codecs = tiny.codec(folder), reference.speech_tokenizer.model
    for ours, theirs in ((tiny.frame_model(folder), reference), codecs):
        expected = theirs.state_dict()
        for name, their_name in ours.checkpoint_names().items():
            assert torch.equal(ours.get_parameter(name), expected[their_name]), name


def test_codec_weights_of_a_checkpoint_are_file_contents() -> None:
    """The reference converts nothing, so the comparison above is with the file itself."""
    path = tiny.checkpoint("base") / "speech_tokenizer/model.safetensors"
    expected = oracle.load(tiny.checkpoint("base")).model.speech_tokenizer.model.state_dict()
    contents = load_file(path)
    assert set(contents) == set(expected)
    assert all(torch.equal(contents[name], expected[name]) for name in contents)


def test_a_model_on_meta_has_the_loaded_shapes_without_memory() -> None:
    folder = tiny.checkpoint("custom_voice")
    hollowed, loaded = build(Codec, ModelConfig.read(folder).codec), tiny.codec(folder, torch.float16)
    hollow(hollowed, torch.float16)

    def shapes(codec: Codec) -> dict[str, tuple[torch.dtype, torch.Size]]:
        named = (*codec.named_parameters(), *codec.named_buffers())
        return {name: (tensor.dtype, tensor.shape) for name, tensor in named}

    assert shapes(hollowed) == shapes(loaded)
    assert all(tensor.is_meta for tensor in (*hollowed.parameters(), *hollowed.buffers()))
