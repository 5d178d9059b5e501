"""The cores that a process may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OWN, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cores() -> float:
    """The cores that this process may use: those of its affinity, or what the quotas of its cgroups allow."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([float(usable), *_quotas()])


def _quotas() -> Iterator[float]:
    """Cores by the quota of each cgroup that this process is in: its own, as of a service, and those above it."""
    with suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):  # version 2, and 1
                root, files = (_ROOT / "cpu", "cfs_quota_us cfs_period_us") if controllers else (_ROOT, "max")
                own = root / path.lstrip("/")
                for folder in (own, *(above for above in own.parents if above.is_relative_to(root))):
                    # A quota and a period in microseconds; "max" or -1 is no quota. A container sees its own alone.
                    with suppress(OSError, ValueError):
                        quota, period = " ".join((folder / f"cpu.{file}").read_text() for file in files.split()).split()
                        if int(quota) > 0:
                            yield int(quota) / int(period)
