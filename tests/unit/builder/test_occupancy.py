"""The occupancy of kernels against numbers that NVIDIA's calculator gives, and the launches of host code."""

from __future__ import annotations

import pytest

from cutlass_aot.builder.link.kernel_object import KernelObject, LaunchNumbers
from cutlass_aot.builder.occupancy import limits_of, occupancy
from cutlass_aot.schema.targets import KNOWN_TARGETS


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared", "blocks", "limit"),
    [
        ("sm_80", 128, 12, 0, 16, "threads"),
        ("sm_80", 32, 12, 0, 32, "blocks"),
        ("sm_86", 256, 32, 0, 6, "threads"),
        ("sm_90a", 256, 255, 0, 1, "registers"),
        # 40 registers a thread are 1280 a warp: 51 warps fit, of which 48 are given.
        ("sm_90a", 256, 40, 0, 6, "registers"),
        ("sm_90a", 384, 168, 200 << 10, 1, "registers and shared memory"),
        ("sm_90a", 128, 32, 100 << 10, 2, "shared memory"),
        ("sm_90a", 128, 32, 227 << 10, 1, "shared memory"),
        ("sm_90a", 128, 32, 228 << 10, 0, "shared memory"),
        ("sm_120a", 1024, 168, 0, 0, "registers"),
        ("sm_90a", 1024, 16, 0, 2, "threads"),
        ("sm_90a", 1056, 16, 0, 0, "threads"),
        ("sm_90a", 2048, 16, 0, 0, "threads"),
    ],
)
def test_an_sm_holds_as_many_blocks_as_its_scarcest_resource_allows(
    target: str, threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    limits = limits_of(target)
    assert limits is not None
    found = occupancy(limits, threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.warps == blocks * -(-threads // 32) <= found.most_warps


def test_the_limits_of_every_target_are_known() -> None:
    assert all(limits_of(target) for target in KNOWN_TARGETS)
    assert limits_of("sm_75") is None


def host_code(*launches: dict[str, str]) -> str:
    lines = []
    for number, launch in enumerate(launches):
        for index, (place, value) in enumerate(launch.items()):
            name, kind = f"%{number}{index}", "i64" if place == "2" else "i32"
            lines.append(
                f"  {name} = getelementptr {{ [3 x i32], [3 x i32], i64, ptr, ptr, i32 }}, ptr %9, i32 0, "
                f"i32 {place}\n  store {kind} {value}, ptr {name}, align 4"
            )
    return "\n".join(lines)


BLOCK = {"1, i32 0": "128", "1, i32 1": "2", "1, i32 2": "1"}


def test_the_launches_of_host_code_are_read() -> None:
    grid = {"0, i32 0": "%7", "0, i32 1": "1", "0, i32 2": "1"}
    text = host_code({**BLOCK, "2": "4096", **grid}, {**BLOCK, "1, i32 0": "%5", "2": "%6"})
    assert KernelObject(text, b"").launches() == (
        LaunchNumbers((128, 2, 1), 4096),
        LaunchNumbers(None, None),
    )
    assert KernelObject("define void @f()", b"").launches() == ()
