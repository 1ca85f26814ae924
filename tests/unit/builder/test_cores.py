"""How many workers there are where nobody says."""

from __future__ import annotations

import pytest

from cutlass_aot.builder.compile.cores import (
    available_bytes,
    available_workers,
    core_quota,
    reasonable_workers,
)

GIB = 1 << 30


def put(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def root(tmp_path):
    put(tmp_path, "proc/meminfo", "MemTotal: 25165824 kB\nMemAvailable:   20971520 kB\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cores", "quota", "free", "workers"),
    [
        (8, None, None, 8),
        (8, 2.0, None, 2),
        (8, 1.5, None, 2),
        (8, 0.1, None, 1),
        (8, None, 3 * GIB + 5, 3),
        (8, None, 100, 1),
        (2, 16.0, 64 * GIB, 2),
    ],
)
def test_the_least_of_cores_quota_and_memory_counts(cores, quota, free, workers):
    assert reasonable_workers(cores, quota, free) == workers


def test_without_control_groups_memory_is_the_systems(root):
    assert core_quota(root) is None
    assert available_bytes(root) == 20 * GIB


def test_where_nothing_is_known_there_is_no_limit(tmp_path):
    assert core_quota(tmp_path) is None
    assert available_bytes(tmp_path) is None


def test_version_2_counts_every_group_around_this_process(root):
    put(root, "proc/self/cgroup", "0::/user.slice/build.scope\n")
    group = "sys/fs/cgroup/user.slice"
    put(root, f"{group}/build.scope/cpu.max", "max 100000\n")
    put(root, f"{group}/cpu.max", "150000 100000\n")
    put(root, f"{group}/build.scope/memory.max", f"{4 * GIB}\n")
    put(root, f"{group}/build.scope/memory.current", f"{3 * GIB}\n")
    put(root, f"{group}/build.scope/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    put(root, f"{group}/memory.max", "max\n")
    put(root, f"{group}/memory.current", f"{3 * GIB}\n")
    assert core_quota(root) == 1.5
    assert available_bytes(root) == 3 * GIB


def test_in_a_namespace_what_is_mounted_is_the_group(root):
    put(root, "proc/self/cgroup", "0::/../../outside\n")
    put(root, "sys/fs/cgroup/cpu.max", "200000 100000\n")
    put(root, "sys/fs/cgroup/memory.max", f"{2 * GIB}")
    put(root, "sys/fs/cgroup/memory.current", "0")
    assert core_quota(root) == 2
    assert available_bytes(root) == 2 * GIB


def test_version_1_has_a_tree_for_each_controller(root):
    put(root, "proc/self/cgroup", "7:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/x\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    put(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    put(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{5 * GIB}\n")
    put(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{GIB}\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    assert core_quota(root) == 3
    assert available_bytes(root) == 4 * GIB


@pytest.mark.parametrize("text", ["", "max", "max max", "1 0", "x y", "1 2 3", "-1 100000", "\udc80"])
def test_a_limit_that_makes_no_sense_is_none(root, text):
    put(root, "proc/self/cgroup", "0::/\nnonsense\n::\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_bytes(text.encode("utf-8", "surrogateescape"))
    (root / "sys/fs/cgroup/memory.max").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert core_quota(root) is None
    assert available_bytes(root) == 20 * GIB


def test_there_is_always_a_worker():
    assert available_workers() >= 1
