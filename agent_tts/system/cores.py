"""The cores that a process may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# cgroup v2, then v1: a quota and a period in microseconds; "max" or -1 is no quota.
_QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us")


def cores() -> float:
    """The cores that this process may use: those of its affinity, or what its cgroup's quota allows."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min([float(usable), *(quota for files in _QUOTAS if (quota := _quota(files)) is not None)])


def _quota(files: str) -> float | None:
    """Cores by the quota in these files of a cgroup; None without one."""
    try:
        quota, period = " ".join(Path(file).read_text() for file in files.split()).split()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no such file, or "max"
        return None
