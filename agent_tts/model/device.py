"""What the kinds of devices can do besides computing."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from agent_tts.errors import SettingsError


class Device:
    """The CPU; what differs on others is overridden."""

    # Work is queued on streams, with events, pinned memory and graphs; otherwise it is done when it is called.
    queues = False
    note = ""  # what to expect of it, for the log

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @staticmethod
    def of(device: torch.device) -> Device:
        """As one of its kind. It need not be there."""
        return _KINDS.get(device.type, Device)(device)

    @staticmethod
    def named(name: str) -> Device:
        """That of a setting: auto, cpu, mps, cuda or cuda:N. Raises SettingsError: it is not there."""
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        found = Device.of(torch.device("cuda:0" if name == "cuda" else name))  # kernels and graphs want a number
        found.check()
        return found

    @property
    def threads(self) -> int:
        """Of PyTorch on the host: the front keeps a core. Threads that wait for a busy core slow down every layer."""
        return max(1, (os.cpu_count() or 1) - 1)

    def check(self) -> None:
        """Raises SettingsError: it is not there."""

    def use(self) -> None:
        """Make it the current device of this thread."""

    def memory(self) -> tuple[int, int] | None:
        """Free and total memory, in bytes; None where the system does not tell."""
        try:
            lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
        except OSError:
            return None
        kib = {name: int(value) for name, value, *_ in lines}
        return kib["MemAvailable:"] * 1024, kib["MemTotal:"] * 1024

    def trim(self) -> None:
        """Give memory that PyTorch keeps for later back to the device. Not while a graph is captured."""


class Cuda(Device):
    """A GPU of NVIDIA or AMD."""

    queues = True
    threads = 1

    def check(self) -> None:
        if not torch.cuda.is_available():
            raise SettingsError(f"qwen3.device: {self.device} is not there: PyTorch sees no CUDA device; use cpu")
        if (self.device.index or 0) >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise SettingsError(f"qwen3.device: {self.device} is not there: this machine has {count}")

    def use(self) -> None:
        """Convolutions in float32 do not use TF32."""
        torch.cuda.set_device(self.device)
        torch.backends.cudnn.allow_tf32 = False

    def memory(self) -> tuple[int, int] | None:
        return torch.cuda.mem_get_info(self.device)

    def trim(self) -> None:
        torch.cuda.empty_cache()


class Metal(Device):
    """A GPU of Apple, whose memory is the host's."""

    note = "modules alone, without fused kernels and graphs; not measured: begin with one slot"
    threads = 1

    def check(self) -> None:
        if not torch.backends.mps.is_available():
            raise SettingsError(f"qwen3.device: {self.device} is not there: PyTorch sees no GPU of Apple; use cpu")

    def memory(self) -> tuple[int, int] | None:
        total = torch.mps.recommended_max_memory()
        return max(0, total - torch.mps.driver_allocated_memory()), total

    def trim(self) -> None:
        torch.mps.empty_cache()


_KINDS: dict[str, type[Device]] = {"cuda": Cuda, "mps": Metal}


def queues(device: torch.device) -> bool:
    return Device.of(device).queues
