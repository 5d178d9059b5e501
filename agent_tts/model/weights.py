"""From safetensors into a module, one tensor at a time.

A module is built without memory, compared with the headers of the files, and only then filled: errors and the memory
that is needed are known before any is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from agent_tts.model.entries import CheckpointError, Shape, index_of, read_index, tensor_shapes

P = ParamSpec("P")
M = TypeVar("M", bound=nn.Module)

# The weights of a checkpoint folder: of the talker, the predictor and the speaker encoder; of the codec.
MODEL, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"

_SHOWN = 5  # names in an error message


class Loadable(nn.Module):
    """A module that knows the names of its tensors in a checkpoint."""

    __call__: Callable[..., Tensor]

    def checkpoint_name(self, name: str) -> str:
        """The name in the checkpoint of the tensor that is `name` here."""
        return name

    def checkpoint_names(self) -> dict[str, str]:
        """Our name of each tensor -> its name in the checkpoint."""
        return {name: self.checkpoint_name(name) for name in self.state_dict()}

    def checkpoint_shapes(self) -> dict[str, Shape]:
        return {self.checkpoint_name(name): tuple(tensor.shape) for name, tensor in self.state_dict().items()}


def build(module: Callable[P, M], *args: P.args, **kwargs: P.kwargs) -> M:
    """A module whose parameters take no memory until they are loaded; its buffers are real at once."""
    with _NoMemory():
        return module(*args, **kwargs).eval()


def hollow(module: Loadable, dtype: torch.dtype) -> None:
    """Makes a module from `build` one of shapes alone, on the meta device, as `LoadPlan.load` makes it on another."""
    for name, tensor in module.state_dict().items():
        _place(module, name, torch.empty(tensor.shape, dtype=dtype, device="meta"))
    module.to("meta")


class _NoMemory(TorchFunctionMode):
    """Makes `torch.empty`, which allocates the parameters of torch's layers, give meta tensors, and leaves them so.

    To draw the values of a meta tensor, torch would import its compiler, for 1.7 s.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"]
        device = {"device": "meta"} if func is torch.empty else {}
        return func(*args, **(kwargs or {}) | device)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    module: Loadable
    folder: Path
    names: Mapping[str, str]  # our name of each parameter -> its name in the files
    files: Mapping[str, str]  # name in the files -> the file of the folder that has it
    dtype: torch.dtype
    nbytes: int  # memory that `load` takes on its device

    def load(self, device: torch.device | str) -> None:
        """Fills the module with frozen parameters, and moves its buffers to the device too.

        Raises CheckpointError: a value is not finite, or not in `dtype`.
        """
        ranges: list[Tensor] = []  # least and largest value of each tensor; NaN if it has one
        with ExitStack() as stack:
            files = {
                file: stack.enter_context(safe_open(self.folder / file, "pt")) for file in set(self.files.values())
            }
            for ours, theirs in self.names.items():
                # Always a copy: memory that is mapped to the file would change with it.
                tensor = files[self.files[theirs]].get_tensor(theirs).to(device, self.dtype, copy=True)
                ranges.append(torch.stack(tensor.aminmax()))
                _place(self.module, ours, tensor)
        self.module.to(device)
        finite = torch.stack(ranges).isfinite().all(dim=1).tolist()  # the only wait for a GPU
        if broken := [name for name, is_finite in zip(self.names.values(), finite, strict=True) if not is_finite]:
            dtype = str(self.dtype).removeprefix("torch.")
            raise CheckpointError(f"{self.files[broken[0]]}: not finite in {dtype}: {_listed(broken)}")


def _place(module: Loadable, name: str, tensor: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))


def plan(module: Loadable, folder: Path, weights: str, dtype: torch.dtype, unused: tuple[str, ...] = ()) -> LoadPlan:
    """Compares a module with a weights file of a checkpoint folder by the header of the file.

    Args:
        weights: MODEL or CODEC; if it does not exist but its index does, the shards of the index are read.
        unused: prefixes of tensors in the file that this module does not have.
    Raises:
        CheckpointError: a file is missing or not safetensors, the index contradicts the shards, or tensors do not fit.
    """
    contents = _contents(folder, weights)
    shapes = {name: shape for name, (_, shape) in contents.items()}
    expected = module.checkpoint_shapes()
    wrong = {
        "missing": [name for name in expected if name not in shapes],
        "not known here": [name for name in shapes if name not in expected and not name.startswith(unused)],
        "of another shape": [
            f"{name} {shapes[name]} instead of {shape}"
            for name, shape in expected.items()
            if shapes.get(name, shape) != shape
        ],
    }
    complaints = [f"{_listed(found)} {what}" for what, found in wrong.items() if found]
    if complaints:
        raise CheckpointError(f"{weights}: {'; '.join(complaints)}")
    elements = sum(math.prod(shape) for shape in expected.values())
    files = {name: contents[name][0] for name in expected}
    return LoadPlan(module, folder, module.checkpoint_names(), files, dtype, elements * dtype.itemsize)


def _contents(folder: Path, weights: str) -> dict[str, tuple[str, Shape]]:
    """File and shape of each tensor."""
    index = index_of(weights)
    if (folder / weights).exists() or not (folder / index).exists():
        return {name: (weights, shape) for name, shape in tensor_shapes(folder, weights).items()}
    shards = read_index(folder, weights)
    found: dict[str, tuple[str, Shape]] = {}
    for shard in sorted(set(shards.values())):
        for name, shape in tensor_shapes(folder, shard).items():
            if shards.get(name) != shard:
                said = f"says {shards[name]}" if name in shards else "does not name it"
                raise CheckpointError(f"{index}: {name} is in {shard}; the index {said}")
            found[name] = shard, shape
    if absent := [f"{name} in {shard}" for name, shard in shards.items() if name not in found]:
        raise CheckpointError(f"{index}: not there: {_listed(absent)}")
    return found


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
