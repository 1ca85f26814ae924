"""How many kernels to compile at once where nobody says."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """Cores this process may use: its affinity, bounded by the quota of its control group (version 2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return max(1, min(cores, -(-int(quota) // int(period))))
    return cores
