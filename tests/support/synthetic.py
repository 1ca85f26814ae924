"""Small bundles for tests, with libraries that hold symbols and no code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.bundle.plan import BundlePlan, GroupPlan, PackedFile
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import LAUNCHER_SYMBOLS, Facts
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.requests.request import CompiledRequest
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from tests.support.kernels import gemm
from tests.support.replace import replace
from tests.support.requests import compiled

REQUESTS = tuple(compiled(configuration={"object": "ops.norm:Norm", "fields": {"N": n}}) for n in (64, 128))
"""Two requests of one callable."""

FACTS = Facts("sm_90a", "12.9", 168, 0, 1024, 40_000)


def shared_object(
    exported: Sequence[str],
    *,
    undefined: Sequence[str] = (),
    needed: Sequence[str] = ("libtvm_ffi.so", "libc.so.6"),
    machine: int = 62,
    gnu_hash: bool = False,
) -> bytes:
    """A minimal shared library: one loaded segment, one dynamic segment, no sections."""
    strings, offsets = b"\0", {}
    for name in (*undefined, *exported, *needed):
        offsets[name] = len(strings)
        strings += name.encode() + b"\0"
    strings += b"\0" * (-len(strings) % 8)
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name in undefined:
        symbols += struct.pack("<IBBHQQ", offsets[name], 0x12, 0, 0, 0, 0)
    for name in exported:
        symbols += struct.pack("<IBBHQQ", offsets[name], 0x12, 0, 1, 0x100, 8)
    count = 1 + len(undefined) + len(exported)
    first = count - len(exported)
    if gnu_hash:
        chain = [0] * (len(exported) - 1) + [1] if exported else []
        words = [1, first, 1, 0, 0, 0, first if exported else 0, *chain]
    else:
        words = [1, count, 0, *([0] * count)]
    hashes = struct.pack(f"<{len(words)}I", *words)
    hashes += b"\0" * (-len(hashes) % 8)
    strings_at = 64 + 2 * 56
    symbols_at = strings_at + len(strings)
    hashes_at = symbols_at + len(symbols)
    dynamic_at = hashes_at + len(hashes)
    entries = [(1, offsets[name]) for name in needed]
    entries += [(5, strings_at), (10, len(strings)), (6, symbols_at), (11, 24)]
    entries += [(0x6FFFFEF5 if gnu_hash else 4, hashes_at), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    segments = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    segments += struct.pack("<IIQQQQQQ", 2, 4, *([dynamic_at] * 3), *([len(dynamic)] * 2), 8)
    return header + segments + strings + symbols + hashes + dynamic


def kernels(**changes: Any) -> tuple[Kernel, ...]:
    """Three functionally equivalent kernels."""
    return tuple(gemm(design={"family": "F", "tile_shape": (128, n, 64)}, **changes) for n in (64, 128, 256))


def entry(kernel: Kernel, code: CodeSpan | None = None) -> KernelEntry:
    return KernelEntry(
        kernel,
        kernel.digest,
        FACTS._replace(cubin_target=kernel.target),
        {"toolchain": "ab" * 32},
        code or CodeSpan(0, 64, digest(kernel.digest.encode())),
    )


def packed(folder: Path, name: str, kind: str, content: bytes) -> PackedFile:
    """A compressed file in ``folder``."""
    path = folder / f"packed-{name}.{kind}"
    data = compress(content, 3)
    path.write_bytes(data)
    return PackedFile(name, path, digest(data))


def exports(members: Sequence[Kernel]) -> list[str]:
    """What a library of these kernels shows."""
    return sorted(prefix + k.symbol for k in members for prefix in ("__tvm_ffi_", "cutlass_aot_code_"))


def group(folder: Path, members: Sequence[Kernel], **library: Any) -> GroupPlan:
    """A group of these kernels, with its code and its library written to ``folder``."""
    name = members[0].group_name
    codes = [f"GPU code of {kernel.digest}".encode() for kernel in members]
    spans = [CodeSpan(number * len(codes[0]), len(code), digest(code)) for number, code in enumerate(codes)]
    return GroupPlan(
        name,
        tuple(entry(kernel, span) for kernel, span in zip(members, spans, strict=True)),
        packed(folder, name, "zst", b"".join(codes)),
        {"x86_64": (packed(folder, name, "so.zst", shared_object(exports(members), **library)),)},
    )


def request_group(folder: Path, requests: Sequence[CompiledRequest] = REQUESTS) -> GroupPlan:
    """A group of kernels that answer requests of one callable and target."""
    made = group(folder, [compiled.request.kernel for compiled in requests])
    return replace(made, requests=tuple(requests))


def ranking(members: Sequence[Kernel], **changes: Any) -> Ranking:
    """Measured times of all these kernels for one problem, the last of them the fastest."""
    values: dict[str, Any] = {
        "group": members[0].group,
        "gpu": "NVIDIA H200",
        "measured": True,
        "origin": "tuned for a test",
        "problems": RankedProblems(
            [
                RankedProblem(
                    Extents(1, 512, 512, 512),
                    tuple(member.digest for member in reversed(members)),
                    tuple(2**-16 * (position + 1) for position in range(len(members))),
                )
            ]
        ),
    }
    return Ranking(**{**values, **changes})


def modelled(members: Sequence[Kernel], **changes: Any) -> Ranking:
    """The same order without times, as a heuristic gives it at build time."""
    found = ranking(members, measured=False, **changes)
    problems = RankedProblems(problem._replace(seconds=()) for problem in found.problems)
    return found._replace(problems=problems)


def launcher(folder: Path, name: str = "launcher", **library: Any) -> PackedFile:
    """A launcher, written to ``folder``."""
    made = packed(folder, name, "so.zst", shared_object(LAUNCHER_SYMBOLS, **library))
    return replace(made, name="launcher")


def plan(folder: Path, **changes: Any) -> BundlePlan:
    """A sound plan of two groups, a ranking, a launcher and a licence; its libraries are in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "name": "small",
        "version": "0.1.0",
        "device": "h200",
        "targets": ("sm_90a",),
        "hosts": ("x86_64",),
        "requirements": VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15.post2", glibc="2.28"),
        "provenance": {"nvidia-cutlass-dsl": "4.8.1"},
        "groups": (group(folder, kernels()), group(folder, kernels(dtypes=("bf16",) * 3))),
        "launchers": {"x86_64": launcher(folder)},
        "rankings": (ranking(kernels()),),
        "licenses": {"cutlass-aot.txt": b"Terms of what is linked in.\n"},
    }
    return BundlePlan(**{**values, **changes})
