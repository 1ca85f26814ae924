"""What bundles of programs came to: requests, seconds of compiling, and sizes, by bundle and target.

python -m tools.bench.programs_table build/bundles/fa4 build/bundles/quack --store build/store
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from cutlass_aot.bundle.files import list_files
from cutlass_aot.programs.serve.ledger import estimated_seconds
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.schema.codec import from_plain
from cutlass_aot.schema.requests.request import GENERATOR
from cutlass_aot.store.store import Store


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--store", type=Path, default=Path("build/store"))
    options = parser.parse_args()
    seconds = compile_seconds(options.store)
    print(
        f"{'bundle':10}  target   requests  callables  compiling, s  estimate, s  median, s  GPU code, KB  "
        "packed, KB  bundle, KB"
    )
    for path in options.bundles:
        bundle = open_bundle(path, check=False)
        size = sum((path / name).stat().st_size for name in list_files(path).regular)
        for target in bundle.targets:
            kernels = [
                kernel for kernel in bundle.kernels(target=target) if kernel.kernel.generator == GENERATOR
            ]
            groups = [group for group in bundle.groups if group.target == target]
            times = sorted(seconds[kernel.kernel.digest] for kernel in kernels)
            plain = sum(kernel.entry.code.size for kernel in kernels)
            estimate = sum(estimated_seconds(kernel.entry.code.size) for kernel in kernels)
            packed = sum(reference.size for reference in {group.code for group in groups})
            print(
                f"{bundle.name:10}  {target:7}  {len(kernels):8}  {len(groups):9}  {sum(times):12.0f}  "
                f"{estimate:11.0f}  {times[len(times) // 2]:9.1f}  {plain / 1e3:12.0f}  "
                f"{packed / 1e3:10.0f}  {size / 1e3:10.0f}"
            )
    return 0


def compile_seconds(path: Path) -> dict[str, float]:
    """Seconds that compiling each kernel of a store took, by the kernel's digest; the latest of several."""
    from cutlass_aot.schema.kernels.kernel import Kernel

    store = Store(path, create=False)
    found: dict[str, float] = defaultdict(float)
    for kind, key, _ in store.records():
        if kind == "kernel":
            body = store.get_record(kind, key)
            if isinstance(body, dict):
                found[from_plain(Kernel, body["kernel"], "a kernel record").digest] = float(body["seconds"])
    store.close()
    return found


if __name__ == "__main__":
    raise SystemExit(main())
