"""What a step has to have compiled, found out without a GPU: its launches on the meta device, each kind once.

Triton compiles a kernel anew for other types, for pointers that are aligned or not, for integers that are 1 or
divisible by 16, and for every constant and option. All of that is in the arguments, none of it in the memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_tts.model.kernels.launch import Capability

ALIGNED = 16  # bytes of pointers, and what integers are divided by


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor's place in the arguments of a kernel that is compiled and not run."""

    dtype: torch.dtype
    aligned: bool

    @staticmethod
    def of(tensor: Tensor) -> Pointer:
        """Of a tensor without memory. Allocations are aligned, so it is where in one the tensor begins that counts."""
        return Pointer(tensor.dtype, int(tensor.storage_offset()) * tensor.element_size() % ALIGNED == 0)

    def data_ptr(self) -> int:
        """What triton asks a tensor for."""
        return 0 if self.aligned else 1


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, and what it is compiled for."""

    kernel: Any  # of triton.jit
    args: tuple[Any, ...]  # with a `Pointer` for each tensor
    options: dict[str, Any]

    def compile(self) -> Any:
        """Triton's compiled kernel for its current target, out of the cache on the disk or into it."""
        return self.kernel.warmup(*self.args, grid=(1,), **self.options)


class Rehearsal:
    """Hears of the launches of steps on the meta device, for a GPU that need not be there."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability
        # By what triton tells them apart; in the order of their first launch.
        self._launches: dict[Hashable, Launch] = {}

    @property
    def launches(self) -> list[Launch]:
        """All that has to be compiled."""
        return list(self._launches.values())

    def launched(self, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Takes the launch down, unless triton has the same kernel for it as for an earlier one."""
        given = tuple(Pointer.of(value) if isinstance(value, Tensor) else value for value in args)
        kinds = tuple(_kind(*pair) for pair in zip(kernel.params, given, strict=False))
        self._launches.setdefault((kernel, kinds, tuple(options.items())), Launch(kernel, given, options))


def _kind(param: Any, value: object) -> Hashable:
    """What triton looks at in an argument."""
    if param.is_constexpr or isinstance(value, bool | Pointer):
        return value
    if isinstance(value, int) and not param.do_not_specialize:
        return value == 1, value % ALIGNED == 0, value.bit_length() > 31
    return type(value).__name__
