"""Where the time of a build goes, and whether what makes it shorter leaves every object as it is.

    python -m tools.bench.profile_build [--part profile|digests] [--repeat N] [--kernels N]

Compiles the same sixty kernels as ``tools/bench/build.py --part compile``, each setting in fresh processes,
and prints a table of CPU milliseconds a kernel by phase, of the median run:

``loop``      ``operator.compile()`` and ``export_to_c()``, as a user writes it
``plain``     what a worker does, without :data:`~.fork_client.SETTINGS` but for an architecture
              that builds no JIT engine, and with Python's collector as it is
``worker``    what a worker does: with them, and with the collector out of the way

CPU time is what is measured: other programs on the machine disturb it less. The phases are functions of the
DSL, which are wrapped here and nowhere else. The last line is what the builder's own process spends on each
kernel: locks, looking into the store, keeping what came.

``--part digests`` compiles one kernel of each family for each target in settings ``plain`` and ``worker``
instead, in different orders, and fails if an object differs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench.build import SIXTY, manifest
from tools.bench.command import Part, Result, Row, Table, parser, run
from tools.bench.process import Numbers, Worker, in_fresh_process, medians

PHASES = {
    "enumerate": "enumeration of each problem's operators",
    "trace": "tracing in Python to MLIR",
    "passes": "MLIR passes, NVVM and ptxas",
    "entry": "the TVM-FFI entry",
    "engine": "JIT engine",
    "other": "the rest of `compile()`",
    "copy": "copying the module for the export",
    "object": "host code and the object file",
    "audit": "audit and digest",
}
SETTINGS = ("loop", "plain", "worker")
PROBLEMS = [("f16", "f16"), ("bf16", "f16"), ("f8e4m3", "f16")]
FOREIGN = "sm_80"


class Clock:
    """CPU seconds by phase; what runs within a phase counts as the inner one alone."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._inner = [0.0]

    def time(self, phase: str, action: Callable[[], Any]) -> Any:
        """Run something in a phase."""
        start = time.process_time()
        self._inner.append(0.0)
        try:
            return action()
        finally:
            spent = time.process_time() - start
            self.seconds[phase] += spent - self._inner.pop()
            self._inner[-1] += spent

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Have a function's time counted."""
        function = getattr(owner, name)
        setattr(owner, name, lambda *a, **k: self.time(phase, lambda: function(*a, **k)))


def variables(setting: str) -> dict[str, str]:
    """Environment variables of a setting, which the DSL and the C library read at their start."""
    from cutlass_aot.builder.compile.fork_client import SETTINGS as OURS

    if setting == "worker":
        return dict(OURS)
    own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}
    return own | {"CUTE_DSL_ARCH": FOREIGN} if setting == "plain" else own


def worker_profile(setting: str, count: str) -> Numbers:
    """Compile kernels one after the other; CPU seconds of each phase for one kernel."""
    from cutlass_aot.builder.compile.audit import audit, inspect_object
    from cutlass_aot.generators.cutlass_operators import worker as generator
    from cutlass_aot.generators.device_profiles import load_profile
    from cutlass_aot.generators.protocol import Problem
    from cutlass_aot.manifest.model import load_manifest
    from cutlass_aot.schema.encoding import digest

    clock = Clock()
    _wrap_compiler(clock)
    device = load_profile("b200")
    with tempfile.TemporaryDirectory() as name:
        tables = load_manifest(manifest(Path(name), "sixty", SIXTY)).tables
        kernels = []
        for ab, out in PROBLEMS:
            problem = Problem("gemm", (ab, ab, out), "tnt", "f32")
            enumerated = list(generator.enumerate_kernels(problem, "sm_100a", device))
            designs = [(kernel, dict(kernel.design)) for kernel in enumerated]
            for table in tables:
                kernels += [k for k, d in designs if all(f.accepts(d) for f in table.filters)]
        kernels = kernels[: int(count)]
        generator.operators_of.cache_clear()
        clock.wrap(generator, "operators_of", "enumerate")
        if setting == "worker":
            gc.collect()
            gc.freeze()
            gc.disable()
        start = time.process_time()
        path = Path(name) / "kernel.o"
        for kernel in kernels:
            compiled = clock.time("other", partial(generator.compile_kernel, kernel))
            clock.time("object", partial(_plain if setting == "loop" else _export, compiled, kernel, path))
            if setting != "loop":
                inspection = clock.time("audit", lambda: inspect_object(path.read_bytes()))
                clock.time("audit", partial(audit, inspection, kernel.target, kernel.symbol))
                clock.time("audit", lambda: digest(path.read_bytes()))
        total = time.process_time() - start
    return {phase: value / len(kernels) for phase, value in clock.seconds.items()} | {
        "total": total / len(kernels),
        "kernels": float(len(kernels)),
    }


def _export(compiled: Any, kernel: Any, path: Path) -> None:
    """Export as a worker does."""
    from cutlass_aot.builder.compile.export import export

    path.write_bytes(export(compiled, kernel.symbol, path.with_suffix(".ll")).to_bytes())


def _plain(compiled: Any, kernel: Any, path: Path) -> None:
    """Export as a user's loop does."""
    compiled.export_to_c(str(path), function_name=kernel.symbol, export_only_tvm_ffi_symbols=True)


def _wrap_compiler(clock: Clock) -> None:
    import cutlass.base_dsl.dsl
    from cutlass.base_dsl import tvm_ffi_builder as builder
    from cutlass.base_dsl.compiler import Compiler
    from cutlass.cutlass_dsl import tvm_ffi_provider as provider

    clock.wrap(cutlass.base_dsl.dsl.BaseDSL, "generate_original_ir", "trace")
    clock.wrap(Compiler, "compile", "passes")
    clock.wrap(Compiler, "jit", "engine")
    clock.wrap(builder, "attach_ffi_func", "entry")
    clock.wrap(provider.TVMFFIJitCompiledFunctionBase, "_create_tvm_ffi_function", "engine")
    clock.wrap(provider, "get_export_module", "copy")


def worker_builder(count: str) -> Numbers:
    """Build kernels; CPU seconds of this process for each, from the plan to the last kernel stored."""
    from cutlass_aot.builder import events
    from cutlass_aot.builder.build import build
    from cutlass_aot.builder.settings import Settings

    marks: list[float] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, (events.Planned, events.Compiled)):
            marks.append(time.process_time())

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = SIXTY if int(count) > 6 else [SIXTY[1]]
        path = manifest(folder, "sixty", tables)
        build(path, folder / "bundles", Settings(folder / "store", 1, 600.0, listen))
    return {"builder": (marks[-1] - marks[0]) / (len(marks) - 1)}


def worker_digests(setting: str) -> Numbers:
    """Digests of one object of each family for each target, as numbers."""
    from cutlass_aot.generators.cutlass_operators import worker as generator
    from cutlass_aot.generators.device_profiles import load_profile
    from cutlass_aot.generators.gemm import with_sums
    from cutlass_aot.generators.protocol import Problem
    from cutlass_aot.schema.encoding import digest

    kernels = []
    for target, model in (("sm_80", "h200"), ("sm_90a", "h200"), ("sm_100a", "b200"), ("sm_103a", "b200")):
        for ab, out in (("bf16", "bf16"), ("f8e4m3", "f32")):
            problem = with_sums(Problem("gemm", (ab, ab, out), "tnt", "f32"), "fast", target)
            families: dict[str, list[Any]] = {}
            for kernel in generator.enumerate_kernels(problem, target, load_profile(model)):
                families.setdefault(str(dict(kernel.design)["family"]), []).append(kernel)
            kernels += [min(own, key=lambda kernel: kernel.digest) for own in families.values()]
    kernels.sort(key=lambda kernel: kernel.digest, reverse=setting == "worker")
    digests = {}
    with tempfile.TemporaryDirectory() as name:
        for kernel in kernels:
            path = Path(name) / "kernel.o"
            _export(generator.compile_kernel(kernel), kernel, path)
            # Fifty bits are what a JSON number keeps.
            digests[kernel.name] = float(int(digest(path.read_bytes())[:12], 16))
    return dict(sorted(digests.items()))


WORKERS: dict[str, Worker] = {
    "profile": worker_profile,
    "builder": worker_builder,
    "digests": worker_digests,
}


def part_digests(arguments: argparse.Namespace) -> Result:
    """Compare objects of two settings; fails if one differs."""
    one, other = (
        in_fresh_process(__file__, "digests", setting, variables=variables(setting))
        for setting in ("plain", "worker")
    )
    differing = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    if differing:
        raise RuntimeError(f"of {len(one)} kernels {len(differing)} differ: {', '.join(differing)}")
    return Result([Row("objects in the settings `plain` and `worker`", f"{len(one)} kernels, 0 differ")], one)


def part_profile(arguments: argparse.Namespace) -> Result:
    """CPU time of each phase in each setting."""
    runs: dict[str, list[Numbers]] = {setting: [] for setting in SETTINGS}
    builder = []
    for _turn in range(arguments.repeat):
        for setting, own in runs.items():
            count = arguments.kernels
            own.append(in_fresh_process(__file__, "profile", setting, count, variables=variables(setting)))
        builder.append(in_fresh_process(__file__, "builder", arguments.kernels)["builder"])
    numbers = {setting: medians(own) for setting, own in runs.items()}
    rows = [
        (words, *(f"{numbers[setting][phase] * 1e3:.1f}" for setting in SETTINGS))
        for phase, words in {**PHASES, "total": "**in all**"}.items()
    ]
    rows.append(("the builder's own process", "", "", f"{statistics.median(builder) * 1e3:.1f}"))
    table = Table("CPU milliseconds a kernel", ("phase", *SETTINGS), rows)
    return Result([], {**numbers, "builder": statistics.median(builder)}, [table])


PARTS: dict[str, Part] = {"profile": part_profile, "digests": part_digests}


def main() -> None:
    """Measure, and print the table; or compare objects."""
    made = parser(__doc__, PARTS, repeat=3)
    made.add_argument("--kernels", type=int, default=60, help="how many of the sixty")
    run(made.parse_args(), PARTS, WORKERS, default=("profile",))


if __name__ == "__main__":
    main()
