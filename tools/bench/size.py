"""Benchmarks of what travels: bytes of a kernel in a wheel and installed, first use, and a second host.

    python -m tools.bench.size [--part size|use|units|hosts|levels ...] [--store DIR] [--repeat N]
        [--small] [-o FILE]

Prints one Markdown table, with the machine, the date and the versions; it needs the build extra and no GPU.
Figures that are compared are measured in turns, each in a fresh process; the table has medians. ``-o`` writes
the numbers as JSON as well.

The other side are plain libraries: the same kernels, of as many a library, linked the same way but with their
GPU code inside, as nothing compressed and nothing shared would be. They work: their slots point to it.

``size`` packs a bundle of 450 SM100 kernels, one group of 400 among them, as a wheel, against a wheel of the
plain libraries (deflate), and counts its installed bytes before first use.

``use`` is the host's part of the first use of a kernel in the group of 400, from an open bundle to the
function: what was there is read, verified, unpacked and mapped, its GPU code provided. Cold: with an empty
shared directory; then the next kernel of the group; then another process; against mapping the plain library
and looking the function up. Imports are out on all sides, and so is mapping the launcher, which is done once
a bundle and has a row of its own.

``units`` packs the GPU code of the 450 kernels in other ways: so many kernels together, at other levels, and
with other windows, which is how far back a frame may refer.

``hosts`` builds sixty kernels into an empty store for one host and for both.

``levels`` compresses objects of the store at other levels: bytes kept for a byte of object, and CPU time.

Kernels are compiled the first time, which takes minutes, unless ``--store`` names a directory in which they
are.
"""

from __future__ import annotations

import argparse
import io
import platform
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.store.store import Store
from tools.bench.build import SIXTY, command, manifest
from tools.bench.command import Part, Result, Row, parser, run
from tools.bench.process import Numbers, Worker, in_fresh_process, medians, timed

GROUP = 400
TABLES = [
    f"""ab = "bf16"
layouts = ["tnt"]
family = ["PersistentDenseGemm", "PersistentDenseGemmPreferredCluster", "PersistentDenseGemmEFC"]
max_per_group = {GROUP}
""",
    """ab = ["f16", "f8e4m3"]
out = ["f16", "f32"]
layouts = ["tnt", "ttt"]
family = "PersistentDenseGemm"
tile = ["128x128", "256x128", "256x256"]
cluster = ["2x1"]
use_2cta_mma = true
scheduler = "clc"
""",
]
SMALL = [TABLES[0].replace(str(GROUP), "12"), TABLES[1].replace('["f16", "f8e4m3"]', '"f16"')]
HOST = platform.machine()
LEVELS = (3, 9, 15, 19, 22)
STORE_LEVELS = (3, 9, 12, 15, 17, 19)
MOST = 200
UNITS = (1, 8, 32, 128, 512)
WINDOW_LOGS = (21, 25)


# ---- in fresh processes ----------------------------------------------------------------------------------


def worker_first(path: str, name: str, number: str) -> Numbers:
    """Milliseconds of the first use of a kernel of a group, and of the next, from an open bundle."""
    import tvm_ffi  # noqa: F401
    import zstandard  # noqa: F401

    from cutlass_aot.runtime.files.verified_read import read_catalog
    from cutlass_aot.runtime.launching.gpu_code import Code
    from cutlass_aot.runtime.launching.library import Library
    from cutlass_aot.runtime.opened.group import Group

    root = Path(path)
    catalog = read_catalog(root)
    (entry,) = (group for group in catalog.groups if group.name == name)
    libraries = [Library(root, reference) for reference in entry.libraries[HOST]]
    launcher = Library(root, catalog.launchers[HOST])
    group = Group(root, entry, Code(root, entry.code), libraries, launcher, lambda target, device: None)
    times = {"launcher": timed(lambda: launcher.function("cutlass_aot_launcher"))[0] * 1e3}
    first, next_one = int(number) % len(group.index), (int(number) + 1) % len(group.index)
    times["first"] = timed(lambda: group.function(first, 0))[0] * 1e3
    times["next"] = timed(lambda: group.function(next_one, 0))[0] * 1e3
    # The last kernel of the group may be in another library.
    times["far"] = (
        timed(lambda: group.function((first + len(group.index) // 2) % len(group.index), 0))[0] * 1e3
    )
    return times


def worker_plain(path: str, symbol: str) -> Numbers:
    """Milliseconds of mapping a plain library and looking a function up."""
    import ctypes

    import tvm_ffi

    def first() -> Any:
        library = ctypes.CDLL(path)
        address = ctypes.cast(getattr(library, f"__tvm_ffi_{symbol}"), ctypes.c_void_p).value
        return tvm_ffi.Function.__from_extern_c__(address or 0, keep_alive_object=library)

    return {"first": timed(first)[0] * 1e3}


def worker_unpack(path: str) -> Numbers:
    """Milliseconds of opening a frame, whatever its window, as a process does that has opened none before."""
    import zstandard  # noqa: F401

    from cutlass_aot.schema import compression

    compression.MAX_WINDOW_LOG = max(WINDOW_LOGS)
    data = Path(path).read_bytes()
    return {
        "unpack": timed(lambda: sum(map(len, compression.decompress(io.BytesIO(data), 1 << 30))))[0] * 1e3
    }


WORKERS: dict[str, Worker] = {"first": worker_first, "plain": worker_plain, "unpack": worker_unpack}


# ---- what is measured -------------------------------------------------------------------------------------


class Built:
    """The bundle, and the kernels' objects; compiled if they are not there.

    Args:
        folder: has, or takes, the store and the bundle.
        small: a few kernels instead.
    """

    def __init__(self, folder: Path, small: bool) -> None:
        from cutlass_aot.runtime.bundle import open_bundle

        folder.mkdir(parents=True, exist_ok=True)
        path = manifest(folder, "size", SMALL if small else TABLES)
        build(path, folder / "store", folder / "bundles")
        self.folder = folder
        self.path = folder / "bundles" / "size"
        self.bundle = open_bundle(self.path)
        self.group = max(self.bundle.groups, key=lambda group: group.kernel_count)
        self.store = Store(folder / "store", create=False)

    def objects(self) -> list[tuple[str, Any]]:
        """Every kernel's symbol and object, in the order of the bundle."""
        from cutlass_aot.builder.link.kernel_object import KernelObject

        pairs = []
        for handle in self.bundle.kernels():
            data = self.store.get_blob(handle.entry.object_sha256)
            if data is None:
                raise RuntimeError(f"the store has lost the object of {handle.name}")
            pairs.append((handle.kernel.symbol, KernelObject.from_bytes(data)))
        return pairs

    def plain(self) -> dict[Path, list[str]]:
        """Plain libraries of the kernels with the symbols of each; linked the first time."""
        from cutlass_aot.builder.link.linker import LinkToolchain
        from cutlass_aot.builder.link.packing import KERNELS_A_LIBRARY
        from cutlass_aot.schema.encoding import digest, encode

        linker = LinkToolchain.detect(HOST)
        objects = self.objects()
        made = {}
        for number in range(0, len(objects), KERNELS_A_LIBRARY):
            own = objects[number : number + KERNELS_A_LIBRARY]
            made_of = encode(
                [linker.fingerprint, [(symbol, digest(item.to_bytes())) for symbol, item in own]]
            )
            path = self.folder / f"plain-{digest(made_of)[:16]}.so"
            if not path.is_file():
                with tempfile.TemporaryDirectory() as folder:
                    texts = {symbol: with_code(item, symbol) for symbol, item in own}
                    cache = self.folder / "cache"
                    linker.link(linker.compile(texts, Path(folder), cache), path, cache)
            made[path] = [symbol for symbol, _ in own]
        return made


def with_code(item: Any, symbol: str) -> str:
    """Host code whose slot points to GPU code that stands beside it."""
    from cutlass_aot.schema.kernels.artifact import CODE_PREFIX

    slot = f"@{CODE_PREFIX}{symbol} = "
    before, slot_found, after = item.host_code.partition(f"{slot}global [2 x i64] zeroinitializer, align 8")
    if not slot_found:
        raise RuntimeError(f"{symbol}: its host code has no slot")
    escaped = "".join(f"\\{byte:02X}" for byte in item.gpu_code)
    size = len(item.gpu_code)
    code = f'@gpu_code = internal constant [{size} x i8] c"{escaped}", align 16\n'
    return f"{before}{code}{slot}global {{ ptr, i64 }} {{ ptr @gpu_code, i64 {size} }}, align 8{after}"


def build(path: Path, store: Path, out: Path) -> float:
    """Seconds of ``cutlass-aot build`` in a process of its own."""
    return command("build", path, "--store", store, "--out", out)[0]


def part_size(arguments: argparse.Namespace, built: Built) -> Result:
    """Bytes of a kernel in a wheel, and installed."""
    from cutlass_aot.bundle.wheel.write import build_wheels

    count = sum(group.kernel_count for group in built.bundle.groups)
    with tempfile.TemporaryDirectory() as name:
        wheel = sum(path.stat().st_size for path in build_wheels(built.path, Path(name))) / count
        archive = Path(name) / "plain.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for path in built.plain():
                file.write(path, path.name)
        plain_wheel = archive.stat().st_size / count
    installed = sum(path.stat().st_size for path in built.path.rglob("*") if path.is_file()) / count
    plain = sum(path.stat().st_size for path in built.plain()) / count
    rows = [
        Row(
            f"wheel bytes a kernel, {count} kernels",
            f"{wheel / 1e3:.2f} KB, plain libraries {plain_wheel / 1e3:.2f} KB",
            "≤ 4 KB",
            wheel <= 4000,
        ),
        Row(
            f"installed bytes a kernel before first use, {count} kernels",
            f"{installed / 1e3:.2f} KB, plain libraries {plain / 1e3:.2f} KB",
            "≤ 5 KB",
            installed <= 5000,
        ),
    ]
    folders: dict[str, float] = {}
    for path in built.path.rglob("*"):
        if path.is_file():
            kind = path.relative_to(built.path).parts[0]
            folders[kind] = folders.get(kind, 0.0) + path.stat().st_size / count
    shares = ", ".join(
        f"{kind} {size:.0f}" for kind, size in sorted(folders.items(), key=lambda item: -item[1])
    )
    rows.append(Row("of these, bytes a kernel", shares))
    numbers = {
        "kernels": count, "wheel": wheel, "plain_wheel": plain_wheel, "installed": installed,
        "plain": plain, "folders": folders,
    }  # fmt: skip
    return Result(rows, numbers)


def part_use(arguments: argparse.Namespace, built: Built) -> Result:
    """First use: cold, the next kernel, another process, and a plain library."""
    library, symbols = next(iter(built.plain().items()))
    cold, warm, plain = [], [], []
    for turn in range(4 * arguments.repeat + 1):
        with tempfile.TemporaryDirectory() as name:
            shared = {"CUTLASS_AOT_CACHE": str(Path(name) / "cache")}
            words = (built.path, built.group.name, 7 * turn)
            cold.append(in_fresh_process(__file__, "first", *words, variables=shared))
            warm.append(in_fresh_process(__file__, "first", *words, variables=shared))
            plain.append(in_fresh_process(__file__, "plain", library, symbols[7 * turn % len(symbols)]))
    first, again, other = medians(cold), medians(warm), medians(plain)
    group = f"group of {built.group.kernel_count}"
    rows = [
        Row(
            f"first use of a kernel in a {group}, cold",
            f"{first['first']:.2f} ms, plain library {other['first']:.2f} ms",
            "≤ 30 ms",
            first["first"] <= 30,
        ),
        Row(
            "the next kernel of it",
            f"{first['next']:.3f} ms; of another of its libraries {first['far']:.2f} ms",
            "≤ 1 ms",
            max(first["next"], first["far"]) <= 1,
        ),
        Row(
            "the same in another process, warm",
            f"{again['first']:.2f} ms, plain library {other['first']:.2f} ms",
            "≤ 1.5 ms",
            again["first"] <= 1.5,
        ),
        Row("the launcher, once a bundle", f"{again['launcher']:.2f} ms"),
    ]
    return Result(rows, {"cold": first, "warm": again, "plain": other})


def part_units(arguments: argparse.Namespace, built: Built) -> Result:
    """GPU code packed in other ways."""
    from cutlass_aot.builder.link.libraries import COMPRESSION_LEVEL
    from cutlass_aot.schema.compression import MAX_WINDOW_LOG, compress

    codes = [item.gpu_code for _, item in built.objects()]
    rows, numbers = [], {}
    ways = [(unit, COMPRESSION_LEVEL, MAX_WINDOW_LOG) for unit in UNITS]
    ways += [(128, level, MAX_WINDOW_LOG) for level in LEVELS]
    ways += [(max(UNITS), COMPRESSION_LEVEL, window_log) for window_log in WINDOW_LOGS]
    for unit, level, window_log in dict.fromkeys(ways):
        units = [b"".join(codes[first : first + unit]) for first in range(0, len(codes), unit)]
        start = time.perf_counter()
        packed = [compress(unit_code, level, window_log=window_log) for unit_code in units]
        seconds = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "packed"
            file.write_bytes(packed[max(range(len(units)), key=lambda index: len(units[index]))])
            times = [
                in_fresh_process(__file__, "unpack", file)["unpack"] for _ in range(4 * arguments.repeat + 1)
            ]
        unpack = statistics.median(times)
        size = sum(map(len, packed)) / len(codes)
        rows.append(
            Row(
                f"{min(unit, len(codes))} kernels together, level {level}, "
                f"window of {(1 << window_log) / 1e6:.1f} MB",
                f"{size:.0f} bytes a kernel, {seconds / len(codes) * 1e3:.1f} ms a kernel to pack, "
                f"{unpack:.2f} ms to unpack the largest",
            )
        )
        way = f"{unit} at {level} in {window_log}"
        numbers[way] = {"bytes": size, "pack": seconds / len(codes), "unpack": unpack}
    return Result(rows, numbers)


def part_hosts(arguments: argparse.Namespace, built: Built) -> Result:
    """Building for both hosts against building for one."""
    tables = SIXTY[:1] if arguments.small else SIXTY
    runs: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {}
        for count, hosts in ((1, '["x86_64"]'), (2, '["x86_64", "aarch64"]')):
            paths[count] = manifest(folder, f"hosts{count}", tables)
            text = paths[count].read_text(encoding="utf-8")
            paths[count].write_text(
                text.replace("\ndevice", f"\nhosts = {hosts}\ndevice", 1), encoding="utf-8"
            )
        for turn in range(arguments.repeat):
            for count in (1, 2) if turn % 2 else (2, 1):
                seconds = build(paths[count], folder / f"store{turn}{count}", folder / f"out{turn}{count}")
                runs[count].append(seconds)
    one, both = (statistics.median(runs[count]) for count in (1, 2))
    ratio = statistics.median(b / a for a, b in zip(runs[1], runs[2], strict=True))
    row = Row(
        "building both hosts, against building one",
        f"{both:.1f} s against {one:.1f} s: {ratio:.2f}x",
        "≤ 1.25x",
        ratio <= 1.25,
    )
    return Result([row], {"one": one, "both": both, "ratio": ratio})


def part_levels(arguments: argparse.Namespace, built: Built) -> Result:
    """What the objects of the store come to at each level of compression, their records included."""
    from cutlass_aot.schema.compression import compress

    objects, records = stored(built.store)
    rows, numbers = [], {}
    for level in STORE_LEVELS:
        begun = time.process_time()
        kept = sum(len(compress(data, level)) for data in objects)
        seconds = (time.process_time() - begun) / len(objects)
        numbers[str(level)] = {"ratio": (kept + records) / sum(map(len, objects)), "pack": seconds}
        rows.append(
            Row(
                f"{len(objects)} objects in a store, level {level}",
                f"{numbers[str(level)]['ratio']:.4f} of their size, {seconds * 1e3:.2f} ms each",
            )
        )
    return Result(rows, numbers)


def stored(store: Store) -> tuple[list[bytes], int]:
    """Objects of a store's kernels, at most :data:`MOST`, and the bytes of their records."""
    objects: list[bytes] = []
    records = 0
    for kind, key, path in store.records():
        body = store.get_record(kind, key) if kind == "kernel" and len(objects) < MOST else None
        data = store.get_blob(str(body["sha256"])) if body else None
        if data is not None:
            objects.append(data)
            records += path.stat().st_size
    return objects, records


PARTS: dict[str, Callable[[argparse.Namespace, Built], Result]] = {
    "size": part_size,
    "use": part_use,
    "units": part_units,
    "hosts": part_hosts,
    "levels": part_levels,
}


def with_bundle(part: Callable[[argparse.Namespace, Built], Result], built: Built) -> Part:
    return lambda arguments: part(arguments, built)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    made = parser(__doc__, PARTS, repeat=5)
    made.add_argument("--store", type=Path, help="where the kernels are, or are to be kept")
    made.add_argument("--small", action="store_true", help="a few kernels instead, to try this script")
    arguments = made.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        # A worker measures what its command line names.
        parts: dict[str, Part] = {}
        if not arguments.worker:
            built = Built(arguments.store or Path(folder), arguments.small)
            parts = {name: with_bundle(part, built) for name, part in PARTS.items()}
        run(arguments, parts, WORKERS)


if __name__ == "__main__":
    main()
