"""Benchmarks of building: compiling, one changed table, planning, memory, size, nothing to do.

    python -m tools.bench.build [--part compile|plan|changed|thousand ...] [--store DIR] [--repeat N]
        [--small] [-o FILE]

Prints one Markdown table, with the machine, the date and the versions; it needs the build extra and no GPU.
Figures that are compared are measured in turns, each in a fresh process; the table has medians. ``-o``
writes the numbers as JSON as well.

``compile`` builds sixty mixed SM100 kernels into an empty store, with one worker and with two, against a loop
of ``operator.compile()`` and ``export_to_c()`` over the same sixty in one process, as a user writes it.
Compared are the times from the end of the plan to the last kernel stored, and of the loop alone: imports and
enumeration are out on both sides; auditing and storing are in, on ours. A row more compares the whole build,
which starts, looks at the toolchain, imports, plans, compiles, stores, links and writes, with the whole
process of the loop.

``plan`` plans 10,000 kernels, which twelve descriptions of operands lead to, by ``cutlass-aot plan``, against
a process that imports ``cutlass.operators`` and calls ``get_operators`` for all of sm_100a.

``thousand`` builds 1,000 kernels, which takes minutes, unless ``--store`` names a directory in which it was
done before; its workers' memory is read from /proc five times a second meanwhile. Then it measures the same
command with nothing left to do, and the size of the store.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.bench.command import Part, Result, Row, parser, run
from tools.bench.process import MemoryWatch, Numbers, Worker, environment, in_fresh_process, medians, timed

_HEAD = """[bundle]
name = "{name}"
version = "0"
targets = ["sm_100a"]
device = "b200"
"""
_TABLE = """
[[kernels]]
generator = "cutlass.operators"
operation = "gemm"
accumulator = "f32"
"""
SIXTY = [
    """family = "PersistentDenseGemm"
ab = ["f16", "bf16", "f8e4m3"]
out = "f16"
layouts = ["tnt"]
tile = ["128x64", "128x128", "256x128"]
cluster = "2x1"
use_tma_store = true
""",
    """family = "PersistentDenseGemmPreferredCluster"
ab = ["f16", "bf16", "f8e4m3"]
out = "f16"
layouts = ["tnt"]
tile = ["256x128", "256x256"]
cluster = "4x1"
fallback_cluster = "2x1"
scheduler = "clc"
""",
    """family = "PersistentDenseGemmEFC"
ab = ["f16", "bf16", "f8e4m3"]
out = "f16"
layouts = ["tnt"]
tile = ["128x128", "256x128", "256x256"]
cluster = ["2x1", "4x1"]
""",
]
TEN_THOUSAND = [
    """ab = ["f16", "bf16"]
out = ["same", "f32"]
layouts = ["tnt", "ttt", "nnt"]
family = ["PersistentDenseGemm", "PersistentDenseGemmPreferredCluster", "PersistentDenseGemmEFC"]
"""
]
THOUSAND = [
    """ab = "bf16"
layouts = ["tnt"]
family = ["PersistentDenseGemm", "PersistentDenseGemmPreferredCluster", "PersistentDenseGemmEFC"]
""",
    """ab = "f8e4m3"
out = "bf16"
layouts = ["tnt"]
family = "PersistentDenseGemm"
tile = ["128x128", "256x128"]
cluster = ["1x1", "2x1", "4x1"]
""",
    """ab = "f16"
layouts = ["tnt"]
family = "PersistentDenseGemm"
tile = ["128x64", "128x128", "256x128"]
""",
]
MEMORY_LIMIT = 1.2e9


def manifest(directory: Path, name: str, tables: Sequence[str]) -> Path:
    """Write a manifest of these tables."""
    path = directory / f"{name}.toml"
    path.write_text(_HEAD.format(name=name) + "".join(_TABLE + own for own in tables), encoding="utf-8")
    return path


# ---- in fresh processes ----------------------------------------------------------------------------------


def worker_build(path: str, store: str, out: str, jobs: str) -> Numbers:
    """Build a manifest; seconds of the compiling and of everything, from the start of this process."""
    from cutlass_aot.builder import events
    from cutlass_aot.builder.build import build
    from cutlass_aot.builder.settings import Settings

    marks: dict[str, float] = {}
    kernels = 0

    def listen(event: events.Event) -> None:
        nonlocal kernels
        if isinstance(event, events.Planned):
            marks["planned"] = time.perf_counter()
        if isinstance(event, events.Compiled):
            marks["compiled"] = time.perf_counter()
            kernels += 1

    result = build(Path(path), Path(out), Settings(Path(store), int(jobs), 600.0, listen))
    if result.failures:
        raise RuntimeError(f"{len(result.failures)} kernels failed: {result.failures[0].reason}")
    compiling = marks["compiled"] - marks["planned"] if kernels else 0.0
    return {"compile": compiling, "kernels": kernels, "all": _age()}


def worker_loop(plan: str, directory: str) -> Numbers:
    """Compile and export the kernels of a plan one after the other, as a user of the packages does."""
    import cutlass.operators
    import cutlass.utils
    import torch

    from cutlass_aot.generators.cutlass_operators import records
    from cutlass_aot.generators.device_profiles import load_profile

    class Hardware:
        """Static schedulers ask the GPU that is present, and there is none: one of 148 multiprocessors."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def get_max_active_clusters(self, size: int, *_: object, **__: object) -> int:
            return max(1, 148 // size)

    cutlass.utils.HardwareInfo = Hardware
    device = load_profile("b200")
    names = set(json.loads(Path(plan).read_text(encoding="utf-8")))
    chosen = []
    for element in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        arguments = cutlass.operators.GemmArguments(
            torch.empty(1, 512, 2048, dtype=element, device="meta"),
            torch.empty(1, 1024, 2048, dtype=element, device="meta").transpose(1, 2),
            torch.empty(1, 512, 1024, dtype=torch.float16, device="meta"),
            accumulator_type=torch.float32,
        )
        chosen += [
            (operator, arguments)
            for operator in cutlass.operators.get_operators(arguments, target_sm="100a")
            if not records.refusal(operator) and records.record(operator, "sm_100a", device).name in names
        ]
    start = time.perf_counter()
    for index, (operator, arguments) in enumerate(chosen):
        compiled = operator.compile(arguments, target_sm="100a").compiled_obj
        path = f"{directory}/{index}.o"
        compiled.export_to_c(path, function_name=f"kernel_{index}", export_only_tvm_ffi_symbols=True)
    return {"compile": time.perf_counter() - start, "kernels": len(chosen), "all": _age()}


def worker_catalogue(target: str) -> Numbers:
    """Enumerate a target's whole catalogue."""
    import cutlass.operators

    count = len(cutlass.operators.get_operators(target_sm=target))
    return {"operators": count, "all": _age()}


def _age() -> float:
    """Seconds since this process was started."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - started / 100


WORKERS: dict[str, Worker] = {
    "build": worker_build,
    "loop": worker_loop,
    "catalogue": worker_catalogue,
}


# ---- here ------------------------------------------------------------------------------------------------


def command(*words: object) -> tuple[float, str]:
    """Seconds that ``cutlass-aot`` takes, and what it prints.

    Raises:
        RuntimeError: with the end of what it wrote, if it fails.
    """
    command = [sys.executable, "-m", "cutlass_aot", *map(str, words)]
    seconds, done = timed(
        lambda: subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip())[-300:])
    return seconds, done.stdout


def planned(path: Path) -> set[str]:
    """Names of the kernels that a manifest lists."""
    with tempfile.TemporaryDirectory() as store:
        listed = json.loads(command("plan", path, "--store", store, "--json")[1])
    return {item["name"] for item in listed["kernels"]}


def part_compile(arguments: argparse.Namespace) -> Result:
    """Sixty kernels, with one worker and two, against a loop."""
    tables = (
        SIXTY if not arguments.small else [SIXTY[0].replace('"f16", "bf16", ', "").replace('"128x64", ', "")]
    )
    runs: dict[str, list[Numbers]] = {"loop": [], "1": [], "2": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = manifest(folder, "sixty", tables)
        plan = folder / "plan.json"
        plan.write_text(json.dumps(sorted(planned(path))))
        for turn in range(arguments.repeat):
            (folder / "loop").mkdir(exist_ok=True)
            runs["loop"].append(in_fresh_process(__file__, "loop", plan, folder / "loop"))
            for jobs in ("1", "2"):
                own = folder / f"{turn}-{jobs}"
                runs[jobs].append(
                    in_fresh_process(__file__, "build", path, own / "store", own / "bundles", jobs)
                )
    figures = {name: medians(own) for name, own in runs.items()}
    if not figures["loop"]["kernels"] == figures["1"]["kernels"] == figures["2"]["kernels"]:
        raise RuntimeError("the loop and the build did not compile the same kernels")
    loop = figures["loop"]
    rows = []
    for jobs, goal in (("1", 1.25), ("2", 2.3)):
        ours = figures[jobs]
        ratio, whole = loop["compile"] / ours["compile"], loop["all"] / ours["all"]
        workers = "one worker" if jobs == "1" else "two workers"
        rows += [
            Row(
                f"compile {loop['kernels']:.0f} mixed SM100 kernels, {workers}, against a loop",
                f"{ours['kernels'] / ours['compile']:.2f} a second against "
                f"{loop['kernels'] / loop['compile']:.2f}: {ratio:.2f}x",
                f"≥ {goal}x",
                ratio >= goal,
            ),
            Row(
                f"the same, the whole build against the whole process ({workers})",
                f"{ours['all']:.1f} s against {loop['all']:.1f} s: {whole:.2f}x",
            ),
        ]
    return Result(rows, figures)


def part_plan(arguments: argparse.Namespace) -> Result:
    """Plan 10,000 kernels, against the whole catalogue."""
    tables = [TEN_THOUSAND[0].replace('"tnt", "ttt", "nnt"', '"tnt"')] if arguments.small else TEN_THOUSAND
    target = "90a" if arguments.small else "100a"
    runs = []
    with tempfile.TemporaryDirectory() as name:
        path = manifest(Path(name), "plan", tables)
        count = len(planned(path))
        for _turn in range(arguments.repeat):
            ours, _ = command("plan", path, "--store", Path(name) / "none", "--json")
            theirs = in_fresh_process(__file__, "catalogue", target)
            runs.append({"ours": ours, "theirs": theirs["all"], "operators": theirs["operators"]})
    figures = medians(runs) | {"kernels": float(count)}
    ratio = figures["theirs"] / figures["ours"]
    row = Row(
        f"plan {count:,} kernels from descriptions of operands, against enumerating all of sm_{target} "
        f"({figures['operators']:,.0f}), imports in",
        f"{figures['ours']:.2f} s against {figures['theirs']:.1f} s: {ratio:.1f}x",
        "≥ 5x",
        ratio >= 5,
    )
    return Result([row], figures)


def part_changed(arguments: argparse.Namespace) -> Result:
    """Change one of ten tables: what was not there before is compiled, and nothing else."""
    tiles = ("128x64", "128x128") if arguments.small else (
        "64x32", "64x64", "64x128", "64x256", "128x64", "128x128", "128x256", "256x64", "256x128", "256x256",
    )  # fmt: skip
    tables = [
        f'family = "PersistentDenseGemm"\nab = "bf16"\nlayouts = ["tnt"]\ntile = "{tile}"\ncluster = "2x1"\n'
        'scheduler = "clc"\nuse_tma_store = true\n'
        for tile in tiles
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = ("--store", folder / "store", "--out", folder / "bundles")
        path = manifest(folder, "tables", tables)
        before = planned(path)
        first = _compiled(command("build", path, *words)[1])
        tables[1] = tables[1].replace('"clc"', '["clc", "static"]')
        manifest(folder, "tables", tables)
        after = planned(path)
        seconds, text = command("build", path, *words)
    expected, compiled = len(after - before), _compiled(text)
    row = Row(
        f"change one `[[kernels]]` table of {len(tables)} ({len(before)} kernels)",
        f"{compiled} compiled, {expected} new, in {seconds:.1f} s",
        "exactly what changed",
        first == len(before) and compiled == expected > 0,
    )
    numbers = {"first": first, "expected": expected, "compiled": compiled, "seconds": seconds}
    return Result([row], numbers)


def _compiled(text: str) -> int:
    """How many kernels ``cutlass-aot build`` says it compiled."""
    return int(text.rpartition(" compiled")[0].rpartition(", ")[2])


def part_thousand(arguments: argparse.Namespace) -> Result:
    """A thousand kernels: memory while they are built, then nothing to do, then the store's size."""
    tables = THOUSAND if not arguments.small else [SIXTY[1].replace('"f16", "bf16", ', "")]
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.store or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "thousand.toml"
        text = manifest(Path(name), "thousand", tables).read_bytes()
        # An unchanged manifest keeps its date, by which a build sees that it has nothing to do.
        if not path.is_file() or path.read_bytes() != text:
            path.write_bytes(text)
        words = ("build", path, "--store", folder / "store", "--out", folder / "bundles")
        with MemoryWatch() as watch:
            seconds, printed = command(*words)
        compiled = _compiled(printed)
        kernels = int(printed.rpartition(" kernels,")[0].rpartition(" ")[2])
        idle = [(command(*words)[0], _import_seconds()) for _turn in range(2 * arguments.repeat + 1)]
        size, objects = _sizes(folder / "store")
    nothing, imports = (statistics.median(column) for column in zip(*idle, strict=True))
    rows = []
    if compiled >= kernels:
        rows.append(
            Row(
                f"memory of any worker over {compiled:,} compiles",
                f"{watch.largest_bytes / 1e9:.2f} GB, {watch.workers} workers, {seconds:.0f} s",
                "≤ 1.2 GB",
                watch.largest_bytes <= MEMORY_LIMIT,
            )
        )
    rows += [
        Row(
            f"build with nothing to do, {kernels:,} kernels present",
            f"{nothing:.3f} s, {nothing / imports:.1f}x `import click, msgpack` ({imports:.3f} s)",
            "≤ 0.4 s, ≤ 3x",
            nothing <= 0.4 and nothing <= 3 * imports,
        ),
        Row(
            "size of a kernel in the store, against its object",
            f"{size / kernels / 1e3:.1f} KB against {objects / kernels / 1e3:.1f} KB: {size / objects:.3f}x",
            "≤ 0.25x",
            size <= 0.25 * objects,
        ),
    ]
    numbers = {
        "kernels": kernels, "compiled": compiled, "seconds": seconds, "peak_bytes": watch.largest_bytes,
        "workers": watch.workers, "nothing": nothing, "imports": imports, "size": size, "objects": objects,
    }  # fmt: skip
    return Result(rows, numbers)


def _import_seconds() -> float:
    words = [sys.executable, "-c", "import click, msgpack"]
    return timed(lambda: subprocess.run(words, check=True, env=environment()))[0]


def _sizes(root: Path) -> tuple[int, int]:
    """Bytes of the objects of a store's kernels as they are kept, with their records, and as objects."""
    from cutlass_aot.store.store import Store

    store = Store(root, create=False)
    kept = {}
    size = objects = 0
    for kind, key, path in store.records():
        body = store.get_record(kind, key) if kind == "kernel" else None
        if body is not None:
            kept[str(body["sha256"])] = int(body["size"])
            size += path.stat().st_size
    for sha256, length in kept.items():
        size += store.blob_path(sha256).stat().st_size
        objects += length
    return size, objects


PARTS: dict[str, Part] = {
    "compile": part_compile,
    "plan": part_plan,
    "changed": part_changed,
    "thousand": part_thousand,
}


def main() -> None:
    """Measure, and print the table."""
    made = parser(__doc__, PARTS, repeat=3)
    made.add_argument("--store", type=Path, help="where the thousand kernels are, or are to be kept")
    made.add_argument("--small", action="store_true", help="a few kernels instead, to try this script")
    run(made.parse_args(), PARTS, WORKERS)


if __name__ == "__main__":
    main()
