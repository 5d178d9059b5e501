"""The GPUs that kernels are compiled for. Imports no compiler."""

from __future__ import annotations

from dataclasses import dataclass

OLDEST = 80  # of NVIDIA, 10 * major + minor: those before it have no tensor cores for bfloat16
OLDEST_E4M3 = 89  # of NVIDIA: triton converts numbers in e4m3 for these
TENSOR_MEMORY = 512  # columns of a block, where there is such memory


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a kernel has to know of a GPU."""

    name: str  # as compilers call it: sm_90 of NVIDIA, gfx942 of AMD
    shared: int  # bytes of shared memory that one block may have

    @property
    def capability(self) -> int | None:
        """Of NVIDIA: 10 * major + minor. None of others, whatever PyTorch tells of them."""
        return int(self.name.removeprefix("sm_")) if self.name.startswith("sm_") else None

    @property
    def overlaps(self) -> bool:
        """Whether a kernel can start while the one before it still runs: programmatic dependent launch."""
        return (self.capability or 0) >= 90

    @property
    def has_warpgroups(self) -> bool:
        """Whether four warps multiply together, from shared memory: Hopper alone."""
        return self.capability == 90


# KiB. CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", maximum of a block. AMD: LDS.
_SHARED = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}
ARCHITECTURES = {name: Architecture(name, kib << 10) for name, kib in _SHARED.items()}


def architecture(name: str) -> Architecture:
    """By its name; of one that is not in the table the least that those of NVIDIA have."""
    return ARCHITECTURES.get(name) or Architecture(name, ARCHITECTURES["sm_89"].shared)


def of_nvidia(capability: tuple[int, int]) -> Architecture:
    """By major and minor of the compute capability."""
    major, minor = capability
    return architecture(f"sm_{major}{minor}")
