"""Write a synthetic bundle of very many kernels, to measure catalogs on machines that cannot build as many.

    python -m tools.bench.synthetic_bundle OUTPUT [--kernels 100000] [--launcher BUNDLE]

The records are made here; all the rest is what a build does: the builder names the groups and packs them into
libraries, the bundle's writer checks the plan, encodes the indices and writes the manifest. The libraries
alone are stand-ins of a few bytes: opening a bundle and looking a kernel up read none, but for the launcher
where there is a GPU, which is that of another bundle with ``--launcher``.

The mix is that of a large catalogue of GEMMs: every combination of sixteen rows of element types and eight of
layouts, on Blackwell (two targets, with and without a fused epilogue, a few hundred designs each), Hopper (24
designs) and Ampere (16-bit and integer types, 8 designs).
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.builder.link.libraries import LAUNCHER
from cutlass_aot.builder.link.packing import group_names, pack
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan, PackedFile
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.schema.bundles.catalog import VersionRequirements
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Facts
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel

KERNELS = 100_000
BLACKWELL = ("sm_100a", "sm_103a")
HOPPER, AMPERE = "sm_90a", "sm_80"
EPILOGUES = ("", "relu(accumulator)")
LAYOUTS = ("tnt", "ttt", "nnt", "ntt", "tnn", "ttn", "nnn", "ntn")

OUTPUTS = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "f8e4m3": ("bf16", "f16", "f32", "f8e4m3"),
    "f8e5m2": ("bf16", "f16", "f32", "f8e5m2"),
    "i8": ("i32", "i8"),
    "u8": ("i32", "u8"),
}
"""Element types of A and B to those of the output."""

FIXED_DESIGNS = {HOPPER: 24, AMPERE: 8}
"""Designs of a group on targets that have few; the Blackwell groups share what is left of the kernels."""

Design = dict[str, DesignValue]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the kernels of one group have in common."""

    ab: str
    out: str
    layouts: str
    target: str
    epilogue: str

    @property
    def accumulator(self) -> str:
        """The usual accumulator of the element types."""
        return "i32" if self.ab in ("i8", "u8") else "f32"

    def operands(self) -> tuple[OperandConstraint, ...]:
        """Constraints as GEMMs with 16-byte accesses have them."""
        extents = {"a": ("L", "M", "K"), "b": ("L", "K", "N"), "out": ("L", "M", "N")}
        return tuple(
            OperandConstraint(
                name=name,
                dtype=dtype,
                extents=extents[name],
                contiguous=-1 if layout == "t" else -2,
                divisibility=16 // DTYPES[dtype].bytes,
                alignment=16,
                written=name == "out",
            )
            for name, dtype, layout in zip(extents, (self.ab, self.ab, self.out), self.layouts, strict=True)
        )


def group_specs() -> list[GroupSpec]:
    """Every group there is."""
    specs = []
    for target in (*BLACKWELL, HOPPER, AMPERE):
        for epilogue in EPILOGUES if target in BLACKWELL else ("",):
            for (ab, outs), layouts in itertools.product(OUTPUTS.items(), LAYOUTS):
                if target == AMPERE and ab.startswith("f8"):
                    continue
                specs += [GroupSpec(ab, out, layouts, target, epilogue) for out in outs]
    return specs


def design_counts(specs: Sequence[GroupSpec], kernels: int) -> list[int]:
    """Number of designs of each group: together ``kernels``, on Blackwell from few to five times as many.

    Raises:
        ValueError: if ``kernels`` is too small, or more than there are designs for.
    """
    counts = [FIXED_DESIGNS.get(spec.target, 0) for spec in specs]
    blackwell = [index for index, count in enumerate(counts) if not count]
    rest = kernels - sum(counts)
    weights = [1 + position % 5 for position in range(len(blackwell))]
    share = rest // sum(weights)
    if share < 1:
        raise ValueError(f"expected at least {sum(counts) + sum(weights)} kernels, got {kernels}")
    for index, weight in zip(blackwell, weights, strict=True):
        counts[index] = share * weight
    over = kernels - sum(counts)
    for index in itertools.islice(itertools.cycle(blackwell), over):
        counts[index] += 1
    most = sum(1 for _ in blackwell_designs())
    if max(counts) > most:
        raise ValueError(f"{kernels} kernels need {max(counts)} designs in a group, there are {most}")
    return counts


def blackwell_designs() -> Iterator[Design]:
    """Designs as the persistent dense family has them, in the order that they are taken."""
    clusters = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1), (4, 2, 1), (4, 4, 1))
    for scheduler, store, cluster, n, (m, pair) in itertools.product(
        ("clc", "static"),
        (True, False),
        clusters,
        range(32, 257, 32),
        ((64, False), (128, False), (128, True), (256, True)),
    ):
        yield {
            "family": "PersistentDenseGemm",
            "tile_shape": (m, n, 64),
            "cluster_shape": cluster,
            "tile_scheduler": scheduler,
            "use_2cta_mma": pair,
            "use_tma_store": store,
        }


def older_designs(target: str) -> Iterator[Design]:
    """Designs as the Hopper and Ampere families have them."""
    clusters = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1))
    family = "Sm90StaticPersistentGemm" if target == HOPPER else "Sm80TensorOpGemm"
    for cluster, tile in itertools.product(
        clusters, ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256))
    ):
        yield {"family": family, "tile_shape": (*tile, 64), "cluster_shape": cluster}


def kernels_of(spec: GroupSpec, count: int) -> list[Kernel]:
    """The kernels of one group."""
    designs = blackwell_designs() if spec.target in BLACKWELL else older_designs(spec.target)
    operands = spec.operands()
    return [
        Kernel.make(
            operation="gemm",
            generator="cutlass.operators",
            operands=operands,
            accumulator=spec.accumulator,
            design=design,
            target=spec.target,
            epilogue=spec.epilogue,
        )
        for design in itertools.islice(designs, count)
    ]


def entry(kernel: Kernel) -> KernelEntry:
    """A kernel with facts and provenance like those of a real one."""
    number = int(kernel.digest[:4], 16)
    facts = Facts(kernel.target, "12.9.83", 40 + number % 200, 0, 1024, 30_000 + number)
    provenance = {
        "generator": kernel.generator,
        "generator_version": "1+" + "0" * 16,
        "toolchain": digest(b"synthetic toolchain"),
    }
    object_sha256 = digest(kernel.digest.encode())
    code = CodeSpan(0, 45_000, digest(object_sha256.encode()))
    return KernelEntry(kernel, object_sha256, facts, provenance, code)


def stand_in(name: str, kind: str, folder: Path) -> PackedFile:
    """A file in place of a library or of GPU code."""
    path = folder / f"{name}.{kind}"
    data = f"a stand-in for {name}, {kind}".encode()
    path.write_bytes(data)
    return PackedFile(name, path, digest(data))


def launcher_of(bundle: Path) -> PackedFile:
    """The launcher of a bundle."""
    path = bundle / read_catalog(bundle).launchers["x86_64"].path
    return PackedFile(LAUNCHER, path, digest(path.read_bytes()))


def synthetic_plan(kernels: int, folder: Path, launcher: Path | None = None) -> BundlePlan:
    """A plan of ``kernels`` kernels; its stand-ins for libraries are written to ``folder``.

    ``launcher`` is a bundle that has a real one.
    """
    specs = group_specs()
    counts = design_counts(specs, kernels)
    entries = [
        entry(kernel) for spec, count in zip(specs, counts, strict=True) for kernel in kernels_of(spec, count)
    ]
    names_of = group_names(entry.kernel for entry in entries)
    groups: dict[str, list[KernelEntry]] = {}
    for made in entries:
        groups.setdefault(names_of[made.kernel.group], []).append(made)
    packs = pack({name: (members[0].kernel.target, len(members)) for name, members in groups.items()})
    plans = []
    for library, names in packs.items():
        code, linked = stand_in(library, "zst", folder), {"x86_64": (stand_in(library, "so.zst", folder),)}
        plans += [GroupPlan(name, tuple(groups[name]), code, linked) for name in names]
    return BundlePlan(
        name="synthetic",
        version="0.1.0",
        device="b200",
        targets=sorted({spec.target for spec in specs}),
        hosts=["x86_64"],
        requirements=VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15", glibc="2.28"),
        provenance={"synthetic": str(kernels)},
        groups=plans,
        launchers={
            "x86_64": stand_in(LAUNCHER, "so.zst", folder) if launcher is None else launcher_of(launcher)
        },
        licenses={},
    )


def write_synthetic(kernels: int, output: Path, launcher: Path | None = None) -> None:
    """Write the bundle to ``output``, unless exactly it is there; ``launcher`` is a bundle with a real one.

    Raises:
        BundleError: if it cannot be written.
        ValueError: for a number of kernels that cannot be had.
    """
    with tempfile.TemporaryDirectory(prefix="cutlass-aot-synthetic-") as folder:
        write_bundle(synthetic_plan(kernels, Path(folder), launcher), output)


def main() -> None:
    """Write a synthetic bundle."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("output", type=Path, help="the bundle's directory")
    parser.add_argument("--kernels", type=int, default=KERNELS)
    parser.add_argument("--launcher", type=Path, help="a bundle whose launcher to take")
    arguments = parser.parse_args()
    write_synthetic(arguments.kernels, arguments.output, arguments.launcher)


if __name__ == "__main__":
    main()
